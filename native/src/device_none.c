/* device_none.c - the device half of a CPU-only build. SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#ifndef IFS_CUDA

static ifs_status none(int32_t device) {
    return ifs__fail(
        IFS_ERR_NO_DEVICE,
        "no device cuda:%d: this build of infersdk is CPU-only; build it where nvcc is on PATH to use a GPU",
        (int)device);
}

ifs_status ifs__device_check(int32_t device) { return none(device); }

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out) {
    (void)nbytes, (void)out;
    return none(device);
}

void ifs__device_free(int32_t device, void *block) { (void)device, (void)block; }

ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out) {
    (void)nbytes, (void)out;
    return none(device);
}

void ifs__pinned_free(int32_t device, void *block) { (void)device, (void)block; }

ifs_status ifs__copy_to_device(int32_t device, void *dst, const void *src, size_t nbytes) {
    (void)dst, (void)src, (void)nbytes;
    return none(device);
}

ifs_status ifs__copy_to_host(int32_t device, void *dst, const void *src, size_t nbytes) {
    (void)dst, (void)src, (void)nbytes;
    return none(device);
}

#endif
