/* preprocess_plain.c - the reference of every kernel, in plain C. SPDX-License-Identifier: Apache-2.0 */
#include "pixel_math.h"
#include "preprocess.h"

void ifs__gray_plain(const uint8_t *src, int32_t pixel, bool rgb, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++, src += pixel)
        dst[x] = (uint8_t)ifs__pixel_gray(src[0], src[1], src[2], rgb);
}

void ifs__nv12_plain(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n) {
    for (int32_t x = 0; x < n; x++, bgr += 3) {
        const uint32_t pixel = ifs__pixel_nv12(y[x], uv[x & ~1], uv[x | 1]);
        bgr[0] = (uint8_t)pixel;
        bgr[1] = (uint8_t)(pixel >> 8);
        bgr[2] = (uint8_t)(pixel >> 16);
    }
}

/* Inlined, so that the number of planes is known to the compiler. */
IFS__INLINE void columns_of(const uint8_t *row, const ifs__columns *t, int32_t planes, int16_t *dst, size_t pitch) {
    const int32_t count = t->count, *offset = t->offset;
    const int16_t *weight = t->weight;
    for (int32_t x = 0; x < count; x++) {
        const uint8_t *p = row + offset[x];
        /* Through uint16_t, so that the compiler sees that each half is one of the two numbers. */
        const uint32_t weights = (uint16_t)weight[2 * x] | (uint32_t)(uint16_t)weight[2 * x + 1] << 16;
        for (int32_t c = 0; c < planes; c++)
            dst[c * pitch + x] = (int16_t)(ifs__pixel_sum(p[c], p[c + t->pixel], weights) >> 4);
    }
}

static void columns_plain(const uint8_t *row, const ifs__columns *t, int32_t planes, int16_t *dst, size_t pitch) {
    if (planes == 3)
        columns_of(row, t, 3, dst, pitch);
    else
        columns_of(row, t, 1, dst, pitch);
}

static void rows_plain(const int16_t *row0, const int16_t *row1, uint32_t weights, uint8_t *dst, int32_t n) {
    const uint32_t high0 = weights << 16, high1 = weights & 0xffff0000u;
    for (int32_t x = 0; x < n; x++)
        dst[x] = (uint8_t)ifs__pixel_blend((uint32_t)row0[x], (uint32_t)row1[x], high0, high1);
}

static void rows_area_plain(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++)
        dst[x] = (uint8_t)ifs__pixel_mean((uint32_t)row0[x], (uint32_t)row1[x]);
}

static void store_plain(const ifs__store *s, const uint8_t *planes, size_t pitch, int32_t y) {
    const int32_t step = s->layout == IFS_LAYOUT_HWC ? s->channels : 1;
    for (int32_t c = 0; c < s->channels; c++) {
        const uint8_t *src = planes + c * pitch;
        uint8_t *row = s->dst + y * s->row;
        if (s->dtype == IFS_FLOAT32) {
            const float *table = (const float *)s->table + 256 * c;
            float *dst = s->layout == IFS_LAYOUT_HWC ? (float *)row + c : (float *)(row + c * s->plane);
            for (int32_t x = 0; x < s->width; x++)
                dst[x * step] = table[src[x]];
        } else if (s->dtype == IFS_FLOAT16) {
            const uint16_t *table = (const uint16_t *)s->table + 256 * c;
            uint16_t *dst = s->layout == IFS_LAYOUT_HWC ? (uint16_t *)row + c : (uint16_t *)(row + c * s->plane);
            for (int32_t x = 0; x < s->width; x++)
                dst[x * step] = table[src[x]];
        } else {
            const uint8_t *table = (const uint8_t *)s->table + 256 * c;
            uint8_t *dst = s->layout == IFS_LAYOUT_HWC ? row + c : row + c * s->plane;
            for (int32_t x = 0; x < s->width; x++)
                dst[x * step] = table[src[x]];
        }
    }
}

void ifs__warp_plain(const ifs__warp_source *s, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                     uint8_t *planes, size_t pitch) {
    for (int32_t i = 0; i < n; i++, x += dx, y += dy) {
        const int64_t x11 = ifs__warp_round(x), y11 = ifs__warp_round(y);
        const int64_t ix = x11 >> 11, iy = y11 >> 11;
        const uint32_t fx = (uint32_t)(x11 & 2047), fy = (uint32_t)(y11 & 2047);
        const uint8_t *taps[4]; /* NULL: outside */
        for (int t = 0; t < 4; t++) {
            const int64_t tx = ix + (t & 1), ty = iy + (t >> 1);
            const bool inside = tx >= 0 && tx < s->width && ty >= 0 && ty < s->height;
            taps[t] = inside ? s->data + ty * s->stride + tx * s->pixel : NULL;
        }
        for (int32_t c = 0; c < s->channels; c++) {
            uint32_t p[4];
            for (int t = 0; t < 4; t++)
                p[t] = taps[t] ? taps[t][s->channel[c]] : s->fill[c];
            planes[c * pitch + i] =
                (uint8_t)ifs__pixel_warp(ifs__pixel_warp_row(p[0], p[1], fx), ifs__pixel_warp_row(p[2], p[3], fx), fy);
        }
    }
}

const ifs__kernels ifs__kernels_plain = {
    .lanes = 1,
    .gray = ifs__gray_plain,
    .nv12 = ifs__nv12_plain,
    .columns = columns_plain,
    .rows = rows_plain,
    .rows_area = rows_area_plain,
    .store = store_plain,
    .warp = ifs__warp_plain,
};
