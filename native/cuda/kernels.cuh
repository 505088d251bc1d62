/*
 * kernels.cuh - what the kernels share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_KERNELS_CUH
#define IFS_KERNELS_CUH

#include <cuda_fp16.h>
#include <stdint.h>

namespace {

constexpr uint32_t ALL = 0xffffffffu; /* lanes */

__device__ inline uint32_t lanes_below() { return (1u << (threadIdx.x & 31)) - 1; }

/*
 * Loads of what nothing writes while the kernel runs, through the read-only path. Not by __ldg: the compiler takes that
 * for free of side effects and moves it out of the `if` that guards it, so that it reads where there is nothing.
 */
__device__ inline uint32_t load(const uint32_t *at) {
    uint32_t value;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(at));
    return value;
}
__device__ inline float load(const float *at) {
    float value;
    asm("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(at));
    return value;
}
__device__ inline float load(const __half *at) {
    __half_raw value;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(value.x) : "l"(at));
    return __half2float(value);
}

} // namespace

#endif
