/*
 * resample_simd.c - resizing with a filter, for AVX2, NEON and AVX-512.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Along a row, the channels of a pixel are one quarter of a vector: two or four taps go through at once. Down a column
 * neighbouring bytes are independent.
 */
#include "resample.h"
#include "simd.h"

#if IFS__AVX2
#include <string.h>

#define HALF (1 << (IFS__RESAMPLE_BITS - 1))

/* The four sums as bytes. */
IFS__TARGET_AVX2 IFS__INLINE uint32_t bytes_of(__m128i sums) {
    __m128i words = _mm_srai_epi32(sums, IFS__RESAMPLE_BITS);
    words = _mm_packs_epi32(words, words);
    return (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
}

/* The taps from k on, one at a time. */
IFS__TARGET_AVX2 IFS__INLINE __m128i remaining_taps(const uint8_t *at, int32_t pixel, const int32_t *weight, int32_t k,
                                                    int32_t count, __m128i sums) {
    for (; k < count; k++) {
        const uint8_t *p = at + (int64_t)k * pixel;
        __m128i values = _mm_setr_epi32(p[0], p[1], p[2], 0);
        sums = _mm_add_epi32(sums, _mm_mullo_epi32(values, _mm_set1_epi32(weight[k])));
    }
    return sums;
}

/* ---- AVX2 and NEON ---- */

IFS__TARGET_AVX2 static void row_avx2(const uint8_t *source, int64_t readable, int32_t pixel, int32_t channels,
                                      const ifs__taps *taps, int32_t n, uint8_t *target) {
    if (channels != 3) {
        ifs__resample_row_plain(source, readable, pixel, channels, taps, n, target);
        return;
    }
    const __m128i spread = pixel == 3 ? _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1)
                                      : _mm_setr_epi8(0, 1, 2, -1, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i pairs = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (int32_t i = 0; i < n; i++) {
        const int64_t offset = (int64_t)taps->first[i] * pixel;
        const uint8_t *at = source + offset;
        const int32_t *weight = taps->weight + (int64_t)i * taps->most;
        const int32_t count = taps->count[i];
        __m256i sums = _mm256_setzero_si256();
        int32_t k = 0;
        for (; k + 2 <= count && offset + (int64_t)k * pixel + 8 <= readable; k += 2) {
            const __m128i loaded = _mm_loadl_epi64((const __m128i *)(const void *)(at + (int64_t)k * pixel));
            const __m256i values = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(loaded, spread));
            const __m128i two = _mm_loadl_epi64((const __m128i *)(const void *)(weight + k));
            const __m256i weights = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(two), pairs);
            sums = _mm256_add_epi32(sums, _mm256_mullo_epi32(values, weights));
        }
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        four = remaining_taps(at, pixel, weight, k, count, _mm_add_epi32(four, _mm_set1_epi32(HALF)));
        const uint32_t bytes = bytes_of(four);
        memcpy(target + (int64_t)i * 3, &bytes, 4); /* the fourth is overwritten by the next pixel */
    }
}

IFS__TARGET_AVX2 static void column_avx2(const uint8_t *source, int64_t stride, const int32_t *weight, int32_t count,
                                         int64_t n, uint8_t *target) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i low = _mm256_set1_epi32(HALF), high = low;
        for (int32_t k = 0; k < count; k++) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(source + k * stride + i));
            const __m256i w = _mm256_set1_epi32(weight[k]);
            low = _mm256_add_epi32(low, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), w));
            high = _mm256_add_epi32(high, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)), w));
        }
        low = _mm256_srai_epi32(low, IFS__RESAMPLE_BITS);
        high = _mm256_srai_epi32(high, IFS__RESAMPLE_BITS);
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(void *)(target + i), bytes);
    }
    ifs__resample_column_plain(source + i, stride, weight, count, n - i, target + i);
}

const ifs__resampler ifs__resampler_avx2 = {row_avx2, column_avx2};

#if IFS__AVX512
/* ---- AVX-512, for the rows alone ---- */

IFS__TARGET_AVX512 static void row_avx512(const uint8_t *source, int64_t readable, int32_t pixel, int32_t channels,
                                          const ifs__taps *taps, int32_t n, uint8_t *target) {
    if (channels != 3 || taps->most < 8) { /* of few taps, two at a time leave fewer for one at a time */
        row_avx2(source, readable, pixel, channels, taps, n, target);
        return;
    }
    const __m128i spread = pixel == 3 ? _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1)
                                      : _mm_setr_epi8(0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14, -1);
    const __m512i fours = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int32_t i = 0; i < n; i++) {
        const int64_t offset = (int64_t)taps->first[i] * pixel;
        const uint8_t *at = source + offset;
        const int32_t *weight = taps->weight + (int64_t)i * taps->most;
        const int32_t count = taps->count[i];
        __m512i sums = _mm512_setzero_si512();
        int32_t k = 0;
        for (; k + 4 <= count && offset + (int64_t)k * pixel + 16 <= readable; k += 4) {
            const __m128i loaded = _mm_loadu_si128((const __m128i *)(const void *)(at + (int64_t)k * pixel));
            const __m512i values = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(loaded, spread));
            const __m128i four = _mm_loadu_si128((const __m128i *)(const void *)(weight + k));
            const __m512i weights = _mm512_permutexvar_epi32(fours, _mm512_castsi128_si512(four));
            sums = _mm512_add_epi32(sums, _mm512_mullo_epi32(values, weights));
        }
        const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64(sums, 1));
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        four = remaining_taps(at, pixel, weight, k, count, _mm_add_epi32(four, _mm_set1_epi32(HALF)));
        const uint32_t bytes = bytes_of(four);
        memcpy(target + (int64_t)i * 3, &bytes, 4); /* the fourth is overwritten by the next pixel */
    }
}

const ifs__resampler ifs__resampler_avx512 = {row_avx512, column_avx2};
#endif
#endif
