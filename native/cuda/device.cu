/* device.cu - the device half of the core, through the CUDA runtime. SPDX-License-Identifier: Apache-2.0 */
#include "../src/device.h"

#include <cuda_runtime.h>

namespace {

/* Makes `device` current for a scope, and the caller's again behind it: a library must not change what it found. */
class DeviceGuard {
  public:
    explicit DeviceGuard(int device) {
        if (cudaGetDevice(&previous_) != cudaSuccess)
            previous_ = -1;
        status_ = cudaSetDevice(device);
    }
    ~DeviceGuard() {
        if (previous_ >= 0)
            cudaSetDevice(previous_);
    }
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;
    cudaError_t status() const { return status_; }

  private:
    int previous_ = -1;
    cudaError_t status_;
};

/* The status of a CUDA error, with what was being done in the message. */
ifs_status failed(cudaError_t error, int device, const char *what) {
    cudaGetLastError(); /* a sticky error must not surface in somebody else's next check */
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorInvalidDevice)
        return ifs__device_check(device);
    return ifs__fail(IFS_ERR_DEVICE, "%s on cuda:%d failed: %s (%s)", what, device, cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

} // namespace

#define GUARD(device, what)                                                                                            \
    DeviceGuard guard(device);                                                                                         \
    if (guard.status() != cudaSuccess)                                                                                 \
        return failed(guard.status(), device, what);

ifs_status ifs__device_check(int32_t device) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return ifs__fail(IFS_ERR_NO_DEVICE,
                         "no device cuda:%d: %s; install or update the NVIDIA driver, or use device=\"cpu\"",
                         (int)device, cudaGetErrorString(error));
    }
    if (device < 0 || device >= count)
        return ifs__fail(IFS_ERR_NO_DEVICE, "no device cuda:%d: this machine has %d, numbered from 0", (int)device,
                         count);
    return IFS_OK;
}

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out) {
    GUARD(device, "allocating device memory");
    cudaError_t error = cudaMalloc(out, nbytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free_bytes, &total);
        return ifs__fail(
            IFS_ERR_DEVICE_OUT_OF_MEMORY,
            "cuda:%d cannot give %zu bytes: %zu of its %zu are free; use a smaller batch, or close what is "
            "not needed",
            (int)device, nbytes, free_bytes, total);
    }
    return error == cudaSuccess ? IFS_OK : failed(error, device, "allocating device memory");
}

void ifs__device_free(int32_t device, void *block) {
    DeviceGuard guard(device);
    cudaFree(block);
}

ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out) {
    GUARD(device, "allocating page-locked memory");
    cudaError_t error = cudaHostAlloc(out, nbytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot page-lock %zu bytes of host memory", nbytes);
    }
    return error == cudaSuccess ? IFS_OK : failed(error, device, "allocating page-locked memory");
}

void ifs__pinned_free(int32_t device, void *block) {
    DeviceGuard guard(device);
    cudaFreeHost(block);
}

ifs_status ifs__copy_to_device(int32_t device, void *dst, const void *src, size_t nbytes) {
    GUARD(device, "copying to the device");
    cudaError_t error = cudaMemcpy(dst, src, nbytes, cudaMemcpyHostToDevice);
    return error == cudaSuccess ? IFS_OK : failed(error, device, "copying to the device");
}

ifs_status ifs__copy_to_host(int32_t device, void *dst, const void *src, size_t nbytes) {
    GUARD(device, "copying to the host");
    cudaError_t error = cudaMemcpy(dst, src, nbytes, cudaMemcpyDeviceToHost);
    return error == cudaSuccess ? IFS_OK : failed(error, device, "copying to the host");
}
