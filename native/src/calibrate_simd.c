/*
 * calibrate_simd.c - ranges and histograms for AVX2 and NEON.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic is vectors: one product, one rounding, one conversion. The increments stay scalar: a scatter that has
 * to find the lanes of one bin first is slower than sixteen increments in four tables.
 */
#include "calibrate.h"
#include "simd.h"

#if IFS__AVX2
#include <float.h>

IFS__TARGET_AVX2 static void range_avx2(const float *x, size_t n, ifs__row_range *row) {
    const __m256 most = _mm256_set1_ps(FLT_MAX), sign = _mm256_set1_ps(-0.0F);
    __m256 low = _mm256_set1_ps(row->min), high = _mm256_set1_ps(row->max);
    __m256d sums[4] = {_mm256_loadu_pd(row->sums), _mm256_loadu_pd(row->sums + 4), _mm256_loadu_pd(row->sums + 8),
                       _mm256_loadu_pd(row->sums + 12)};
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t part = 0; part < 2; part++) {
            const __m256 raw = _mm256_loadu_ps(x + i + 8 * part);
            const __m256 finite = _mm256_cmp_ps(_mm256_andnot_ps(sign, raw), most, _CMP_LE_OQ);
            const __m256 v = _mm256_and_ps(raw, finite);
            low = _mm256_blendv_ps(low, _mm256_min_ps(low, v), finite);
            high = _mm256_blendv_ps(high, _mm256_max_ps(high, v), finite);
            sums[2 * part] = _mm256_add_pd(sums[2 * part], _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
            sums[2 * part + 1] = _mm256_add_pd(sums[2 * part + 1], _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
            const __m256 zero = _mm256_cmp_ps(raw, _mm256_setzero_ps(), _CMP_EQ_OQ);
            row->nonfinite += __builtin_popcount(~(unsigned)_mm256_movemask_ps(finite) & 0xff);
            row->zeros += __builtin_popcount((unsigned)_mm256_movemask_ps(zero));
        }
    for (size_t part = 0; part < 4; part++)
        _mm256_storeu_pd(row->sums + 4 * part, sums[part]);
    float lows[8], highs[8];
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    for (int lane = 0; lane < 8; lane++) {
        row->min = lows[lane] < row->min ? lows[lane] : row->min;
        row->max = highs[lane] > row->max ? highs[lane] : row->max;
    }
    ifs__range_plain(x + i, n - i, row);
}

IFS__TARGET_AVX2 static int64_t histogram_avx2(const float *x, size_t n, float scale, int32_t half, uint32_t *tables,
                                               size_t pitch) {
    const __m256 most = _mm256_set1_ps(FLT_MAX), sign = _mm256_set1_ps(-0.0F), factor = _mm256_set1_ps(scale);
    const __m256 low = _mm256_set1_ps((float)-half), high = _mm256_set1_ps((float)(half - 1));
    const int32_t step = (int32_t)pitch;
    const __m256i table = _mm256_setr_epi32(half, half + step, half + 2 * step, half + 3 * step, half, half + step,
                                            half + 2 * step, half + 3 * step);
    int64_t bad = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const unsigned finite =
            (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(_mm256_andnot_ps(sign, v), most, _CMP_LE_OQ));
        const __m256 down = _mm256_floor_ps(_mm256_mul_ps(v, factor));
        const __m256i bin = _mm256_cvttps_epi32(_mm256_max_ps(_mm256_min_ps(down, high), low));
        int32_t at[8];
        _mm256_storeu_si256((__m256i *)at, _mm256_add_epi32(bin, table));
#pragma GCC unroll 8
        for (int lane = 0; lane < 8; lane++)
            tables[at[lane]] += finite >> lane & 1;
        bad += __builtin_popcount(~finite & 0xff);
    }
    return bad + ifs__histogram_plain(x + i, n - i, scale, half, tables, pitch);
}

const ifs__calibration_passes ifs__calibration_avx2 = {range_avx2, histogram_avx2};
#endif
