/*
 * topk.cu - the k best of each row of scores, and softmax.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One block handles a row. The sum of softmax is the one that topk.c describes, so that it has the bits of the host:
 * the block computes the exponentials of 2048 scores at a time, and sixteen threads add them, each to its own lane and
 * in order. The best scores are found one after another: each time, the least key above the last one.
 */
#include "../src/fmath.h"
#include "../src/topk.h"
#include "common.cuh"
#include "kernels.cuh"

#include <math.h>

namespace {

constexpr int THREADS = 256;
constexpr int EXPS = 2048; /* at a time; a multiple of the lanes */

__device__ inline uint64_t least_of_block(uint64_t key, uint64_t *of_warps) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
        const uint64_t other = __shfl_xor_sync(ALL, key, width);
        key = other < key ? other : key;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        of_warps[threadIdx.x / 32] = key;
    __syncthreads();
    key = of_warps[0];
    for (int i = 1; i < THREADS / 32; i++)
        key = of_warps[i] < key ? of_warps[i] : key;
    return key;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    topk_kernel(const T *scores, int64_t rows, uint32_t n, uint32_t k, bool softmax, int32_t *class_ids, float *best) {
    __shared__ float exps[EXPS], sum_of_row;
    __shared__ uint64_t of_warps[THREADS / 32];
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *x = scores + row * n;
        int32_t *ids = class_ids + row * k;
        float *out = best + row * k;

        bool good = true;
        uint64_t first = ~(uint64_t)0;
        for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
            const float score = load(x + i);
            good = good && score == score;
            const uint64_t key = (uint64_t)ifs__key_of_score(score) << 32 | i;
            first = key < first ? key : first;
        }
        good = __syncthreads_and(good);
        first = least_of_block(first, of_warps);
        const float max = ifs__score_of_key((uint32_t)(first >> 32));
        if (!good || (softmax && !ifs__finite(max))) { /* the same for the whole block */
            for (uint32_t i = threadIdx.x; i < k; i += THREADS) {
                ids[i] = -1;
                out[i] = ifs__float_of_bits(0x7fc00000u);
            }
            continue;
        }

        if (softmax) {
            float lane = 0;
            for (uint32_t start = 0; start < n; start += EXPS) {
                const uint32_t length = n - start < EXPS ? n - start : EXPS;
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < length; i += THREADS)
                    exps[i] = ifs__exp(load(x + start + i) - max);
                __syncthreads();
                if (threadIdx.x < IFS__TOPK_LANES)
                    for (uint32_t i = threadIdx.x; i < length; i += IFS__TOPK_LANES)
                        lane += exps[i];
            }
            if (threadIdx.x < 32) {
#pragma unroll
                for (int width = IFS__TOPK_LANES / 2; width > 0; width /= 2)
                    lane += __shfl_down_sync(ALL, lane, width);
                if (threadIdx.x == 0)
                    sum_of_row = lane;
            }
            __syncthreads();
        }

        uint64_t last = first;
        for (uint32_t rank = 0; rank < k; rank++) {
            if (rank) {
                uint64_t next = ~(uint64_t)0;
                for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
                    const uint64_t key = (uint64_t)ifs__key_of_score(load(x + i)) << 32 | i;
                    next = key > last && key < next ? key : next;
                }
                last = least_of_block(next, of_warps);
            }
            if (threadIdx.x == 0) {
                const uint32_t i = (uint32_t)last;
                const float score = load(x + i); /* the score itself: its key takes -0 for 0 */
                ids[rank] = (int32_t)i;
                out[rank] = softmax ? ifs__exp(score - max) / sum_of_row : score;
            }
        }
        __syncthreads();
    }
}

} // namespace

ifs_status ifs_cuda_topk(const void *scores, int32_t dtype, int64_t rows, int64_t n, int32_t k, int32_t softmax,
                         int32_t *class_ids, float *out_scores, ifs_stream *stream) {
    IFS__TRY(ifs__check_topk(scores, dtype, n, k, class_ids, out_scores));
    IFS__TRY(ifs__check_stream(stream));
    if (rows < 0 || rows > INT64_MAX / 4 / n)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%lld rows of %lld scores; the number of rows must be 0 to %lld",
                         (long long)rows, (long long)n, (long long)(INT64_MAX / 4 / n));
    const uintptr_t element = dtype == IFS_FLOAT32 ? 4 : 2;
    if ((uintptr_t)scores % element || (uintptr_t)class_ids % 4 || (uintptr_t)out_scores % 4)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "one of the addresses %p, %p and %p is not aligned to its elements",
                         scores, (void *)class_ids, (void *)out_scores);
    if (!rows)
        return IFS_OK;
    const int device = ifs_stream_device(stream);
    const cudaStream_t queue = (cudaStream_t)ifs_stream_native(stream);
    IFS__GUARD(device, "top-k");
    const unsigned blocks = (unsigned)(rows < 65536 ? rows : 65536);
    if (dtype == IFS_FLOAT32)
        topk_kernel<<<blocks, THREADS, 0, queue>>>((const float *)scores, rows, (uint32_t)n, (uint32_t)k, softmax != 0,
                                                   class_ids, out_scores);
    else
        topk_kernel<<<blocks, THREADS, 0, queue>>>((const __half *)scores, rows, (uint32_t)n, (uint32_t)k, softmax != 0,
                                                   class_ids, out_scores);
    IFS__CUDA(cudaGetLastError(), device, "launching top-k");
    return IFS_OK;
}
