/*
 * common.cuh - what the files of the CUDA half share: the device guard, and the checks of CUDA calls.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_COMMON_CUH
#define IFS_COMMON_CUH

#include "../src/device.h"

#include <cuda_runtime.h>

/* Makes `device` current for a scope, and restores the caller's device at its end. */
class ifs__device_guard {
  public:
    explicit ifs__device_guard(int device) {
        if (cudaGetDevice(&previous_) != cudaSuccess)
            previous_ = -1;
        status_ = previous_ == device ? cudaSuccess : cudaSetDevice(device);
        if (status_ != cudaSuccess)
            cudaGetLastError(); /* so that the next launch does not report it */
    }
    ~ifs__device_guard() {
        int now = -1;
        if (previous_ >= 0 && cudaGetDevice(&now) == cudaSuccess && now != previous_ &&
            cudaSetDevice(previous_) != cudaSuccess)
            cudaGetLastError();
    }
    ifs__device_guard(const ifs__device_guard &) = delete;
    ifs__device_guard &operator=(const ifs__device_guard &) = delete;
    cudaError_t status() const { return status_; }

  private:
    int previous_ = -1;
    cudaError_t status_;
};

/* The status of a CUDA error. The message begins with `what`, the action that failed. */
ifs_status ifs__cuda_failed(cudaError_t error, int device, const char *what);

/* IFS_OK unless `stream` is NULL. The message then says why. */
ifs_status ifs__check_stream(const ifs_stream *stream);

/* Opens a scope on `device`, or returns. */
#define IFS__GUARD(device, what)                                                                                       \
    ifs__device_guard ifs__guard(device);                                                                              \
    if (ifs__guard.status() != cudaSuccess)                                                                            \
        return ifs__cuda_failed(ifs__guard.status(), device, what);

/* Returns unless the call succeeds. */
#define IFS__CUDA(call, device, what)                                                                                  \
    do {                                                                                                               \
        cudaError_t ifs__error = (call);                                                                               \
        if (ifs__error != cudaSuccess)                                                                                 \
            return ifs__cuda_failed(ifs__error, device, what);                                                         \
    } while (0)

/* Returns the status of a call, which is made with `device` current. */
#define IFS__CUDA_ON(call, device, what)                                                                               \
    do {                                                                                                               \
        IFS__GUARD(device, what)                                                                                       \
        IFS__CUDA(call, device, what);                                                                                 \
        return IFS_OK;                                                                                                 \
    } while (0)

#endif
