/* custom_ops.cu - kernels of custom operators on a device. SPDX-License-Identifier: Apache-2.0 */
#include "../src/custom_ops.h"
#include "common.cuh"

#include <stdlib.h>

/* The CUDA runtime loads compiled code by itself since 12.8. */
#define LOADS_CODE (CUDART_VERSION >= 12080)

struct ifs_cuda_code {
    int32_t device;
#if LOADS_CODE
    cudaLibrary_t library;
    cudaKernel_t kernel;
#endif
};

ifs_status ifs_cuda_code_load(const void *image, const char *function, int32_t device, ifs_cuda_code **out) {
#if LOADS_CODE
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "loading a compiled kernel");
    ifs_cuda_code *code = (ifs_cuda_code *)calloc(1, sizeof *code);
    if (!code)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for a compiled kernel");
    code->device = device;
    cudaError_t error = cudaLibraryLoadData(&code->library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (error != cudaSuccess) {
        free(code);
        return ifs__cuda_failed(error, device, "loading a compiled kernel");
    }
    error = cudaLibraryGetKernel(&code->kernel, code->library, function);
    if (error != cudaSuccess) {
        cudaLibraryUnload(code->library);
        cudaGetLastError(); /* neither failure may appear as that of the next launch */
        free(code);
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the compiled code has no kernel %s (%s); declare it: extern \"C\" __global__ void %s(...)",
                         function, cudaGetErrorName(error), function);
    }
    *out = code;
    return IFS_OK;
#else
    (void)image, (void)function, (void)device, (void)out;
    return ifs__fail(IFS_ERR_UNSUPPORTED,
                     "this build of infersdk has CUDA %d.%d, and loads compiled kernels from 12.8 on; build it with a "
                     "newer toolkit, or give the operator a CFunction as its CUDA kernel",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
#endif
}

ifs_status ifs__cuda_code_launch(const ifs_cuda_code *code, ifs__launch *launch, int32_t device, void *stream) {
#if LOADS_CODE
    IFS__GUARD(device, "launching the kernel");
    dim3 grid(launch->grid[0], launch->grid[1], launch->grid[2]);
    dim3 block(launch->block[0], launch->block[1], launch->block[2]);
    IFS__CUDA(cudaLaunchKernel((const void *)code->kernel, grid, block, launch->arguments, launch->shared,
                               (cudaStream_t)stream),
              device, "launching the kernel");
    return IFS_OK;
#else
    (void)code, (void)launch, (void)stream;
    return ifs__fail(IFS_ERR_UNSUPPORTED, "no compiled kernel can have been loaded on cuda:%d", (int)device);
#endif
}

ifs_status ifs__cuda_call(ifs_op_kernel *kernel, const ifs_op_call *call, int32_t *result) {
    IFS__GUARD(call->device, "the launcher of a custom operator");
    *result = kernel(call);
    return IFS_OK;
}
