/*
 * ipc.cu - device memory of other processes. SPDX-License-Identifier: Apache-2.0
 */
#include "common.cuh"

#include <string.h>

static_assert(sizeof(cudaIpcMemHandle_t) == IFS_CUDA_IPC_NBYTES, "the size of a handle is part of the interface");

typedef int (*address_range)(unsigned long long *base, size_t *size, unsigned long long address);

/* The bytes of the allocation from `address` on. Only the driver API reports them. */
static ifs_status bytes_behind(int32_t device, void *address, size_t *out) {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    IFS__CUDA(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000, cudaEnableDefault, &found),
              device, "looking up a function of the driver");
#else
    IFS__CUDA(cudaGetDriverEntryPoint("cuMemGetAddressRange", &function, cudaEnableDefault, &found), device,
              "looking up a function of the driver");
#endif
    if (found != cudaDriverEntryPointSuccess || !function)
        return ifs__fail(IFS_ERR_DEVICE, "the driver of cuda:%d has no cuMemGetAddressRange; update it", (int)device);
    unsigned long long base = 0, at = (unsigned long long)(uintptr_t)address;
    size_t size = 0;
    int error = ((address_range)function)(&base, &size, at);
    if (error != 0 || at < base || at - base > size)
        return ifs__fail(IFS_ERR_DEVICE, "the driver of cuda:%d does not say how long the memory at %p is (error %d)",
                         (int)device, address, error);
    *out = size - (size_t)(at - base);
    return IFS_OK;
}

ifs_status ifs_cuda_ipc_open(int32_t device, const uint8_t *handle, void **address, size_t *nbytes) {
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "opening the memory of another process");
    cudaIpcMemHandle_t native;
    memcpy(&native, handle, sizeof native);
    void *opened = nullptr;
    IFS__CUDA(cudaIpcOpenMemHandle(&opened, native, cudaIpcMemLazyEnablePeerAccess), device,
              "opening the memory of another process");
    size_t size = 0;
    ifs_status status = bytes_behind(device, opened, &size);
    if (status != IFS_OK) {
        if (cudaIpcCloseMemHandle(opened) != cudaSuccess)
            cudaGetLastError();
        return status;
    }
    *address = opened;
    *nbytes = size;
    return IFS_OK;
}

ifs_status ifs_cuda_ipc_close(int32_t device, void *address) {
    IFS__CUDA_ON(cudaIpcCloseMemHandle(address), device, "closing the memory of another process");
}

ifs_status ifs_cuda_ipc_export(int32_t device, void *address, uint8_t *handle) {
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "exporting memory to other processes");
    cudaIpcMemHandle_t native;
    IFS__CUDA(cudaIpcGetMemHandle(&native, address), device, "exporting memory to other processes");
    memcpy(handle, &native, sizeof native);
    return IFS_OK;
}
