/*
 * fmath.h - the arithmetic of post-processing, once, for the host and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What decides a bit of a result stands here and is included by C and by CUDA C++ alike: exp, the decoding of a box,
 * the overlap test of NMS, the order of scores, the way back to the image. Only +, -, *, /, comparisons and bit
 * operations are used, each rounded by itself (no contraction on either side), so that every machine gives the same
 * bits.
 */
#ifndef IFS_FMATH_H
#define IFS_FMATH_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define IFS__HD __host__ __device__
#else
#define IFS__HD
#endif

static inline IFS__HD float ifs__float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline IFS__HD uint32_t ifs__bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline IFS__HD bool ifs__finite(float value) { return (ifs__bits_of_float(value) & 0x7f800000u) != 0x7f800000u; }

/* min and max as one SSE instruction does them: the second operand if either is NaN. */
static inline IFS__HD float ifs__min(float a, float b) { return a < b ? a : b; }
static inline IFS__HD float ifs__max(float a, float b) { return a > b ? a : b; }

/* ---- exp ---- */

/*
 * exp(x) with an error below 1 ulp (over every float32 at most 0.978; 0.751 where the result is subnormal):
 * x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite: ln 2 in two parts, the first short enough for n times it to be
 * exact), then 1 + (r + r^2 q(r)) with q a minimax polynomial of degree 4, then two multiplications by powers of two,
 * so that overflow (inf) and gradual underflow (subnormal, then 0) come by themselves. NaN gives NaN. A SIMD variant is
 * the same steps on lanes.
 */
#define IFS__EXP_MAX 89.0f             /* e^89 > FLT_MAX */
#define IFS__EXP_MIN (-104.0f)         /* e^-104 < half the least subnormal */
#define IFS__EXP_LOG2E 1.44269504f     /* 1 / ln 2 */
#define IFS__EXP_ROUND 12582912.0f     /* 1.5 * 2^23: adding and taking it away rounds to the nearest integer */
#define IFS__EXP_LN2_HI 0.693359375f   /* 355 / 512 */
#define IFS__EXP_LN2_LO (-2.12194440e-4f)
#define IFS__EXP_Q4 1.381314475e-03f
#define IFS__EXP_Q3 8.369419202e-03f
#define IFS__EXP_Q2 4.166845680e-02f
#define IFS__EXP_Q1 1.666651479e-01f
#define IFS__EXP_Q0 4.999999305e-01f

static inline IFS__HD float ifs__exp(float x) {
    x = ifs__max(IFS__EXP_MIN, ifs__min(IFS__EXP_MAX, x));
    float t = x * IFS__EXP_LOG2E + IFS__EXP_ROUND;
    int32_t n = (int32_t)(ifs__bits_of_float(t) - ifs__bits_of_float(IFS__EXP_ROUND));
    t = t - IFS__EXP_ROUND;
    float r = (x - t * IFS__EXP_LN2_HI) - t * IFS__EXP_LN2_LO;
    float q = (((IFS__EXP_Q4 * r + IFS__EXP_Q3) * r + IFS__EXP_Q2) * r + IFS__EXP_Q1) * r + IFS__EXP_Q0;
    float p = 1.0f + (r + (r * r) * q);
    int32_t half = n >> 1;
    float scale1 = ifs__float_of_bits((uint32_t)(half + 127) << 23);
    float scale2 = ifs__float_of_bits((uint32_t)(n - half + 127) << 23);
    return (p * scale1) * scale2;
}

/* NaN gives NaN. */
static inline IFS__HD float ifs__sigmoid(float x) { return 1.0f / (1.0f + ifs__exp(0.0f - x)); }

/* ---- order ---- */

/* Keys that ascend where scores descend; equal scores (0 and -0 too) have equal keys. Not for NaN. */
static inline IFS__HD uint32_t ifs__key_of_score(float score) {
    uint32_t bits = ifs__bits_of_float(score + 0.0f);
    return (bits >> 31) ? bits : ~bits & 0x7fffffffu;
}

static inline IFS__HD float ifs__score_of_key(uint32_t key) {
    return ifs__float_of_bits((key >> 31) ? key : ~key & 0x7fffffffu);
}

/* ---- boxes ---- */

typedef struct ifs__box {
    float x1, y1, x2, y2;
} ifs__box;

/* YOLOv5 and YOLOv8: the centre and the size, in pixels of the canvas. */
static inline IFS__HD ifs__box ifs__box_of_center(float cx, float cy, float w, float h) {
    float half_w = w * 0.5f, half_h = h * 0.5f;
    const ifs__box box = {cx - half_w, cy - half_h, cx + half_w, cy + half_h};
    return box;
}

/* YOLOX: offsets from the corner of a cell in units of `stride`, and logarithms of the size in those units. */
static inline IFS__HD ifs__box ifs__box_of_cell(float x, float y, float w, float h, int32_t column, int32_t row,
                                                int32_t stride) {
    float s = (float)stride;
    return ifs__box_of_center((x + (float)column) * s, (y + (float)row) * s, ifs__exp(w) * s, ifs__exp(h) * s);
}

static inline IFS__HD bool ifs__box_finite(ifs__box box) {
    return ifs__finite(box.x1) && ifs__finite(box.y1) && ifs__finite(box.x2) && ifs__finite(box.y2);
}

/* A box whose right edge is not right of its left one, or whose lower edge is not below its upper one, has no area. */
static inline IFS__HD float ifs__box_area(ifs__box box) {
    return ifs__max(0.0f, box.x2 - box.x1) * ifs__max(0.0f, box.y2 - box.y1);
}

/*
 * The test of NMS: whether the overlap of two boxes is strictly above `iou_threshold`, without a division. A box
 * without area overlaps nothing, so it neither suppresses nor is suppressed. Where areas overflow, the comparison is
 * false.
 */
static inline IFS__HD bool ifs__overlap(ifs__box a, float area_a, ifs__box b, float area_b, float iou_threshold) {
    float w = ifs__max(0.0f, ifs__min(a.x2, b.x2) - ifs__max(a.x1, b.x1));
    float h = ifs__max(0.0f, ifs__min(a.y2, b.y2) - ifs__max(a.y1, b.y1));
    float inter = w * h;
    return inter > iou_threshold * ((area_a + area_b) - inter);
}

/* The test with the smaller area in place of the union: whether the smaller box lies within the other one to more than
 * `threshold`. For boxes that were cut. */
static inline IFS__HD bool ifs__covers(ifs__box a, float area_a, ifs__box b, float area_b, float threshold) {
    float w = ifs__max(0.0f, ifs__min(a.x2, b.x2) - ifs__max(a.x1, b.x1));
    float h = ifs__max(0.0f, ifs__min(a.y2, b.y2) - ifs__max(a.y1, b.y1));
    return w * h > threshold * ifs__min(area_a, area_b);
}

static inline IFS__HD float ifs__clip(double value, int32_t size) {
    return ifs__min(ifs__max((float)value, 0.0f), (float)size);
}

/*
 * A box of the canvas in the image: its four corners through `to_source` in float64, the rectangle around them
 * rounded to float32 and clipped to the image. So edges come out in order, those of a box of negative size too.
 */
static inline IFS__HD ifs__box ifs__box_to_source(ifs__box box, const double m[6], int32_t width, int32_t height) {
    double ax = m[0] * (double)box.x1, bx = m[0] * (double)box.x2, cx = m[1] * (double)box.y1,
           dx = m[1] * (double)box.y2;
    double ay = m[3] * (double)box.x1, by = m[3] * (double)box.x2, cy = m[4] * (double)box.y1,
           dy = m[4] * (double)box.y2;
    ifs__box out;
    out.x1 = ifs__clip(((ax < bx ? ax : bx) + (cx < dx ? cx : dx)) + m[2], width);
    out.x2 = ifs__clip(((ax < bx ? bx : ax) + (cx < dx ? dx : cx)) + m[2], width);
    out.y1 = ifs__clip(((ay < by ? ay : by) + (cy < dy ? cy : dy)) + m[5], height);
    out.y2 = ifs__clip(((ay < by ? by : ay) + (cy < dy ? dy : cy)) + m[5], height);
    return out;
}

#endif
