/*
 * class_map_simd.c - the passes of class maps for AVX2, NEON and AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each lane computes the operations of class_map_math.h for one point or pixel; none is fused.
 */
#include "class_map.h"
#include "simd.h"

#if IFS__AVX2

/* ---- AVX2 and NEON ---- */

/* The scores of eight points, `step` apart; lanes beyond `n` are 0. */
IFS__INLINE IFS__TARGET_AVX2 __m256 points_avx2(const float *at, size_t step, int32_t n) {
    if (step == 1 && n >= 8)
        return _mm256_loadu_ps(at);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes);
    const __m256i index = _mm256_mullo_epi32(lanes, _mm256_set1_epi32((int32_t)step));
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), at, index, _mm256_castsi256_ps(valid), 4);
}

/* The first `n` of eight classes, as bytes. */
IFS__INLINE IFS__TARGET_AVX2 void store_avx2(__m256 best, uint8_t *dst, int32_t n) {
    int32_t classes[8];
    _mm256_storeu_si256((__m256i *)classes, _mm256_castps_si256(best));
    for (int32_t i = 0; i < 8 && i < n; i++)
        dst[i] = (uint8_t)classes[i];
}

IFS__INLINE IFS__TARGET_AVX2 __m256 number_avx2(int32_t c) { return _mm256_castsi256_ps(_mm256_set1_epi32(c)); }

IFS__TARGET_AVX2 static void best_avx2(const ifs__class_scores *s, size_t first, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x += 8) {
        const float *at = s->values + (first + (size_t)x) * s->step;
        __m256 highest = _mm256_set1_ps(-INFINITY), best = _mm256_setzero_ps();
        for (int32_t c = 0; c < s->classes; c++) {
            const __m256 score = points_avx2(at + (size_t)c * s->plane, s->step, n - x);
            const __m256 above = _mm256_cmp_ps(score, highest, _CMP_GT_OQ);
            highest = _mm256_blendv_ps(highest, score, above);
            best = _mm256_blendv_ps(best, number_avx2(c), above);
        }
        if (s->classes == 1)
            best = _mm256_and_ps(_mm256_cmp_ps(highest, _mm256_set1_ps(s->threshold), _CMP_GT_OQ), number_avx2(1));
        store_avx2(best, dst + x, n - x);
    }
}

IFS__TARGET_AVX2 static void agree_avx2(const uint8_t *top, const uint8_t *bottom, uint8_t *dst, int32_t n) {
#define LOAD(at) _mm256_loadu_si256((const __m256i *)(at))
    for (int32_t x = 0; x < n; x += 32) {
        const __m256i a = LOAD(top + x);
        const __m256i same = _mm256_and_si256(
            _mm256_cmpeq_epi8(a, LOAD(top + x + 1)),
            _mm256_and_si256(_mm256_cmpeq_epi8(a, LOAD(bottom + x)), _mm256_cmpeq_epi8(a, LOAD(bottom + x + 1))));
        const __m256i none = _mm256_set1_epi8((char)IFS_NO_CLASS);
        _mm256_storeu_si256((__m256i *)(dst + x), _mm256_blendv_epi8(none, a, same));
    }
#undef LOAD
}

#if IFS__NEON /* has no gathers, of which this consists */
#define resolve_avx2 ifs__class_resolve_plain
#else
IFS__TARGET_AVX2 static void resolve_avx2(const ifs__class_scores *s, size_t top, size_t bottom, const float down[2],
                                          const ifs__class_columns *columns, const int32_t *open, int32_t count,
                                          uint8_t *dst) {
#define GATHER(at, index) _mm256_mask_i32gather_ps(zero, at, index, _mm256_castsi256_ps(valid), 4)
    const __m256 v0 = _mm256_set1_ps(down[0]), v1 = _mm256_set1_ps(down[1]), zero = _mm256_setzero_ps();
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), none = _mm256_setzero_si256();
    const __m256i step = _mm256_set1_epi32((int32_t)s->step);
    for (int32_t i = 0; i < count; i += 8) {
        const __m256i valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(count - i), lanes);
        const __m256i x = _mm256_maskload_epi32(open + i, valid);
        const __m256i k = _mm256_mullo_epi32(_mm256_mask_i32gather_epi32(none, columns->index, x, valid, 4), step);
        const __m256i next = _mm256_mullo_epi32(_mm256_mask_i32gather_epi32(none, columns->next, x, valid, 4), step);
        const __m256 w0 = GATHER(columns->weight[0], x), w1 = GATHER(columns->weight[1], x);
        __m256 highest = _mm256_set1_ps(-INFINITY), best = zero;
        for (int32_t c = 0; c < s->classes; c++) {
            const float *upper = s->values + (size_t)c * s->plane + top * s->step;
            const float *lower = s->values + (size_t)c * s->plane + bottom * s->step;
            const __m256 row0 =
                _mm256_add_ps(_mm256_mul_ps(w0, GATHER(upper, k)), _mm256_mul_ps(w1, GATHER(upper, next)));
            const __m256 row1 =
                _mm256_add_ps(_mm256_mul_ps(w0, GATHER(lower, k)), _mm256_mul_ps(w1, GATHER(lower, next)));
            const __m256 score = _mm256_add_ps(_mm256_mul_ps(v0, row0), _mm256_mul_ps(v1, row1));
            const __m256 above = _mm256_cmp_ps(score, highest, _CMP_GT_OQ);
            highest = _mm256_blendv_ps(highest, score, above);
            best = _mm256_blendv_ps(best, number_avx2(c), above);
        }
        if (s->classes == 1)
            best = _mm256_and_ps(_mm256_cmp_ps(highest, _mm256_set1_ps(s->threshold), _CMP_GT_OQ), number_avx2(1));
        uint8_t classes[8];
        store_avx2(best, classes, 8);
        for (int32_t j = 0; j < 8 && i + j < count; j++)
            dst[open[i + j]] = classes[j];
    }
#undef GATHER
}
#endif

const ifs__class_passes ifs__class_avx2 = {best_avx2, agree_avx2, ifs__class_spread_plain, resolve_avx2};

#if IFS__AVX512
/* ---- AVX-512 ---- */

/* The scores of sixteen points, `step` apart. */
IFS__INLINE IFS__TARGET_AVX512 __m512 points_avx512(const float *at, size_t step, __mmask16 valid) {
    if (step == 1)
        return _mm512_maskz_loadu_ps(valid, at);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i index = _mm512_mullo_epi32(lanes, _mm512_set1_epi32((int32_t)step));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), valid, index, at, 4);
}

IFS__TARGET_AVX512 static void best_avx512(const ifs__class_scores *s, size_t first, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x += 16) {
        const __mmask16 valid = n - x >= 16 ? 0xffff : (__mmask16)((1u << (n - x)) - 1);
        const float *at = s->values + (first + (size_t)x) * s->step;
        __m512 highest = _mm512_set1_ps(-INFINITY);
        __m512i best = _mm512_setzero_si512();
        for (int32_t c = 0; c < s->classes; c++) {
            const __m512 score = points_avx512(at + (size_t)c * s->plane, s->step, valid);
            const __mmask16 above = _mm512_cmp_ps_mask(score, highest, _CMP_GT_OQ);
            highest = _mm512_mask_mov_ps(highest, above, score);
            best = _mm512_mask_set1_epi32(best, above, c);
        }
        if (s->classes == 1)
            best = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(highest, _mm512_set1_ps(s->threshold), _CMP_GT_OQ), 1);
        _mm512_mask_cvtepi32_storeu_epi8(dst + x, valid, best);
    }
}

IFS__TARGET_AVX512 static int32_t spread_avx512(const uint8_t *row, const ifs__class_columns *columns, uint8_t *dst,
                                                int32_t *open) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i none = _mm512_set1_epi32(IFS_NO_CLASS);
    int32_t count = 0;
    for (int32_t x = 0; x < columns->n; x += 16) {
        const int32_t left = columns->n - x;
        const __mmask16 valid = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        const __m512i index = _mm512_maskz_loadu_epi32(valid, columns->index + x);
        const __m512i found =
            _mm512_and_si512(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), valid, index, row, 1), none);
        _mm512_mask_cvtepi32_storeu_epi8(dst + x, valid, found);
        const __mmask16 undecided = _mm512_mask_cmpeq_epi32_mask(valid, found, none);
        if (!undecided)
            continue;
        const __m512i pixels = _mm512_add_epi32(lanes, _mm512_set1_epi32(x));
        _mm512_storeu_si512(open + count, _mm512_maskz_compress_epi32(undecided, pixels));
        count += __builtin_popcount(undecided);
    }
    return count;
}

const ifs__class_passes ifs__class_avx512 = {best_avx512, agree_avx2, spread_avx512, resolve_avx2};
#endif
#endif
