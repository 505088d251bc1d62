/*
 * topk.h - the passes of softmax and top-k, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_TOPK_H
#define IFS_TOPK_H

#include "internal.h"

#define IFS__TOPK_LANES 16

typedef struct ifs__topk_passes {
    /* Raises *max to the largest of x; false if an element is NaN. */
    bool (*maximum)(const float *x, size_t n, float *max);

    /* Adds exp(x[i] - max) to lane i % 16, in the order of i. */
    void (*add_exps)(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]);

    /* The elements, of n <= 64, above the threshold: one bit for each. */
    uint64_t (*above)(const float *x, size_t n, float threshold);
} ifs__topk_passes;

/* The reference. The vector variants call it for the values behind their last vector. */
bool ifs__maximum_plain(const float *x, size_t n, float *max);
void ifs__add_exps_plain(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]);

extern const ifs__topk_passes ifs__topk_avx2;

#endif
