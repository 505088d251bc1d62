/*
 * detect.cu - from a batch of outputs to the boxes of its pictures, without a look from the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Candidates are 64-bit keys, (order of the score << 32 | anchor * num_classes + class), as on the host. All keys of a
 * picture differ, so their order does not depend on the order in which threads find them. The launches of a run:
 *
 *     scan      thresholds, finds the candidates of every picture: appends their keys, counts them
 *     select    where more were found than there is room for: finds them again and keeps the best max_candidates
 *     finish    up to 512 candidates, a block a picture: sort, NMS, boxes out. More: a block sorts 2048 of them
 *     merge     many: the rank of each candidate is the sum of its ranks in the sorted parts; decodes boxes in order
 *     suppress  many: NMS, a block for each class of each picture
 *     emit      many: boxes out; the counters back to zero for the next run
 *
 * The last three (and select) return at once where no picture has that many, which is the usual case.
 *
 * NMS goes through the boxes in order, a tile at a time, a thread a box. First each box is compared with those that
 * were kept before. Then a warp after the other settles its 32 boxes: which suppress which is known from the start, as
 * a mask a lane, so what remains is a few bit operations for each box that stays; the warps behind compare with those.
 */
#include "../src/detect.h"
#include "../src/fmath.h"
#include "common.cuh"
#include "kernels.cuh"

#include <stdlib.h>
#include <string.h>

namespace {

constexpr int SCAN_THREADS = 256;
constexpr int STAGE = 1024;   /* candidates that a block of scan gathers before it appends them */
constexpr int THREADS = 512;  /* of finish, merge and emit */
constexpr int SUPPRESS_THREADS = 256; /* a task of it is one class, often a small one */
constexpr int SELECT_THREADS = 1024;
constexpr int CHUNK = 2048; /* keys that a block sorts */
constexpr int FEW = 512;    /* candidates that it takes to their end: one tile of NMS */
constexpr int MAX_PICTURES = 48;
constexpr uint32_t ROOM = 65536; /* candidates there is room for, unless max_candidates asks for more */

struct Picture {
    double to_source[6];
    int32_t source_width, source_height;
    int32_t canvas_width, canvas_height;
};

/* A launch's parameter. */
struct Run {
    const void *output;
    size_t output_size; /* elements of a picture's */
    int32_t n;
    int32_t head, half, num_anchors, num_classes, row_length;
    int32_t multi_label, by_class;
    float conf, iou;
    int32_t num_strides;
    int32_t strides[IFS_MAX_STRIDES];
    uint32_t capacity;       /* keys there is room for, a picture */
    uint32_t max_candidates; /* at most `capacity` */
    int32_t max_detections;
    /* The workspace: picture i's part of an array starts at i times its length. */
    uint32_t *found;       /* candidates, whether or not there was room */
    uint32_t *taken;       /* members' places that are given away */
    uint64_t *keys;        /* [capacity] */
    uint64_t *ranked;      /* [max_candidates] in order */
    float4 *boxes;         /* [max_candidates] in order */
    int32_t *classes;      /* [max_candidates] in order */
    uint8_t *kept;         /* [max_candidates] in order */
    uint32_t *members;     /* [max_candidates] the ranks of a class, ascending */
    float4 *kept_boxes;    /* [max_candidates] of the class or picture in work */
    int32_t *kept_classes; /* [max_candidates] */
    uint8_t *out;
    size_t out_size; /* of a picture */
    Picture pictures[MAX_PICTURES];
};
static_assert(sizeof(Run) <= 4096, "what every device takes as a parameter");

/* ---- one picture's output ---- */

template <typename T> __device__ inline const T *output_of(const Run &run, int picture) {
    return (const T *)run.output + picture * run.output_size;
}

template <typename T> __device__ ifs__box decode(const Run &run, int picture, uint32_t anchor) {
    const T *at = output_of<T>(run, picture);
    const bool columns = run.head == IFS_HEAD_YOLOV8;
    const size_t step = columns ? (size_t)run.row_length : 1;
    at += columns ? (size_t)anchor : (size_t)anchor * (size_t)run.row_length;
    const float x = load(at), y = load(at + step), w = load(at + 2 * step), h = load(at + 3 * step);
    if (run.head != IFS_HEAD_YOLOX)
        return ifs__box_of_center(x, y, w, h);
    const Picture &p = run.pictures[picture];
    int32_t cell = (int32_t)anchor, level = 0;
    for (; level + 1 < run.num_strides; level++) {
        const int32_t cells = (p.canvas_width / run.strides[level]) * (p.canvas_height / run.strides[level]);
        if (cell < cells)
            break;
        cell -= cells;
    }
    const int32_t stride = run.strides[level], width = p.canvas_width / stride;
    return ifs__box_of_cell(x, y, w, h, cell % width, cell / width, stride);
}

/* ---- the scan: `emit(is_one, key)` is called by whole warps ---- */

__device__ inline uint64_t key_of(const Run &run, float score, uint32_t anchor, uint32_t class_id) {
    return (uint64_t)ifs__key_of_score(score) << 32 | (anchor * (uint32_t)run.num_classes + class_id);
}

__device__ inline bool is_score(float score, float conf) { return score > conf && ifs__finite(score); }

/* The candidates of a row, by a warp. With one label: the best of the finite scores, the lowest class of equal ones. */
template <typename T, class Emit>
__device__ void scan_row(const Run &run, int picture, uint32_t anchor, float objectness, Emit &emit) {
    const T *classes = output_of<T>(run, picture) + (size_t)anchor * (size_t)run.row_length + 5;
    const uint32_t lane = threadIdx.x & 31, num_classes = (uint32_t)run.num_classes;
    const ifs__box box = decode<T>(run, picture, anchor);
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
__device__ void scan_rows(const Run &run, int picture, uint32_t first, uint32_t *hits, Emit &emit) {
    const uint32_t anchor = first + threadIdx.x;
    const T *objectness = output_of<T>(run, picture) + 4;
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
        scan_row<T>(run, picture, row, load(objectness + (size_t)row * (size_t)run.row_length), emit);
    }
    __syncthreads();
}

/* YOLOv8: one anchor for each thread of the block, all the way. */
template <typename T, class Emit>
__device__ void scan_columns(const Run &run, int picture, uint32_t first, Emit &emit) {
    const uint32_t num_anchors = (uint32_t)run.num_anchors, num_classes = (uint32_t)run.num_classes;
    const uint32_t anchor = first + threadIdx.x;
    const bool valid = anchor < num_anchors;
    const T *column = output_of<T>(run, picture) + 4 * (size_t)num_anchors + (valid ? anchor : 0);
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
                finite = ifs__box_finite(decode<T>(run, picture, anchor));
                known = true;
            }
            emit(is_one && finite, key_of(run, scores[i], anchor, start + i));
        }
    }
    if (!run.multi_label) {
        const bool is_one = best_class != ALL && ifs__box_finite(decode<T>(run, picture, anchor));
        emit(is_one, key_of(run, best, anchor, best_class));
    }
}

/* The whole output, by one block. */
template <typename T, class Emit> __device__ void scan_all(const Run &run, int picture, uint32_t *hits, Emit &emit) {
    const bool columns = run.head == IFS_HEAD_YOLOV8;
    for (uint32_t first = 0; first < (uint32_t)run.num_anchors; first += blockDim.x) {
        if (columns)
            scan_columns<T>(run, picture, first, emit);
        else
            scan_rows<T>(run, picture, first, hits, emit);
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
    const int picture = (int)blockIdx.y;
    if (threadIdx.x == 0)
        num_staged = 0;
    __syncthreads();
    Gather gather = {
        staged, &num_staged, {run.found + picture, run.keys + (size_t)picture * run.capacity, run.capacity}};
    if constexpr (COLUMNS) {
        scan_columns<T>(run, picture, blockIdx.x * SCAN_THREADS, gather);
    } else {
        __shared__ uint32_t hits[SCAN_THREADS + 1];
        scan_rows<T>(run, picture, blockIdx.x * SCAN_THREADS, hits, gather);
    }
    gather.flush(&place);
}

/* Keys of a picture that are in its part of `keys`, once `select` has run. */
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

/* A block a picture. It scans the output once for each digit of the last key that stays, and once to collect. */
template <typename T> __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(const __grid_constant__ Run run) {
    __shared__ uint32_t counts[MAX_DIGIT], hits[SELECT_THREADS + 1], taken, digit, below;
    const int picture = (int)blockIdx.x;
    if (run.found[picture] <= run.capacity)
        return;
    uint64_t known = 0, known_bits = 0;
    uint32_t wanted = run.max_candidates; /* the rank, from 1, of the last key among those that begin with `known` */
    for (int d = 0; d < NUM_DIGITS; d++) {
        const int shift = DIGIT_SHIFT[d], above = d ? DIGIT_SHIFT[d - 1] : 64;
        for (uint32_t i = threadIdx.x; i < MAX_DIGIT; i += SELECT_THREADS)
            counts[i] = 0;
        __syncthreads();
        Count count = {counts, known, known_bits, shift, (1u << (above - shift)) - 1};
        scan_all<T>(run, picture, hits, count);
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
    Collect collect = {{&taken, run.keys + (size_t)picture * run.capacity, run.capacity}, known};
    scan_all<T>(run, picture, hits, collect);
}

/* ---- sorting ---- */

/* Sorts `size` keys (a power of two, at most CHUNK) in shared memory, ascending: a bitonic network. A thread takes the
 * same pairs of any step below 64 apart as its warp's others take, so these steps need no more than the warp. */
__device__ void sort_chunk(uint64_t *keys, uint32_t size) {
    for (uint32_t k = 2; k <= size; k *= 2)
        for (uint32_t j = k / 2; j > 0; j /= 2) {
#pragma unroll
            for (uint32_t e = 0; e < CHUNK / 2 / THREADS; e++) {
                const uint32_t pair = threadIdx.x + e * THREADS, i = 2 * pair - (pair & (j - 1));
                if (pair >= size / 2)
                    break;
                const uint64_t a = keys[i], b = keys[i + j];
                const bool swap = (a > b) == ((i & k) == 0);
                keys[i] = swap ? b : a;
                keys[i + j] = swap ? a : b;
            }
            if (j > 32 || (j == 1 && k > 32))
                __syncthreads();
            else
                __syncwarp();
        }
    __syncthreads();
}

/* Loads `count` keys, padded with the largest ones to a power of two, and sorts them. */
__device__ void load_and_sort(uint64_t *shared, const uint64_t *keys, uint32_t count) {
    uint32_t size = 2;
    while (size < count)
        size *= 2;
    for (uint32_t i = threadIdx.x; i < size; i += THREADS)
        shared[i] = i < count ? keys[i] : ~(uint64_t)0;
    __syncthreads();
    sort_chunk(shared, size);
}

/* ---- NMS ---- */

template <int N> struct Tile {
    float4 box[N];
    float area[N];
    int32_t class_id[N];
    uint32_t stays[N / 32]; /* a bit a box */
};

__device__ inline ifs__box box_of(float4 v) {
    ifs__box box;
    box.x1 = v.x;
    box.y1 = v.y;
    box.x2 = v.z;
    box.y2 = v.w;
    return box;
}
__device__ inline float4 vector_of(ifs__box box) { return make_float4(box.x1, box.y1, box.x2, box.y2); }

struct Candidate {
    ifs__box box;
    int32_t class_id;
};

/*
 * `count` boxes in order: load(i) gives one, stay(i, number, candidate) is called for each that stays with how many
 * stayed before it. Returns how many stay. `kept_boxes` and `kept_classes` hold as many, in global memory, and are used
 * only where there is more than one tile.
 */
template <int N, class Load, class Stay>
__device__ uint32_t suppress(Tile<N> &tile, uint32_t count, bool by_class, float iou, float4 *kept_boxes,
                             int32_t *kept_classes, Load load, Stay stay) {
    const uint32_t me = threadIdx.x, lane = me & 31, warp = me / 32;
    uint32_t kept = 0;
    for (uint32_t base = 0; base < count; base += N) {
        const bool valid = base + me < count;
        Candidate mine = {{0, 0, 0, 0}, 0};
        if (valid)
            mine = load(base + me);
        const float area = ifs__box_area(mine.box);
        bool alive = valid;
        /* Whether box i of the tile and mine overlap; the test is the same both ways. No branches. */
        const auto suppresses = [&](uint32_t i) {
            const bool same = !by_class | (tile.class_id[i] == mine.class_id);
            return same & ifs__overlap(box_of(tile.box[i]), tile.area[i], mine.box, area, iou);
        };
        /* Those that stayed in the tiles before. */
        for (uint32_t start = 0; start < kept; start += N) {
            const uint32_t length = min(kept - start, (uint32_t)N);
            __syncthreads();
            if (me < length) {
                const float4 box = kept_boxes[start + me];
                tile.box[me] = box;
                tile.area[me] = ifs__box_area(box_of(box));
                tile.class_id[me] = kept_classes[start + me];
            }
            __syncthreads();
            for (uint32_t i = 0; i < length && alive; i++)
                alive = !suppresses(i);
        }
        __syncthreads();
        tile.box[me] = vector_of(mine.box);
        tile.area[me] = area;
        tile.class_id[me] = mine.class_id;
        if (me < N / 32)
            tile.stays[me] = 0;
        __syncthreads();

        const uint32_t num_warps = min((count - base + 31) / 32, (uint32_t)N / 32);
        uint32_t suppressed = 0; /* lanes behind this one that it would suppress */
        if (warp < num_warps) {
#pragma unroll 4
            for (uint32_t other = 1; other < 32; other++)
                suppressed |= (uint32_t)suppresses(warp * 32 + other) << other;
            suppressed &= ~lanes_below() & ~(1u << lane);
        }
        for (uint32_t turn = 0; turn < num_warps; turn++) {
            if (warp == turn) {
                uint32_t left = __ballot_sync(ALL, alive), stays = 0;
                while (left) {
                    const uint32_t first = (uint32_t)__ffs((int)left) - 1;
                    stays |= 1u << first;
                    left &= ~(1u << first | __shfl_sync(ALL, suppressed, (int)first));
                }
                alive = stays >> lane & 1;
                if (lane == 0)
                    tile.stays[turn] = stays;
            }
            __syncthreads();
            if (warp > turn && alive)
                for (uint32_t left = tile.stays[turn]; left && alive; left &= left - 1)
                    alive = !suppresses(turn * 32 + (uint32_t)__ffs((int)left) - 1);
        }

        uint32_t before = kept, all = 0;
        for (uint32_t i = 0; i < num_warps; i++) {
            const uint32_t number = (uint32_t)__popc(tile.stays[i]);
            before += i < warp ? number : 0;
            all += number;
        }
        if (alive) {
            before += (uint32_t)__popc(tile.stays[warp] & lanes_below());
            if (count > N) {
                kept_boxes[before] = vector_of(mine.box);
                kept_classes[before] = mine.class_id;
            }
            stay(base + me, before, mine);
        }
        kept += all;
        __syncthreads();
    }
    return kept;
}

/* ---- the way out ---- */

__device__ inline ifs_detection *detections_of(const Run &run, int picture) {
    return (ifs_detection *)(run.out + picture * run.out_size + sizeof(ifs_cuda_detections));
}

__device__ inline void write_head(const Run &run, int picture, uint32_t found, uint32_t kept) {
    ifs_cuda_detections head;
    const uint32_t most = (uint32_t)run.max_detections;
    head.stats.candidates = found;
    head.stats.dropped_candidates = found > run.max_candidates ? found - run.max_candidates : 0;
    head.stats.kept = kept;
    head.stats.dropped_detections = kept > most ? kept - most : 0;
    head.count = (int32_t)(kept > most ? most : kept);
    head.reserved = 0;
    *(ifs_cuda_detections *)(run.out + picture * run.out_size) = head;
}

__device__ inline void write_detection(const Run &run, int picture, uint32_t number, const Candidate &candidate,
                                       uint64_t key) {
    if (number >= (uint32_t)run.max_detections)
        return;
    const Picture &p = run.pictures[picture];
    const ifs__box box = ifs__box_to_source(candidate.box, p.to_source, p.source_width, p.source_height);
    ifs_detection detection;
    detection.x1 = box.x1;
    detection.y1 = box.y1;
    detection.x2 = box.x2;
    detection.y2 = box.y2;
    detection.score = ifs__score_of_key((uint32_t)(key >> 32));
    detection.class_id = candidate.class_id;
    detections_of(run, picture)[number] = detection;
}

template <typename T> __device__ inline Candidate candidate_of(const Run &run, int picture, uint64_t key) {
    const uint32_t payload = (uint32_t)key, anchor = payload / (uint32_t)run.num_classes;
    Candidate candidate;
    candidate.box = decode<T>(run, picture, anchor);
    candidate.class_id = (int32_t)(payload - anchor * (uint32_t)run.num_classes);
    return candidate;
}

/* ---- finish: all of a picture with few candidates; a sorted part of one with many ---- */

template <typename T> __global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t keys[CHUNK];
    __shared__ Tile<THREADS> tile;
    const int picture = (int)blockIdx.y;
    const uint32_t found = run.found[picture], count = stored(run, found), first = blockIdx.x * CHUNK;
    if (first >= count && first > 0)
        return;
    uint64_t *all = run.keys + (size_t)picture * run.capacity;
    load_and_sort(keys, all + first, min(count - first, (uint32_t)CHUNK));
    if (count > FEW) {
        for (uint32_t i = threadIdx.x; i < CHUNK && first + i < count; i += THREADS)
            all[first + i] = keys[i];
        return;
    }
    const size_t place = (size_t)picture * run.max_candidates;
    const uint32_t kept = suppress(
        tile, min(count, run.max_candidates), run.by_class, run.iou, run.kept_boxes + place, run.kept_classes + place,
        [&](uint32_t i) { return candidate_of<T>(run, picture, keys[i]); },
        [&](uint32_t i, uint32_t number, const Candidate &c) { write_detection(run, picture, number, c, keys[i]); });
    if (threadIdx.x == 0)
        write_head(run, picture, found, kept);
}

/* ---- merge: each part's keys take their ranks ---- */

__device__ inline uint32_t lower_bound(const uint64_t *keys, uint32_t count, uint64_t key) {
    uint32_t low = 0;
    while (count > 0) {
        const uint32_t half = count / 2;
        if (keys[low + half] < key) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return low;
}

template <typename T> __global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ Run run) {
    __shared__ uint64_t part[CHUNK];
    constexpr uint32_t EACH = CHUNK / THREADS;
    const int picture = (int)blockIdx.y;
    const uint32_t count = stored(run, run.found[picture]), first = blockIdx.x * CHUNK;
    if (count <= FEW || first >= count)
        return;
    const uint64_t *all = run.keys + (size_t)picture * run.capacity;
    uint64_t mine[EACH];
    uint32_t rank[EACH];
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++) {
        const uint32_t i = threadIdx.x + e * THREADS;
        mine[e] = first + i < count ? all[first + i] : ~(uint64_t)0;
        rank[e] = i;
    }
    for (uint32_t other = 0; other < count; other += CHUNK) {
        if (other == first)
            continue;
        const uint32_t length = min(count - other, (uint32_t)CHUNK);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < length; i += THREADS)
            part[i] = all[other + i];
        __syncthreads();
#pragma unroll
        for (uint32_t e = 0; e < EACH; e++)
            rank[e] += lower_bound(part, length, mine[e]);
    }
    const size_t place = (size_t)picture * run.max_candidates;
#pragma unroll
    for (uint32_t e = 0; e < EACH; e++)
        if (first + threadIdx.x + e * THREADS < count && rank[e] < run.max_candidates) {
            const Candidate candidate = candidate_of<T>(run, picture, mine[e]);
            run.ranked[place + rank[e]] = mine[e];
            run.boxes[place + rank[e]] = vector_of(candidate.box);
            run.classes[place + rank[e]] = candidate.class_id;
            run.kept[place + rank[e]] = 0;
        }
}

/* ---- suppress: NMS of one class of one picture at a time ---- */

/* The ranks of a class, ascending, into a part of `members` of its own; their number, and where they are. Each warp has
 * a part of the ranks, counts in it, and then writes behind the warps before it. */
__device__ uint32_t gather_class(const Run &run, int picture, uint32_t count, int32_t class_id, uint32_t **members,
                                 uint32_t *numbers) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = SUPPRESS_THREADS / 32;
    const size_t place = (size_t)picture * run.max_candidates;
    const int32_t *classes = run.classes + place;
    const uint32_t length = ((count + warps - 1) / warps + 31) / 32 * 32;
    const uint32_t begin = min(warp * length, count), end = min(begin + length, count);
    uint32_t number = 0;
#pragma unroll 4
    for (uint32_t i = begin + lane; i < end; i += 32)
        number += classes[i] == class_id;
#pragma unroll
    for (int width = 16; width > 0; width /= 2)
        number += __shfl_xor_sync(ALL, number, width);
    __syncthreads(); /* of the class before, `numbers` was read */
    if (lane == 0)
        numbers[warp] = number;
    __syncthreads();
    uint32_t before = 0, sum = 0;
    for (uint32_t i = 0; i < warps; i++) {
        before += i < warp ? numbers[i] : 0;
        sum += numbers[i];
    }
    if (!sum)
        return 0;
    if (threadIdx.x == 0)
        numbers[warps] = atomicAdd(run.taken + picture, sum);
    __syncthreads();
    uint32_t *at = run.members + place + numbers[warps];
    *members = at;
    for (uint32_t start = begin; start < end; start += 32) {
        const bool is_one = start + lane < end && classes[start + lane] == class_id;
        const uint32_t mask = __ballot_sync(ALL, is_one);
        if (is_one)
            at[before + (uint32_t)__popc(mask & lanes_below())] = start + lane;
        before += (uint32_t)__popc(mask);
    }
    __syncthreads();
    return sum;
}

__global__ void __launch_bounds__(SUPPRESS_THREADS) suppress_kernel(const __grid_constant__ Run run) {
    __shared__ Tile<SUPPRESS_THREADS> tile;
    __shared__ uint32_t numbers[SUPPRESS_THREADS / 32 + 1];
    const bool many = threadIdx.x < (uint32_t)run.n && stored(run, run.found[threadIdx.x]) > FEW;
    if (!__syncthreads_or(many))
        return;
    const uint32_t classes = run.by_class ? (uint32_t)run.num_classes : 1;
    for (uint64_t task = blockIdx.x; task < (uint64_t)classes * (uint32_t)run.n; task += gridDim.x) {
        const int picture = (int)(task % (uint32_t)run.n);
        const uint32_t class_id = (uint32_t)(task / (uint32_t)run.n);
        const uint32_t found = stored(run, run.found[picture]);
        if (found <= FEW)
            continue;
        uint32_t count = min(found, run.max_candidates);
        const size_t place = (size_t)picture * run.max_candidates;
        uint32_t *members = nullptr;
        if (run.by_class) {
            count = gather_class(run, picture, count, (int32_t)class_id, &members, numbers);
            if (!count)
                continue;
        }
        const size_t kept_place = members ? (size_t)(members - run.members) : place;
        suppress(
            tile, count, false, run.iou, run.kept_boxes + kept_place, run.kept_classes + kept_place,
            [&](uint32_t i) {
                Candidate candidate;
                candidate.box = box_of(run.boxes[place + (members ? members[i] : i)]);
                candidate.class_id = (int32_t)class_id;
                return candidate;
            },
            [&](uint32_t i, uint32_t, const Candidate &) { run.kept[place + (members ? members[i] : i)] = 1; });
    }
}

/* ---- emit ---- */

__global__ void __launch_bounds__(THREADS) emit_kernel(const __grid_constant__ Run run) {
    __shared__ uint32_t numbers[2][THREADS / 32];
    const int picture = (int)blockIdx.x;
    const uint32_t found = run.found[picture], lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t many = stored(run, found);
    __syncthreads();
    if (threadIdx.x == 0) /* for the next run */
        run.found[picture] = run.taken[picture] = 0;
    if (many <= FEW)
        return;
    const uint32_t count = min(many, run.max_candidates);
    const size_t place = (size_t)picture * run.max_candidates;
    uint32_t kept = 0, side = 0;
    for (uint32_t base = 0; base < count; base += THREADS, side ^= 1) {
        const uint32_t i = base + threadIdx.x;
        const bool stays = i < count && run.kept[place + i];
        const uint32_t mask = __ballot_sync(ALL, stays);
        if (lane == 0)
            numbers[side][warp] = (uint32_t)__popc(mask);
        __syncthreads(); /* one is enough: the other side is not written before all have passed the next */
        uint32_t before = kept;
        for (uint32_t w = 0; w < THREADS / 32; w++) {
            before += w < warp ? numbers[side][w] : 0;
            kept += numbers[side][w];
        }
        if (stays) {
            Candidate candidate;
            candidate.box = box_of(run.boxes[place + i]);
            candidate.class_id = run.classes[place + i];
            write_detection(run, picture, before + (uint32_t)__popc(mask & lanes_below()), candidate,
                            run.ranked[place + i]);
        }
    }
    if (threadIdx.x == 0)
        write_head(run, picture, found, kept);
}

} // namespace

/* ---- the detector ---- */

struct ifs_cuda_detector {
    ifs_detect_params params;
    int32_t max_batch, device;
    int32_t blocks; /* of suppress */
    bool dirty;     /* a run failed midway: the counters may not be zero */
    uint32_t total; /* candidates that there can be */
    size_t nbytes;
    void *workspace;
    Run run; /* all that does not change from run to run */
};

/* Lays out the workspace: called once with a base of NULL to learn the size. */
static size_t lay_out(Run &run, size_t pictures, uint8_t *base) {
    size_t used = 0;
    const size_t keys = pictures * run.capacity, ranks = pictures * run.max_candidates;
#define TAKE(member, count)                                                                                            \
    do {                                                                                                               \
        run.member = decltype(run.member)(base + used);                                                                \
        used += ((count) * sizeof *run.member + 255) & ~(size_t)255;                                                   \
    } while (0)
    TAKE(found, pictures);
    TAKE(taken, pictures);
    TAKE(keys, keys);
    TAKE(ranked, ranks);
    TAKE(boxes, ranks);
    TAKE(classes, ranks);
    TAKE(kept, ranks);
    TAKE(members, ranks);
    TAKE(kept_boxes, ranks);
    TAKE(kept_classes, ranks);
#undef TAKE
    return used;
}

ifs_status ifs_cuda_detector_create(const ifs_detect_params *params, int32_t max_batch, int32_t device,
                                    ifs_cuda_detector **out) {
    if (!params || !out)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a detector needs parameters and a place for its handle");
    IFS__TRY(ifs__check_detect_params(params));
    if (max_batch < 1 || max_batch > 65535)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "max_batch is %d; it is a number from 1 to 65535", (int)max_batch);
    if (!ifs_cuda_detections_nbytes(params->max_detections, max_batch))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "max_detections is %d, too many for a batch of %d",
                         (int)params->max_detections, (int)max_batch);
    IFS__TRY(ifs__device_check(device));
    ifs_cuda_detector *d = (ifs_cuda_detector *)calloc(1, sizeof *d);
    if (!d)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *d);
    d->params = *params;
    d->max_batch = max_batch;
    d->device = device;
    const bool columns = params->head == IFS_HEAD_YOLOV8;
    const uint32_t anchors = (uint32_t)params->num_anchors, classes = (uint32_t)params->num_classes;
    d->total = params->multi_label ? anchors * classes : anchors;
    Run &run = d->run;
    run.head = params->head;
    run.half = params->dtype == IFS_FLOAT16;
    run.num_anchors = params->num_anchors;
    run.num_classes = params->num_classes;
    run.row_length = columns ? params->num_anchors : 5 + params->num_classes;
    run.output_size = (size_t)anchors * (classes + (columns ? 4 : 5));
    run.multi_label = params->multi_label;
    run.by_class = !params->class_agnostic && params->num_classes > 1;
    run.conf = params->conf_threshold;
    run.iou = params->iou_threshold;
    run.num_strides = params->num_strides;
    memcpy(run.strides, params->strides, sizeof run.strides);
    run.max_detections = params->max_detections;
    run.out_size = ifs_cuda_detections_nbytes(params->max_detections, 1);
    const uint32_t limit = (uint32_t)params->max_candidates;
    run.max_candidates = limit && limit < d->total ? limit : d->total;
    run.capacity = run.max_candidates == d->total  ? d->total
                   : run.max_candidates > ROOM / 2 ? (d->total / 2 < run.max_candidates ? d->total : 2 * limit)
                                                   : (d->total < ROOM ? d->total : ROOM);

    const size_t pictures = (size_t)(max_batch < MAX_PICTURES ? max_batch : MAX_PICTURES);
    d->nbytes = lay_out(run, pictures, nullptr);
    ifs_status status = ifs__device_alloc(device, d->nbytes, &d->workspace);
    if (status == IFS_OK) {
        lay_out(run, pictures, (uint8_t *)d->workspace);
        d->dirty = true;
        int processors = 0;
        cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess)
            status = ifs__cuda_failed(error, device, "asking for its multiprocessors");
        d->blocks = 8 * processors;
    }
    if (status == IFS_OK) {
        ifs__device_guard guard(device);
        cudaError_t error = cudaMemset(run.found, 0, (uint8_t *)run.keys - (uint8_t *)run.found);
        if (error == cudaSuccess)
            error = cudaStreamSynchronize(nullptr); /* the runs are on other streams */
        if (error != cudaSuccess)
            status = ifs__cuda_failed(error, device, "clearing a detector's counters");
        d->dirty = false;
    }
    if (status != IFS_OK) {
        ifs_cuda_detector_destroy(d);
        return status;
    }
    *out = d;
    return IFS_OK;
}

void ifs_cuda_detector_destroy(ifs_cuda_detector *detector) {
    if (!detector)
        return;
    if (detector->workspace)
        ifs__device_free(detector->device, detector->workspace);
    free(detector);
}

size_t ifs_cuda_detector_nbytes(const ifs_cuda_detector *detector) { return detector->nbytes; }

template <typename T> static cudaError_t launch(const ifs_cuda_detector *d, const Run &run, cudaStream_t stream) {
#define LAUNCHED                                                                                                       \
    do {                                                                                                               \
        cudaError_t error = cudaGetLastError();                                                                        \
        if (error != cudaSuccess)                                                                                      \
            return error;                                                                                              \
    } while (0)
    const unsigned n = (unsigned)run.n;
    const dim3 tiles(((unsigned)run.num_anchors + SCAN_THREADS - 1) / SCAN_THREADS, n);
    if (run.head == IFS_HEAD_YOLOV8)
        scan_kernel<T, true><<<tiles, SCAN_THREADS, 0, stream>>>(run);
    else
        scan_kernel<T, false><<<tiles, SCAN_THREADS, 0, stream>>>(run);
    LAUNCHED;
    if (run.capacity < d->total) {
        select_kernel<T><<<n, SELECT_THREADS, 0, stream>>>(run);
        LAUNCHED;
    }
    const dim3 chunks((run.capacity + CHUNK - 1) / CHUNK, n);
    finish_kernel<T><<<chunks, THREADS, 0, stream>>>(run);
    LAUNCHED;
    if (run.capacity > FEW) {
        merge_kernel<T><<<chunks, THREADS, 0, stream>>>(run);
        LAUNCHED;
        const uint64_t tasks = (uint64_t)n * (run.by_class ? (uint32_t)run.num_classes : 1);
        suppress_kernel<<<(unsigned)(tasks < (uint64_t)d->blocks ? tasks : d->blocks), SUPPRESS_THREADS, 0, stream>>>(
            run);
        LAUNCHED;
    }
    emit_kernel<<<n, THREADS, 0, stream>>>(run);
    LAUNCHED;
#undef LAUNCHED
    return cudaSuccess;
}

ifs_status ifs_cuda_detector_run(ifs_cuda_detector *detector, const void *output, const ifs_geometry *geometries,
                                 int32_t n, void *detections, size_t nbytes, void *stream) {
    ifs_cuda_detector *d = detector;
    if (!d || !output || !geometries || !detections)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "a run needs a detector, outputs, geometries, and a block for the detections");
    if (n < 0 || n > d->max_batch)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a run of %d pictures; the detector was made for 0 to %d", (int)n,
                         (int)d->max_batch);
    if ((uintptr_t)detections % 8 || (uintptr_t)output % (d->run.half ? 2 : 4))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the block %p is not aligned to 8 bytes, or the outputs %p not to "
                         "an element",
                         detections, output);
    const size_t needed = n ? ifs_cuda_detections_nbytes(d->params.max_detections, n) : 0;
    if (needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d pictures of %d detections need %zu bytes, and the block has %zu",
                         (int)n, (int)d->params.max_detections, needed, nbytes);
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(ifs__check_detect_geometry(&d->params, &geometries[i]));

    IFS__GUARD(d->device, "detecting");
    const size_t element = d->run.half ? 2 : 4;
    Run run = d->run;
    for (int32_t start = 0; start < n; start += MAX_PICTURES) {
        run.n = n - start < MAX_PICTURES ? n - start : MAX_PICTURES;
        run.output = (const uint8_t *)output + (size_t)start * run.output_size * element;
        run.out = (uint8_t *)detections + (size_t)start * run.out_size;
        for (int32_t i = 0; i < run.n; i++) {
            const ifs_geometry &g = geometries[start + i];
            Picture &p = run.pictures[i];
            memcpy(p.to_source, g.to_source, sizeof p.to_source);
            p.source_width = g.source_width;
            p.source_height = g.source_height;
            p.canvas_width = g.canvas_width;
            p.canvas_height = g.canvas_height;
        }
        cudaError_t error = cudaSuccess;
        if (d->dirty)
            error = cudaMemsetAsync(run.found, 0, (uint8_t *)run.keys - (uint8_t *)run.found, (cudaStream_t)stream);
        d->dirty = true;
        if (error == cudaSuccess)
            error =
                run.half ? launch<__half>(d, run, (cudaStream_t)stream) : launch<float>(d, run, (cudaStream_t)stream);
        if (error != cudaSuccess)
            return ifs__cuda_failed(error, d->device, "launching the detection");
        d->dirty = false;
    }
    return IFS_OK;
}
