/*
 * masks.h - the passes of mask assembly, one set of functions for each SIMD variant, and what host and device share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_MASKS_H
#define IFS_MASKS_H

#include "internal.h"
#include "mask_math.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The two sides of a geometry ([0] is x), with the checks of all arguments that do not depend on the masks. */
ifs_status ifs__mask_sides(const ifs_mask_params *params, const ifs_geometry *geometry, ifs__mask_side sides[2]);

/* The columns of a mask; arrays are padded to a multiple of 32 with the last index and weights of 0. */
typedef struct ifs__mask_columns {
    int32_t padded;
    int32_t *index[3]; /* of the three activations, from the first one of the row of activations */
    float *weight[3];
} ifs__mask_columns;

typedef struct ifs__mask_passes {
    /* dst[x] = sigmoid(sum of coefficients[k] * prototypes[k * plane + x]), in the order of k. Float32 or float16. */
    void (*activate)(const void *prototypes, int32_t dtype, size_t plane, const float *coefficients, int32_t num,
                     float *dst, int32_t n);
    /* Resizes a row of activations horizontally. */
    void (*columns)(const float *row, const ifs__mask_columns *columns, float *dst);
    /* One bit for each of n pixels: whether the weighted sum of three rows is above the threshold. Writes whole words
     * of 32 bits; reads the rows up to there. */
    void (*rows)(const float *const row[3], const float weight[3], float threshold, uint8_t *bits, int32_t n);
} ifs__mask_passes;

extern const ifs__mask_passes ifs__mask_avx2, ifs__mask_avx512;

#ifdef __cplusplus
}
#endif
#endif
