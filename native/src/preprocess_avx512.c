/*
 * preprocess_avx512.c - the kernels for AVX-512 with VBMI, whose byte permutes over two registers do the shuffling.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "pixel_math.h"
#include "preprocess.h"
#include "simd.h"

#if IFS__AVX512
#include <string.h>

#define TARGET IFS__TARGET_AVX512
#define INLINE IFS__INLINE TARGET

/* The bytes 4 i to 4 i + 3 of an index that makes two int16 out of bytes `first` and `second`; the mask PAIRS zeroes
 * the upper halves. */
#define PAIRS 0x5555555555555555ULL

INLINE __m512i iota(void) { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

INLINE __m512i pair_index(__m512i first, int second) {
    return _mm512_or_si512(first, _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(second)), 16));
}

/* ---- columns ---- */

/*
 * 32 columns at a time, their 32 pairs of bytes brought together by byte permutes out of 32 / window registers, each of
 * which holds the bytes of `window` columns side by side: 64 bytes of the row or, where columns lie too far apart for
 * that, 8 gathered bytes for each of 8 columns.
 */
TARGET static void prepare_avx512(ifs__columns *t) {
    t->window = 0;
    for (int32_t window = 32; window >= 4 && !t->window; window /= 2) {
        int32_t span = 0;
        for (int32_t x = 0; x < t->padded; x += window) {
            const int32_t reach = t->offset[x + window - 1] - t->offset[x];
            span = reach > span ? reach : span;
        }
        if (span + t->pixel + (t->pixel == 1 ? 1 : 3) <= 64)
            t->window = window;
    }
    for (int32_t x = 0; x < t->padded; x++) {
        const int32_t first = t->window ? t->offset[x] - t->offset[x & -t->window] : 8 * (x & 7);
        t->index[2 * x] = (uint8_t)first;
        t->index[2 * x + 1] = (uint8_t)(first + t->pixel);
    }
}

/* 64 bytes of the row from byte `base` on, as far as they may be read. */
INLINE __m512i load_window(const uint8_t *row, int32_t base, int32_t readable) {
    const int32_t left = readable - base;
    return left >= 64 ? _mm512_loadu_si512(row + base)
                      : _mm512_maskz_loadu_epi8(_bzhi_u64(~0ULL, (unsigned)left), row + base);
}

/* Asks for the bytes at the same place in the row that is resized a canvas row later: where rows are skipped, the
 * processor does not guess them. The address may lie outside the image; that is no access. */
INLINE void prefetch(const uint8_t *row, int32_t base, int64_t ahead) {
    _mm_prefetch((const char *)((uintptr_t)row + (uintptr_t)(base + ahead)), _MM_HINT_T0);
}

/* (p0 a0 + p1 a1) >> 4 for 32 columns, see ifs__columns. No sum saturates: the weights of a column add up to 2048. */
INLINE __m512i weigh(__m512i pairs, __m512i high, __m512i low) {
    return _mm512_add_epi16(_mm512_maddubs_epi16(pairs, high), _mm512_srli_epi16(_mm512_maddubs_epi16(pairs, low), 4));
}

INLINE void columns_as(const uint8_t *row, const ifs__columns *t, int window, int planes, int16_t *dst, size_t pitch) {
    const int columns = window ? window : 8, windows = 32 / columns;
    const __m512i next = _mm512_set1_epi8(1);
    for (int32_t x = 0; x < t->padded; x += 32) {
        const bool whole = t->offset[x + 31] + 64 <= t->readable;
        __m512i bytes[8];
#pragma GCC unroll 8
        for (int w = 0; w < windows; w++) {
            const int32_t at = x + w * columns;
            prefetch(row, t->offset[at], t->ahead);
            if (!window)
                bytes[w] = _mm512_i32gather_epi64(_mm256_load_si256((const __m256i *)(t->offset + at)), row, 1);
            else if (whole)
                bytes[w] = _mm512_loadu_si512(row + t->offset[at]);
            else
                bytes[w] = load_window(row, t->offset[at], t->readable);
        }
        const __m512i high = _mm512_load_si512(t->high + 2 * x), low = _mm512_load_si512(t->low + 2 * x);
        __m512i index = _mm512_load_si512(t->index + 2 * x);
#pragma GCC unroll 3
        for (int c = 0; c < planes; c++) {
            __m512i pairs = _mm512_permutexvar_epi8(index, bytes[0]);
#pragma GCC unroll 8
            for (int w = 1; w < windows; w++) {
                const __mmask64 lanes = (~0ULL >> (64 - 2 * columns)) << (2 * columns * w);
                pairs = _mm512_mask_permutexvar_epi8(pairs, lanes, index, bytes[w]);
            }
            _mm512_store_si512(dst + c * pitch + x, weigh(pairs, high, low));
            index = _mm512_add_epi8(index, next);
        }
    }
}

TARGET static void columns_avx512(const uint8_t *row, const ifs__columns *t, int32_t planes, int16_t *dst,
                                  size_t pitch) {
#define CASE(window)                                                                                                   \
    case window:                                                                                                       \
        if (planes == 1)                                                                                               \
            columns_as(row, t, window, 1, dst, pitch);                                                                 \
        else                                                                                                           \
            columns_as(row, t, window, 3, dst, pitch);                                                                 \
        break;
    switch (t->window) {
        CASE(0)
        CASE(4)
        CASE(8)
        CASE(16)
        CASE(32)
    }
#undef CASE
}

/* ---- rows ---- */

INLINE void put_row(uint8_t *dst, int32_t left, __m512i words) {
    if (left >= 32)
        _mm256_storeu_si256((__m256i *)dst, _mm512_cvtepi16_epi8(words));
    else
        _mm256_mask_storeu_epi8(dst, _bzhi_u32(~0U, (unsigned)left), _mm512_cvtepi16_epi8(words));
}

TARGET static void rows_avx512(const int16_t *row0, const int16_t *row1, uint32_t weights, uint8_t *dst, int32_t n) {
    const __m512i b0 = _mm512_set1_epi16((short)weights), b1 = _mm512_set1_epi16((short)(weights >> 16)),
                  two = _mm512_set1_epi16(2);
    for (int32_t x = 0; x < n; x += 32) {
        const __m512i s0 = _mm512_mulhi_epi16(_mm512_loadu_si512(row0 + x), b0);
        const __m512i s1 = _mm512_mulhi_epi16(_mm512_loadu_si512(row1 + x), b1);
        put_row(dst + x, n - x, _mm512_srai_epi16(_mm512_add_epi16(_mm512_add_epi16(s0, s1), two), 2));
    }
}

TARGET static void rows_area_avx512(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n) {
    const __m512i two = _mm512_set1_epi16(2);
    for (int32_t x = 0; x < n; x += 32) {
        const __m512i sum = _mm512_add_epi16(_mm512_loadu_si512(row0 + x), _mm512_loadu_si512(row1 + x));
        put_row(dst + x, n - x, _mm512_srli_epi16(_mm512_add_epi16(sum, two), 2));
    }
}

/* ---- store ---- */

/* 16 bytes to y = x scale + bias. */
INLINE __m512 scaled(__m128i bytes, __m512 scale, __m512 bias) {
    const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
    return _mm512_add_ps(_mm512_mul_ps(x, scale), bias);
}

INLINE __m256i halves_of(__m512 y) { return _mm512_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

/* The same in the dtype, the elements under `mask` written. */
INLINE void put(int dtype, void *dst, __mmask16 mask, __m128i bytes, __m512 scale, __m512 bias) {
    const __m512 y = scaled(bytes, scale, bias);
    if (dtype == IFS_FLOAT32) {
        _mm512_mask_storeu_ps(dst, mask, y);
    } else if (dtype == IFS_FLOAT16) {
        _mm256_mask_storeu_epi16(dst, mask, halves_of(y));
    } else {
        const __m512 clipped = _mm512_min_ps(_mm512_max_ps(y, _mm512_setzero_ps()), _mm512_set1_ps(255));
        _mm_mask_storeu_epi8(dst, mask, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(clipped)));
    }
}

INLINE size_t size_of(int dtype) { return dtype == IFS_FLOAT32 ? 4 : dtype == IFS_FLOAT16 ? 2 : 1; }

/* Past the caches; `dst` is aligned to the vector. */
INLINE void put_past(int dtype, uint8_t *dst, __m128i bytes, __m512 scale, __m512 bias) {
    const __m512 y = scaled(bytes, scale, bias);
    if (dtype == IFS_FLOAT32)
        _mm512_stream_ps((float *)dst, y);
    else
        _mm256_stream_si256((__m256i *)dst, halves_of(y));
}

/* n bytes, the same scale and bias for all; whole vectors go to aligned addresses, as a store over two cache lines
 * costs two. */
INLINE void put_plane(int dtype, uint8_t *dst, const uint8_t *src, int32_t n, float scale1, float bias1, bool past) {
    const __m512 scale = _mm512_set1_ps(scale1), bias = _mm512_set1_ps(bias1);
    const int32_t size = (int32_t)size_of(dtype);
    int32_t x = (int32_t)(-(uintptr_t)dst % (16 * (uintptr_t)size)) / size;
    x = x < n ? x : n;
    if (x)
        put(dtype, dst, (__mmask16)_bzhi_u32(0xFFFF, (unsigned)x), _mm_loadu_si128((const __m128i *)src), scale, bias);
    if (past && dtype != IFS_UINT8)
        for (; x <= n - 16; x += 16)
            put_past(dtype, dst + x * size, _mm_loadu_si128((const __m128i *)(src + x)), scale, bias);
    for (; x <= n - 16; x += 16)
        put(dtype, dst + x * size, 0xFFFF, _mm_loadu_si128((const __m128i *)(src + x)), scale, bias);
    if (x < n)
        put(dtype, dst + x * size, (__mmask16)_bzhi_u32(0xFFFF, (unsigned)(n - x)),
            _mm_loadu_si128((const __m128i *)(src + x)), scale, bias);
}

INLINE void store_as(int dtype, const ifs__store *s, const uint8_t *planes, size_t pitch, int32_t y) {
    for (int32_t c = 0; c < s->channels; c++) {
        uint8_t *const dst = s->dst + (size_t)y * s->row + (size_t)c * s->plane;
        const uint8_t *const src = planes + (size_t)c * pitch;
        if (dtype == IFS_UINT8 && s->scale[c] == 1 && s->bias[c] == 0)
            memcpy(dst, src, (size_t)s->width);
        else
            put_plane(dtype, dst, src, s->width, s->scale[c], s->bias[c], s->past);
    }
}

TARGET static void store_avx512(const ifs__store *s, const uint8_t *planes, size_t pitch, int32_t y) {
    if (s->layout == IFS_LAYOUT_HWC && s->channels == 3)
        ifs__kernels_avx2.store(s, planes, pitch, y); /* longer vectors are slower here */
    else if (s->dtype == IFS_FLOAT32)
        store_as(IFS_FLOAT32, s, planes, pitch, y);
    else if (s->dtype == IFS_FLOAT16)
        store_as(IFS_FLOAT16, s, planes, pitch, y);
    else
        store_as(IFS_UINT8, s, planes, pitch, y);
}

/* ---- colour ---- */

TARGET static void gray_avx512(const uint8_t *src, int32_t pixel, bool rgb, uint8_t *dst, int32_t n) {
    const __m512i first = _mm512_mullo_epi32(iota(), _mm512_set1_epi32(pixel));
    const __m512i index01 = pair_index(first, 1), index2 = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    const int32_t weight0 = rgb ? IFS__GRAY_R : IFS__GRAY_B;
    const __m512i weight01 = _mm512_set1_epi32(weight0 | IFS__GRAY_G << 16);
    const __m512i weight2 = _mm512_set1_epi32(rgb ? IFS__GRAY_B : IFS__GRAY_R);
    const __m512i half = _mm512_set1_epi32(1 << 14);
    const __mmask64 bytes = _bzhi_u64(~0ULL, (unsigned)(16 * pixel));
    int32_t x = 0;
    for (; x <= n - 16; x += 16) {
        const __m512i p = _mm512_maskz_loadu_epi8(bytes, src + (size_t)x * (size_t)pixel);
        const __m512i p01 = _mm512_maskz_permutexvar_epi8(PAIRS, index01, p);
        const __m512i p2 = _mm512_maskz_permutexvar_epi8(PAIRS & 0x1111111111111111ULL, index2, p);
        const __m512i sum = _mm512_add_epi32(_mm512_madd_epi16(p01, weight01), _mm512_madd_epi16(p2, weight2));
        _mm_storeu_si128((__m128i *)(dst + x),
                         _mm512_cvtepi32_epi8(_mm512_srli_epi32(_mm512_add_epi32(sum, half), 15)));
    }
    ifs__gray_plain(src + (size_t)x * (size_t)pixel, pixel, rgb, dst + x, n - x);
}

/* 20 bits behind the point to a byte. */
INLINE __m128i byte_of(__m512i value) {
    return _mm512_cvtusepi32_epi8(_mm512_max_epi32(_mm512_srai_epi32(value, 20), _mm512_setzero_si512()));
}

TARGET static void nv12_avx512(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n) {
    const __m128i twice_u = _mm_set_epi8(14, 14, 12, 12, 10, 10, 8, 8, 6, 6, 4, 4, 2, 2, 0, 0);
    const __m128i twice_v = _mm_add_epi8(twice_u, _mm_set1_epi8(1));
    const __m512i middle = _mm512_set1_epi32(128), half = _mm512_set1_epi32(1 << 19);
    uint8_t order[64] = {0};
    for (int i = 0; i < 48; i++)
        order[i] = (uint8_t)(16 * (i % 3) + i / 3);
    const __m512i interleave = _mm512_loadu_si512(order);
    int32_t x = 0;
    for (; x <= n - 16; x += 16) {
        const __m128i chroma = _mm_loadu_si128((const __m128i *)(uv + x));
        const __m128i dark = _mm_subs_epu8(_mm_loadu_si128((const __m128i *)(y + x)), _mm_set1_epi8(16));
        const __m512i u = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_shuffle_epi8(chroma, twice_u)), middle);
        const __m512i v = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_shuffle_epi8(chroma, twice_v)), middle);
        const __m512i luma =
            _mm512_add_epi32(_mm512_mullo_epi32(_mm512_cvtepu8_epi32(dark), _mm512_set1_epi32(IFS__NV12_Y)), half);
        const __m512i b = _mm512_add_epi32(luma, _mm512_mullo_epi32(u, _mm512_set1_epi32(IFS__NV12_BLUE_U)));
        const __m512i r = _mm512_add_epi32(luma, _mm512_mullo_epi32(v, _mm512_set1_epi32(IFS__NV12_RED_V)));
        const __m512i g =
            _mm512_sub_epi32(luma, _mm512_add_epi32(_mm512_mullo_epi32(u, _mm512_set1_epi32(IFS__NV12_GREEN_U)),
                                                    _mm512_mullo_epi32(v, _mm512_set1_epi32(IFS__NV12_GREEN_V))));
        const __m256i bg = _mm256_inserti128_si256(_mm256_castsi128_si256(byte_of(b)), byte_of(g), 1);
        const __m512i planes = _mm512_inserti64x4(_mm512_castsi256_si512(bg), _mm256_castsi128_si256(byte_of(r)), 1);
        _mm512_mask_storeu_epi8(bgr + 3 * (size_t)x, (1ULL << 48) - 1, _mm512_permutexvar_epi8(interleave, planes));
    }
    ifs__nv12_plain(y + x, uv + x, bgr + 3 * (size_t)x, n - x);
}

/* ---- warp ---- */

/* 16 coordinates with 11 bits behind the point. Those too large for 32 bits are saturated: far outside either way. */
INLINE __m512i coordinates(__m512i low, __m512i high) {
    const __m512i half = _mm512_set1_epi64(1 << 20);
    const __m256i a = _mm512_cvtsepi64_epi32(_mm512_srai_epi64(_mm512_add_epi64(low, half), 21));
    const __m256i b = _mm512_cvtsepi64_epi32(_mm512_srai_epi64(_mm512_add_epi64(high, half), 21));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Bit i: 0 <= value <= last. */
INLINE __mmask16 within(__m512i value, int32_t last) {
    return last < 0 ? 0 : _mm512_cmple_epu32_mask(value, _mm512_set1_epi32(last));
}

INLINE __m512i eight_offsets(__m256i ix, __m256i iy, __m512i stride, __m512i pixel) {
    return _mm512_add_epi64(_mm512_mullo_epi64(_mm512_cvtepi32_epi64(iy), stride),
                            _mm512_mul_epu32(_mm512_cvtepu32_epi64(ix), pixel));
}

TARGET static void warp_avx512(const ifs__warp_source *s, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                               uint8_t *planes, size_t pitch) {
    const __m512i eight = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), one = _mm512_set1_epi32(2048);
    const __m512i step_x = _mm512_mullo_epi64(eight, _mm512_set1_epi64(dx));
    const __m512i step_y = _mm512_mullo_epi64(eight, _mm512_set1_epi64(dy));
    const __m512i stride = _mm512_set1_epi64(s->stride), pixel = _mm512_set1_epi64(s->pixel);
    const __m512i fraction = _mm512_set1_epi32(2047), next = _mm512_set1_epi32(0x00010001);
    /* A gather reads 8 bytes of each row: the last pixel where it stays inside the image. */
    const int32_t last_x = s->width * s->pixel < 8 ? -1 : (s->width * s->pixel - 8) / s->pixel;
    const int32_t inner_x = last_x < s->width - 2 ? last_x : s->width - 2, inner_y = s->height - 2;
    int32_t i = 0;
    for (; i <= n - 16; i += 16) {
        const uint64_t ux = (uint64_t)x + (uint64_t)i * (uint64_t)dx, uy = (uint64_t)y + (uint64_t)i * (uint64_t)dy;
        const __m512i x0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)ux), step_x);
        const __m512i y0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)uy), step_y);
        const __m512i x11 = coordinates(x0, _mm512_add_epi64(x0, _mm512_set1_epi64((int64_t)(8 * (uint64_t)dx))));
        const __m512i y11 = coordinates(y0, _mm512_add_epi64(y0, _mm512_set1_epi64((int64_t)(8 * (uint64_t)dy))));
        const __m512i ix = _mm512_srai_epi32(x11, 11), iy = _mm512_srai_epi32(y11, 11);
        if ((within(ix, inner_x) & within(iy, inner_y)) != 0xFFFF) {
            /* Outside: not even the second tap, at index + 1, is in the image. */
            const __m512i ones = _mm512_set1_epi32(1);
            if ((within(_mm512_add_epi32(ix, ones), s->width) & within(_mm512_add_epi32(iy, ones), s->height)) == 0)
                for (int32_t c = 0; c < s->channels; c++)
                    memset(planes + (size_t)c * pitch + i, s->fill[c], 16);
            else
                ifs__warp_plain(s, (int64_t)ux, (int64_t)uy, dx, dy, 16, planes + i, pitch);
            continue;
        }
        const __m512i fx = _mm512_and_si512(x11, fraction), fy = _mm512_and_si512(y11, fraction);
        const __m512i weight = _mm512_or_si512(_mm512_sub_epi32(one, fx), _mm512_slli_epi32(fx, 16));
        const __m512i rest = _mm512_sub_epi32(one, fy);
        const __m512i at0 = eight_offsets(_mm512_castsi512_si256(ix), _mm512_castsi512_si256(iy), stride, pixel);
        const __m512i at1 =
            eight_offsets(_mm512_extracti64x4_epi64(ix, 1), _mm512_extracti64x4_epi64(iy, 1), stride, pixel);
        const __m512i top0 = _mm512_i64gather_epi64(at0, s->data, 1), top1 = _mm512_i64gather_epi64(at1, s->data, 1);
        const __m512i bottom0 = _mm512_i64gather_epi64(at0, s->data + s->stride, 1);
        const __m512i bottom1 = _mm512_i64gather_epi64(at1, s->data + s->stride, 1);
        const __m512i index = pair_index(_mm512_slli_epi32(iota(), 3), s->pixel);
        __m128i value[3];
        for (int32_t b = 0; b < (s->pixel == 1 ? 1 : 3); b++) {
            const __m512i at = _mm512_add_epi32(index, _mm512_mullo_epi32(next, _mm512_set1_epi32(b)));
            const __m512i top = _mm512_madd_epi16(_mm512_maskz_permutex2var_epi8(PAIRS, top0, at, top1), weight);
            const __m512i bottom =
                _mm512_madd_epi16(_mm512_maskz_permutex2var_epi8(PAIRS, bottom0, at, bottom1), weight);
            const __m512i sum = _mm512_add_epi32(_mm512_mullo_epi32(top, rest), _mm512_mullo_epi32(bottom, fy));
            value[b] = _mm512_cvtepi32_epi8(_mm512_srli_epi32(_mm512_add_epi32(sum, _mm512_set1_epi32(1 << 21)), 22));
        }
        for (int32_t c = 0; c < s->channels; c++)
            _mm_storeu_si128((__m128i *)(planes + (size_t)c * pitch + i), value[s->channel[c]]);
    }
    ifs__warp_plain(s, (int64_t)((uint64_t)x + (uint64_t)i * (uint64_t)dx),
                    (int64_t)((uint64_t)y + (uint64_t)i * (uint64_t)dy), dx, dy, n - i, planes + i, pitch);
}

const ifs__kernels ifs__kernels_avx512 = {
    .lanes = 32,
    .gray = gray_avx512,
    .nv12 = nv12_avx512,
    .prepare = prepare_avx512,
    .columns = columns_avx512,
    .rows = rows_avx512,
    .rows_area = rows_area_avx512,
    .store = store_avx512,
    .warp = warp_avx512,
};
#endif
