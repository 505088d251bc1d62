/*
 * preprocess_source.cuh - reading two neighbouring pixels of an image, for each of its formats.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The two pixels of a tap are bytes at any address: the aligned words that hold them are loaded and shifted. One word
 * more than needed is loaded where it certainly lies in the image; in the image's last rows, only the words that hold a
 * wanted byte are. So no word without a byte of the image is read.
 */
#ifndef IFS_PREPROCESS_SOURCE_CUH
#define IFS_PREPROCESS_SOURCE_CUH

#include "preprocess_batch.cuh"

namespace {

/* A row of a plane: the aligned word that it begins in, and its first byte in that word. */
struct Row {
    const uint32_t *words;
    uint32_t begins;
    __device__ Row(const uint8_t *data, int64_t stride, int32_t y) {
        const uint8_t *row = data + y * stride;
        begins = (uint32_t)(uintptr_t)row & 3;
        words = (const uint32_t *)(row - begins);
    }
};

/* The words that hold bytes [offset, offset + extent] of a row. SAFE: the two words behind the first one may be read
 * even where they are not wanted. */
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
    /* The first four of the bytes, and the next four. Those beyond the extent are undefined. */
    __device__ uint32_t low() const { return __funnelshift_r(word[0], word[1], shift); }
    __device__ uint32_t high() const { return __funnelshift_r(word[1], word[WORDS - 1], shift); }
};

/* Whether the 8 bytes behind row y of a plane are bytes of the plane. */
__device__ inline bool more_follows(int64_t stride, int32_t rows, int32_t y) { return (rows - 1 - y) * stride >= 8; }

/*
 * A source gives the pair of pixels at a column of a row. `load` reads it (`both`: the right pixel is needed too).
 * After `finish`, `pair(c)` holds byte c of the left pixel in byte 0, and of the right pixel in byte 1. CHANNELS is the
 * number of different channels.
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

/* A colour source, converted to gray before it is sampled. RGB: red is byte 0. */
template <class Source, bool RGB> struct ToGray : Source {
    static constexpr int CHANNELS = 1;
    uint32_t both_grays;
    __device__ uint32_t gray(uint32_t pixel) const {
        return ifs__pixel_gray(this->byte(pixel, 0), this->byte(pixel, 1), this->byte(pixel, 2), RGB);
    }
    __device__ void finish(bool both) {
        Source::finish(both);
        both_grays = gray(0) | gray(1) << 8;
    }
    __device__ uint32_t pair(uint32_t) const { return both_grays; }
};

} // namespace

#endif
