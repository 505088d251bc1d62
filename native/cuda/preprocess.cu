/*
 * preprocess.cu - a batch of images to a network's input, in one launch.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A warp makes a tile of the canvas, TILE_WIDTH columns by TILE_ROWS rows; a lane has TILE_COLUMNS neighbours of each
 * row, so that it stores them as one vector. The taps of its columns it computes once (in float64, as the host does),
 * those of the rows are computed by a lane each and handed round. What the tile does not take from the image costs
 * stores only. All that a launch needs to know of the images travels as its parameter.
 *
 * The two neighbouring pixels of a tap are bytes at any address: the aligned words that hold them are loaded and
 * shifted. A word too many is loaded where it is certain to lie in the image; in its last rows, only those that hold
 * a wanted byte. So no word without a byte of the image is touched.
 */
#include "../src/pixel_math.h"
#include "common.cuh"
#include "kernels.cuh"

#include <stdio.h>

namespace {

#ifndef IFS__TILE_COLUMNS /* all of these can be set from outside, for measurements */
#define IFS__TILE_COLUMNS 4
#endif
#ifndef IFS__TILE_ROWS
#define IFS__TILE_ROWS 8
#endif
#ifndef IFS__BLOCKS
#define IFS__BLOCKS 5
#endif

constexpr int TILE_COLUMNS = IFS__TILE_COLUMNS; /* a lane's: 2 or 4 */
constexpr int TILE_WIDTH = 32 * TILE_COLUMNS;
constexpr int TILE_ROWS = IFS__TILE_ROWS;
constexpr int WARPS = 4; /* in a block */
constexpr int MAX_IMAGES = 40;

enum Mode : int32_t { RESIZE, HALVES, WARP };

struct Resize {
    double scale_x, scale_y;
    int32_t from_x, count_x, first_x; /* the columns of the canvas that are covered, and what the first one shows */
    int32_t from_y, count_y, first_y;
};

struct Image {
    const uint8_t *data, *uv;
    int64_t stride, uv_stride;
    int32_t width, height;
    int32_t format;
    int32_t mode;
    union {
        Resize resize;
        ifs__warp warp;
    };
};

/* A launch's parameter. */
struct Batch {
    void *dst;
    size_t image;            /* elements from an image of the output to the next */
    size_t plane;              /* from a channel to the next */
    int32_t step;              /* from a column to the next */
    int32_t order;             /* of the channels */
    int32_t width, height;     /* of the canvas */
    int32_t tiles_x, num_tiles;
    float scale[3], bias[3];
    uint8_t fill[4];
    Image images[MAX_IMAGES];
};
static_assert(sizeof(Batch) <= 4096, "what every device takes as a parameter");

/* ---- the bytes of two neighbouring pixels ---- */

/* A row of a plane: the aligned word that it begins in, and at which byte of that. */
struct Row {
    const uint32_t *words;
    uint32_t begins;
    __device__ Row(const uint8_t *data, int64_t stride, int32_t y) {
        const uint8_t *row = data + y * stride;
        begins = (uint32_t)(uintptr_t)row & 3;
        words = (const uint32_t *)(row - begins);
    }
};

/* The words that hold bytes [offset, offset + extent] of a row. SAFE: the two words behind the first one can be read,
 * wanted or not. */
template <int WORDS> struct Words {
    uint32_t word[WORDS];
    uint32_t shift;

    template <bool SAFE> __device__ void load(const Row &row, uint32_t offset, uint32_t extent) {
        offset += row.begins;
        const uint32_t first = offset >> 2, last = (offset + extent) >> 2;
        const uint32_t *words = row.words + first;
        shift = offset * 8; /* the funnel takes it modulo 32 */
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++)
            word[i] = ::load(SAFE ? words + i : row.words + min(first + i, last));
    }
    /* The first four of the bytes, and the four behind them; what lies beyond the extent is anything. */
    __device__ uint32_t low() const { return __funnelshift_r(word[0], word[1], shift); }
    __device__ uint32_t high() const { return __funnelshift_r(word[1], word[WORDS - 1], shift); }
};

/* Whether the 8 bytes behind row y of a plane are bytes of the plane. */
__device__ inline bool more_follows(int64_t stride, int32_t rows, int32_t y) { return (rows - 1 - y) * stride >= 8; }

/*
 * A source gives the pair of pixels at a column of a row: `load` reads it (`both`: the right one is wanted too), and
 * after `finish`, `pair(c)` is byte c of the left pixel in byte 0, and of the right one in byte 1. CHANNELS is how many
 * differ.
 */
struct Gray {
    static constexpr int CHANNELS = 1;
    typedef Row Rows;
    static __device__ Rows rows(const Image &p, int32_t y) { return Row(p.data, p.stride, y); }
    static __device__ bool safe(const Image &p, int32_t y) { return more_follows(p.stride, p.height, y); }
    Words<2> words;
    template <bool SAFE> __device__ void load(const Rows &rows, int32_t x, bool both) {
        words.load<SAFE>(rows, (uint32_t)x, both);
    }
    __device__ void finish(bool) {}
    __device__ uint32_t pair(uint32_t) const { return words.low(); }
};

template <int PIXEL> struct Colour {
    static constexpr int CHANNELS = 3;
    typedef Row Rows;
    static __device__ Rows rows(const Image &p, int32_t y) { return Row(p.data, p.stride, y); }
    static __device__ bool safe(const Image &p, int32_t y) { return more_follows(p.stride, p.height, y); }
    Words<3> words;
    uint32_t low, high;
    template <bool SAFE> __device__ void load(const Rows &rows, int32_t x, bool both) {
        words.template load<SAFE>(rows, (uint32_t)x * PIXEL, both ? PIXEL + 2 : 2);
    }
    __device__ void finish(bool) {
        low = words.low();
        high = words.high();
    }
    __device__ uint32_t pair(uint32_t c) const { return __byte_perm(low, high, c | (c + PIXEL) << 4); }
    __device__ uint32_t byte(uint32_t pixel, uint32_t c) const {
        return __byte_perm(low, high, pixel * PIXEL + c) & 255;
    }
};

struct Nv12 {
    static constexpr int CHANNELS = 3;
    struct Rows {
        Row luma, chroma;
    };
    static __device__ Rows rows(const Image &p, int32_t y) {
        return {Row(p.data, p.stride, y), Row(p.uv, p.uv_stride, y >> 1)};
    }
    static __device__ bool safe(const Image &p, int32_t y) {
        return more_follows(p.stride, p.height, y) && more_follows(p.uv_stride, p.height >> 1, y >> 1);
    }
    Words<2> luma, chroma;
    uint32_t left, right; /* BGR */
    uint32_t odd;
    template <bool SAFE> __device__ void load(const Rows &rows, int32_t x, bool both) {
        odd = (uint32_t)x & 1;
        luma.load<SAFE>(rows.luma, (uint32_t)x, both);
        chroma.load<SAFE>(rows.chroma, (uint32_t)x & ~1u, both && odd ? 3 : 1);
    }
    __device__ void finish(bool both) {
        const uint32_t y = luma.low(), uv = chroma.low(), uv1 = odd ? uv >> 16 : uv;
        left = ifs__pixel_nv12((int32_t)(y & 255), (int32_t)(uv & 255), (int32_t)(uv >> 8 & 255));
        right = 0;
        if (both)
            right = ifs__pixel_nv12((int32_t)(y >> 8 & 255), (int32_t)(uv1 & 255), (int32_t)(uv1 >> 8 & 255));
    }
    __device__ uint32_t pair(uint32_t c) const { return __byte_perm(left, right, c | (c + 4) << 4); }
    __device__ uint32_t byte(uint32_t pixel, uint32_t c) const { return (pixel ? right : left) >> (8 * c) & 255; }
};

/* Any colour source, converted to gray before it is sampled. RGB: red is byte 0. */
template <class Source, bool RGB> struct ToGray {
    static constexpr int CHANNELS = 1;
    typedef typename Source::Rows Rows;
    static __device__ Rows rows(const Image &p, int32_t y) { return Source::rows(p, y); }
    static __device__ bool safe(const Image &p, int32_t y) { return Source::safe(p, y); }
    Source source;
    uint32_t both_grays;
    template <bool SAFE> __device__ void load(const Rows &rows, int32_t x, bool both) {
        source.template load<SAFE>(rows, x, both);
    }
    __device__ uint32_t gray(uint32_t pixel) const {
        const uint32_t first = source.byte(pixel, 0), third = source.byte(pixel, 2);
        return ifs__pixel_gray(RGB ? third : first, source.byte(pixel, 1), RGB ? first : third);
    }
    __device__ void finish(bool both) {
        source.finish(both);
        both_grays = gray(0) | gray(1) << 8;
    }
    __device__ uint32_t pair(uint32_t) const { return both_grays; }
};

/* ---- the output ---- */

/* What a store of so many bytes takes. */
template <size_t NBYTES> struct Word;
template <> struct Word<1> {
    typedef uint8_t type;
};
template <> struct Word<2> {
    typedef uint16_t type;
};
template <> struct Word<4> {
    typedef uint32_t type;
};
template <> struct Word<8> {
    typedef uint2 type;
};
template <> struct Word<16> {
    typedef uint4 type;
};

template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T element[N];
    __device__ void store(T *at) const {
        typedef typename Word<sizeof(T) * N>::type All;
        All all;
        memcpy(&all, element, sizeof all);
        *(All *)at = all;
    }
};

template <int N> __device__ inline void convert(const float (&from)[N], Vector<float, N> &to) {
#pragma unroll
    for (int i = 0; i < N; i++)
        to.element[i] = from[i];
}
template <int N> __device__ inline void convert(const float (&from)[N], Vector<__half, N> &to) {
    if constexpr (N == 1) {
        to.element[0] = __float2half_rn(from[0]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const __half2 two = __floats2half2_rn(from[i], from[i + 1]);
            to.element[i] = __low2half(two);
            to.element[i + 1] = __high2half(two);
        }
    }
}
template <int N> __device__ inline void convert(const float (&from)[N], Vector<uint8_t, N> &to) {
#pragma unroll
    for (int i = 0; i < N; i++)
        to.element[i] = ifs__pixel_byte(from[i]);
}

/* Where an image's numbers go, and what they become. */
template <typename T, int OUT> struct Store {
    const Batch &batch;
    T *dst;
    uint32_t first_byte; /* of a pixel, for the first channel of the output; the third has 2 - first_byte */

    __device__ Store(const Batch &batch, const Image &p, uint32_t index) : batch(batch) {
        const bool rgb = p.format == IFS_PIXEL_RGB || p.format == IFS_PIXEL_RGBA;
        first_byte = OUT == 3 && rgb != (batch.order == IFS_ORDER_RGB) ? 2 : 0;
        dst = (T *)batch.dst + index * batch.image;
    }
    __device__ uint32_t byte_of(int c) const { return c == 0 ? first_byte : c == 1 ? 1 : 2 - first_byte; }
    __device__ T *at(int32_t x, int32_t y) const { return dst + ((size_t)y * batch.width + x) * batch.step; }
    template <int N> __device__ Vector<T, N> numbers(int c, const uint32_t (&values)[N]) const {
        float scaled[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            scaled[i] = ifs__pixel_scale(values[i], batch.scale[c], batch.bias[c]);
        Vector<T, N> out;
        convert(scaled, out);
        return out;
    }
    __device__ T number(int c, uint32_t value) const {
        const uint32_t values[1] = {value};
        return numbers(c, values).element[0];
    }
    __device__ void pixel(T *at, int c, uint32_t value) const { at[c * batch.plane] = number(c, value); }
    __device__ void empty(T *at) const {
#pragma unroll
        for (int c = 0; c < OUT; c++)
            pixel(at, c, batch.fill[c]);
    }

    /* Whether neighbours in a row can be stored as vectors of `nbytes` at this address, in all channels. */
    __device__ bool aligned(const T *at, uint32_t nbytes) const {
        return batch.step == 1 && (((uintptr_t)at | (OUT > 1 ? batch.plane * sizeof(T) : 0)) & (nbytes - 1)) == 0;
    }

    /* A row of a tile that shows nothing of the image: 16 bytes a store where that can be. */
    __device__ void empty_row(int32_t x, int32_t y, uint32_t lane) const {
        T *row = at(x, y);
        if (x + TILE_WIDTH <= batch.width && aligned(row, 16)) {
            constexpr uint32_t PER_STORE = 16 / sizeof(T), STORES = TILE_WIDTH / PER_STORE;
            for (uint32_t i = lane; i < OUT * STORES; i += 32) {
                const uint32_t c = i / STORES;
                Vector<T, PER_STORE> pack;
                const T fill = number((int)c, batch.fill[c]);
#pragma unroll
                for (int e = 0; e < (int)PER_STORE; e++)
                    pack.element[e] = fill;
                pack.store(row + i % STORES * PER_STORE + c * batch.plane);
            }
            return;
        }
#pragma unroll 1
        for (int j = 0; j < TILE_COLUMNS; j++)
            if (x + (int32_t)lane + 32 * j < batch.width)
                empty(row + (lane + 32 * j) * batch.step);
    }
};

/* ---- RESIZE ---- */

/* A lane's columns of a row of the canvas: where they are in the image, and by which weights. */
struct Columns {
    int32_t index[TILE_COLUMNS];
    uint32_t weights[TILE_COLUMNS];
    uint32_t covered; /* a bit a column: the resized image reaches there */
    bool both;        /* some column of the warp takes its right pixel */
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

/* The pixels at `at` and beside it, out of one row of the image or two; of those, `there` are on the canvas, and with
 * `whole` they can be stored as a vector. */
template <class Source, bool HALVES, bool TWO_ROWS, typename T, int OUT>
__device__ void resize_pixels(const Store<T, OUT> &store, const Columns &columns, const Pairs<Source> &upper,
                              const Pairs<Source> &lower, uint32_t down, T *at, int32_t there, bool whole) {
    const Batch &batch = store.batch;
    uint32_t gray[TILE_COLUMNS];
#pragma unroll
    for (int c = 0; c < OUT; c++) {
        uint32_t values[TILE_COLUMNS];
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS; j++) {
            if (c < Source::CHANNELS) {
                const uint32_t byte = store.byte_of(c), weights = columns.weights[j];
                const uint32_t row0 = ifs__pixel_sum(upper.source[j].pair(byte), weights) >> 4;
                const uint32_t row1 = TWO_ROWS ? ifs__pixel_sum(lower.source[j].pair(byte), weights) >> 4 : 0;
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
                if (j < there)
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
        const int32_t column = x + j - r.from_x;
        const bool inside = column >= 0 && column < r.count_x;
        columns.covered |= (uint32_t)inside << j;
        const int32_t d = r.first_x + (inside ? column : 0);
        const ifs__pixel_tap tap = ifs__pixel_tap_of(d, r.scale_x, p.width, true);
        columns.index[j] = HALVES ? 2 * d : tap.index;
        columns.weights[j] = HALVES ? half_weights : tap.weights;
        columns.both |= columns.weights[j] >> 16 != 0;
    }
    columns.both = __any_sync(ALL, columns.both);
    const bool any = __any_sync(ALL, columns.covered != 0);
    /* Lane i has the tap of row y0 + i. */
    const int32_t my_row = y0 + (int32_t)(lane < TILE_ROWS ? lane : 0) - r.from_y;
    const ifs__pixel_tap my_tap = ifs__pixel_tap_of(r.first_y + my_row, r.scale_y, p.height, false);

    const size_t row_step = (size_t)batch.width * batch.step;
    const int32_t there = batch.width - x;
    T *at = store.at(x, y0);
    const bool whole =
        there >= TILE_COLUMNS && row_step % TILE_COLUMNS == 0 && store.aligned(at, TILE_COLUMNS * sizeof(T));

#pragma unroll 1
    for (int i = 0; i < TILE_ROWS; i++, at += row_step) {
        const int32_t y = y0 + i, row = y - r.from_y;
        if (y >= batch.height)
            return;
        if (row < 0 || row >= r.count_y || !any) {
            store.empty_row(x0, y, lane);
            continue;
        }
        const int32_t top = HALVES ? 2 * (r.first_y + row) : __shfl_sync(ALL, my_tap.index, i);
        const uint32_t down = HALVES ? half_weights : __shfl_sync(ALL, my_tap.weights, i);
        const int32_t first = max(0, min(top, p.height - 1)), second = max(0, min(top + 1, p.height - 1));
        const bool safe = Source::safe(p, second);
        Pairs<Source> upper, lower;
        upper.load(p, first, columns, safe);
        if (HALVES || down >> 16 != 0) {
            lower.load(p, second, columns, safe);
            upper.finish(columns.both);
            lower.finish(columns.both);
            resize_pixels<Source, HALVES, true>(store, columns, upper, lower, down, at, there, whole);
        } else {
            upper.finish(columns.both);
            resize_pixels<Source, HALVES, false>(store, columns, upper, lower, down, at, there, whole);
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
            const int64_t x32 = ifs__pixel_warp_at(w.origin[0], w.step_x[0], w.step_y[0], x, y);
            const int64_t y32 = ifs__pixel_warp_at(w.origin[1], w.step_x[1], w.step_y[1], x, y);
            const int64_t x11 = (x32 + (1 << 20)) >> 21, y11 = (y32 + (1 << 20)) >> 21;
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
                    sums[t] = p0 * (2048 - fx) + p1 * fx;
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
        return ifs__fail(IFS_ERR_SHAPE, "its canvas is %d x %d, that of the first one %d x %d; a batch has one canvas",
                         (int)g->canvas_width, (int)g->canvas_height, (int)first->canvas_width,
                         (int)first->canvas_height);
    return IFS_OK;
}

/* The part of a canvas side that the resized image covers. */
void cover(int32_t canvas, int32_t resized, int32_t offset, int32_t *from, int32_t *count, int32_t *first) {
    const int64_t start = offset > 0 ? offset : 0, end = (int64_t)offset + resized;
    const int64_t length = (end < canvas ? end : canvas) - start;
    *from = length > 0 ? (int32_t)start : 0;
    *count = length > 0 ? (int32_t)length : 0;
    *first = length > 0 ? (int32_t)(start - offset) : 0;
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
    cover(g->canvas_width, g->resized_width, g->offset_x, &r.from_x, &r.count_x, &r.first_x);
    cover(g->canvas_height, g->resized_height, g->offset_y, &r.from_y, &r.count_y, &r.first_y);
    return p;
}

} // namespace

ifs_status ifs_cuda_preprocess(const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                               const ifs_pixel_transform *transform, void *dst, size_t nbytes, int32_t device,
                               void *stream) {
    if (n < 0 || (n && (!images || !geometries)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a batch of %d images with %s", (int)n,
                         n < 0 ? "a negative number" : "no array of images, or none of geometries");
    IFS__TRY(ifs__check_transform(transform));
    IFS__TRY(ifs__device_check(device));
    if (!n)
        return IFS_OK;
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(for_image(i, check_image_geometry(&images[i], &geometries[i], &geometries[0])));
    const size_t one = ifs_preprocess_nbytes(&geometries[0], transform);
    size_t needed = 0;
    if (!one || ifs__mul_overflows(one, (size_t)n, &needed) || needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d canvases of %d x %d need %zu bytes, and the destination has %zu",
                         (int)n, (int)geometries[0].canvas_width, (int)geometries[0].canvas_height, needed, nbytes);
    const size_t element = transform->dtype == IFS_FLOAT32 ? 4 : transform->dtype == IFS_FLOAT16 ? 2 : 1;
    if (!dst || (uintptr_t)dst % element)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the destination %p is %s", dst,
                         dst ? "not aligned to an element of its type" : "NULL");

    Batch batch = {};
    const int32_t channels = transform->order == IFS_ORDER_GRAY ? 1 : 3;
    const bool interleaved = transform->layout == IFS_LAYOUT_HWC;
    batch.width = geometries[0].canvas_width;
    batch.height = geometries[0].canvas_height;
    batch.image = one / element;
    batch.step = interleaved ? channels : 1;
    batch.plane = interleaved ? 1 : (size_t)batch.width * (size_t)batch.height;
    batch.order = transform->order;
    batch.tiles_x = (batch.width + TILE_WIDTH - 1) / TILE_WIDTH;
    const int64_t num_tiles = (int64_t)batch.tiles_x * ((batch.height + TILE_ROWS - 1) / TILE_ROWS);
    if (num_tiles > INT32_MAX - WARPS)
        return ifs__fail(IFS_ERR_UNSUPPORTED, "a canvas of %d x %d has too many tiles for one launch", (int)batch.width,
                         (int)batch.height);
    batch.num_tiles = (int32_t)num_tiles;
    for (int32_t c = 0; c < channels; c++) {
        batch.scale[c] = transform->scale[c];
        batch.bias[c] = transform->bias[c];
        batch.fill[c] = transform->fill[c];
    }
    IFS__GUARD(device, "preprocessing");
    for (int32_t start = 0; start < n; start += MAX_IMAGES) {
        const int32_t count = n - start < MAX_IMAGES ? n - start : MAX_IMAGES;
        for (int32_t i = 0; i < count; i++)
            batch.images[i] = image_of(&images[start + i], &geometries[start + i]);
        batch.dst = (uint8_t *)dst + (size_t)start * one;
        if (transform->dtype == IFS_FLOAT32)
            launch<float>(batch, count, (cudaStream_t)stream);
        else if (transform->dtype == IFS_FLOAT16)
            launch<__half>(batch, count, (cudaStream_t)stream);
        else
            launch<uint8_t>(batch, count, (cudaStream_t)stream);
        IFS__CUDA(cudaGetLastError(), device, "launching the preprocessing");
    }
    return IFS_OK;
}
