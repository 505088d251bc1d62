/*
 * masks_simd.c - the passes of mask assembly for AVX2, NEON and AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each lane computes the operations of mask_math.h for one pixel; none is fused.
 */
#include "masks.h"

#include "fmath_simd.h"

#if IFS__AVX2
#include <string.h>

/* ---- AVX2 and NEON ---- */

IFS__INLINE IFS__TARGET_AVX2 __m256 sigmoid_avx2(__m256 sum) {
    const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
    const __m256 e = ifs__exp_avx2(_mm256_sub_ps(zero, sum));
    return _mm256_max_ps(_mm256_div_ps(one, _mm256_add_ps(one, e)), zero);
}

IFS__INLINE IFS__TARGET_AVX2 void activate_any_avx2(const void *prototypes, size_t plane, const float *coefficients,
                                                    int32_t num, float *dst, int32_t n, bool half) {
    int32_t x = 0;
    for (; x + 32 <= n; x += 32) {
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int32_t k = 0; k < num; k++) {
            const __m256 coefficient = _mm256_set1_ps(coefficients[k]);
            const size_t at = (size_t)k * plane + (size_t)x;
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++)
                sum[v] = _mm256_add_ps(
                    sum[v], _mm256_mul_ps(coefficient, ifs__load_avx2(prototypes, at + 8 * (size_t)v, half)));
        }
        for (int v = 0; v < 4; v++)
            _mm256_storeu_ps(dst + x + 8 * v, sigmoid_avx2(sum[v]));
    }
    for (; x + 8 <= n; x += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int32_t k = 0; k < num; k++)
            sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(coefficients[k]),
                                                   ifs__load_avx2(prototypes, (size_t)k * plane + (size_t)x, half)));
        _mm256_storeu_ps(dst + x, sigmoid_avx2(sum));
    }
    for (; x < n; x++) {
        float sum = 0;
        for (int32_t k = 0; k < num; k++)
            sum += coefficients[k] * ifs__element_avx2(prototypes, (size_t)k * plane + (size_t)x, half);
        dst[x] = ifs__mask_sigmoid(sum);
    }
}

IFS__TARGET_AVX2 static void activate_avx2(const void *prototypes, int32_t dtype, size_t plane,
                                           const float *coefficients, int32_t num, float *dst, int32_t n) {
    if (dtype == IFS_FLOAT16)
        activate_any_avx2(prototypes, plane, coefficients, num, dst, n, true);
    else
        activate_any_avx2(prototypes, plane, coefficients, num, dst, n, false);
}

IFS__TARGET_AVX2 static void columns_avx2(const float *row, const ifs__mask_columns *t, float *dst) {
    for (int32_t x = 0; x < t->padded; x += 8) {
        __m256 term[3];
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            const __m256i index = _mm256_load_si256((const __m256i *)(t->index[i] + x));
            term[i] = _mm256_mul_ps(_mm256_load_ps(t->weight[i] + x), _mm256_i32gather_ps(row, index, 4));
        }
        _mm256_store_ps(dst + x, _mm256_add_ps(_mm256_add_ps(term[0], term[1]), term[2]));
    }
}

IFS__TARGET_AVX2 static void rows_avx2(const float *const row[3], const float weight[3], float threshold, uint8_t *bits,
                                       int32_t n) {
    const __m256 w0 = _mm256_set1_ps(weight[0]), w1 = _mm256_set1_ps(weight[1]), w2 = _mm256_set1_ps(weight[2]);
    const __m256 limit = _mm256_set1_ps(threshold);
    for (int32_t x = 0; x < n; x += 32) {
        uint32_t word = 0;
#pragma GCC unroll 4
        for (int v = 0; v < 32; v += 8) {
            __m256 value = _mm256_add_ps(_mm256_mul_ps(w0, _mm256_load_ps(row[0] + x + v)),
                                         _mm256_mul_ps(w1, _mm256_load_ps(row[1] + x + v)));
            value = _mm256_add_ps(value, _mm256_mul_ps(w2, _mm256_load_ps(row[2] + x + v)));
            word |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(value, limit, _CMP_GT_OQ)) << v;
        }
        if (n - x < 32)
            word &= (1u << (n - x)) - 1;
        memcpy(bits + x / 8, &word, sizeof word);
    }
}

const ifs__mask_passes ifs__mask_avx2 = {activate_avx2, columns_avx2, rows_avx2};

#if IFS__AVX512
/* ---- AVX-512, for the rows alone ---- */

IFS__TARGET_AVX512 static void rows_avx512(const float *const row[3], const float weight[3], float threshold,
                                           uint8_t *bits, int32_t n) {
    const __m512 w0 = _mm512_set1_ps(weight[0]), w1 = _mm512_set1_ps(weight[1]), w2 = _mm512_set1_ps(weight[2]);
    const __m512 limit = _mm512_set1_ps(threshold);
    for (int32_t x = 0; x < n; x += 32) {
        uint32_t word = 0;
#pragma GCC unroll 2
        for (int v = 0; v < 32; v += 16) {
            __m512 value = _mm512_add_ps(_mm512_mul_ps(w0, _mm512_load_ps(row[0] + x + v)),
                                         _mm512_mul_ps(w1, _mm512_load_ps(row[1] + x + v)));
            value = _mm512_add_ps(value, _mm512_mul_ps(w2, _mm512_load_ps(row[2] + x + v)));
            word |= (uint32_t)_mm512_cmp_ps_mask(value, limit, _CMP_GT_OQ) << v;
        }
        if (n - x < 32)
            word &= (1u << (n - x)) - 1;
        memcpy(bits + x / 8, &word, sizeof word);
    }
}

const ifs__mask_passes ifs__mask_avx512 = {activate_avx2, columns_avx2, rows_avx512};
#endif
#endif
