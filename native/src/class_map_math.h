/*
 * class_map_math.h - the arithmetic of class maps, once, for the host and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A pixel of the image lies between four points of the scores: (index, next) along each side. The score of a class is
 *
 *     v0 (w0 s00 + w1 s01) + v1 (w0 s10 + w1 s11)
 *
 * with each operation rounded to float32 by itself, and the highest score wins, of equal ones that of the first class.
 * NaN is higher than nothing. A neighbour of weight 0 takes no part, since 0 times an infinity is NaN: next is index
 * there, with a weight that changes no sum.
 */
#ifndef IFS_CLASS_MAP_MATH_H
#define IFS_CLASS_MAP_MATH_H

#include "mask_math.h"

typedef struct ifs__class_tap {
    int32_t index, next;
    int32_t beside; /* the point behind index: where all four have one class, nothing is interpolated */
    float weight[2];
} ifs__class_tap;

/* The points of a side around pixel `d` of the image; `side` has the points in place of the prototypes. */
static inline IFS__HD ifs__class_tap ifs__class_tap_of(const ifs__mask_side *side, int32_t d) {
    const int32_t last = side->prototypes - 1;
    const double u = ifs__mask_clamp((d + 0.5) * side->scale + side->shift, side->low, side->high);
    const double v = ifs__mask_clamp((u + 0.5) * ((double)side->prototypes / side->canvas) - 0.5, 0, last);
    const int32_t index = (int32_t)v;
    const double f = v - index;
    ifs__class_tap tap;
    tap.index = index;
    tap.beside = index < last ? index + 1 : last;
    tap.next = f > 0 ? tap.beside : index;
    tap.weight[0] = (float)(1 - f);
    tap.weight[1] = f > 0 ? (float)f : 0x1p-60f;
    return tap;
}

static inline IFS__HD float ifs__class_blend(float a, float b, float c, float d, const float across[2],
                                             const float down[2]) {
    return down[0] * (across[0] * a + across[1] * b) + down[1] * (across[0] * c + across[1] * d);
}

#endif
