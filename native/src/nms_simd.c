/*
 * nms_simd.c - one box against a chain of kept boxes, sixteen at a time, for AVX2 and NEON.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each lane computes the operations of ifs__overlap() or ifs__covers(); none is fused. `covers` is a constant where
 * these are inlined.
 */
#include "nms.h"
#include "simd.h"

#if IFS__AVX2

#if IFS__NEON
/* One instruction each: boxes are finite, so the rules of x86 for NaN do not matter. */
static inline __m256 minimum(__m256 a, __m256 b) {
    return _mm256_set_m128(vminq_f32(_mm256_extractf128_ps(a, 1), _mm256_extractf128_ps(b, 1)),
                           vminq_f32(_mm256_castps256_ps128(a), _mm256_castps256_ps128(b)));
}
static inline __m256 maximum(__m256 a, __m256 b) {
    return _mm256_set_m128(vmaxq_f32(_mm256_extractf128_ps(a, 1), _mm256_extractf128_ps(b, 1)),
                           vmaxq_f32(_mm256_castps256_ps128(a), _mm256_castps256_ps128(b)));
}
#else
#define minimum _mm256_min_ps
#define maximum _mm256_max_ps
#endif

IFS__TARGET_AVX2 IFS__INLINE bool matched_avx2(const ifs__nms_chunk *pool, const ifs__nms_link *links, int32_t head,
                                               ifs__box box, float area, float limit, bool covers) {
    __m256 x1 = _mm256_set1_ps(box.x1), y1 = _mm256_set1_ps(box.y1), x2 = _mm256_set1_ps(box.x2),
           y2 = _mm256_set1_ps(box.y2), own = _mm256_set1_ps(area), threshold = _mm256_set1_ps(limit),
           zero = _mm256_setzero_ps();
    for (int32_t at = head; at >= 0; at = links[at].next) {
        const ifs__nms_chunk *c = &pool[at];
        __m256 any = zero;
#pragma GCC unroll 2
        for (int i = 0; i < 16; i += 8) {
            __m256 w = _mm256_sub_ps(minimum(_mm256_load_ps(c->x2 + i), x2), maximum(_mm256_load_ps(c->x1 + i), x1));
            __m256 h = _mm256_sub_ps(minimum(_mm256_load_ps(c->y2 + i), y2), maximum(_mm256_load_ps(c->y1 + i), y1));
            __m256 inter = _mm256_mul_ps(maximum(zero, w), maximum(zero, h));
            __m256 areas = _mm256_load_ps(c->area + i);
            __m256 all = covers ? minimum(areas, own) : _mm256_sub_ps(_mm256_add_ps(areas, own), inter);
            any = _mm256_or_ps(any, _mm256_cmp_ps(inter, _mm256_mul_ps(threshold, all), _CMP_GT_OQ));
        }
        if (IFS__ANY(any))
            return true;
    }
    return false;
}

IFS__TARGET_AVX2 bool ifs__suppressed_avx2(const ifs__nms_chunk *pool, const ifs__nms_link *links, int32_t head,
                                           ifs__box box, float area, int32_t match, float threshold) {
    return match == IFS_MATCH_IOU ? matched_avx2(pool, links, head, box, area, threshold, false)
                                  : matched_avx2(pool, links, head, box, area, threshold, true);
}
#endif
