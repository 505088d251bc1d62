/*
 * detect_scan.cuh - the kernels that find the candidates, and the best where there are too many.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_SCAN_CUH
#define IFS_DETECT_SCAN_CUH

#include "detect_run.cuh"

namespace {

/* ---- the scan: `emit(is_one, key)` is called by whole warps ---- */

__device__ inline uint64_t key_of(const Run &run, float score, uint32_t anchor, uint32_t class_id) {
    return (uint64_t)ifs__key_of_score(score) << 32 | (anchor * (uint32_t)run.num_classes + class_id);
}

__device__ inline bool is_score(float score, float conf) { return score > conf && ifs__finite(score); }

/* The candidates of a row, by a warp. With one label: the best of the finite scores, the lowest class of equal ones. */
template <typename T, class Emit>
__device__ void scan_row(const Run &run, int image, uint32_t anchor, float objectness, Emit &emit) {
    const T *classes = output_of<T>(run, image) + (size_t)anchor * (size_t)run.row_length + 5;
    const uint32_t lane = threadIdx.x & 31, num_classes = (uint32_t)run.num_classes;
    const ifs__box box = decode<T>(run, image, anchor);
    if (run.multi_label) {
        const bool finite = ifs__box_finite(box);
        for (uint32_t start = 0; start < num_classes; start += 32) {
            const uint32_t c = start + lane;
            const float score = c < num_classes ? load(classes + c) * objectness : 0.0f;
            emit(finite && is_score(score, run.conf), key_of(run, score, anchor, c));
        }
        return;
    }
    float best = 0; /* scores above a threshold are positive */
    uint32_t best_class = ALL;
#pragma unroll 4
    for (uint32_t c = lane; c < num_classes; c += 32) {
        const float score = load(classes + c) * objectness;
        if (is_score(score, run.conf) && score > best) {
            best = score;
            best_class = c;
        }
    }
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
        const float other = __shfl_xor_sync(ALL, best, width);
        const uint32_t other_class = __shfl_xor_sync(ALL, best_class, width);
        if (other > best || (other == best && other_class < best_class)) {
            best = other;
            best_class = other_class;
        }
    }
    emit(lane == 0 && best_class != ALL && ifs__box_finite(box), key_of(run, best, anchor, best_class));
}

/* YOLOv5, YOLOX: an anchor for each thread of the block, from `first` on. `hits` holds one for each, and their number
 * behind them. First which rows have objectness, a thread a row; then the rows that have, a warp each. */
template <typename T, class Emit>
__device__ void scan_rows(const Run &run, int image, uint32_t first, uint32_t *hits, Emit &emit) {
    const uint32_t anchor = first + threadIdx.x;
    const T *objectness = output_of<T>(run, image) + 4;
    uint32_t *num_hits = hits + blockDim.x;
    if (threadIdx.x == 0)
        *num_hits = 0;
    float mine = 0;
    if (anchor < (uint32_t)run.num_anchors)
        mine = load(objectness + (size_t)anchor * (size_t)run.row_length);
    __syncthreads();
    if (mine > run.conf)
        hits[atomicAdd(num_hits, 1u)] = anchor;
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < *num_hits; i += blockDim.x / 32) {
        const uint32_t row = hits[i];
        scan_row<T>(run, image, row, load(objectness + (size_t)row * (size_t)run.row_length), emit);
    }
    __syncthreads();
}

/* YOLOv8: one anchor for each thread of the block, all the way. */
template <typename T, class Emit> __device__ void scan_columns(const Run &run, int image, uint32_t first, Emit &emit) {
    const uint32_t num_anchors = (uint32_t)run.num_anchors, num_classes = (uint32_t)run.num_classes;
    const uint32_t anchor = first + threadIdx.x;
    const bool valid = anchor < num_anchors;
    const T *column = output_of<T>(run, image) + 4 * (size_t)num_anchors + (valid ? anchor : 0);
    float best = 0;
    uint32_t best_class = ALL;
    bool finite = false, known = false;
    constexpr uint32_t AHEAD = 16; /* loads on their way at once */
    for (uint32_t start = 0; start < num_classes; start += AHEAD) {
        float scores[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            scores[i] = start + i < num_classes ? load(column + (size_t)(start + i) * num_anchors) : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            bool is_one = valid && is_score(scores[i], run.conf);
            if (!run.multi_label) {
                if (is_one && scores[i] > best) {
                    best = scores[i];
                    best_class = start + i;
                }
                continue;
            }
            if (is_one && !known) {
                finite = ifs__box_finite(decode<T>(run, image, anchor));
                known = true;
            }
            emit(is_one && finite, key_of(run, scores[i], anchor, start + i));
        }
    }
    if (!run.multi_label) {
        const bool is_one = best_class != ALL && ifs__box_finite(decode<T>(run, image, anchor));
        emit(is_one, key_of(run, best, anchor, best_class));
    }
}

/* The whole output, by one block. */
template <typename T, class Emit> __device__ void scan_all(const Run &run, int image, uint32_t *hits, Emit &emit) {
    const bool columns = run.head == IFS_HEAD_YOLOV8;
    for (uint32_t first = 0; first < (uint32_t)run.num_anchors; first += blockDim.x) {
        if (columns)
            scan_columns<T>(run, image, first, emit);
        else
            scan_rows<T>(run, image, first, hits, emit);
    }
}

struct Append {
    uint32_t *count;
    uint64_t *keys;
    uint32_t capacity;
    __device__ void operator()(bool is_one, uint64_t key) {
        const uint32_t mask = __ballot_sync(ALL, is_one);
        if (!mask)
            return;
        uint32_t base = 0;
        if ((threadIdx.x & 31) == 0)
            base = atomicAdd(count, (uint32_t)__popc(mask));
        base = __shfl_sync(ALL, base, 0) + (uint32_t)__popc(mask & lanes_below());
        if (is_one && base < capacity)
            keys[base] = key;
    }
};

/* The same by way of shared memory, so that a block counts once in global memory; what does not fit goes there. */
struct Gather {
    uint64_t *staged; /* [STAGE] */
    uint32_t *num_staged;
    Append append;
    __device__ void operator()(bool is_one, uint64_t key) {
        const uint32_t mask = __ballot_sync(ALL, is_one);
        if (!mask)
            return;
        uint32_t base = 0;
        if ((threadIdx.x & 31) == 0)
            base = atomicAdd(num_staged, (uint32_t)__popc(mask));
        base = __shfl_sync(ALL, base, 0) + (uint32_t)__popc(mask & lanes_below());
        if (is_one && base < STAGE)
            staged[base] = key;
        append(is_one && base >= STAGE, key);
    }
    /* By the whole block. `place` is a shared number. */
    __device__ void flush(uint32_t *place) {
        __syncthreads();
        const uint32_t count = min(*num_staged, (uint32_t)STAGE);
        if (!count)
            return;
        if (threadIdx.x == 0)
            *place = atomicAdd(append.count, count);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
            if (*place + i < append.capacity)
                append.keys[*place + i] = staged[i];
    }
};

template <typename T, bool COLUMNS>
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t staged[STAGE];
    __shared__ uint32_t num_staged, place;
    const int image = (int)blockIdx.y;
    if (threadIdx.x == 0)
        num_staged = 0;
    __syncthreads();
    Gather gather = {staged, &num_staged, {run.found + image, run.keys + (size_t)image * run.capacity, run.capacity}};
    if constexpr (COLUMNS) {
        scan_columns<T>(run, image, blockIdx.x * SCAN_THREADS, gather);
    } else {
        __shared__ uint32_t hits[SCAN_THREADS + 1];
        scan_rows<T>(run, image, blockIdx.x * SCAN_THREADS, hits, gather);
    }
    gather.flush(&place);
}

/* Keys of an image that are in its part of `keys`, once `select` has run. */
__device__ inline uint32_t stored(const Run &run, uint32_t found) {
    return found > run.capacity ? run.max_candidates : found;
}

/* ---- select: the best max_candidates of more than there is room for ---- */

constexpr int NUM_DIGITS = 6;
__constant__ const int DIGIT_SHIFT[NUM_DIGITS] = {53, 42, 32, 21, 10, 0};
constexpr int MAX_DIGIT = 2048;

/* Counts a digit of the keys that begin with what is known of the last key that stays. */
struct Count {
    uint32_t *counts;
    uint64_t known, known_bits;
    int shift;
    uint32_t digit_mask;
    __device__ void operator()(bool is_one, uint64_t key) {
        if (is_one && (key & known_bits) == known)
            atomicAdd(&counts[(uint32_t)(key >> shift) & digit_mask], 1u);
    }
};

struct Collect {
    Append append;
    uint64_t last;
    __device__ void operator()(bool is_one, uint64_t key) { append(is_one && key <= last, key); }
};

/* A block an image. It scans the output once for each digit of the last key that stays, and once to collect. */
template <typename T> __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ Run run) {
    __shared__ uint32_t counts[MAX_DIGIT], hits[SELECT_THREADS + 1], taken, digit, below;
    const int image = (int)blockIdx.x;
    if (run.found[image] <= run.capacity)
        return;
    uint64_t known = 0, known_bits = 0;
    uint32_t wanted = run.max_candidates; /* the rank, from 1, of the last key among those that begin with `known` */
    for (int d = 0; d < NUM_DIGITS; d++) {
        const int shift = DIGIT_SHIFT[d], above = d ? DIGIT_SHIFT[d - 1] : 64;
        for (uint32_t i = threadIdx.x; i < MAX_DIGIT; i += SELECT_THREADS)
            counts[i] = 0;
        __syncthreads();
        Count count = {counts, known, known_bits, shift, (1u << (above - shift)) - 1};
        scan_all<T>(run, image, hits, count);
        __syncthreads();
        if (threadIdx.x < 32) { /* a lane sums 64 bins; then the lane with the wanted one goes through them */
            const uint32_t first = threadIdx.x * (MAX_DIGIT / 32);
            uint32_t sum = 0;
            for (uint32_t i = 0; i < MAX_DIGIT / 32; i++)
                sum += counts[first + i];
            uint32_t before = sum;
#pragma unroll
            for (int width = 1; width < 32; width *= 2) {
                const uint32_t other = __shfl_up_sync(ALL, before, width);
                before += threadIdx.x >= (uint32_t)width ? other : 0;
            }
            before -= sum;
            if (before < wanted && wanted <= before + sum) {
                uint32_t bin = first;
                while (before + counts[bin] < wanted)
                    before += counts[bin++];
                digit = bin;
                below = before;
            }
        }
        __syncthreads();
        known |= (uint64_t)digit << shift;
        known_bits |= (uint64_t)count.digit_mask << shift;
        wanted -= below;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        taken = 0;
    __syncthreads();
    Collect collect = {{&taken, run.keys + (size_t)image * run.capacity, run.capacity}, known};
    scan_all<T>(run, image, hits, collect);
}

} // namespace

#endif
