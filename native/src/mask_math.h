/*
 * mask_math.h - the arithmetic of instance masks, once, for the host and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The reference is Ultralytics' way: sigmoid(coefficients x prototypes), bilinear to the network's canvas, cut off the
 * padding, bilinear to the image, crop to the box, threshold. Both interpolations are separable and linear, so they are
 * one: along each side, a pixel of the image is the weighted sum of at most three neighbouring prototypes. A pixel is
 *
 *     h(r) = (w0 s(r, k) + w1 s(r, k + 1)) + w2 s(r, k + 2)      for the three rows r of the pixel
 *     value = (v0 h(0) + v1 h(1)) + v2 h(2)
 *
 * with each operation rounded to float32 by itself. Activations s are finite and never negative, so a term of weight 0
 * may be left out.
 */
#ifndef IFS_MASK_MATH_H
#define IFS_MASK_MATH_H

#include "fmath.h"

#include <math.h>

/* One side of the image, the canvas and the prototypes. */
typedef struct ifs__mask_side {
    double scale,
        shift;  /* the canvas coordinate of image pixel d is (d + 0.5) scale + shift; pixel centres are whole */
    int32_t low, high;    /* the canvas pixels that show the image: the others are padding */
    int32_t canvas, prototypes;
    int32_t first, end;   /* the pixels of the image that the canvas shows */
} ifs__mask_side;

typedef struct ifs__mask_tap {
    int32_t index; /* of the first of three prototypes; those beyond the last one have weight 0 */
    float weight[3];
} ifs__mask_tap;

/* 1 / (1 + exp(-x)); 0 for NaN. */
static inline IFS__HD float ifs__mask_sigmoid(float x) { return ifs__max(ifs__sigmoid(x), 0.0f); }

static inline IFS__HD double ifs__mask_clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

static inline IFS__HD ifs__mask_tap ifs__mask_tap_of(const ifs__mask_side *side, int32_t d) {
    const double u = ifs__mask_clamp((d + 0.5) * side->scale + side->shift, side->low, side->high);
    const int32_t i = (int32_t)u, next = i < side->high ? i + 1 : i; /* u is not negative */
    const double f = u - i, ratio = (double)side->prototypes / side->canvas, last = side->prototypes - 1;
    const double v0 = ifs__mask_clamp((i + 0.5) * ratio - 0.5, 0, last);
    const double v1 = ifs__mask_clamp((next + 0.5) * ratio - 0.5, 0, last);
    const int32_t k0 = (int32_t)v0, k1 = (int32_t)v1,
                  step = k1 - k0; /* 0 or 1: there are no more prototypes than pixels */
    const double g0 = v0 - k0, g1 = v1 - k1;
    const double a0 = (1 - f) * (1 - g0), a1 = (1 - f) * g0, b0 = f * (1 - g1), b1 = f * g1;
    ifs__mask_tap tap;
    tap.index = k0;
    tap.weight[0] = (float)(step ? a0 : a0 + b0);
    tap.weight[1] = (float)(step ? a1 + b0 : a1 + b1);
    tap.weight[2] = (float)(step ? b1 : 0);
    return tap;
}

/* Three values with the weights of a tap. */
static inline IFS__HD float ifs__mask_blend(float a, float b, float c, const float weight[3]) {
    return (weight[0] * a + weight[1] * b) + weight[2] * c;
}

/* The first pixel whose index is at least `edge` (0 to 2^20), within [first, end]: a box covers the pixels c with
 * x1 <= c < x2. */
static inline IFS__HD int32_t ifs__mask_edge(float edge, int32_t first, int32_t end) {
    int32_t pixel = !(edge > 0.0f) ? 0 : edge >= 1048576.0f ? 1048576 : (int32_t)edge;
    pixel += (float)pixel < edge;
    return pixel < first ? first : pixel > end ? end : pixel;
}

/* Bytes of a row of bits: whole words of 32. */
static inline IFS__HD int32_t ifs__mask_stride(int32_t width) { return (width / 32 + (width % 32 > 0)) * 4; }

#endif
