/*
 * preprocess.h - the parts that preprocessing is made of: the arithmetic, the plan of a call, the kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A call goes canvas row by canvas row. A row takes these steps, each one kernel with one variant for each SIMD:
 *
 *   source row ──(nv12, gray)──> pixels ──columns──> two rows of int16 ──rows / rows_area──> one row of bytes, a plane
 *                                                                                            for each channel
 *   canvas row <──store── that row, which has the fill to the left and the right of the image
 *
 * The intermediate rows stay in the first-level cache. A source row is resized horizontally once, as in each of two
 * neighbouring canvas rows it is the same. Every variant of a kernel gives the same bytes as the plain one.
 */
#ifndef IFS_PREPROCESS_H
#define IFS_PREPROCESS_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define IFS__MAX_SIDE (1 << 20)  /* pixels of a source, canvas or resized side */
#define IFS__MAX_REACH (1 << 29) /* pixels that a WARP may carry a canvas corner away from the source's corner */

ifs_status ifs__check_geometry(const ifs_geometry *geometry);
ifs_status ifs__check_transform(const ifs_pixel_transform *transform);
ifs_status ifs__check_image_geometry(const ifs_image *image,
                                     const ifs_geometry *geometry); /* each, and that they fit */

/* Bytes of a pixel as the image holds it (of the Y plane), 0 for a number that is no format. */
int32_t ifs__pixel_size(int32_t format);

/*
 * Outputs of so many bytes are written past the caches. A network that takes that many has driven them out by the time
 * it is done, so that a cached store would first read the line from memory: around yolov5n in float32, bus.jpg takes
 * 0.55 ms instead of 0.80, and the network's own time does not change by more than 0.5 %.
 */
#define IFS__PAST_FROM ((size_t)2 << 20)

/* ---- the arithmetic of RESIZE ---- */

/*
 * OpenCV's INTER_LINEAR for uint8, in facts. A canvas pixel d of a side takes the two source pixels `index` and
 * index + 1, where f = (float)((d + 0.5) * (1 / (resized / source)) - 0.5) (double inside, rounded to float32),
 * index = floor(f), and the weights of 11 bits are rint((1 - (f - index)) * 2048) and rint((f - index) * 2048).
 * Along x, an index beyond the first or last pixel is that pixel with weight 2048 (`edge`); along y the weights stay
 * and the rows are clamped. Then S = p0 a0 + p1 a1 for a row, and for two rows
 *
 *     (((b0 (S0 >> 4)) >> 16) + ((b1 (S1 >> 4)) >> 16) + 2) >> 2
 *
 * Exactly half the size along both sides is the mean of four pixels instead, (sum + 2) >> 2.
 */
typedef struct ifs__tap {
    int32_t index; /* of the first pixel; -1 to source - 1 */
    int16_t weight[2];
} ifs__tap;

static inline bool ifs__resize_halves(const ifs_geometry *g) {
    return g->source_width == 2 * (int64_t)g->resized_width && g->source_height == 2 * (int64_t)g->resized_height;
}

/* 1 / (resized / source): what OpenCV computes, not the same double as source / resized. */
static inline double ifs__resize_scale(int32_t source, int32_t resized) { return 1.0 / ((double)resized / source); }

ifs__tap ifs__resize_tap(int32_t d, double scale, int32_t source, bool edge);

/* ---- the arithmetic of WARP ---- */

/*
 * All integers, so that each implementation gives the same bytes. The host rounds the map once to fixed point with 32
 * bits behind the point (step_x, step_y: a canvas pixel to the right, down; origin: the centre of the first canvas
 * pixel), in coordinates where a source pixel's centre is a whole number:
 *
 *     X = origin[0] + x step_x[0] + y step_y[0]          (modulo 2^64; the value itself always fits, see MAX_REACH)
 *     x' = (X + 2^20) >> 21                              11 bits behind the point, ties up; likewise y'
 *     ix = x' >> 11, fx = x' & 2047                      >> is arithmetic
 *     top = p(ix, iy) (2048 - fx) + p(ix + 1, iy) fx     bottom likewise in row iy + 1
 *     value = (top (2048 - fy) + bottom fy + 2^21) >> 22 at most 255 2^22, fits int32
 *
 * with p the fill outside the image.
 */
typedef struct ifs__warp {
    int64_t origin[2], step_x[2], step_y[2]; /* [0] for x, [1] for y */
} ifs__warp;

ifs__warp ifs__warp_of(const double to_source[6]);

static inline int64_t ifs__warp_at(const ifs__warp *w, int axis, int32_t x, int32_t y) {
    return (int64_t)((uint64_t)w->origin[axis] + (uint64_t)w->step_x[axis] * (uint64_t)x +
                     (uint64_t)w->step_y[axis] * (uint64_t)y);
}

/* ---- kernels ---- */

#define IFS__ROW_SLACK 64 /* bytes behind each scratch row that may be read and written */

/* OpenCV's weights of blue, green and red in gray: (3735 B + 19235 G + 9798 R + 2^14) >> 15. */
#define IFS__GRAY_B 3735
#define IFS__GRAY_G 19235
#define IFS__GRAY_R 9798

/*
 * The columns of a canvas row: for each, where its first source pixel begins, and the two weights. Padded to a whole
 * number of the kernel's `lanes`; the padding repeats the last column's place with weights of 0. Arrays are aligned to
 * 64 bytes.
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
    int64_t ahead;    /* bytes from the row to one that is read soon */
    int32_t window;   /* of AVX-512: columns whose bytes lie in one register; 0: too far apart */
    uint8_t *index;   /* [padded][2] of AVX-512: where a column's two bytes are in its window */
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
    bool past;    /* whole vectors go past the caches where they can; a fence orders them before whoever reads */
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
    int32_t lanes; /* columns that its `columns` takes at a time */
    /* `n` pixels of `pixel` bytes to gray, the weights in the order of the bytes. */
    void (*gray)(const uint8_t *src, int32_t pixel, const int32_t weight[3], uint8_t *dst, int32_t n);
    /* A row of Y and its row of UV to BGR; n is even. */
    void (*nv12)(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n);
    /* What `columns` needs that is computed once a call; may be NULL. */
    void (*prepare)(ifs__columns *columns);
    /* The weighted sum of two pixels for each column, >> 4, in `planes` planes that lie `pitch` elements apart. */
    void (*columns)(const uint8_t *row, const ifs__columns *columns, int32_t planes, int16_t *dst, size_t pitch);
    /* The weighted sum of two such rows, and the rounded fourth of their plain sum. */
    void (*rows)(const int16_t *row0, const int16_t *row1, const int16_t weight[2], uint8_t *dst, int32_t n);
    void (*rows_area)(const int16_t *row0, const int16_t *row1, uint8_t *dst, int32_t n);
    /* A canvas row in planes `pitch` bytes apart to row y of the output. */
    void (*store)(const ifs__store *store, const uint8_t *planes, size_t pitch, int32_t y);
    /* `n` canvas pixels from x0 on, X and Y being the fixed-point coordinates of the first one. */
    void (*warp)(const ifs__warp_source *source, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                 uint8_t *planes, size_t pitch);
} ifs__kernels;

extern const ifs__kernels ifs__kernels_plain;
#if IFS__X86
extern const ifs__kernels ifs__kernels_avx2;
extern const ifs__kernels ifs__kernels_avx512;
#endif

/* The plain kernels that variants use for what they leave over. */
void ifs__gray_plain(const uint8_t *src, int32_t pixel, const int32_t weight[3], uint8_t *dst, int32_t n);
void ifs__nv12_plain(const uint8_t *y, const uint8_t *uv, uint8_t *bgr, int32_t n);
void ifs__warp_plain(const ifs__warp_source *source, int64_t x, int64_t y, int64_t dx, int64_t dy, int32_t n,
                     uint8_t *planes, size_t pitch);

#ifdef __cplusplus
}
#endif
#endif
