/*
 * preprocess.cu - a batch of images to a network's input, in one launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A warp makes a tile of the canvas, TILE_WIDTH columns by TILE_ROWS rows. A lane has TILE_COLUMNS neighbours of each
 * row, so that it stores them as one vector. It computes the taps of its columns once, in float64 as the host does;
 * each tap of a row is computed by one lane and passed to the others. A part of a tile that the image does not cover
 * costs stores only. The launch's parameter holds all that a launch has to know of the images.
 */
#include "../src/geometry.h"
#include "../src/preprocess_check.h"
#include "common.cuh"
#include "preprocess_source.cuh"
#include "preprocess_store.cuh"

#include <stdio.h>

namespace {

/* ---- RESIZE ---- */

/* The columns of a lane: their positions in the image, and their weights. */
struct Columns {
    int32_t index[TILE_COLUMNS];
    uint32_t weights[TILE_COLUMNS];
    uint32_t covered; /* a bit for each column that the resized image covers */
    bool both;        /* some column of the warp needs its right pixel */
};

template <class Source> struct Pairs {
    Source source[TILE_COLUMNS];
    __device__ void load(const Image &p, int32_t y, const Columns &columns, bool safe) {
        const typename Source::Rows rows = Source::rows(p, y);
        if (safe) {
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j++)
                source[j].template load<true>(rows, columns.index[j], columns.weights[j] >> 16 != 0);
        } else {
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j++)
                source[j].template load<false>(rows, columns.index[j], columns.weights[j] >> 16 != 0);
        }
    }
    __device__ void finish(bool both) {
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS; j++)
            source[j].finish(both);
    }
};

/* Computes the pixels of a lane from one row of the image or two, and stores them from `at` on. The first `inside` of
 * them are on the canvas; with `whole`, all are, and can be stored as a vector. */
template <class Source, bool HALVES, bool TWO_ROWS, typename T, int OUT>
__device__ void resize_pixels(const Store<T, OUT> &store, const Columns &columns, const Pairs<Source> &upper,
                              const Pairs<Source> &lower, uint32_t down, T *at, int32_t inside, bool whole) {
    const Batch &batch = store.batch;
    uint32_t gray[TILE_COLUMNS];
#pragma unroll
    for (int c = 0; c < OUT; c++) {
        uint32_t values[TILE_COLUMNS];
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS; j++) {
            if (c < Source::CHANNELS) {
                const uint32_t byte = store.byte_of(c), weights = columns.weights[j];
                const uint32_t row0 = ifs__pixel_pair_sum(upper.source[j].pair(byte), weights) >> 4;
                const uint32_t row1 = TWO_ROWS ? ifs__pixel_pair_sum(lower.source[j].pair(byte), weights) >> 4 : 0;
                gray[j] = HALVES ? ifs__pixel_mean(row0, row1)
                                 : ifs__pixel_blend(row0, row1, down << 16, TWO_ROWS ? down & 0xffff0000u : 0);
            }
            values[j] = columns.covered >> j & 1 ? gray[j] : batch.fill[c];
        }
        const Vector<T, TILE_COLUMNS> numbers = store.numbers(c, values);
        if (whole) {
            numbers.store(at + c * batch.plane);
        } else {
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS; j++)
                if (j < inside)
                    at[c * batch.plane + j * batch.step] = numbers.element[j];
        }
    }
}

template <class Source, bool HALVES, typename T, int OUT>
__device__ void resize_tile(const Image &p, const Store<T, OUT> &store, int32_t x0, int32_t y0) {
    const Resize &r = p.resize;
    const Batch &batch = store.batch;
    const uint32_t lane = threadIdx.x & 31, half_weights = 16 | 16 << 16;
    const int32_t x = x0 + (int32_t)lane * TILE_COLUMNS;

    Columns columns;
    columns.covered = 0;
    columns.both = false;
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS; j++) {
        const int32_t column = x + j - r.across.from;
        const bool covered = column >= 0 && column < r.across.count;
        columns.covered |= (uint32_t)covered << j;
        const int32_t d = r.across.first + (covered ? column : 0);
        const ifs__tap tap = ifs__resize_tap(d, r.scale_x, p.width, true);
        columns.index[j] = HALVES ? 2 * d : tap.index;
        columns.weights[j] = HALVES ? half_weights : tap.weights;
        columns.both |= columns.weights[j] >> 16 != 0;
    }
    columns.both = __any_sync(ALL, columns.both);
    const bool any = __any_sync(ALL, columns.covered != 0);
    /* Lane i computes the tap of row y0 + i. */
    const int32_t my_row = y0 + (int32_t)(lane < TILE_ROWS ? lane : 0) - r.down.from;
    const ifs__tap my_tap = ifs__resize_tap(r.down.first + my_row, r.scale_y, p.height, false);

    const size_t row_step = (size_t)batch.width * batch.step;
    const int32_t inside = batch.width - x;
    T *at = store.at(x, y0);
    const bool whole =
        inside >= TILE_COLUMNS && row_step % TILE_COLUMNS == 0 && store.aligned(at, TILE_COLUMNS * sizeof(T));

#pragma unroll 1
    for (int i = 0; i < TILE_ROWS; i++, at += row_step) {
        const int32_t y = y0 + i, row = y - r.down.from;
        if (y >= batch.height)
            return;
        if (row < 0 || row >= r.down.count || !any) {
            store.empty_row(x0, y, lane);
            continue;
        }
        const int32_t top = HALVES ? 2 * (r.down.first + row) : __shfl_sync(ALL, my_tap.index, i);
        const uint32_t down = HALVES ? half_weights : __shfl_sync(ALL, my_tap.weights, i);
        const int32_t first = max(0, min(top, p.height - 1)), second = max(0, min(top + 1, p.height - 1));
        const bool safe = Source::safe(p, second);
        Pairs<Source> upper, lower;
        upper.load(p, first, columns, safe);
        if (HALVES || down >> 16 != 0) {
            lower.load(p, second, columns, safe);
            upper.finish(columns.both);
            lower.finish(columns.both);
            resize_pixels<Source, HALVES, true>(store, columns, upper, lower, down, at, inside, whole);
        } else {
            upper.finish(columns.both);
            resize_pixels<Source, HALVES, false>(store, columns, upper, lower, down, at, inside, whole);
        }
    }
}

/* ---- WARP ---- */

template <class Source, typename T, int OUT>
__device__ void warp_tile(const Image &p, const Store<T, OUT> &store, int32_t x0, int32_t y0) {
    constexpr int CHANNELS = Source::CHANNELS;
    const uint32_t lane = threadIdx.x & 31;
    const Batch &batch = store.batch;
#pragma unroll 1
    for (int i = 0; i < TILE_ROWS && y0 + i < batch.height; i++)
#pragma unroll 1
        for (int j = 0; j < TILE_COLUMNS; j++) {
            const int32_t x = x0 + (int32_t)lane + 32 * j, y = y0 + i;
            if (x >= batch.width)
                break;
            const ifs__warp &w = p.warp;
            const int64_t x11 = ifs__warp_round(ifs__warp_at(&w, 0, x, y));
            const int64_t y11 = ifs__warp_round(ifs__warp_at(&w, 1, x, y));
            const int32_t ix = (int32_t)(x11 >> 11), iy = (int32_t)(y11 >> 11);
            const uint32_t fx = (uint32_t)x11 & 2047, fy = (uint32_t)y11 & 2047;
            const bool left = ix >= 0 && ix < p.width, right = ix >= -1 && ix < p.width - 1;
            const bool rows[2] = {iy >= 0 && iy < p.height, iy >= -1 && iy < p.height - 1};
            const bool any = left || right;
            T *at = store.at(x, y);
            if (!any || !(rows[0] || rows[1])) {
                store.empty(at);
                continue;
            }
            Source source[2];
#pragma unroll
            for (int t = 0; t < 2; t++)
                if (rows[t])
                    source[t].template load<false>(Source::rows(p, iy + t), left ? ix : ix + 1, left && right);
#pragma unroll
            for (int t = 0; t < 2; t++)
                if (rows[t])
                    source[t].finish(true);
#pragma unroll
            for (int c = 0; c < OUT; c++) {
                uint32_t sums[2];
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    uint32_t p0 = batch.fill[c], p1 = p0;
                    if (rows[t]) {
                        const uint32_t pair = source[t].pair(CHANNELS == 1 ? 0 : store.byte_of(c));
                        p0 = left ? pair & 255 : p0;
                        p1 = right ? (left ? pair >> 8 & 255 : pair & 255) : p1;
                    }
                    sums[t] = ifs__pixel_warp_row(p0, p1, fx);
                }
                store.pixel(at, c, ifs__pixel_warp(sums[0], sums[1], fy));
            }
        }
}

/* ---- the kernel ---- */

template <class Source, typename T, int OUT>
__device__ void tile(const Batch &batch, const Image &p, int32_t x, int32_t y) {
    const Store<T, OUT> store(batch, p, blockIdx.y);
    if (p.mode == WARP)
        warp_tile<Source>(p, store, x, y);
    else if (p.mode == HALVES)
        resize_tile<Source, true>(p, store, x, y);
    else
        resize_tile<Source, false>(p, store, x, y);
}

template <typename T, int OUT>
__global__ void __launch_bounds__(32 * WARPS, IFS__BLOCKS) preprocess_kernel(const __grid_constant__ Batch batch) {
    const int32_t number = (int32_t)(blockIdx.x * WARPS + threadIdx.x / 32);
    if (number >= batch.num_tiles)
        return;
    const Image &p = batch.images[blockIdx.y];
    const int32_t x = number % batch.tiles_x * TILE_WIDTH, y = number / batch.tiles_x * TILE_ROWS;
    if constexpr (OUT == 1) {
        switch (p.format) {
        case IFS_PIXEL_BGR:
            return tile<ToGray<Colour<3>, false>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_RGB:
            return tile<ToGray<Colour<3>, true>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_BGRA:
            return tile<ToGray<Colour<4>, false>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_RGBA:
            return tile<ToGray<Colour<4>, true>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_NV12:
            return tile<ToGray<Nv12, false>, T, OUT>(batch, p, x, y);
        default:
            return tile<Gray, T, OUT>(batch, p, x, y);
        }
    } else {
        switch (p.format) {
        case IFS_PIXEL_BGR:
        case IFS_PIXEL_RGB:
            return tile<Colour<3>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_BGRA:
        case IFS_PIXEL_RGBA:
            return tile<Colour<4>, T, OUT>(batch, p, x, y);
        case IFS_PIXEL_NV12:
            return tile<Nv12, T, OUT>(batch, p, x, y);
        default:
            return tile<Gray, T, OUT>(batch, p, x, y);
        }
    }
}

template <typename T> void launch(const Batch &batch, int32_t n, cudaStream_t stream) {
    const dim3 grid((unsigned)((batch.num_tiles + WARPS - 1) / WARPS), (unsigned)n);
    if (batch.order == IFS_ORDER_GRAY)
        preprocess_kernel<T, 1><<<grid, 32 * WARPS, 0, stream>>>(batch);
    else
        preprocess_kernel<T, 3><<<grid, 32 * WARPS, 0, stream>>>(batch);
}

/* ---- the call ---- */

ifs_status for_image(int32_t i, ifs_status status) {
    if (status == IFS_OK)
        return status;
    char before[512];
    snprintf(before, sizeof before, "%s", ifs_last_error());
    return ifs__fail(status, "image %d of the batch: %s", (int)i, before);
}

ifs_status check_image_geometry(const ifs_image *image, const ifs_geometry *g, const ifs_geometry *first) {
    IFS__TRY(ifs__check_image_geometry(image, g));
    if (g->canvas_width != first->canvas_width || g->canvas_height != first->canvas_height)
        return ifs__fail(IFS_ERR_SHAPE, "its canvas is %d x %d, but that of image 0 is %d x %d; a batch has one canvas",
                         (int)g->canvas_width, (int)g->canvas_height, (int)first->canvas_width,
                         (int)first->canvas_height);
    return IFS_OK;
}

Image image_of(const ifs_image *image, const ifs_geometry *g) {
    Image p = {};
    p.data = image->data;
    p.uv = image->uv;
    p.stride = image->stride;
    p.uv_stride = image->uv_stride;
    p.width = image->width;
    p.height = image->height;
    p.format = image->format;
    if (g->kind == IFS_GEOMETRY_WARP) {
        p.mode = WARP;
        p.warp = ifs__warp_of(g->to_source);
        return p;
    }
    p.mode = ifs__resize_halves(g) ? HALVES : RESIZE;
    Resize &r = p.resize;
    r.scale_x = ifs__resize_scale(g->source_width, g->resized_width);
    r.scale_y = ifs__resize_scale(g->source_height, g->resized_height);
    r.across = ifs__cover_of(g->canvas_width, g->resized_width, g->offset_x);
    r.down = ifs__cover_of(g->canvas_height, g->resized_height, g->offset_y);
    return p;
}

} // namespace

ifs_status ifs_cuda_preprocess(const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                               const ifs_pixel_transform *transform, void *dst, size_t nbytes, ifs_stream *stream) {
    if (n < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images; the number is 0 or more", (int)n);
    if (n && (!images || !geometries))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images, but %s is NULL", (int)n,
                         images ? "geometries" : "images");
    IFS__TRY(ifs__check_transform(transform));
    IFS__TRY(ifs__check_stream(stream));
    if (!n)
        return IFS_OK;
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(for_image(i, check_image_geometry(&images[i], &geometries[i], &geometries[0])));
    size_t one = 0;
    IFS__TRY(ifs__check_output(&geometries[0], transform, n, dst, nbytes, &one));

    Batch batch = {};
    const int32_t channels = transform->order == IFS_ORDER_GRAY ? 1 : 3;
    const bool interleaved = transform->layout == IFS_LAYOUT_HWC;
    batch.width = geometries[0].canvas_width;
    batch.height = geometries[0].canvas_height;
    batch.image = one / ifs__output_element_size(transform->dtype);
    batch.step = interleaved ? channels : 1;
    batch.plane = interleaved ? 1 : (size_t)batch.width * (size_t)batch.height;
    batch.order = transform->order;
    batch.tiles_x = (batch.width + TILE_WIDTH - 1) / TILE_WIDTH;
    const int64_t num_tiles = (int64_t)batch.tiles_x * ((batch.height + TILE_ROWS - 1) / TILE_ROWS);
    if (num_tiles > INT32_MAX - WARPS)
        return ifs__fail(IFS_ERR_UNSUPPORTED, "a canvas of %d x %d is too large for one launch", (int)batch.width,
                         (int)batch.height);
    batch.num_tiles = (int32_t)num_tiles;
    for (int32_t c = 0; c < channels; c++) {
        batch.scale[c] = transform->scale[c];
        batch.bias[c] = transform->bias[c];
        batch.fill[c] = transform->fill[c];
    }
    const int device = ifs_stream_device(stream);
    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    IFS__GUARD(device, "preprocessing");
    for (int32_t start = 0; start < n; start += MAX_IMAGES) {
        const int32_t count = n - start < MAX_IMAGES ? n - start : MAX_IMAGES;
        for (int32_t i = 0; i < count; i++)
            batch.images[i] = image_of(&images[start + i], &geometries[start + i]);
        batch.dst = (uint8_t *)dst + (size_t)start * one;
        if (transform->dtype == IFS_FLOAT32)
            launch<float>(batch, count, queue);
        else if (transform->dtype == IFS_FLOAT16)
            launch<__half>(batch, count, queue);
        else
            launch<uint8_t>(batch, count, queue);
        IFS__CUDA(cudaGetLastError(), device, "launching the preprocessing");
    }
    return IFS_OK;
}
