/*
 * detect_scan.h - the scans that find candidates, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_SCAN_H
#define IFS_DETECT_SCAN_H

#include "fmath.h"
#include "internal.h"

#define IFS__COLUMNS 64 /* anchors that `columns` scans in one call */

/*
 * All thresholds are strict. NaN is above no threshold. An infinity is above; the caller rejects it. Where there is a
 * `dtype`, elements are IFS_FLOAT32 or IFS_FLOAT16; otherwise they are float32.
 */
typedef struct ifs__scan {
    /* The indices i of `n` rows, `row_length` elements each, whose first element is above the threshold; their number.
     */
    size_t (*objectness)(const void *first, int32_t dtype, size_t row_length, size_t n, float threshold, int32_t *hits);

    /* The largest of classes[i] * objectness; -inf if all are NaN. */
    float (*best_product)(const float *classes, size_t n, float objectness);

    /* The first i with classes[i] * objectness == product. There must be one. */
    size_t (*find_product)(const float *classes, size_t n, float objectness, float product);

    /* All i with classes[i] * objectness above the threshold and finite, with their products; their number. */
    size_t (*products_above)(const float *classes, size_t n, float objectness, float threshold, int32_t *class_ids,
                             float *products);

    /* The columns, of `width` <= 64, with an element above the threshold in `num_rows` rows: one bit for each column.
     */
    uint64_t (*columns)(const void *first, int32_t dtype, size_t row_length, size_t num_rows, size_t width,
                        float threshold);

    /* values[i] = ifs__sigmoid(values[i]) */
    void (*sigmoids)(float *values, size_t n);

    /* sums[i] += weights[k * step] * rows[k * row_length + i] of `n` numbers, for each k below `num_rows` in turn. Each
     * product is rounded before it is added. */
    void (*add_weighted)(const float *weights, size_t step, const float *rows, size_t row_length, size_t num_rows,
                         size_t n, float *sums);
} ifs__scan;

extern const ifs__scan ifs__scan_avx2;

/* The functions of the variant in use. */
const ifs__scan *ifs__scan_best(void);

#endif
