/*
 * pixel_math.h - the arithmetic of preprocessing, once, for the host and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything that decides a byte of a preprocessed image is defined here. The plain C kernels, the plan of a call, the
 * CUDA kernels and the tests include this file; a SIMD variant computes the same steps on lanes. All of it is integers
 * and single float operations that are rounded one by one (no contraction), so that every machine gives the same bytes.
 */
#ifndef IFS_PIXEL_MATH_H
#define IFS_PIXEL_MATH_H

#include "fmath.h"

#include <math.h>

/* ---- RESIZE: OpenCV's INTER_LINEAR for uint8 ---- */

/*
 * A canvas pixel d of a side takes the two source pixels `index` and index + 1, where
 *
 *     f = (float)((d + 0.5) * scale - 0.5)       double inside, rounded to float32 once
 *     index = floor(f)
 *     weights = rint((1 - (f - index)) * 2048), rint((f - index) * 2048)
 *
 * Along x, an index beyond the first or last pixel is that pixel with weight 2048 (`edge`). Along y the weights stay
 * and the caller clamps the rows.
 */
typedef struct ifs__tap {
    int32_t index;    /* of the first pixel: -1 to source - 1 */
    uint32_t weights; /* of the first pixel in the low half, of the second in the high half */
} ifs__tap;

/* 1 / (resized / source): what OpenCV computes. It is not always the same double as source / resized. */
static inline double ifs__resize_scale(int32_t source, int32_t resized) { return 1.0 / ((double)resized / source); }

/* floor() for what fits int32. Written out, because a call of libm's floorf() costs more than the rest of a tap. */
static inline IFS__HD int32_t ifs__floor_to_int(float value) {
#if defined(__CUDA_ARCH__)
    return __float2int_rd(value);
#else
    const int32_t truncated = (int32_t)value;
    return truncated - ((float)truncated > value);
#endif
}

/* rint() for 0 to 2^22: adding 1.5 * 2^23 leaves no bits behind the point. */
static inline IFS__HD uint32_t ifs__round_weight(float weight) {
#if defined(__CUDA_ARCH__)
    return __float2uint_rn(weight);
#else
    return (uint32_t)(int32_t)((weight + 12582912.0f) - 12582912.0f);
#endif
}

static inline IFS__HD ifs__tap ifs__resize_tap(int32_t d, double scale, int32_t source, bool edge) {
    float f = (float)((d + 0.5) * scale - 0.5);
    ifs__tap tap;
    tap.index = ifs__floor_to_int(f);
    f -= (float)tap.index;
    if (edge && tap.index < 0) {
        tap.index = 0;
        f = 0;
    } else if (edge && tap.index >= source - 1) {
        tap.index = source - 1;
        f = 0;
    }
    tap.weights = ifs__round_weight((1.0f - f) * 2048) | ifs__round_weight(f * 2048) << 16;
    return tap;
}

/* The two pixels of a tap, weighted: at most 255 * 2049. */
static inline IFS__HD uint32_t ifs__pixel_sum(uint32_t first, uint32_t second, uint32_t weights) {
    return first * (weights & 0xffff) + second * (weights >> 16);
}

/* The same with both pixels in the low two bytes of `pair`. */
static inline IFS__HD uint32_t ifs__pixel_pair_sum(uint32_t pair, uint32_t weights) {
#if defined(__CUDA_ARCH__)
    return __dp2a_lo(weights, pair, 0u);
#else
    return ifs__pixel_sum(pair & 255, pair >> 8 & 255, weights);
#endif
}

/*
 * Two rows of such sums, each >> 4, to a byte: (((b0 row0) >> 16) + ((b1 row1) >> 16) + 2) >> 2. The weights b0 and b1
 * are given in the high halves of `high0` and `high1`. The result needs no limit: two rounded weights are at most 2049
 * together, so a sum is at most 255 * 2049 >> 4 = 32655, and the two products together at most 1020.
 */
static inline IFS__HD uint32_t ifs__pixel_blend(uint32_t row0, uint32_t row1, uint32_t high0, uint32_t high1) {
#if defined(__CUDA_ARCH__)
    return (__umulhi(row0, high0) + __umulhi(row1, high1) + 2) >> 2;
#else
    return ((row0 * (high0 >> 16) >> 16) + (row1 * (high1 >> 16) >> 16) + 2) >> 2;
#endif
}

/* Exactly half the size along both sides: the mean of four pixels. Each row is the sum of two. */
static inline IFS__HD uint32_t ifs__pixel_mean(uint32_t row0, uint32_t row1) { return (row0 + row1 + 2) >> 2; }

/* ---- WARP: bilinear through an affine map ---- */

/*
 * The host rounds the map once to fixed point with 32 bits behind the point, in coordinates where the centre of a
 * source pixel is a whole number. Then, for canvas pixel (x, y):
 *
 *     X = origin[0] + x step_x[0] + y step_y[0]           modulo 2^64; the value itself always fits (IFS__MAX_REACH)
 *     x' = (X + 2^20) >> 21                               11 bits behind the point, ties up; likewise y'
 *     ix = x' >> 11, fx = x' & 2047                       >> is arithmetic
 *     top = p(ix, iy) (2048 - fx) + p(ix + 1, iy) fx      `bottom` likewise in row iy + 1
 *     value = (top (2048 - fy) + bottom fy + 2^21) >> 22  at most 255 * 2^22, which fits int32
 *
 * where p is the fill outside the image.
 */
typedef struct ifs__warp {
    int64_t origin[2], step_x[2], step_y[2]; /* [0] for x, [1] for y: the first canvas pixel, one to the right, down */
} ifs__warp;

static inline ifs__warp ifs__warp_of(const double m[6]) {
    const double one = 4294967296.0;
    ifs__warp warp;
    for (int axis = 0; axis < 2; axis++, m += 3) {
        warp.origin[axis] = (int64_t)rint((m[2] + 0.5 * m[0] + 0.5 * m[1] - 0.5) * one);
        warp.step_x[axis] = (int64_t)rint(m[0] * one);
        warp.step_y[axis] = (int64_t)rint(m[1] * one);
    }
    return warp;
}

/* X (axis 0) or Y (axis 1) of a canvas pixel. */
static inline IFS__HD int64_t ifs__warp_at(const ifs__warp *w, int axis, int32_t x, int32_t y) {
    return (int64_t)((uint64_t)w->origin[axis] + (uint64_t)w->step_x[axis] * (uint64_t)x +
                     (uint64_t)w->step_y[axis] * (uint64_t)y);
}

/* x' of X. */
static inline IFS__HD int64_t ifs__warp_round(int64_t coordinate) { return (coordinate + (1 << 20)) >> 21; }

static inline IFS__HD uint32_t ifs__pixel_warp_row(uint32_t left, uint32_t right, uint32_t fx) {
    return left * (2048 - fx) + right * fx;
}

static inline IFS__HD uint32_t ifs__pixel_warp(uint32_t top, uint32_t bottom, uint32_t fy) {
    return (top * (2048 - fy) + bottom * fy + (1u << 21)) >> 22;
}

/* ---- colour ---- */

static inline IFS__HD uint32_t ifs__pixel_saturate(int32_t value) {
    return (uint32_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* OpenCV's weights of blue, green and red in gray, with 15 bits behind the point. */
#define IFS__GRAY_B 3735
#define IFS__GRAY_G 19235
#define IFS__GRAY_R 9798

/* Three bytes to gray. `first` is red in RGB and blue in BGR. */
static inline IFS__HD uint32_t ifs__pixel_gray(uint32_t first, uint32_t green, uint32_t third, bool rgb) {
    const uint32_t red = rgb ? first : third, blue = rgb ? third : first;
    return (blue * IFS__GRAY_B + green * IFS__GRAY_G + red * IFS__GRAY_R + (1u << 14)) >> 15;
}

/* BT.601, limited range, with 20 bits behind the point, as OpenCV converts NV12. */
#define IFS__NV12_Y 1220542
#define IFS__NV12_BLUE_U 2116026
#define IFS__NV12_GREEN_U 409993
#define IFS__NV12_GREEN_V 852492
#define IFS__NV12_RED_V 1673527

/* Blue in the lowest byte, then green, then red. */
static inline IFS__HD uint32_t ifs__pixel_nv12(int32_t y, int32_t u, int32_t v) {
    const int32_t luma = (y > 16 ? y - 16 : 0) * IFS__NV12_Y + (1 << 19);
    u -= 128;
    v -= 128;
    return ifs__pixel_saturate((luma + IFS__NV12_BLUE_U * u) >> 20) |
           ifs__pixel_saturate((luma - IFS__NV12_GREEN_U * u - IFS__NV12_GREEN_V * v) >> 20) << 8 |
           ifs__pixel_saturate((luma + IFS__NV12_RED_V * v) >> 20) << 16;
}

/* ---- the output ---- */

/* y = x * scale + bias, rounded to float32 after each of the two operations. */
static inline IFS__HD float ifs__pixel_scale(uint32_t value, float scale, float bias) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(__fmul_rn(__uint2float_rn(value), scale), bias);
#else
    const float scaled = (float)value * scale;
    return scaled + bias;
#endif
}

/* A scaled value as uint8: to the nearest, ties to even, saturated. */
static inline IFS__HD uint8_t ifs__pixel_byte(float value) {
    return (uint8_t)rintf(value < 0 ? 0 : value > 255 ? 255 : value);
}

#endif
