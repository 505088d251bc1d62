/*
 * topk_simd.c - the passes of softmax and top-k for AVX2, NEON and AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "topk.h"

#include "fmath_simd.h"

#if IFS__AVX2
#include <math.h>

#if IFS__AVX512
/* ---- AVX-512 ---- */

IFS__TARGET_AVX512 static bool maximum_avx512(const float *x, size_t n, float *max) {
    __m512 best = _mm512_set1_ps(*max);
    __mmask16 nan = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512 v = _mm512_maskz_loadu_ps(valid, x + i);
        nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        best = _mm512_mask_max_ps(best, valid, v, best);
    }
    *max = _mm512_reduce_max_ps(best);
    return nan == 0;
}

IFS__TARGET_AVX512 static void add_exps_avx512(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]) {
    __m512 sum = _mm512_loadu_ps(lanes), top = _mm512_set1_ps(max);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512 e = ifs__exp_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(valid, x + i), top));
        sum = _mm512_mask_add_ps(sum, valid, sum, e);
    }
    _mm512_storeu_ps(lanes, sum);
}

IFS__TARGET_AVX512 static uint64_t above_avx512(const float *x, size_t n, float threshold) {
    uint64_t mask = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512 v = _mm512_maskz_loadu_ps(valid, x + i);
        mask |= (uint64_t)_mm512_mask_cmp_ps_mask(valid, v, _mm512_set1_ps(threshold), _CMP_GT_OQ) << i;
    }
    return mask;
}

const ifs__topk_passes ifs__topk_avx512 = {maximum_avx512, add_exps_avx512, above_avx512};
#endif

/* ---- AVX2 and NEON ---- */

IFS__TARGET_AVX2 static bool maximum_avx2(const float *x, size_t n, float *max) {
    __m256 best = _mm256_set1_ps(*max), nan = _mm256_setzero_ps();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        best = _mm256_max_ps(v, best);
    }
    bool good = _mm256_movemask_ps(nan) == 0;
    float lanes[8];
    _mm256_storeu_ps(lanes, best);
    for (int lane = 0; lane < 8; lane++)
        *max = ifs__max(lanes[lane], *max);
    for (; i < n; i++) {
        good &= x[i] == x[i];
        *max = ifs__max(x[i], *max);
    }
    return good;
}

IFS__TARGET_AVX2 static void add_exps_avx2(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]) {
    __m256 low = _mm256_loadu_ps(lanes), high = _mm256_loadu_ps(lanes + 8), top = _mm256_set1_ps(max);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        low = _mm256_add_ps(low, ifs__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i), top)));
        high = _mm256_add_ps(high, ifs__exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), top)));
    }
    _mm256_storeu_ps(lanes, low);
    _mm256_storeu_ps(lanes + 8, high);
    for (; i < n; i++)
        lanes[i % IFS__TOPK_LANES] += ifs__exp(x[i] - max);
}

IFS__TARGET_AVX2 static uint64_t above_avx2(const float *x, size_t n, float threshold) {
    uint64_t mask = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(threshold), _CMP_GT_OQ);
        mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(above) << i;
    }
    for (; i < n; i++)
        mask |= (uint64_t)(x[i] > threshold) << i;
    return mask;
}

const ifs__topk_passes ifs__topk_avx2 = {maximum_avx2, add_exps_avx2, above_avx2};
#endif
