/*
 * calibrate.h - the passes over activations, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_CALIBRATE_H
#define IFS_CALIBRATE_H

#include "internal.h"

/* Neighbours often fall into the same bin (above all zeros after a ReLU), and an increment of a counter waits for the
 * increment before it. So neighbours count in different tables, which are added up in the end: 4 x 2,048 counters fill
 * 32 KiB. */
#define IFS__HISTOGRAM_TABLES 4
#define IFS__HISTOGRAM_MAX_BINS 65536

typedef struct ifs__calibration_passes {
    /* Widens *min and *max by the finite values of x, adds to *zeros; returns how many are not finite. */
    int64_t (*range)(const float *x, size_t n, float *min, float *max, int64_t *zeros);

    /* tables[i % 4][min(|x[i]| * scale, last)]++ for the finite values; returns how many are not finite. n < 2^32. */
    int64_t (*histogram)(const float *x, size_t n, float scale, int32_t last, uint32_t *tables, size_t pitch);
} ifs__calibration_passes;

#if IFS__X86
extern const ifs__calibration_passes ifs__calibration_avx2, ifs__calibration_avx512;
#endif

#endif
