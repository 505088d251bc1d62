/*
 * topk.h - the passes of softmax and top-k, one set of functions a SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_TOPK_H
#define IFS_TOPK_H

#include "internal.h"

#define IFS__TOPK_LANES 16

typedef struct ifs__topk_passes {
    /* Raises *max to the largest of x; false if there is NaN. */
    bool (*maximum)(const float *x, size_t n, float *max);

    /* Adds exp(x[i] - max) to lane i % 16, in the order of i. */
    void (*add_exps)(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]);

    /* Which of n <= 64 elements are above the threshold, a bit each. */
    uint64_t (*above)(const float *x, size_t n, float threshold);
} ifs__topk_passes;

#if IFS__X86
extern const ifs__topk_passes ifs__topk_avx2, ifs__topk_avx512;
#endif

#endif
