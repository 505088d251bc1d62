/*
 * pixel_math.h - the arithmetic of one pixel, for the device: what preprocess.h says in words, as functions.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Integers, and float operations that are each rounded by themselves, so that the device gives the bytes that the plain
 * C kernels give. Everything compiles for the host too.
 */
#ifndef IFS_PIXEL_H
#define IFS_PIXEL_H

#include "fmath.h"
#include "preprocess.h"

#include <math.h>

/* A tap of RESIZE (see preprocess.h); weight 0 in the low half of `weights`, weight 1 in the high half. */
typedef struct ifs__pixel_tap {
    int32_t index;
    uint32_t weights;
} ifs__pixel_tap;

static inline IFS__HD ifs__pixel_tap ifs__pixel_tap_of(int32_t d, double scale, int32_t source, bool edge) {
    float f = (float)((d + 0.5) * scale - 0.5);
    ifs__pixel_tap tap;
    tap.index = (int32_t)floorf(f);
    f -= (float)tap.index;
    if (edge && tap.index < 0) {
        tap.index = 0;
        f = 0;
    } else if (edge && tap.index >= source - 1) {
        tap.index = source - 1;
        f = 0;
    }
    tap.weights = (uint32_t)(int32_t)rintf((1.0f - f) * 2048) | (uint32_t)(int32_t)rintf(f * 2048) << 16;
    return tap;
}

/* Two bytes (the low half of `pair`) by two weights. */
static inline IFS__HD uint32_t ifs__pixel_sum(uint32_t pair, uint32_t weights) {
#if defined(__CUDA_ARCH__)
    return __dp2a_lo(weights, pair, 0u);
#else
    return (pair & 255) * (weights & 0xffff) + (pair >> 8 & 255) * (weights >> 16);
#endif
}

/*
 * Two sums of a row each, both >> 4, to a byte; the weights of the rows stand in the high halves. It needs no limit:
 * with rounding, two weights are at most 2049 together, which makes a sum at most 255 * 2049 >> 4 = 32655, and the two
 * products at most 32655 * 2049 >> 16 = 1020.
 */
static inline IFS__HD uint32_t ifs__pixel_blend(uint32_t row0, uint32_t row1, uint32_t high0, uint32_t high1) {
#if defined(__CUDA_ARCH__)
    return (__umulhi(row0, high0) + __umulhi(row1, high1) + 2) >> 2;
#else
    return ((uint32_t)((uint64_t)row0 * high0 >> 32) + (uint32_t)((uint64_t)row1 * high1 >> 32) + 2) >> 2;
#endif
}

/* Exactly half the size. */
static inline IFS__HD uint32_t ifs__pixel_mean(uint32_t row0, uint32_t row1) { return (row0 + row1 + 2) >> 2; }

/* A coordinate of the source for a canvas pixel, as ifs__warp_at gives it. */
static inline IFS__HD int64_t ifs__pixel_warp_at(int64_t origin, int64_t step_x, int64_t step_y, int32_t x, int32_t y) {
    return (int64_t)((uint64_t)origin + (uint64_t)step_x * (uint64_t)x + (uint64_t)step_y * (uint64_t)y);
}

/* Two rows of WARP; fy has 11 bits. */
static inline IFS__HD uint32_t ifs__pixel_warp(uint32_t top, uint32_t bottom, uint32_t fy) {
    return (top * (2048 - fy) + bottom * fy + (1u << 21)) >> 22;
}

static inline IFS__HD uint32_t ifs__pixel_gray(uint32_t b, uint32_t g, uint32_t r) {
    return (b * IFS__GRAY_B + g * IFS__GRAY_G + r * IFS__GRAY_R + (1u << 14)) >> 15;
}

static inline IFS__HD uint32_t ifs__pixel_saturate(int32_t value) {
    return (uint32_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* BT.601, limited range; blue in the lowest byte, green, red. */
static inline IFS__HD uint32_t ifs__pixel_nv12(int32_t y, int32_t u, int32_t v) {
    const int32_t luma = (y > 16 ? y - 16 : 0) * 1220542 + (1 << 19);
    u -= 128;
    v -= 128;
    return ifs__pixel_saturate((luma + 2116026 * u) >> 20) |
           ifs__pixel_saturate((luma - 409993 * u - 852492 * v) >> 20) << 8 |
           ifs__pixel_saturate((luma + 1673527 * v) >> 20) << 16;
}

/* y = x * scale + bias, rounded after each. */
static inline IFS__HD float ifs__pixel_scale(uint32_t value, float scale, float bias) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(__fmul_rn(__uint2float_rn(value), scale), bias);
#else
    const float scaled = (float)value * scale;
    return scaled + bias;
#endif
}

static inline IFS__HD uint8_t ifs__pixel_byte(float value) {
    return (uint8_t)rintf(value < 0 ? 0 : value > 255 ? 255 : value);
}

#endif
