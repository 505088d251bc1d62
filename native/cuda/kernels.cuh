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
 * Plain loads, though nothing writes what they read. The compiler takes __ldg, and ld.global.nc in inline assembly, for
 * free of side effects, and may move them out of the `if` that guards them, where they read what is not there.
 */
__device__ inline uint32_t load(const uint32_t *at) { return *at; }
__device__ inline float load(const float *at) { return *at; }
__device__ inline float load(const __half *at) { return __half2float(*at); }

} // namespace

#endif
