/*
 * preprocess_avx2.c - the kernels for AVX2. SPDX-License-Identifier: Apache-2.0
 */
#include "pixel_math.h"
#include "preprocess.h"
#include "simd.h"

#if IFS__AVX2
#include <string.h>

#define TARGET IFS__TARGET_AVX2
#define INLINE IFS__INLINE TARGET

INLINE __m128i load128(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m128i load64(const uint8_t *p) { return _mm_loadl_epi64((const __m128i *)p); }

/* ---- columns ---- */

#if IFS__NEON
/* (p0 a0 + p1 a1) >> 4 for 8 columns: the first bytes and weights in the lower halves, the second in the upper ones. */
INLINE int16x8_t weigh(uint8x16_t bytes, uint8x16_t high, uint8x16_t low) {
    const uint16x8_t a = vmlal_high_u8(vmull_u8(vget_low_u8(bytes), vget_low_u8(high)), bytes, high);
    const uint16x8_t b = vmlal_high_u8(vmull_u8(vget_low_u8(bytes), vget_low_u8(low)), bytes, low);
    return vreinterpretq_s16_u16(vsraq_n_u16(a, b, 4));
}

INLINE uint8x16_t weights_of(const int8_t *pairs) {
    const uint8x8x2_t apart = vld2_u8((const uint8_t *)pairs);
    return vcombine_u8(apart.val[0], apart.val[1]);
}

/* 8 columns of 3 planes: column k is at byte 8 k of a table of 64, in which each plane looks its bytes up. */
INLINE void columns_of_colour(const uint8_t *row, const ifs__columns *t, int pixel, int16_t *dst, size_t pitch) {
    uint8_t first[16];
    for (int k = 0; k < 8; k++) {
        first[k] = (uint8_t)(8 * k);
        first[k + 8] = (uint8_t)(8 * k + pixel);
    }
    const uint8x16_t take = vld1q_u8(first);
    for (int32_t x = 0; x < t->padded; x += 8) {
        const int32_t *offset = t->offset + x;
        uint8x16x4_t bytes;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            bytes.val[i] = vcombine_u8(vld1_u8(row + offset[2 * i]), vld1_u8(row + offset[2 * i + 1]));
        const uint8x16_t high = weights_of(t->high + 2 * x), low = weights_of(t->low + 2 * x);
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++)
            vst1q_s16(dst + c * pitch + x, weigh(vqtbl4q_u8(bytes, vaddq_u8(take, vdupq_n_u8((uint8_t)c))), high, low));
    }
}

INLINE void columns_of_gray(const uint8_t *row, const ifs__columns *t, int16_t *dst) {
    for (int32_t x = 0; x < t->padded; x += 8) {
        uint16_t pairs[8];
        for (int i = 0; i < 8; i++)
            memcpy(&pairs[i], row + t->offset[x + i], 2);
        vst1q_s16(dst + x,
                  weigh(weights_of((const int8_t *)pairs), weights_of(t->high + 2 * x), weights_of(t->low + 2 * x)));
    }
}
#else
/* Two columns, 8 bytes of the row each: the pairs of their first, second and third byte in the dwords 0, 1 and 2. */
INLINE __m128i two_columns(const uint8_t *row, const int32_t *offset) {
    return _mm_unpacklo_epi64(load64(row + offset[0]), load64(row + offset[1]));
}

/* (p0 a0 + p1 a1) >> 4 for 16 columns, see ifs__columns. */
INLINE __m256i weigh(__m256i pairs, __m256i high, __m256i low) {
    return _mm256_add_epi16(_mm256_maddubs_epi16(pairs, high), _mm256_srli_epi16(_mm256_maddubs_epi16(pairs, low), 4));
}

/* 16 columns of 3 planes: columns 0 to 7 in the lower halves, 8 to 15 in the upper ones. The dwords of four registers
 * are transposed, so that each plane's pairs stand in the order of the columns. */
INLINE void columns_of_colour(const uint8_t *row, const ifs__columns *t, int pixel, int16_t *dst, size_t pitch) {
    const char p = (char)pixel;
    const __m256i shuffle = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, p, 8, 8 + p, 1, 1 + p, 9, 9 + p, 2, 2 + p, 10, 10 + p, -1, -1, -1, -1));
    for (int32_t x = 0; x < t->padded; x += 16) {
        const int32_t *offset = t->offset + x;
        __m256i pairs[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m128i left = two_columns(row, offset + 2 * i), right = two_columns(row, offset + 8 + 2 * i);
            pairs[i] = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(left), right, 1), shuffle);
        }
        const __m256i low01 = _mm256_unpacklo_epi32(pairs[0], pairs[1]),
                      low23 = _mm256_unpacklo_epi32(pairs[2], pairs[3]);
        const __m256i high01 = _mm256_unpackhi_epi32(pairs[0], pairs[1]);
        const __m256i high23 = _mm256_unpackhi_epi32(pairs[2], pairs[3]);
        const __m256i high = _mm256_load_si256((const __m256i *)(t->high + 2 * x));
        const __m256i low = _mm256_load_si256((const __m256i *)(t->low + 2 * x));
        const __m256i plane[3] = {_mm256_unpacklo_epi64(low01, low23), _mm256_unpackhi_epi64(low01, low23),
                                  _mm256_unpacklo_epi64(high01, high23)};
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++)
            _mm256_store_si256((__m256i *)(dst + c * pitch + x), weigh(plane[c], high, low));
    }
}

INLINE void columns_of_gray(const uint8_t *row, const ifs__columns *t, int16_t *dst) {
    for (int32_t x = 0; x < t->padded; x += 16) {
        uint16_t pairs[16];
        for (int i = 0; i < 16; i++)
            memcpy(&pairs[i], row + t->offset[x + i], 2);
        const __m256i high = _mm256_load_si256((const __m256i *)(t->high + 2 * x));
        const __m256i low = _mm256_load_si256((const __m256i *)(t->low + 2 * x));
        _mm256_store_si256((__m256i *)(dst + x), weigh(_mm256_loadu_si256((const __m256i *)pairs), high, low));
    }
}

#endif

TARGET static void columns_avx2(const uint8_t *row, const ifs__columns *t, int32_t planes, int16_t *dst, size_t pitch) {
    if (planes == 1)
        columns_of_gray(row, t, dst);
    else if (t->pixel == 3)
        columns_of_colour(row, t, 3, dst, pitch);
    else
        columns_of_colour(row, t, 4, dst, pitch);
}

/* ---- rows ---- */

#if IFS__NEON
INLINE void put_row(uint8_t *dst, int32_t left, uint8x8_t low, uint8x8_t high) {
    if (left >= 16) {
        vst1q_u8(dst, vcombine_u8(low, high));
    } else {
        uint8_t some[16];
        vst1q_u8(some, vcombine_u8(low, high));
        memcpy(dst, some, (size_t)left);
    }
}

/* ((a0 b0 >> 16) + (a1 b1 >> 16) + 2) >> 2. The doubled product has no overflow: a weight is at most 2048. */
INLINE uint8x8_t blend(const int16_t *a0, const int16_t *a1, int16_t b0, int16_t b1) {
    int16x8_t sum = vsraq_n_s16(vdupq_n_s16(2), vqdmulhq_n_s16(vld1q_s16(a0), b0), 1);
    sum = vsraq_n_s16(sum, vqdmulhq_n_s16(vld1q_s16(a1), b1), 1);
    return vqshrun_n_s16(sum, 2);
}

static void rows_avx2(const int16_t *row0, const int16_t *row1, uint32_t weights, uint8_t *dst, int32_t n) {
    const int16_t b0 = (int16_t)weights, b1 = (int16_t)(weights >> 16);
    for (int32_t x = 0; x < n; x += 16)
        put_row(dst + x, n - x, blend(row0 + x, row1 + x, b0, b1), blend(row0 + x + 8, row1 + x + 8, b0, b1));
}

static void rows_area_avx2(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x += 16) {
        const int16x8_t low = vaddq_s16(vld1q_s16(row0 + x), vld1q_s16(row1 + x)),
                        high = vaddq_s16(vld1q_s16(row0 + x + 8), vld1q_s16(row1 + x + 8));
        put_row(dst + x, n - x, vqrshrun_n_s16(low, 2), vqrshrun_n_s16(high, 2));
    }
}

/* The means of eight pairs of two rows. */
INLINE uint8x8_t mean(uint8x16_t row0, uint8x16_t row1) { return vrshrn_n_u16(vpadalq_u8(vpaddlq_u8(row0), row1), 2); }

static void shrink_neon(const uint8_t *row0, const uint8_t *row1, int factor, uint8_t *const planes[3], int32_t n) {
    int32_t x = 0;
    for (; factor == 2 && x + 16 <= n; x += 16, row0 += 96, row1 += 96) {
        const uint8x16x3_t left0 = vld3q_u8(row0), right0 = vld3q_u8(row0 + 48);
        const uint8x16x3_t left1 = vld3q_u8(row1), right1 = vld3q_u8(row1 + 48);
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++)
            vst1q_u8(planes[c] + x, vcombine_u8(mean(left0.val[c], left1.val[c]), mean(right0.val[c], right1.val[c])));
    }
    static const uint8_t middle[16] = {1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46};
    for (; factor == 3 && x + 16 <= n; x += 16, row0 += 144) {
        const uint8x16x3_t a = vld3q_u8(row0), b = vld3q_u8(row0 + 48), c = vld3q_u8(row0 + 96);
#pragma GCC unroll 3
        for (int i = 0; i < 3; i++) {
            const uint8x16x3_t plane = {{a.val[i], b.val[i], c.val[i]}};
            vst1q_u8(planes[i] + x, vqtbl3q_u8(plane, vld1q_u8(middle)));
        }
    }
    for (; x < n; x++, row0 += 3 * factor, row1 += 3 * factor)
        for (int c = 0; c < 3; c++)
            planes[c][x] =
                factor == 2 ? (uint8_t)ifs__pixel_mean(row0[c] + row0[c + 3], row1[c] + row1[c + 3]) : row0[c + 3];
}
#else
INLINE __m128i bytes_of(__m256i words) {
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

INLINE void put_row(uint8_t *dst, int32_t left, __m256i words) {
    const __m128i bytes = bytes_of(words);
    if (left >= 16)
        _mm_storeu_si128((__m128i *)dst, bytes);
    else
        memcpy(dst, &bytes, (size_t)left);
}

TARGET static void rows_avx2(const int16_t *row0, const int16_t *row1, uint32_t weights, uint8_t *dst, int32_t n) {
    const __m256i b0 = _mm256_set1_epi16((short)weights), b1 = _mm256_set1_epi16((short)(weights >> 16)),
                  two = _mm256_set1_epi16(2);
    for (int32_t x = 0; x < n; x += 16) {
        const __m256i s0 = _mm256_mulhi_epi16(_mm256_loadu_si256((const __m256i *)(row0 + x)), b0);
        const __m256i s1 = _mm256_mulhi_epi16(_mm256_loadu_si256((const __m256i *)(row1 + x)), b1);
        put_row(dst + x, n - x, _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(s0, s1), two), 2));
    }
}

TARGET static void rows_area_avx2(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n) {
    const __m256i two = _mm256_set1_epi16(2);
    for (int32_t x = 0; x < n; x += 16) {
        const __m256i sum = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(row0 + x)),
                                             _mm256_loadu_si256((const __m256i *)(row1 + x)));
        put_row(dst + x, n - x, _mm256_srli_epi16(_mm256_add_epi16(sum, two), 2));
    }
}

#endif

/* ---- store ---- */

INLINE size_t size_of(int dtype) { return dtype == IFS_FLOAT32 ? 4 : dtype == IFS_FLOAT16 ? 2 : 1; }

/* 8 bytes to y = x scale + bias in the dtype; with `past`, which `dst` is aligned for, float32 goes past the caches.
 * Stores of 16 bytes past the caches take twice the time of others. */
INLINE void put(int dtype, void *dst, __m128i bytes, __m256 scale, __m256 bias, bool past) {
    const __m256 x = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
    const __m256 y = _mm256_add_ps(_mm256_mul_ps(x, scale), bias);
    if (dtype == IFS_FLOAT32) {
        if (past)
            _mm256_stream_ps(dst, y);
        else
            _mm256_storeu_ps(dst, y);
    } else if (dtype == IFS_FLOAT16) {
        _mm_storeu_si128(dst, _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
    } else {
        const __m256 clipped = _mm256_min_ps(_mm256_max_ps(y, _mm256_setzero_ps()), _mm256_set1_ps(255));
        const __m256i integers = _mm256_cvtps_epi32(clipped);
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
        _mm_storel_epi64(dst, _mm_packus_epi16(words, words));
    }
}

/* n of 8 elements, n below 8. */
INLINE void put_some(int dtype, void *dst, int32_t n, __m128i bytes, __m256 scale, __m256 bias) {
    _Alignas(32) uint8_t whole[32];
    put(dtype, whole, bytes, scale, bias, false);
    memcpy(dst, whole, (size_t)n * size_of(dtype));
}

/* n bytes whose scale and bias repeat every 24 elements; the last vector reads behind them. */
INLINE void put_all(int dtype, uint8_t *dst, const uint8_t *src, int32_t n, const __m256 scale[3], const __m256 bias[3],
                    bool past) {
    int32_t i = 0;
    for (; i <= n - 24; i += 24)
#pragma GCC unroll 3
        for (int j = 0; j < 3; j++)
            put(dtype, dst + (size_t)(i + 8 * j) * size_of(dtype), load64(src + i + 8 * j), scale[j], bias[j], past);
    for (int j = 0; j < 3 && i < n; j++, i += 8)
        put_some(dtype, dst + (size_t)i * size_of(dtype), n - i < 8 ? n - i : 8, load64(src + i), scale[j], bias[j]);
}

/* 16 pixels of three planes to 48 interleaved bytes. */
INLINE void interleave(__m128i a, __m128i b, __m128i c, uint8_t *dst) {
    const __m128i a0 = _mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5);
    const __m128i a1 = _mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1);
    const __m128i a2 = _mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1);
    const __m128i b0 = _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1);
    const __m128i b1 = _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10);
    const __m128i b2 = _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1);
    const __m128i c0 = _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
    const __m128i c1 = _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1);
    const __m128i c2 = _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15);
#define MIX(k)                                                                                                         \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, a##k), _mm_shuffle_epi8(b, b##k)), _mm_shuffle_epi8(c, c##k))
    _mm_storeu_si128((__m128i *)dst, MIX(0));
    _mm_storeu_si128((__m128i *)(dst + 16), MIX(1));
    _mm_storeu_si128((__m128i *)(dst + 32), MIX(2));
#undef MIX
}

INLINE bool unscaled(const ifs__store *s) {
    bool same = true;
    for (int32_t c = 0; c < s->channels; c++)
        same &= s->scale[c] == 1 && s->bias[c] == 0;
    return same;
}

enum { CHUNK = 256 }; /* pixels interleaved at a time */

INLINE void put_interleaved(int dtype, const ifs__store *s, uint8_t *dst, const uint8_t *planes, size_t pitch) {
    float scales[24], biases[24];
    for (int i = 0; i < 24; i++) {
        scales[i] = s->scale[i % 3];
        biases[i] = s->bias[i % 3];
    }
    const __m256 scale[3] = {_mm256_loadu_ps(scales), _mm256_loadu_ps(scales + 8), _mm256_loadu_ps(scales + 16)};
    const __m256 bias[3] = {_mm256_loadu_ps(biases), _mm256_loadu_ps(biases + 8), _mm256_loadu_ps(biases + 16)};
    const bool copied = dtype == IFS_UINT8 && unscaled(s);
    uint8_t pixels[3 * CHUNK + 8];
    for (int32_t x = 0; x < s->width; x += CHUNK) {
        const int32_t n = s->width - x < CHUNK ? s->width - x : CHUNK;
        for (int32_t i = 0; i < n; i += 16) {
            const uint8_t *at = planes + x + i;
            interleave(load128(at), load128(at + pitch), load128(at + 2 * pitch), pixels + 3 * i);
        }
        uint8_t *const out = dst + 3 * (size_t)x * size_of(dtype);
        if (copied)
            memcpy(out, pixels, 3 * (size_t)n);
        else
            put_all(dtype, out, pixels, 3 * n, scale, bias, false);
    }
}

INLINE void store_as(int dtype, const ifs__store *s, const uint8_t *planes, size_t pitch, int32_t y) {
    uint8_t *const row = s->dst + (size_t)y * s->row;
    if (s->layout == IFS_LAYOUT_HWC && s->channels == 3) {
        put_interleaved(dtype, s, row, planes, pitch);
        return;
    }
    for (int32_t c = 0; c < s->channels; c++) {
        uint8_t *const dst = row + (size_t)c * s->plane;
        const uint8_t *const src = planes + (size_t)c * pitch;
        const __m256 scale1 = _mm256_set1_ps(s->scale[c]), bias1 = _mm256_set1_ps(s->bias[c]);
        const __m256 scale[3] = {scale1, scale1, scale1}, bias[3] = {bias1, bias1, bias1};
        if (dtype == IFS_UINT8 && s->scale[c] == 1 && s->bias[c] == 0)
            memcpy(dst, src, (size_t)s->width);
        else if (s->past && (uintptr_t)dst % 32 == 0)
            put_all(dtype, dst, src, s->width, scale, bias, true);
        else
            put_all(dtype, dst, src, s->width, scale, bias, false);
    }
}

TARGET static void store_avx2(const ifs__store *s, const uint8_t *planes, size_t pitch, int32_t y) {
    if (s->dtype == IFS_FLOAT32)
        store_as(IFS_FLOAT32, s, planes, pitch, y);
    else if (s->dtype == IFS_FLOAT16)
        store_as(IFS_FLOAT16, s, planes, pitch, y);
    else
        store_as(IFS_UINT8, s, planes, pitch, y);
}

/* ---- colour: the plain loops, with wider vectors ---- */

INLINE __m128i bytes_of_int32(__m256i value) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    return _mm_packus_epi16(words, words);
}

TARGET static void gray_avx2(const uint8_t *src, int32_t pixel, bool rgb, uint8_t *dst, int32_t n) {
    /* Dwords of (first, second) and of (third) as int16, for 4 pixels in each half. */
    const char p = (char)pixel;
    const __m256i take01 = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 1, -1, p, -1, 1 + p, -1, 2 * p, -1, 1 + 2 * p, -1, 3 * p, -1, 1 + 3 * p, -1));
    const __m256i take2 = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, -1, -1, -1, 2 + p, -1, -1, -1, 2 + 2 * p, -1, -1, -1, 2 + 3 * p, -1, -1, -1));
    const int32_t weight0 = rgb ? IFS__GRAY_R : IFS__GRAY_B;
    const __m256i weight01 = _mm256_set1_epi32(weight0 | IFS__GRAY_G << 16);
    const __m256i weight2 = _mm256_set1_epi32(rgb ? IFS__GRAY_B : IFS__GRAY_R);
    const __m256i half = _mm256_set1_epi32(1 << 14);
    int32_t x = 0;
    for (; x <= n - 10; x += 8) { /* the upper half reads 16 bytes from pixel x + 4 on: at most 10 pixels of 3 bytes */
        const uint8_t *at = src + (size_t)x * (size_t)pixel;
        const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at)),
                                                      _mm_loadu_si128((const __m128i *)(at + 4 * (size_t)pixel)), 1);
        const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(_mm256_shuffle_epi8(bytes, take01), weight01),
                                             _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, take2), weight2));
        _mm_storel_epi64((__m128i *)(dst + x), bytes_of_int32(_mm256_srli_epi32(_mm256_add_epi32(sum, half), 15)));
    }
    ifs__gray_plain(src + (size_t)x * (size_t)pixel, pixel, rgb, dst + x, n - x);
}

/* 8 pixels of NV12 to their blue, green and red bytes, in the lower halves. */
INLINE void eight_of_nv12(const uint8_t *y, const uint8_t *uv, __m128i bgr[3]) {
    const __m128i twice_u = _mm_setr_epi8(0, 0, 2, 2, 4, 4, 6, 6, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i twice_v = _mm_setr_epi8(1, 1, 3, 3, 5, 5, 7, 7, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i middle = _mm256_set1_epi32(128), half = _mm256_set1_epi32(1 << 19);
    const __m128i chroma = load64(uv), dark = _mm_subs_epu8(load64(y), _mm_set1_epi8(16));
    const __m256i u = _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(chroma, twice_u)), middle);
    const __m256i v = _mm256_sub_epi32(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(chroma, twice_v)), middle);
    const __m256i luma =
        _mm256_add_epi32(_mm256_mullo_epi32(_mm256_cvtepu8_epi32(dark), _mm256_set1_epi32(IFS__NV12_Y)), half);
    const __m256i blue = _mm256_add_epi32(luma, _mm256_mullo_epi32(u, _mm256_set1_epi32(IFS__NV12_BLUE_U)));
    const __m256i red = _mm256_add_epi32(luma, _mm256_mullo_epi32(v, _mm256_set1_epi32(IFS__NV12_RED_V)));
    const __m256i green =
        _mm256_sub_epi32(luma, _mm256_add_epi32(_mm256_mullo_epi32(u, _mm256_set1_epi32(IFS__NV12_GREEN_U)),
                                                _mm256_mullo_epi32(v, _mm256_set1_epi32(IFS__NV12_GREEN_V))));
    bgr[0] = bytes_of_int32(_mm256_srai_epi32(blue, 20));
    bgr[1] = bytes_of_int32(_mm256_srai_epi32(green, 20));
    bgr[2] = bytes_of_int32(_mm256_srai_epi32(red, 20));
}

TARGET static void nv12_avx2(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n) {
    int32_t x = 0;
    for (; x <= n - 16; x += 16) {
        __m128i left[3], right[3];
        eight_of_nv12(y + x, uv + x, left);
        eight_of_nv12(y + x + 8, uv + x + 8, right);
        interleave(_mm_unpacklo_epi64(left[0], right[0]), _mm_unpacklo_epi64(left[1], right[1]),
                   _mm_unpacklo_epi64(left[2], right[2]), bgr + 3 * (size_t)x);
    }
    ifs__nv12_plain(y + x, uv + x, bgr + 3 * (size_t)x, n - x);
}

/* ---- warp ---- */

/*
 * One pixel at a time: its coordinates are two 64-bit additions, and its taps two loads. The channels are side by side:
 * a pair of bytes (left, right) for each of three, in dwords.
 */
INLINE void warp_colour(const ifs__warp_source *s, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                        uint8_t *planes, size_t pitch) {
    const char p = (char)s->pixel;
    const __m128i pairs = _mm_setr_epi8(0, -1, p, -1, 1, -1, 1 + p, -1, 2, -1, 2 + p, -1, -1, -1, -1, -1);
    const int64_t last_x = ((int64_t)s->width * s->pixel - 8) / s->pixel; /* 8 bytes are read from there on */
    const int64_t inner_x = s->width * s->pixel < 8 ? 0 : last_x < s->width - 2 ? last_x + 1 : s->width - 1;
    const int64_t inner_y = s->height - 1;
    for (int32_t i = 0; i < n; i++, x += dx, y += dy) {
        const int64_t x11 = ifs__warp_round(x), y11 = ifs__warp_round(y);
        const int64_t ix = x11 >> 11, iy = y11 >> 11;
        if ((uint64_t)ix >= (uint64_t)inner_x || (uint64_t)iy >= (uint64_t)inner_y) {
            ifs__warp_plain(s, x, y, 0, 0, 1, planes + i, pitch);
            continue;
        }
        const int32_t fx = (int32_t)(x11 & 2047), fy = (int32_t)(y11 & 2047);
        const uint8_t *at = s->data + iy * s->stride + ix * s->pixel;
        const __m128i weight = _mm_set1_epi32((2048 - fx) | fx << 16);
        const __m128i top = _mm_madd_epi16(_mm_shuffle_epi8(load64(at), pairs), weight);
        const __m128i bottom = _mm_madd_epi16(_mm_shuffle_epi8(load64(at + s->stride), pairs), weight);
        const __m128i sum =
            _mm_add_epi32(_mm_mullo_epi32(top, _mm_set1_epi32(2048 - fy)), _mm_mullo_epi32(bottom, _mm_set1_epi32(fy)));
        const __m128i value = _mm_srli_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << 21)), 22);
        const uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(
            _mm_shuffle_epi8(value, _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)));
        for (int32_t c = 0; c < s->channels; c++)
            planes[(size_t)c * pitch + (size_t)i] = (uint8_t)(bytes >> 8 * s->channel[c]);
    }
}

TARGET static void warp_avx2(const ifs__warp_source *s, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                             uint8_t *planes, size_t pitch) {
    if (s->pixel == 1)
        ifs__warp_plain(s, x, y, dx, dy, n, planes, pitch);
    else
        warp_colour(s, x, y, dx, dy, n, planes, pitch);
}

const ifs__kernels ifs__kernels_avx2 = {
    .lanes = 16,
    .gray = gray_avx2,
    .nv12 = nv12_avx2,
    .columns = columns_avx2,
    .rows = rows_avx2,
    .rows_area = rows_area_avx2,
#if IFS__NEON
    .shrink = shrink_neon,
#endif
    .store = store_avx2,
    .warp = warp_avx2,
};
#endif
