/*
 * nms.cuh - sorting and NMS by one block.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * NMS goes through the boxes in order, one tile at a time, one thread for each box. First each box is compared with the
 * boxes kept in earlier tiles. Then the warps decide one after another: a lane's mask says which boxes of its warp it
 * would suppress, so a warp needs only a few bit operations for each box that it keeps. The warps after it compare
 * their boxes with the ones it has kept.
 */
#ifndef IFS_NMS_CUH
#define IFS_NMS_CUH

#include "detect_run.cuh"

namespace {

/* ---- sorting ---- */

/* Sorts `size` keys (a power of two, at most CHUNK) in shared memory, ascending, by a bitonic network. In the steps
 * whose pairs lie less than 64 apart, a warp touches only its own keys, so these steps synchronise the warp alone. */
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
    uint32_t kept[N / 32]; /* one bit for each box */
};

__device__ inline ifs__box box_of(float4 v) { return {v.x, v.y, v.z, v.w}; }
__device__ inline float4 vector_of(ifs__box box) { return make_float4(box.x1, box.y1, box.x2, box.y2); }

struct Candidate {
    ifs__box box;
    int32_t class_id;
};

/*
 * NMS over `count` boxes in order. load(i) gives box i; keep(i, number, candidate) is called for each box that is kept,
 * `number` being the boxes kept before it. Returns the number of kept boxes. `kept_indices` has space for `count`
 * numbers in global memory; NULL where one tile holds all boxes.
 */
template <int N, class Load, class Keep>
__device__ uint32_t suppress(Tile<N> &tile, uint32_t count, bool by_class, float iou, uint32_t *kept_indices, Load load,
                             Keep keep) {
    const uint32_t me = threadIdx.x, lane = me & 31, warp = me / 32;
    uint32_t kept = 0;
    for (uint32_t base = 0; base < count; base += N) {
        const bool valid = base + me < count;
        Candidate mine = {{0, 0, 0, 0}, 0};
        if (valid)
            mine = load(base + me);
        const float area = ifs__box_area(mine.box);
        bool alive = valid;
        /* Whether box i of the tile and mine overlap. The test is symmetric, and written without branches. */
        const auto suppresses = [&](uint32_t i) {
            const bool same = !by_class | (tile.class_id[i] == mine.class_id);
            return same & ifs__overlap(box_of(tile.box[i]), tile.area[i], mine.box, area, iou);
        };
        /* The boxes kept in earlier tiles. */
        for (uint32_t start = 0; start < kept; start += N) {
            const uint32_t length = min(kept - start, (uint32_t)N);
            __syncthreads();
            if (me < length) {
                const Candidate other = load(kept_indices[start + me]);
                tile.box[me] = vector_of(other.box);
                tile.area[me] = ifs__box_area(other.box);
                tile.class_id[me] = other.class_id;
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
            tile.kept[me] = 0;
        __syncthreads();

        const uint32_t num_warps = min((count - base + 31) / 32, (uint32_t)N / 32);
        uint32_t suppressed = 0; /* the later lanes that this one would suppress */
        if (warp < num_warps) {
#pragma unroll 4
            for (uint32_t other = 1; other < 32; other++)
                suppressed |= (uint32_t)suppresses(warp * 32 + other) << other;
            suppressed &= ~lanes_below() & ~(1u << lane);
        }
        for (uint32_t active = 0; active < num_warps; active++) {
            if (warp == active) {
                uint32_t left = __ballot_sync(ALL, alive), kept_lanes = 0;
                while (left) {
                    const uint32_t first = (uint32_t)__ffs((int)left) - 1;
                    kept_lanes |= 1u << first;
                    left &= ~(1u << first | __shfl_sync(ALL, suppressed, (int)first));
                }
                alive = kept_lanes >> lane & 1;
                if (lane == 0)
                    tile.kept[active] = kept_lanes;
            }
            __syncthreads();
            if (warp > active && alive)
                for (uint32_t left = tile.kept[active]; left && alive; left &= left - 1)
                    alive = !suppresses(active * 32 + (uint32_t)__ffs((int)left) - 1);
        }

        uint32_t before = kept, all = 0;
        for (uint32_t i = 0; i < num_warps; i++) {
            const uint32_t number = (uint32_t)__popc(tile.kept[i]);
            before += i < warp ? number : 0;
            all += number;
        }
        if (alive) {
            before += (uint32_t)__popc(tile.kept[warp] & lanes_below());
            if (count > N)
                kept_indices[before] = base + me;
            keep(base + me, before, mine);
        }
        kept += all;
        __syncthreads();
    }
    return kept;
}

} // namespace

#endif
