/*
 * preprocess_store.cuh - from bytes to the network's numbers, and where they go.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_PREPROCESS_STORE_CUH
#define IFS_PREPROCESS_STORE_CUH

#include "preprocess_batch.cuh"

#include <string.h>
#include <type_traits>

namespace {

/* The type whose store writes so many bytes: 2, 4, 8 or 16. */
template <size_t NBYTES>
using Word =
    std::conditional_t<NBYTES == 16, uint4,
                       std::conditional_t<NBYTES == 8, uint2, std::conditional_t<NBYTES == 4, uint32_t, uint16_t>>>;

template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T element[N];
    __device__ void store(T *at) const {
        typedef Word<sizeof(T) * N> All;
        All all;
        static_assert(sizeof all == sizeof element, "a vector is one store");
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

/* Where the numbers of an image go, and how they are scaled. */
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

    /* A row of a tile that the image does not cover: 16 bytes a store where the address allows it. */
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

} // namespace

#endif
