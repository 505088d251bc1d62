/*
 * detect_scan.cuh - the kernels that find the candidates, and the best where there are too many.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_SCAN_CUH
#define IFS_DETECT_SCAN_CUH

#include "detect_run.cuh"

namespace {

/* ---- the scan: whole warps call `emit(is_candidate, key)` ---- */

__device__ inline uint64_t key_of(const Run &run, float score, uint32_t anchor, uint32_t class_id) {
    return (uint64_t)ifs__key_of_score(score) << 32 | (anchor * (uint32_t)run.num_classes + class_id);
}

__device__ inline bool is_score(float score, float conf) { return score > conf && ifs__finite(score); }

/* Asked for the few scores above the threshold alone. */
__device__ inline bool counts(const Run &run, uint32_t class_id) {
    return !run.class_bits || (run.class_bits[class_id / 32] >> (class_id % 32) & 1);
}

/* One warp finds the candidates of a row. With one label: the best finite score, of equal ones the lowest class. */
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
            emit(finite && is_score(score, run.conf) && counts(run, c), key_of(run, score, anchor, c));
        }
        return;
    }
    float best = 0; /* scores above a threshold are positive */
    uint32_t best_class = ALL;
#pragma unroll 4
    for (uint32_t c = lane; c < num_classes; c += 32) {
        const float score = load(classes + c) * objectness;
        if (is_score(score, run.conf) && score > best && counts(run, c)) {
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

/* YOLOv5, YOLOX: one anchor for each thread of the block, from `first` on. First each thread checks the objectness of
 * its row; then each warp takes one of the rows that passed. `hits` holds these rows, and behind them their number. */
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

/* YOLOv8: one anchor for each thread of the block. */
template <typename T, class Emit> __device__ void scan_columns(const Run &run, int image, uint32_t first, Emit &emit) {
    const uint32_t num_anchors = (uint32_t)run.num_anchors, num_classes = (uint32_t)run.num_classes;
    const uint32_t anchor = first + threadIdx.x;
    const bool valid = anchor < num_anchors;
    const T *column = output_of<T>(run, image) + 4 * (size_t)num_anchors + (valid ? anchor : 0);
    float best = 0;
    uint32_t best_class = ALL;
    bool finite = false, known = false;
    constexpr uint32_t AHEAD = 16; /* loads in flight at once */
    for (uint32_t start = 0; start < num_classes; start += AHEAD) {
        float scores[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            scores[i] = start + i < num_classes ? load(column + (size_t)(start + i) * num_anchors) : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            bool is_candidate = valid && is_score(scores[i], run.conf) && counts(run, start + i);
            if (!run.multi_label) {
                if (is_candidate && scores[i] > best) {
                    best = scores[i];
                    best_class = start + i;
                }
                continue;
            }
            if (is_candidate && !known) {
                finite = ifs__box_finite(decode<T>(run, image, anchor));
                known = true;
            }
            emit(is_candidate && finite, key_of(run, scores[i], anchor, start + i));
        }
    }
    if (!run.multi_label) {
        const bool is_candidate = best_class != ALL && ifs__box_finite(decode<T>(run, image, anchor));
        emit(is_candidate, key_of(run, best, anchor, best_class));
    }
}

/* One block scans the whole output. */
template <typename T, class Emit> __device__ void scan_all(const Run &run, int image, uint32_t *hits, Emit &emit) {
    const bool columns = run.head == IFS_DETECT_HEAD_YOLOV8;
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
    __device__ void operator()(bool is_candidate, uint64_t key) {
        const uint32_t mask = __ballot_sync(ALL, is_candidate);
        if (!mask)
            return;
        uint32_t base = 0;
        if ((threadIdx.x & 31) == 0)
            base = atomicAdd(count, (uint32_t)__popc(mask));
        base = __shfl_sync(ALL, base, 0) + (uint32_t)__popc(mask & lanes_below());
        if (is_candidate && base < capacity)
            keys[base] = key;
    }
};

/* The same by way of shared memory, so that a block adds to the global counter once. Keys that do not fit the shared
 * memory are appended directly. */
struct Gather {
    uint64_t *staged; /* [STAGE] */
    uint32_t *num_staged;
    Append append;
    __device__ void operator()(bool is_candidate, uint64_t key) {
        const uint32_t mask = __ballot_sync(ALL, is_candidate);
        if (!mask)
            return;
        uint32_t base = 0;
        if ((threadIdx.x & 31) == 0)
            base = atomicAdd(num_staged, (uint32_t)__popc(mask));
        base = __shfl_sync(ALL, base, 0) + (uint32_t)__popc(mask & lanes_below());
        if (is_candidate && base < STAGE)
            staged[base] = key;
        append(is_candidate && base >= STAGE, key);
    }
    /* Called by the whole block; `base` is in shared memory. */
    __device__ void flush(uint32_t *base) {
        __syncthreads();
        const uint32_t count = min(*num_staged, (uint32_t)STAGE);
        if (!count)
            return;
        if (threadIdx.x == 0)
            *base = atomicAdd(append.count, count);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
            if (*base + i < append.capacity)
                append.keys[*base + i] = staged[i];
    }
};

template <typename T, bool COLUMNS>
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t staged[STAGE];
    __shared__ uint32_t num_staged, base;
    const int image = (int)blockIdx.y;
    if (threadIdx.x == 0)
        num_staged = 0;
    __syncthreads();
    Gather gather = {
        staged, &num_staged, {run.num_candidates + image, run.keys + (size_t)image * run.capacity, run.capacity}};
    if constexpr (COLUMNS) {
        scan_columns<T>(run, image, blockIdx.x * SCAN_THREADS, gather);
    } else {
        __shared__ uint32_t hits[SCAN_THREADS + 1];
        scan_rows<T>(run, image, blockIdx.x * SCAN_THREADS, hits, gather);
    }
    gather.flush(&base);
}

/* Keys that an image's part of `keys` holds once `select` has run. */
__device__ inline uint32_t stored(const Run &run, uint32_t num_candidates) {
    return num_candidates > run.capacity ? run.max_candidates : num_candidates;
}

/* ---- select: the best max_candidates where there are more than `capacity` ---- */

constexpr int NUM_DIGITS = 6;
__constant__ const int DIGIT_SHIFT[NUM_DIGITS] = {53, 42, 32, 21, 10, 0};
constexpr int MAX_DIGIT = 2048;

/* Counts one digit of the keys that begin with the known digits of the last key that is kept. */
struct Count {
    uint32_t *counts;
    uint64_t known, known_bits;
    int shift;
    uint32_t digit_mask;
    __device__ void operator()(bool is_candidate, uint64_t key) {
        if (is_candidate && (key & known_bits) == known)
            atomicAdd(&counts[(uint32_t)(key >> shift) & digit_mask], 1u);
    }
};

struct Collect {
    Append append;
    uint64_t last;
    __device__ void operator()(bool is_candidate, uint64_t key) { append(is_candidate && key <= last, key); }
};

/* One block handles an image. It scans the output once for each digit of the last key that is kept, and once to collect
 * the keys. */
template <typename T> __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ Run run) {
    __shared__ uint32_t counts[MAX_DIGIT], hits[SELECT_THREADS + 1], num_collected, digit, below;
    const int image = (int)blockIdx.x;
    if (run.num_candidates[image] <= run.capacity)
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
        if (threadIdx.x <
            32) { /* each lane sums 64 bins; the lane whose bins hold the wanted rank then searches them */
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
        num_collected = 0;
    __syncthreads();
    Collect collect = {{&num_collected, run.keys + (size_t)image * run.capacity, run.capacity}, known};
    scan_all<T>(run, image, hits, collect);
}

} // namespace

#endif
