/*
 * detect_scan.c - the scans that find candidates: the plain C reference, and the choice of the variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "detect_scan.h"
#include "simd.h"

#include <math.h>

static size_t objectness_plain(const void *first, int32_t dtype, size_t row_length, size_t n, float threshold,
                               int32_t *hits) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (ifs__element(first, dtype, i * row_length) > threshold)
            hits[count++] = (int32_t)i;
    return count;
}

static float best_product_plain(const float *classes, size_t n, float objectness) {
    float best = -INFINITY;
    for (size_t i = 0; i < n; i++)
        best = ifs__max(classes[i] * objectness, best);
    return best;
}

static size_t find_product_plain(const float *classes, size_t n, float objectness, float product) {
    size_t i = 0;
    while (i + 1 < n && classes[i] * objectness != product)
        i++;
    return i;
}

static size_t products_above_plain(const float *classes, size_t n, float objectness, float threshold,
                                   int32_t *class_ids, float *products) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        float product = classes[i] * objectness;
        if (product > threshold && ifs__finite(product)) {
            class_ids[count] = (int32_t)i;
            products[count++] = product;
        }
    }
    return count;
}

static uint64_t columns_plain(const void *first, int32_t dtype, size_t row_length, size_t num_rows, size_t width,
                              float threshold) {
    uint64_t mask = 0;
    for (size_t row = 0; row < num_rows; row++)
        for (size_t i = 0; i < width; i++)
            mask |= (uint64_t)(ifs__element(first, dtype, row * row_length + i) > threshold) << i;
    return mask;
}

static void sigmoids_plain(float *values, size_t n) {
    for (size_t i = 0; i < n; i++)
        values[i] = ifs__sigmoid(values[i]);
}

static void add_weighted_plain(const float *weights, size_t step, const float *rows, size_t row_length, size_t num_rows,
                               size_t n, float *sums) {
    for (size_t k = 0; k < num_rows; k++)
        for (size_t i = 0; i < n; i++)
            sums[i] += weights[k * step] * rows[k * row_length + i];
}

static const ifs__scan ifs__scan_plain = {
    objectness_plain, best_product_plain, find_product_plain, products_above_plain,
    columns_plain,    sigmoids_plain,     add_weighted_plain,
};

const ifs__scan *ifs__scan_best(void) { return IFS__VARIANT_AVX2(&ifs__scan); }
