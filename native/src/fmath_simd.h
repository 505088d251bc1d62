/*
 * fmath_simd.h - elements as float32 lanes, and ifs__exp of fmath.h on them: the same steps, so the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_FMATH_SIMD_H
#define IFS_FMATH_SIMD_H

#include "fmath.h"
#include "simd.h"

#if IFS__AVX2
/* Element i of an array of float32 or, with `half`, of float16, and the eight elements from i on. */
IFS__TARGET_AVX2 IFS__INLINE float ifs__element_avx2(const void *at, size_t i, bool half) {
    return half ? _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(((const uint16_t *)at)[i]))) : ((const float *)at)[i];
}

IFS__TARGET_AVX2 IFS__INLINE __m256 ifs__load_avx2(const void *at, size_t i, bool half) {
    return half ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)at + i)))
                : _mm256_loadu_ps((const float *)at + i);
}

/* ifs__exp on eight lanes. */
IFS__TARGET_AVX2 IFS__INLINE __m256 ifs__exp_avx2(__m256 x) {
#define C(value) _mm256_set1_ps(value)
    x = _mm256_max_ps(C(IFS__EXP_MIN), _mm256_min_ps(C(IFS__EXP_MAX), x));
    __m256 t = _mm256_add_ps(_mm256_mul_ps(x, C(IFS__EXP_LOG2E)), C(IFS__EXP_ROUND));
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(C(IFS__EXP_ROUND)));
    t = _mm256_sub_ps(t, C(IFS__EXP_ROUND));
    __m256 r =
        _mm256_sub_ps(_mm256_sub_ps(x, _mm256_mul_ps(t, C(IFS__EXP_LN2_HI))), _mm256_mul_ps(t, C(IFS__EXP_LN2_LO)));
    __m256 q = _mm256_add_ps(_mm256_mul_ps(C(IFS__EXP_Q4), r), C(IFS__EXP_Q3));
    q = _mm256_add_ps(_mm256_mul_ps(q, r), C(IFS__EXP_Q2));
    q = _mm256_add_ps(_mm256_mul_ps(q, r), C(IFS__EXP_Q1));
    q = _mm256_add_ps(_mm256_mul_ps(q, r), C(IFS__EXP_Q0));
    __m256 p = _mm256_add_ps(C(1.0f), _mm256_add_ps(r, _mm256_mul_ps(_mm256_mul_ps(r, r), q)));
    __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    __m256i scale1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i scale2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(scale1)), _mm256_castsi256_ps(scale2));
#undef C
}

#endif
#endif
