/*
 * topk_simd.c - the passes of softmax and top-k for AVX2 and NEON.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "topk.h"

#include "fmath_simd.h"

#if IFS__AVX2
#include <math.h>

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
    return ifs__maximum_plain(x + i, n - i, max) && good;
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
    ifs__add_exps_plain(x + i, n - i, max, lanes);
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
