/*
 * calibrate_simd.c - ranges and histograms for AVX2, NEON and AVX-512.
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
#include <math.h>

#if IFS__AVX512
/* ---- AVX-512 ---- */

IFS__TARGET_AVX512 static void range_avx512(const float *x, size_t n, ifs__row_range *row) {
    const __m512 most = _mm512_set1_ps(FLT_MAX);
    __m512 low = _mm512_set1_ps(row->min), high = _mm512_set1_ps(row->max);
    __m512d first = _mm512_loadu_pd(row->sums), second = _mm512_loadu_pd(row->sums + 8);
    int64_t good = 0, zero = 0;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        const __m512 raw = _mm512_maskz_loadu_ps(valid, x + i);
        const __mmask16 finite = _mm512_mask_cmp_ps_mask(valid, _mm512_abs_ps(raw), most, _CMP_LE_OQ);
        const __m512 v = _mm512_maskz_mov_ps(finite, raw);
        low = _mm512_mask_min_ps(low, finite, low, v);
        high = _mm512_mask_max_ps(high, finite, high, v);
        first = _mm512_add_pd(first, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
        second = _mm512_add_pd(second, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)));
        good += __builtin_popcount(finite);
        zero += __builtin_popcount(_mm512_mask_cmp_ps_mask(valid, raw, _mm512_setzero_ps(), _CMP_EQ_OQ));
    }
    _mm512_storeu_pd(row->sums, first);
    _mm512_storeu_pd(row->sums + 8, second);
    row->min = _mm512_reduce_min_ps(low);
    row->max = _mm512_reduce_max_ps(high);
    row->zeros += zero;
    row->nonfinite += (int64_t)n - good;
}

IFS__TARGET_AVX512 static int64_t histogram_avx512(const float *x, size_t n, float scale, int32_t half,
                                                   uint32_t *tables, size_t pitch) {
    const __m512 most = _mm512_set1_ps(FLT_MAX), factor = _mm512_set1_ps(scale);
    const __m512 low = _mm512_set1_ps((float)-half), high = _mm512_set1_ps((float)(half - 1));
    const int32_t step = (int32_t)pitch;
    const __m512i table = _mm512_setr_epi32(half, half + step, half + 2 * step, half + 3 * step, half, half + step,
                                            half + 2 * step, half + 3 * step, half, half + step, half + 2 * step,
                                            half + 3 * step, half, half + step, half + 2 * step, half + 3 * step);
    int64_t bad = 0;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        const __m512 v = _mm512_maskz_loadu_ps(valid, x + i);
        const __mmask16 finite = _mm512_mask_cmp_ps_mask(valid, _mm512_abs_ps(v), most, _CMP_LE_OQ);
        const __m512 down = _mm512_roundscale_ps(_mm512_mul_ps(v, factor), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        const __m512i bin = _mm512_cvttps_epi32(_mm512_max_ps(_mm512_min_ps(down, high), low));
        int32_t at[16];
        _mm512_storeu_si512(at, _mm512_add_epi32(bin, table));
        if (finite == 0xffff) {
#pragma GCC unroll 16
            for (int lane = 0; lane < 16; lane++)
                tables[at[lane]]++;
        } else {
            for (unsigned left = finite; left; left &= left - 1)
                tables[at[__builtin_ctz(left)]]++;
            bad += __builtin_popcount((unsigned)(valid & ~finite));
        }
    }
    return bad;
}

const ifs__calibration_passes ifs__calibration_avx512 = {range_avx512, histogram_avx512};
#endif

/* ---- AVX2 and NEON ---- */

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
    for (; i < n; i++) {
        if (!(fabsf(x[i]) <= FLT_MAX)) {
            row->nonfinite++;
            continue;
        }
        row->zeros += x[i] == 0;
        row->min = x[i] < row->min ? x[i] : row->min;
        row->max = x[i] > row->max ? x[i] : row->max;
        row->sums[i % IFS__SUM_LANES] += (double)x[i];
    }
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
    for (; i < n; i++) {
        const bool finite = fabsf(x[i]) <= FLT_MAX;
        const float at = floorf(x[i] * scale);
        bad += !finite;
        if (finite) {
            const int32_t bin =
                (int32_t)(at<(float)-half ? (float)-half : at>(float)(half - 1) ? (float)(half - 1) : at);
            tables[i % IFS__HISTOGRAM_TABLES * pitch + (size_t)(bin + half)]++;
        }
    }
    return bad;
}

const ifs__calibration_passes ifs__calibration_avx2 = {range_avx2, histogram_avx2};
#endif
