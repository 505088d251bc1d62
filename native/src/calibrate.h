/*
 * calibrate.h - the passes over activations, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_CALIBRATE_H
#define IFS_CALIBRATE_H

#include "internal.h"

/* Neighbours often fall into one bin (zeros after a ReLU above all), and an increment waits for the one before it in
 * the same place. So neighbours count in different tables, which are added up in the end. */
#define IFS__HISTOGRAM_TABLES 4
#define IFS__HISTOGRAM_MAX_BINS 65536
/* The sum of a row is taken in so many partial sums, value i into sum i % 16, so that all variants round alike. */
#define IFS__SUM_LANES 16

/* What one row of values adds to an ifs_range. */
typedef struct ifs__row_range {
    float min, max; /* FLT_MAX and -FLT_MAX without a finite value */
    int64_t nonfinite, zeros;
    double sums[IFS__SUM_LANES]; /* of the finite values */
} ifs__row_range;

typedef struct ifs__calibration_passes {
    /* The range of n values. */
    void (*range)(const float *x, size_t n, ifs__row_range *row);

    /* tables[i % 4][clamp(floor(x[i] * scale), -half, half - 1) + half]++ for the finite values; returns how many
     * values are not finite. n < 2^32. */
    int64_t (*histogram)(const float *x, size_t n, float scale, int32_t half, uint32_t *tables, size_t pitch);
} ifs__calibration_passes;

/* The reference. The vector variants call it for the values behind their last vector. */
void ifs__range_plain(const float *x, size_t n, ifs__row_range *row);
int64_t ifs__histogram_plain(const float *x, size_t n, float scale, int32_t half, uint32_t *tables, size_t pitch);

extern const ifs__calibration_passes ifs__calibration_avx2;

#endif
