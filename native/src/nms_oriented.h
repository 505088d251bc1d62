/*
 * nms_oriented.h - one oriented box against the better ones: one function for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_NMS_ORIENTED_H
#define IFS_NMS_ORIENTED_H

#include "internal.h"
#include "oriented_math.h"

/* Boxes, one array for each number of ifs__oriented. Each may be read up to 16 elements beyond the last box. */
typedef struct ifs__oriented_boxes {
    float *x, *y, *a, *b, *c, *root;
} ifs__oriented_boxes;

/* Whether one of `count` boxes from `first` on overlaps `box` by more than the limit. */
typedef bool ifs__oriented_suppressed_fn(const ifs__oriented_boxes *boxes, size_t first, size_t count,
                                         ifs__oriented box, ifs__oriented_limit limit);

ifs__oriented_suppressed_fn ifs__oriented_suppressed_avx2;

#endif
