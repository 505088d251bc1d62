/*
 * oriented_math.h - the arithmetic of oriented boxes, once, for the host and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A box is seen as a Gaussian with the box's mean and covariance: (w^2 / 12, h^2 / 12), turned by the angle. The
 * overlap of two is 1 - H, where H is the Hellinger distance of their Gaussians (J. M. Llerena, L. F. Zeni, L. N.
 * Kristen and C. Jung, "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection", 2021):
 *
 *     q     = (A dy^2 + B dx^2) / 4 D - C dx dy / 2 D       with A, B, C the sums of the covariances, D = A B - C^2
 *     ratio = D / (4 sqrt(det1 det2))
 *     H^2   = 1 - exp(-q) / sqrt(ratio)
 *
 * The overlap exceeds a threshold t where exp(-q) / sqrt(ratio) exceeds 1 + eps - (1 - t)^2, which needs no logarithm;
 * sqrt(det) is w h / 12. The small eps stand where Ultralytics has them. The ratio is at least 1, so a pair whose q is
 * beyond the reach of the threshold is left out before anything is divided.
 */
#ifndef IFS_ORIENTED_MATH_H
#define IFS_ORIENTED_MATH_H

#include "fmath.h"

#include <math.h>

#define IFS__ORIENTED_EPS 1e-7f

/* ---- sine and cosine ---- */

/*
 * Both with an error below 2e-7 for angles up to 1000; others give some number of -1 to 1, the same on every machine.
 * x = n pi / 2 + r with |r| <= pi / 4: pi / 2 in three parts, the first two short enough for n times them to be exact.
 * The polynomials are minimax fits of degree 7 and 8.
 */
#define IFS__TRIG_2_PI 0.636619772f
#define IFS__TRIG_HI 1.5703125f
#define IFS__TRIG_MID 4.837512969970703e-4f
#define IFS__TRIG_LO 7.549790126404332e-8f
#define IFS__TRIG_S0 (-1.666665454e-01f)
#define IFS__TRIG_S1 8.332156051e-03f
#define IFS__TRIG_S2 (-1.951463150e-04f)
#define IFS__TRIG_C0 4.166664555e-02f
#define IFS__TRIG_C1 (-1.388730986e-03f)
#define IFS__TRIG_C2 2.443241259e-05f

static inline IFS__HD void ifs__sincos(float x, float *sine, float *cosine) {
    x = ifs__max(-1e6f, ifs__min(1e6f, x));
    float t = x * IFS__TRIG_2_PI + IFS__EXP_ROUND;
    uint32_t n = ifs__bits_of_float(t) - ifs__bits_of_float(IFS__EXP_ROUND);
    t = t - IFS__EXP_ROUND;
    float r = ((x - t * IFS__TRIG_HI) - t * IFS__TRIG_MID) - t * IFS__TRIG_LO;
    r = ifs__max(-1.0f, ifs__min(1.0f, r));
    float z = r * r;
    float s = r + (r * z) * ((IFS__TRIG_S2 * z + IFS__TRIG_S1) * z + IFS__TRIG_S0);
    float c = (1.0f - 0.5f * z) + (z * z) * ((IFS__TRIG_C2 * z + IFS__TRIG_C1) * z + IFS__TRIG_C0);
    float swapped_s = n & 1 ? c : s, swapped_c = n & 1 ? s : c;
    *sine = n & 2 ? 0.0f - swapped_s : swapped_s;
    *cosine = (n + 1) & 2 ? 0.0f - swapped_c : swapped_c;
}

/* ---- overlap ---- */

/* A box: its centre, its covariance [[a, c], [c, b]], and sqrt(det). */
typedef struct ifs__oriented {
    float x, y, a, b, c, root;
} ifs__oriented;

static inline IFS__HD ifs__oriented ifs__oriented_of(float x, float y, float w, float h, float angle) {
    float sine, cosine;
    ifs__sincos(angle, &sine, &cosine);
    float u = (w * w) / 12.0f, v = (h * h) / 12.0f;
    ifs__oriented box;
    box.x = x;
    box.y = y;
    box.a = u * (cosine * cosine) + v * (sine * sine);
    box.b = u * (sine * sine) + v * (cosine * cosine);
    box.c = ((u - v) * cosine) * sine;
    box.root = ifs__max(w * h, 0.0f - w * h) / 12.0f;
    return box;
}

/* A threshold of the overlap: what exp(-q) / sqrt(ratio) exceeds, and the q beyond which it cannot. */
typedef struct ifs__oriented_limit {
    float value, reach;
} ifs__oriented_limit;

static inline ifs__oriented_limit ifs__oriented_limit_of(float iou_threshold) {
    double value = 1.0 + (double)IFS__ORIENTED_EPS - (1.0 - (double)iou_threshold) * (1.0 - (double)iou_threshold);
    const ifs__oriented_limit limit = {(float)value, (float)(0.01 - log(value))};
    return limit;
}

/* Whether the overlap of two boxes is strictly above the threshold. Where numbers overflow, it is not. */
static inline IFS__HD bool ifs__oriented_overlap(ifs__oriented p, ifs__oriented q, ifs__oriented_limit limit) {
    float a = p.a + q.a, b = p.b + q.b, c = p.c + q.c, dx = p.x - q.x, dy = p.y - q.y;
    float det = a * b - c * c, divisor = det + IFS__ORIENTED_EPS;
    float distance = 0.25f * (a * (dy * dy) + b * (dx * dx)) - 0.5f * (c * (dx * dy));
    if (!(distance <= limit.reach * divisor))
        return false;
    float ratio = det / (4.0f * (p.root * q.root) + IFS__ORIENTED_EPS) + IFS__ORIENTED_EPS;
    return ifs__exp(0.0f - distance / divisor) > limit.value * sqrtf(ratio);
}

#endif
