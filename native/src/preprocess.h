/*
 * preprocess.h - the kernels of preprocessing, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A call goes canvas row by canvas row. A row takes these steps, each one kernel:
 *
 *   source row --(nv12, gray)--> pixels --columns--> two rows of int16 --rows / rows_area--> one row of bytes, a plane
 *                                                                                            for each channel
 *   canvas row <--store-- that row, with the fill to the left and the right of the image
 *
 * The intermediate rows stay in the first-level cache. Two neighbouring canvas rows often share a source row, so a
 * source row is resized horizontally once. Every variant of a kernel gives the bytes of the plain one, whose arithmetic
 * is that of pixel_math.h.
 */
#ifndef IFS_PREPROCESS_H
#define IFS_PREPROCESS_H

#include "internal.h"

/*
 * Outputs of at least so many bytes are written past the caches. A network that takes an input of that size has
 * replaced it in the cache before it is done, so a cached store would first read the line from memory: around yolov5n
 * in float32, bus.jpg takes 0.55 ms instead of 0.80, and the network's own time changes by less than 0.5 %.
 */
#define IFS__PAST_FROM ((size_t)2 << 20)

#define IFS__ROW_SLACK 64 /* bytes behind each scratch row that may be read and written */

/*
 * The columns of a canvas row: the offset of each column's first source pixel, and its two weights. They are padded to
 * a multiple of the kernel's `lanes`; the padding repeats the last column's offset with weights of 0. Arrays are
 * aligned to 64 bytes.
 *
 * `high` and `low` are the weights split into signed bytes, weight = 16 high + low with low at most 16, so that bytes
 * times bytes in 16-bit lanes are enough: (p0 a0 + p1 a1) >> 4 = p0 high0 + p1 high1 + ((p0 low0 + p1 low1) >> 4).
 */
typedef struct ifs__columns {
    int32_t count;    /* columns */
    int32_t padded;   /* with the padding */
    int32_t pixel;    /* bytes of a source pixel: 1, 3 or 4 */
    int32_t readable; /* bytes of a source row that may be read: the row and 8 more */
    int32_t *offset;  /* [padded] bytes from the row's start; never descending */
    int16_t *weight;  /* [padded][2] */
    int8_t *high;     /* [padded][2] */
    int8_t *low;      /* [padded][2] */
    int64_t ahead;    /* bytes from this row to the next one that will be read */
    int32_t window;   /* AVX-512: columns whose bytes fit one register; 0: they lie too far apart */
    uint8_t *index;   /* [padded][2] AVX-512: the positions of a column's two bytes in its window */
} ifs__columns;

/* How bytes become the network's numbers, and where they go. */
typedef struct ifs__store {
    int32_t channels, layout, dtype;
    int32_t width; /* of the canvas */
    float scale[3], bias[3];
    const void *table; /* [channels][256] of the dtype; for the plain variant only */
    uint8_t *dst;
    size_t row;   /* bytes from a canvas row to the next */
    size_t plane; /* CHW: bytes from a channel to the next */
    bool past;    /* write whole aligned vectors past the caches; the caller then ends with a store fence */
} ifs__store;

/* An image of 1, 3 or 4 bytes a pixel, and how a WARP reads it. */
typedef struct ifs__warp_source {
    const uint8_t *data;
    int64_t stride;
    int32_t width, height, pixel;
    int32_t channels;   /* of the output */
    int32_t channel[3]; /* the byte of a pixel that each output channel is */
    uint8_t fill[3];
} ifs__warp_source;

typedef struct ifs__kernels {
    int32_t lanes; /* columns that `columns` takes at a time */
    /* `n` pixels of `pixel` bytes to gray; `rgb`: the first byte of a pixel is red. */
    void (*gray)(const uint8_t *src, int32_t pixel, bool rgb, uint8_t *dst, int32_t n);
    /* A row of Y and its row of UV to BGR; n is even. */
    void (*nv12)(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n);
    /* Computes, once a call, what else `columns` needs; may be NULL. */
    void (*prepare)(ifs__columns *columns);
    /* The weighted sum of two pixels for each column, >> 4, in `planes` planes that lie `pitch` elements apart. */
    void (*columns)(const uint8_t *row, const ifs__columns *columns, int32_t planes, int16_t *dst, size_t pitch);
    /* The weighted sum of two such rows (the weights as in ifs__tap), and the rounded fourth of their plain sum. */
    void (*rows)(const int16_t *row0, const int16_t *row1, uint32_t weights, uint8_t *dst, int32_t n);
    void (*rows_area)(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n);
    /* Both passes at once of an image of 3 bytes a pixel: `n` pixels, a plane for each byte. With a factor of 2 each is
     * the mean of 2 x 2 pixels; with 3 it is the middle one of 3, the first of which is at `row0`. NULL: `columns` and
     * `rows` are as fast. */
    void (*shrink)(const uint8_t *row0, const uint8_t *row1, int factor, uint8_t *const planes[3], int32_t n);
    /* A canvas row in planes `pitch` bytes apart to row y of the output. */
    void (*store)(const ifs__store *store, const uint8_t *planes, size_t pitch, int32_t y);
    /* `n` canvas pixels from x0 on, X and Y being the fixed-point coordinates of the first one. */
    void (*warp)(const ifs__warp_source *source, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                 uint8_t *planes, size_t pitch);
} ifs__kernels;

extern const ifs__kernels ifs__kernels_plain;
extern const ifs__kernels ifs__kernels_avx2, ifs__kernels_avx512;

/* The plain kernels, which the variants call for the pixels that fill no vector. */
void ifs__gray_plain(const uint8_t *src, int32_t pixel, bool rgb, uint8_t *dst, int32_t n);
void ifs__nv12_plain(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n);
void ifs__warp_plain(const ifs__warp_source *source, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                     uint8_t *planes, size_t pitch);

#endif
