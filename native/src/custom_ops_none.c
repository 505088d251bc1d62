/* custom_ops_none.c - the device's half of custom operators in a CPU-only build. SPDX-License-Identifier: Apache-2.0 */
#include "custom_ops.h"

#ifndef IFS_CUDA

static ifs_status none(int32_t device) {
    return ifs__fail(IFS_ERR_NO_DEVICE,
                     "no device cuda:%d: this build of infersdk is CPU-only; build it where nvcc is on PATH to use a "
                     "GPU, or use device=\"cpu\"",
                     (int)device);
}

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the names are the documentation */
#endif

ifs_status ifs_cuda_code_load(const void *image, const char *function, int32_t device, ifs_cuda_code **out) {
    return none(device);
}
void ifs_cuda_code_unload(ifs_cuda_code *code) {}
ifs_status ifs__cuda_code_launch(const ifs_cuda_code *code, ifs__launch *launch, int32_t device, void *stream) {
    return none(device);
}
ifs_status ifs__cuda_call(ifs_op_kernel *kernel, const ifs_op_call *call, int32_t *result) {
    return none(call->device);
}

#endif
