/*
 * detect_scan_simd.c - the scans that find candidates, for AVX2 and NEON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "detect_scan.h"
#include "fmath_simd.h"

#if IFS__AVX2
#include <math.h>

/*
 * In YOLOv5's layout the objectness values of two anchors are a whole row apart, so nearly each one has a cache line of
 * its own. Plain loads keep most of these lines in flight at once; gathers and software prefetch measure slower.
 */
IFS__TARGET_AVX2 IFS__INLINE size_t objectness_any_avx2(const void *first, size_t row_length, size_t n, float threshold,
                                                        int32_t *hits, bool half) {
    size_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        float x[16];
        for (size_t row = 0; row < 16; row++)
            x[row] = ifs__element_avx2(first, (i + row) * row_length, half);
        __m256 low = _mm256_cmp_ps(_mm256_loadu_ps(x), _mm256_set1_ps(threshold), _CMP_GT_OQ);
        __m256 high = _mm256_cmp_ps(_mm256_loadu_ps(x + 8), _mm256_set1_ps(threshold), _CMP_GT_OQ);
        if (!IFS__ANY(_mm256_or_ps(low, high)))
            continue;
        uint32_t mask = (uint32_t)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
        for (; mask; mask &= mask - 1)
            hits[count++] = (int32_t)i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if (ifs__element_avx2(first, i * row_length, half) > threshold)
            hits[count++] = (int32_t)i;
    return count;
}

IFS__TARGET_AVX2 static size_t objectness_avx2(const void *first, int32_t dtype, size_t row_length, size_t n,
                                               float threshold, int32_t *hits) {
    if (dtype == IFS_FLOAT16)
        return objectness_any_avx2(first, row_length, n, threshold, hits, true);
    return objectness_any_avx2(first, row_length, n, threshold, hits, false);
}

IFS__TARGET_AVX2 static float best_product_avx2(const float *classes, size_t n, float objectness) {
    __m256 scale = _mm256_set1_ps(objectness), lanes = _mm256_set1_ps(-INFINITY);
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        lanes = _mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(classes + i), scale), lanes);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    float best = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    for (; i < n; i++)
        best = ifs__max(classes[i] * objectness, best);
    return best;
}

IFS__TARGET_AVX2 static size_t find_product_avx2(const float *classes, size_t n, float objectness, float product) {
    __m256 scale = _mm256_set1_ps(objectness), wanted = _mm256_set1_ps(product);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(classes + i), scale);
        __m256 equal = _mm256_cmp_ps(x, wanted, _CMP_EQ_OQ);
        if (IFS__ANY(equal))
            return i + (size_t)__builtin_ctz((uint32_t)_mm256_movemask_ps(equal));
    }
    while (i + 1 < n && classes[i] * objectness != product)
        i++;
    return i < n ? i : n - 1;
}

IFS__TARGET_AVX2 static size_t products_above_avx2(const float *classes, size_t n, float objectness, float threshold,
                                                   int32_t *class_ids, float *products) {
    __m256 scale = _mm256_set1_ps(objectness), limit = _mm256_set1_ps(threshold), infinity = _mm256_set1_ps(INFINITY);
    size_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(classes + i), scale);
        __m256 good = _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ), _mm256_cmp_ps(x, infinity, _CMP_LT_OQ));
        for (uint32_t mask = (uint32_t)_mm256_movemask_ps(good); mask; mask &= mask - 1) {
            size_t at = i + (size_t)__builtin_ctz(mask);
            class_ids[count] = (int32_t)at;
            products[count++] = classes[at] * objectness;
        }
    }
    for (; i < n; i++) {
        float product = classes[i] * objectness;
        if (product > threshold && product < INFINITY) {
            class_ids[count] = (int32_t)i;
            products[count++] = product;
        }
    }
    return count;
}

/* The groups of eight columns that are scanned at once, whose maxima stay in registers. */
#if IFS__NEON
#define GROUPS 4
#else
#define GROUPS 8
#endif

IFS__TARGET_AVX2 IFS__INLINE uint64_t columns_any_avx2(const void *first, size_t row_length, size_t num_rows,
                                                       size_t width, float threshold, bool half) {
    __m256 limit = _mm256_set1_ps(threshold), lowest = _mm256_set1_ps(-INFINITY);
    uint64_t mask = 0;
    size_t i = 0;
    for (; i + 8 * GROUPS <= width; i += 8 * GROUPS) {
        __m256 best[GROUPS];
#pragma GCC unroll 8
        for (size_t g = 0; g < GROUPS; g++)
            best[g] = lowest;
        for (size_t row = 0; row < num_rows; row++)
#pragma GCC unroll 8
            for (size_t g = 0; g < GROUPS; g++)
                best[g] = _mm256_max_ps(ifs__load_avx2(first, row * row_length + i + 8 * g, half), best[g]);
#pragma GCC unroll 8
        for (size_t g = 0; g < GROUPS; g++)
            mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(best[g], limit, _CMP_GT_OQ)) << (i + 8 * g);
    }
    for (; i + 8 <= width; i += 8) {
        __m256 best = lowest;
        for (size_t row = 0; row < num_rows; row++)
            best = _mm256_max_ps(ifs__load_avx2(first, row * row_length + i, half), best);
        mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(best, limit, _CMP_GT_OQ)) << i;
    }
    for (; i < width; i++)
        for (size_t row = 0; row < num_rows; row++)
            mask |= (uint64_t)(ifs__element_avx2(first, row * row_length + i, half) > threshold) << i;
    return mask;
}

IFS__TARGET_AVX2 static uint64_t columns_avx2(const void *first, int32_t dtype, size_t row_length, size_t num_rows,
                                              size_t width, float threshold) {
    if (dtype == IFS_FLOAT16)
        return columns_any_avx2(first, row_length, num_rows, width, threshold, true);
    return columns_any_avx2(first, row_length, num_rows, width, threshold, false);
}

IFS__TARGET_AVX2 static void sigmoids_avx2(float *values, size_t n) {
    const __m256 one = _mm256_set1_ps(1.0f);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_sub_ps(_mm256_setzero_ps(), _mm256_loadu_ps(values + i));
        _mm256_storeu_ps(values + i, _mm256_div_ps(one, _mm256_add_ps(one, ifs__exp_avx2(x))));
    }
    for (; i < n; i++)
        values[i] = ifs__sigmoid(values[i]);
}

IFS__TARGET_AVX2 static void add_weighted_avx2(const float *weights, size_t step, const float *rows, size_t row_length,
                                               size_t num_rows, size_t n, float *sums) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256 sum[4];
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++)
            sum[j] = _mm256_loadu_ps(sums + i + 8 * j);
        const float *at = rows + i;
        for (size_t k = 0; k < num_rows; k++, at += row_length) {
            __m256 weight = _mm256_set1_ps(weights[k * step]);
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++)
                sum[j] = _mm256_add_ps(sum[j], _mm256_mul_ps(weight, _mm256_loadu_ps(at + 8 * j)));
        }
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++)
            _mm256_storeu_ps(sums + i + 8 * j, sum[j]);
    }
    for (; i + 8 <= n; i += 8) {
        __m256 sum = _mm256_loadu_ps(sums + i);
        for (size_t k = 0; k < num_rows; k++)
            sum = _mm256_add_ps(
                sum, _mm256_mul_ps(_mm256_set1_ps(weights[k * step]), _mm256_loadu_ps(rows + k * row_length + i)));
        _mm256_storeu_ps(sums + i, sum);
    }
    for (; i < n; i++)
        for (size_t k = 0; k < num_rows; k++)
            sums[i] += weights[k * step] * rows[k * row_length + i];
}

const ifs__scan ifs__scan_avx2 = {
    objectness_avx2, best_product_avx2, find_product_avx2, products_above_avx2,
    columns_avx2,    sigmoids_avx2,     add_weighted_avx2,
};
#endif
