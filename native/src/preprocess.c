/*
 * preprocess.c - one pass from an image to a network's input: the plan of a call, and its loop over rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A call keeps its tables and rows in one block of scratch memory, about 20 bytes for each column of the canvas and 4
 * for each column of the source. The block is freed before the call returns. A WARP of NV12, or of colour to gray,
 * first converts the rows that it reads into a second block.
 */
#include "preprocess.h"

#include "geometry.h"
#include "pixel_math.h"
#include "preprocess_check.h"
#include "platform.h"
#include "simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The output of each of 256 values, for each channel, in the output's type. */
static void fill_table(const ifs_pixel_transform *t, int32_t channels, void *table) {
    for (int32_t c = 0; c < channels; c++)
        for (int32_t v = 0; v < 256; v++) {
            const float value = ifs__pixel_scale((uint32_t)v, t->scale[c], t->bias[c]);
            const int32_t at = 256 * c + v;
            if (t->dtype == IFS_FLOAT32)
                ((float *)table)[at] = value;
            else if (t->dtype == IFS_FLOAT16)
                ((uint16_t *)table)[at] = ifs__float_to_half(value);
            else
                ((uint8_t *)table)[at] = ifs__pixel_byte(value);
        }
}

/* ---- the plan of a call ---- */

typedef struct plan {
    const ifs__kernels *kernels;
    const ifs_image *image;
    const ifs_geometry *geometry;
    ifs__store store;
    int32_t channels;     /* of the output */
    int32_t channel[3];   /* the byte of a pixel that each of them is, once a row is converted */
    int32_t pixel;        /* bytes of a pixel, once a row is converted: 1, 3 or 4 */
    int32_t planes;       /* that are resized: 1 or 3 */
    bool rgb, to_gray;
    /* scratch */
    uint8_t *bgr, *row;   /* a source row converted from NV12; one converted to gray, or copied */
    uint8_t *canvas;      /* a canvas row, in planes */
    size_t canvas_pitch;
    int16_t *resized[2];  /* rows after the horizontal pass, in planes */
    size_t resized_pitch;
    int32_t resized_y[2]; /* the source rows that they are; -1: none */
    ifs__columns columns;
} plan;

static plan plan_of(const ifs_image *image, const ifs_geometry *g, const ifs_pixel_transform *t, void *dst) {
    plan p = {.kernels = IFS__VARIANT(&ifs__kernels), .image = image, .geometry = g, .resized_y = {-1, -1}};
    p.rgb = image->format == IFS_PIXEL_RGB || image->format == IFS_PIXEL_RGBA;
    p.channels = t->order == IFS_ORDER_GRAY ? 1 : 3;
    p.to_gray = t->order == IFS_ORDER_GRAY && image->format != IFS_PIXEL_GRAY;
    p.pixel = p.to_gray || image->format == IFS_PIXEL_GRAY ? 1
              : image->format == IFS_PIXEL_NV12            ? 3
                                                           : ifs__pixel_size(image->format);
    p.planes = p.pixel == 1 ? 1 : 3;
    for (int32_t c = 0; c < 3; c++)
        p.channel[c] = p.planes == 1 ? 0 : (t->order == IFS_ORDER_RGB) == p.rgb ? c : 2 - c;

    const size_t element = ifs__output_element_size(t->dtype);
    p.store = (ifs__store){
        .channels = p.channels, .layout = t->layout, .dtype = t->dtype, .width = g->canvas_width, .dst = dst};
    p.store.row = (size_t)g->canvas_width * element * (t->layout == IFS_LAYOUT_HWC ? (size_t)p.channels : 1);
    p.store.plane = t->layout == IFS_LAYOUT_HWC ? 0 : p.store.row * (size_t)g->canvas_height;
    memcpy(p.store.scale, t->scale, sizeof t->scale);
    memcpy(p.store.bias, t->bias, sizeof t->bias);
    return p;
}

/* Lays out the scratch memory. The first call, with block NULL, gives the size; the second sets the pointers. */
static size_t lay_out(plan *p, char *block) {
    size_t used = 0;
#define TAKE(member, nbytes) (member) = ifs__take(block, &used, (size_t)(nbytes) + IFS__ROW_SLACK)
    const size_t width = (size_t)p->image->width;
    p->canvas_pitch = ((size_t)p->geometry->canvas_width + 63 + IFS__ROW_SLACK) & ~(size_t)63;
    TAKE(p->canvas, (size_t)p->channels * p->canvas_pitch);
    TAKE(p->bgr, p->image->format == IFS_PIXEL_NV12 ? 3 * width : 0);
    TAKE(p->row, width * (size_t)p->pixel);
    if (p->kernels == &ifs__kernels_plain)
        TAKE(p->store.table, (size_t)p->channels * 256 * sizeof(float));
    if (p->geometry->kind == IFS_GEOMETRY_RESIZE) {
        const size_t columns = (size_t)p->columns.padded;
        p->resized_pitch = (columns + 31) & ~(size_t)31;
        TAKE(p->resized[0], (size_t)p->planes * p->resized_pitch * sizeof(int16_t));
        TAKE(p->resized[1], (size_t)p->planes * p->resized_pitch * sizeof(int16_t));
        TAKE(p->columns.offset, columns * sizeof(int32_t));
        TAKE(p->columns.weight, columns * 2 * sizeof(int16_t));
        TAKE(p->columns.high, columns * 2);
        TAKE(p->columns.low, columns * 2);
        TAKE(p->columns.index, columns * 2);
    }
#undef TAKE
    return used;
}

/* ---- rows ---- */

/* A row of the source with `pixel` bytes a pixel; 8 bytes behind the row may be read too. */
static const uint8_t *source_row(plan *p, int32_t y) {
    const ifs_image *image = p->image;
    const int32_t width = image->width;
    const uint8_t *row = image->data + y * image->stride;
    if (image->format == IFS_PIXEL_NV12) {
        p->kernels->nv12(row, image->uv + y / 2 * image->uv_stride, p->bgr, width);
        row = p->bgr;
    }
    if (p->to_gray) {
        p->kernels->gray(row, image->format == IFS_PIXEL_NV12 ? 3 : ifs__pixel_size(image->format), p->rgb, p->row,
                         width);
        return p->row;
    }
    if (row == p->bgr || (image->height - 1 - y) * image->stride >= 8)
        return row;
    memcpy(p->row, row, (size_t)width * (size_t)p->pixel); /* the last row: the image ends with it */
    return p->row;
}

/* Source row y after the horizontal pass. Of the two slots, the one that does not hold row `keep` is overwritten. */
static const int16_t *resized_row(plan *p, int32_t y, int32_t keep) {
    for (int slot = 0; slot < 2; slot++)
        if (p->resized_y[slot] == y)
            return p->resized[slot];
    const int slot = p->resized_y[0] == keep;
    p->kernels->columns(source_row(p, y), &p->columns, p->planes, p->resized[slot], p->resized_pitch);
    p->resized_y[slot] = y;
    return p->resized[slot];
}

static int32_t clamp(int32_t value, int32_t last) { return value < 0 ? 0 : value > last ? last : value; }

/* The two source rows that make row d of the resized image. Where the second has no weight, it is the first again. */
typedef struct row_pair {
    int32_t y[2];
    uint32_t weights; /* as in ifs__tap */
} row_pair;

/* Inlined: the call would be a store, which waits here until the streaming stores of the row before have drained. */
IFS__INLINE row_pair rows_of(const plan *p, int32_t d, double scale, bool halves) {
    const int32_t last = p->image->height - 1;
    const ifs__tap tap = halves ? (ifs__tap){2 * d, 1 | 1 << 16} : ifs__resize_tap(d, scale, p->image->height, false);
    const int32_t y0 = clamp(tap.index, last), y1 = tap.weights >> 16 ? clamp(tap.index + 1, last) : y0;
    return (row_pair){{y0, y1}, tap.weights};
}

/* Makes a row of the resized image from `pair`, into the canvas row from column x on. `next` says what to prefetch. */
static void resize_row(plan *p, row_pair pair, row_pair next, bool halves, int32_t x) {
    const int32_t n = p->columns.count;
    const bool in_place = !p->to_gray && p->image->format != IFS_PIXEL_NV12;
    p->columns.ahead = in_place ? (next.y[0] - pair.y[0]) * p->image->stride : 0;
    const int16_t *row0 = resized_row(p, pair.y[0], pair.y[1]), *row1 = resized_row(p, pair.y[1], pair.y[0]);
    for (int32_t c = 0; c < p->channels; c++) {
        uint8_t *dst = p->canvas + c * p->canvas_pitch + x;
        const size_t plane = (size_t)p->channel[c] * p->resized_pitch;
        if (c && p->planes == 1)
            memcpy(dst, p->canvas + x, (size_t)n);
        else if (halves)
            p->kernels->rows_area(row0 + plane, row1 + plane, dst, n);
        else
            p->kernels->rows(row0 + plane, row1 + plane, pair.weights, dst, n);
    }
}

/* The same of an image that shrinks by a factor of 2 or 3, by one kernel. */
static void shrink_row(plan *p, row_pair pair, int factor, int32_t x) {
    const ifs_image *image = p->image;
    const uint8_t *row0 = image->data + pair.y[0] * image->stride, *row1 = row0 + image->stride;
    if (image->format == IFS_PIXEL_NV12) {
        row0 = memcpy(p->row, source_row(p, pair.y[0]), 3 * (size_t)image->width);
        row1 = factor == 2 ? source_row(p, pair.y[1]) : row0;
    }
    const int32_t offset = factor == 2 ? *p->columns.offset : *p->columns.offset - 3;
    uint8_t *planes[3];
    for (int32_t c = 0; c < 3; c++)
        planes[p->channel[c]] = p->canvas + c * p->canvas_pitch + x;
    p->kernels->shrink(row0 + offset, row1 + offset, factor, planes, p->columns.count);
}

static void fill_canvas(plan *p, const uint8_t *fill) {
    for (int32_t c = 0; c < p->channels; c++)
        memset(p->canvas + c * p->canvas_pitch, fill[c], p->canvas_pitch);
}

/* Stores the canvas row as the rows `from` to `to` - 1: the first by the kernel, the others as copies of that, unless
 * all of them go past the caches. */
static void store_rows(const plan *p, int32_t from, int32_t to) {
    const ifs__store *s = &p->store;
    const int32_t planes = s->layout == IFS_LAYOUT_CHW ? s->channels : 1;
    for (int32_t y = from; y < to; y++)
        if (y == from || s->past)
            p->kernels->store(s, p->canvas, p->canvas_pitch, y);
        else
            for (int32_t c = 0; c < planes; c++) {
                uint8_t *plane = s->dst + (size_t)c * s->plane;
                memcpy(plane + (size_t)y * s->row, plane + (size_t)from * s->row, s->row);
            }
}

/* ---- RESIZE ---- */

static void fill_columns(plan *p, int32_t first, bool halves) {
    ifs__columns *t = &p->columns;
    const int32_t source = p->geometry->source_width;
    const double scale = ifs__resize_scale(source, p->geometry->resized_width);
    for (int32_t x = 0; x < t->count; x++) {
        const int32_t d = first + x;
        const ifs__tap tap = halves ? (ifs__tap){2 * d, 16 | 16 << 16} : ifs__resize_tap(d, scale, source, true);
        t->offset[x] = tap.index * t->pixel;
        t->weight[2 * x] = (int16_t)(tap.weights & 0xffff);
        t->weight[2 * x + 1] = (int16_t)(tap.weights >> 16);
    }
    for (int32_t x = t->count; x < t->padded; x++)
        t->offset[x] = t->offset[t->count - 1];
    memset(t->weight + 2 * t->count, 0, (size_t)(t->padded - t->count) * 2 * sizeof *t->weight);
    for (int32_t i = 0; i < 2 * t->padded; i++) {
        t->high[i] = (int8_t)(t->weight[i] < 2048 ? t->weight[i] >> 4 : 127);
        t->low[i] = (int8_t)(t->weight[i] - 16 * t->high[i]);
    }
    if (p->kernels->prepare)
        p->kernels->prepare(t);
}

static ifs_status run_resize(plan *p, ifs__cover across, ifs__cover down, const uint8_t *fill) {
    const ifs_geometry *g = p->geometry;
    const bool halves = ifs__resize_halves(g);
    const bool thirds = g->source_width == 3 * g->resized_width && g->source_height == 3 * g->resized_height;
    const int factor = p->kernels->shrink && p->pixel == 3 ? (halves ? 2 : thirds ? 3 : 0) : 0;
    const double scale = ifs__resize_scale(g->source_height, g->resized_height);
    if (across.count)
        fill_columns(p, across.first, halves);
    fill_canvas(p, fill);
    store_rows(p, 0, down.from);
    row_pair pair = rows_of(p, down.first, scale, halves), next;
    for (int32_t y = 0; y < down.count; y++, pair = next) {
        next = rows_of(p, down.first + y + 1, scale, halves);
        if (factor)
            shrink_row(p, pair, factor, across.from);
        else
            resize_row(p, pair, next, halves, across.from);
        store_rows(p, down.from + y, down.from + y + 1);
    }
    fill_canvas(p, fill);
    store_rows(p, down.from + down.count, g->canvas_height);
    return IFS_OK;
}

/* ---- WARP ---- */

/* The source rows that the canvas can read: [first, last]. */
static void rows_read(const ifs_geometry *g, int32_t *first, int32_t *last) {
    const double *m = g->to_source;
    double low = INFINITY, high = -INFINITY;
    for (int corner = 0; corner < 4; corner++) {
        const double y = m[3] * (corner & 1 ? g->canvas_width : 0) + m[4] * (corner & 2 ? g->canvas_height : 0) + m[5];
        low = fmin(low, y);
        high = fmax(high, y);
    }
    *first = (int32_t)fmax(floor(low) - 2, 0);
    *last = (int32_t)fmin(ceil(high) + 2, g->source_height - 1);
}

static ifs_status run_warp(plan *p, const uint8_t *fill) {
    const ifs_geometry *g = p->geometry;
    const ifs_image *image = p->image;
    ifs__warp_source source = {image->data, image->stride, image->width, image->height, p->pixel, p->channels};
    memcpy(source.channel, p->channel, sizeof source.channel);
    memcpy(source.fill, fill, sizeof source.fill);
    uint8_t *converted = NULL;
    if (p->to_gray || image->format == IFS_PIXEL_NV12) {
        const size_t row = (size_t)image->width * (size_t)p->pixel;
        size_t nbytes = 0;
        converted = ifs__mul_overflows(row, (size_t)image->height, &nbytes) ? NULL : malloc(nbytes);
        if (!converted)
            return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes for a converted image of %d x %d",
                             nbytes, (int)image->width, (int)image->height);
        int32_t first, last;
        rows_read(g, &first, &last);
        for (int32_t y = first; y <= last; y++)
            memcpy(converted + (size_t)y * row, source_row(p, y), row);
        source.data = converted;
        source.stride = (int64_t)row;
    }
    const ifs__warp warp = ifs__warp_of(g->to_source);
    for (int32_t y = 0; y < g->canvas_height; y++) {
        p->kernels->warp(&source, ifs__warp_at(&warp, 0, 0, y), ifs__warp_at(&warp, 1, 0, y), warp.step_x[0],
                         warp.step_x[1], g->canvas_width, p->canvas, p->canvas_pitch);
        store_rows(p, y, y + 1);
    }
    free(converted);
    return IFS_OK;
}

/* ---- the call ---- */

ifs_status ifs_preprocess(const ifs_image *image, const ifs_geometry *geometry, const ifs_pixel_transform *transform,
                          void *dst, size_t nbytes) {
    IFS__TRY(ifs__check_image_geometry(image, geometry));
    IFS__TRY(ifs__check_transform(transform));
    size_t needed = 0;
    IFS__TRY(ifs__check_output(geometry, transform, 1, dst, nbytes, &needed));

    plan p = plan_of(image, geometry, transform, dst);
#if IFS__AVX512
    p.store.past = needed >= IFS__PAST_FROM;
#endif
    ifs__cover across = {0, 0, 0}, down = {0, 0, 0};
    if (geometry->kind == IFS_GEOMETRY_RESIZE) {
        across = ifs__cover_of(geometry->canvas_width, geometry->resized_width, geometry->offset_x);
        down = ifs__cover_of(geometry->canvas_height, geometry->resized_height, geometry->offset_y);
        if (!across.count || !down.count)
            across.count = down.count = 0;
        const int32_t lanes = p.kernels->lanes;
        p.columns = (ifs__columns){
            .count = across.count,
            .padded = (across.count + lanes - 1) / lanes * lanes,
            .pixel = p.pixel,
            .readable = image->width * p.pixel + 8,
        };
    }
    const size_t size = lay_out(&p, NULL);
    char *block = ifs__aligned_alloc(size);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of scratch memory for a canvas of %d x %d",
                         size, (int)geometry->canvas_width, (int)geometry->canvas_height);
    lay_out(&p, block);
    memset(p.row + (size_t)image->width * (size_t)p.pixel, 0, 8);
    if (image->format == IFS_PIXEL_NV12)
        memset(p.bgr + (size_t)image->width * 3, 0, 8);
    if (p.kernels == &ifs__kernels_plain)
        fill_table(transform, p.channels, (void *)p.store.table);
    const ifs_status status = geometry->kind == IFS_GEOMETRY_RESIZE ? run_resize(&p, across, down, transform->fill)
                                                                    : run_warp(&p, transform->fill);
#if IFS__AVX512
    if (p.store.past)
        _mm_sfence();
#endif
    ifs__aligned_free(block);
    return status;
}
