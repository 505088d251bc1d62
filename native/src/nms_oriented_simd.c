/*
 * nms_oriented_simd.c - one oriented box against the better ones, eight at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Each lane computes the operations of ifs__oriented_overlap(); none is fused.
 */
#include "nms_oriented.h"

#include "fmath_simd.h"

#if IFS__AVX2

IFS__TARGET_AVX2 bool ifs__oriented_suppressed_avx2(const ifs__oriented_boxes *boxes, size_t first, size_t count,
                                                    ifs__oriented box, ifs__oriented_limit limit) {
#define ALL(value) _mm256_set1_ps(value)
#define MUL _mm256_mul_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
    const __m256 eps = ALL(IFS__ORIENTED_EPS), reach = ALL(limit.reach);
    for (size_t i = first; i < first + count; i += 8) {
        const size_t left = first + count - i;
        const unsigned valid = left >= 8 ? 0xff : (1u << left) - 1;
        __m256 a = ADD(_mm256_loadu_ps(boxes->a + i), ALL(box.a)), b = ADD(_mm256_loadu_ps(boxes->b + i), ALL(box.b));
        __m256 c = ADD(_mm256_loadu_ps(boxes->c + i), ALL(box.c));
        __m256 dx = SUB(_mm256_loadu_ps(boxes->x + i), ALL(box.x)), dy = SUB(_mm256_loadu_ps(boxes->y + i), ALL(box.y));
        __m256 det = SUB(MUL(a, b), MUL(c, c)), divisor = ADD(det, eps);
        __m256 distance =
            SUB(MUL(ALL(0.25f), ADD(MUL(a, MUL(dy, dy)), MUL(b, MUL(dx, dx)))), MUL(ALL(0.5f), MUL(c, MUL(dx, dy))));
        const __m256 close = _mm256_cmp_ps(distance, MUL(reach, divisor), _CMP_LE_OQ);
        const unsigned near = (unsigned)_mm256_movemask_ps(close) & valid;
        if (!near)
            continue;
        __m256 roots = MUL(ALL(4.0f), MUL(_mm256_loadu_ps(boxes->root + i), ALL(box.root)));
        __m256 ratio = ADD(_mm256_div_ps(det, ADD(roots, eps)), eps);
        __m256 e = ifs__exp_avx2(SUB(_mm256_setzero_ps(), _mm256_div_ps(distance, divisor)));
        const __m256 above = _mm256_cmp_ps(e, MUL(ALL(limit.value), _mm256_sqrt_ps(ratio)), _CMP_GT_OQ);
        if ((unsigned)_mm256_movemask_ps(above) & near)
            return true;
    }
    return false;
#undef ALL
#undef MUL
#undef ADD
#undef SUB
}
#endif
