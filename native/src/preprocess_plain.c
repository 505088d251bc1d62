/*
 * preprocess_plain.c - the reference of every kernel, in plain C. SPDX-License-Identifier: Apache-2.0
 */
#include "preprocess.h"

#include <string.h>

void ifs__gray_plain(const uint8_t *src, int32_t pixel, const int32_t weight[3], uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++, src += pixel)
        dst[x] = (uint8_t)((src[0] * weight[0] + src[1] * weight[1] + src[2] * weight[2] + (1 << 14)) >> 15);
}

static uint8_t saturate(int32_t value) { return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value); }

/* BT.601, limited range, with 20 bits behind the point. */
void ifs__nv12_plain(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n) {
    for (int32_t x = 0; x < n; x++, bgr += 3) {
        const int32_t luma = (y[x] > 16 ? y[x] - 16 : 0) * 1220542 + (1 << 19);
        const int32_t u = uv[x & ~1] - 128, v = uv[x | 1] - 128;
        bgr[0] = saturate((luma + 2116026 * u) >> 20);
        bgr[1] = saturate((luma - 409993 * u - 852492 * v) >> 20);
        bgr[2] = saturate((luma + 1673527 * v) >> 20);
    }
}

static void columns_plain(const uint8_t *row, const ifs__columns *t, int32_t planes, int16_t *dst, size_t pitch) {
    for (int32_t x = 0; x < t->count; x++) {
        const uint8_t *p = row + t->offset[x];
        const int32_t a0 = t->weight[2 * x], a1 = t->weight[2 * x + 1];
        for (int32_t c = 0; c < planes; c++)
            dst[c * pitch + x] = (int16_t)((p[c] * a0 + p[c + t->pixel] * a1) >> 4);
    }
}

static void rows_plain(const int16_t *row0, const int16_t *row1, const int16_t weight[2], uint8_t *dst, int32_t n) {
    const int32_t b0 = weight[0], b1 = weight[1];
    for (int32_t x = 0; x < n; x++)
        dst[x] = saturate((((b0 * row0[x]) >> 16) + ((b1 * row1[x]) >> 16) + 2) >> 2);
}

static void rows_area_plain(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++)
        dst[x] = (uint8_t)((row0[x] + row1[x] + 2) >> 2);
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
        const int64_t x11 = (x + (1 << 20)) >> 21, y11 = (y + (1 << 20)) >> 21;
        const int64_t ix = x11 >> 11, iy = y11 >> 11;
        const int32_t fx = (int32_t)(x11 & 2047), fy = (int32_t)(y11 & 2047);
        const uint8_t *taps[4]; /* NULL: outside */
        for (int t = 0; t < 4; t++) {
            const int64_t tx = ix + (t & 1), ty = iy + (t >> 1);
            const bool inside = tx >= 0 && tx < s->width && ty >= 0 && ty < s->height;
            taps[t] = inside ? s->data + ty * s->stride + tx * s->pixel : NULL;
        }
        for (int32_t c = 0; c < s->channels; c++) {
            int32_t p[4];
            for (int t = 0; t < 4; t++)
                p[t] = taps[t] ? taps[t][s->channel[c]] : s->fill[c];
            const int32_t top = p[0] * (2048 - fx) + p[1] * fx, bottom = p[2] * (2048 - fx) + p[3] * fx;
            planes[c * pitch + i] = (uint8_t)((top * (2048 - fy) + bottom * fy + (1 << 21)) >> 22);
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
