/*
 * calibrate_x86.c - ranges and histograms for AVX2 and AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic uses vectors: magnitude, one product, one conversion. The increments are scalar: a scatter would first
 * have to find the lanes that share a bin, and that is slower than sixteen increments in four tables.
 */
#include "calibrate.h"

#if IFS__X86
#include <float.h>
#include <immintrin.h>
#include <math.h>

/* ---- AVX-512 ---- */

IFS__TARGET_AVX512 static int64_t range_avx512(const float *x, size_t n, float *min, float *max, int64_t *zeros) {
    const __m512 most = _mm512_set1_ps(FLT_MAX);
    __m512 low = _mm512_set1_ps(*min), high = _mm512_set1_ps(*max);
    int64_t good = 0, zero = 0;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        const __m512 v = _mm512_maskz_loadu_ps(valid, x + i);
        const __mmask16 finite = _mm512_mask_cmp_ps_mask(valid, _mm512_abs_ps(v), most, _CMP_LE_OQ);
        low = _mm512_mask_min_ps(low, finite, low, v);
        high = _mm512_mask_max_ps(high, finite, high, v);
        good += __builtin_popcount(finite);
        zero += __builtin_popcount(_mm512_mask_cmp_ps_mask(valid, v, _mm512_setzero_ps(), _CMP_EQ_OQ));
    }
    *min = _mm512_reduce_min_ps(low);
    *max = _mm512_reduce_max_ps(high);
    *zeros += zero;
    return (int64_t)n - good;
}

IFS__TARGET_AVX512 static int64_t histogram_avx512(const float *x, size_t n, float scale, int32_t last,
                                                   uint32_t *tables, size_t pitch) {
    const __m512 most = _mm512_set1_ps(FLT_MAX), factor = _mm512_set1_ps(scale), top = _mm512_set1_ps((float)last);
    const int32_t step = (int32_t)pitch;
    const __m512i table = _mm512_setr_epi32(0, step, 2 * step, 3 * step, 0, step, 2 * step, 3 * step, 0, step, 2 * step,
                                            3 * step, 0, step, 2 * step, 3 * step);
    int64_t bad = 0;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 valid = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        const __m512 v = _mm512_abs_ps(_mm512_maskz_loadu_ps(valid, x + i));
        const __m512i bin = _mm512_cvttps_epi32(_mm512_min_ps(_mm512_mul_ps(v, factor), top));
        const __mmask16 finite = _mm512_mask_cmp_ps_mask(valid, v, most, _CMP_LE_OQ);
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

/* ---- AVX2 ---- */

IFS__TARGET_AVX2 static int64_t range_avx2(const float *x, size_t n, float *min, float *max, int64_t *zeros) {
    const __m256 most = _mm256_set1_ps(FLT_MAX), sign = _mm256_set1_ps(-0.0F);
    __m256 low = _mm256_set1_ps(*min), high = _mm256_set1_ps(*max);
    int64_t bad = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256 finite = _mm256_cmp_ps(_mm256_andnot_ps(sign, v), most, _CMP_LE_OQ);
        low = _mm256_blendv_ps(low, _mm256_min_ps(low, v), finite);
        high = _mm256_blendv_ps(high, _mm256_max_ps(high, v), finite);
        bad += __builtin_popcount(~(unsigned)_mm256_movemask_ps(finite) & 0xff);
        *zeros += __builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ)));
    }
    float lows[8], highs[8];
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    for (int lane = 0; lane < 8; lane++) {
        *min = lows[lane] < *min ? lows[lane] : *min;
        *max = highs[lane] > *max ? highs[lane] : *max;
    }
    for (; i < n; i++) {
        if (!(fabsf(x[i]) <= FLT_MAX)) {
            bad++;
            continue;
        }
        *zeros += x[i] == 0;
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
    return bad;
}

IFS__TARGET_AVX2 static int64_t histogram_avx2(const float *x, size_t n, float scale, int32_t last, uint32_t *tables,
                                               size_t pitch) {
    const __m256 most = _mm256_set1_ps(FLT_MAX), sign = _mm256_set1_ps(-0.0F);
    const __m256 factor = _mm256_set1_ps(scale), top = _mm256_set1_ps((float)last);
    const int32_t step = (int32_t)pitch;
    const __m256i table = _mm256_setr_epi32(0, step, 2 * step, 3 * step, 0, step, 2 * step, 3 * step);
    int64_t bad = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));
        const unsigned finite = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(v, most, _CMP_LE_OQ));
        const __m256i bin = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_mul_ps(v, factor), top));
        int32_t at[8];
        _mm256_storeu_si256((__m256i *)at, _mm256_add_epi32(bin, table));
#pragma GCC unroll 8
        for (int lane = 0; lane < 8; lane++)
            tables[at[lane]] += finite >> lane & 1;
        bad += __builtin_popcount(~finite & 0xff);
    }
    for (; i < n; i++) {
        const float v = fabsf(x[i]), scaled = v * scale;
        const bool finite = v <= FLT_MAX;
        bad += !finite;
        if (finite)
            tables[i % IFS__HISTOGRAM_TABLES * pitch + (size_t)(scaled < (float)last ? (int32_t)scaled : last)]++;
    }
    return bad;
}

const ifs__calibration_passes ifs__calibration_avx2 = {range_avx2, histogram_avx2};
#endif
