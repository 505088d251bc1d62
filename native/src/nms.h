/*
 * nms.h - what detection, NMS and top-k share: sorting by key, and NMS over boxes that are already in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_NMS_H
#define IFS_NMS_H

#include "fmath.h"
#include "internal.h"

/*
 * Sorts keys of (order << 32 | payload) by their upper halves, ascending and stable: equal ones stay as they came. With
 * payloads that ascend, as when candidates are found in their order, that is the order of whole keys.
 * `scratch` holds n.
 */
void ifs__sort_keys(uint64_t *keys, uint64_t *scratch, size_t n);

/* Grows an array to hold `count` elements, at least half as much again; the first `keep` elements stay. */
ifs_status ifs__grow(void **array, size_t *capacity, size_t count, size_t keep, size_t element_size);

/* Sixteen kept boxes, a coordinate an array: five cache lines. Unused lanes hold a box that overlaps nothing, so that a
 * chunk is always compared whole. */
typedef struct ifs__nms_chunk {
    float x1[16], y1[16], x2[16], y2[16], area[16];
} ifs__nms_chunk;

/* How many lanes of a chunk are used, and the chunk before it in its chain (-1: none). */
typedef struct ifs__nms_link {
    int32_t count, next;
} ifs__nms_link;

/* Whether a box of a chain suppresses `box`, whose area is `area`. A function a SIMD variant. */
typedef bool ifs__suppressed_fn(const ifs__nms_chunk *pool, const ifs__nms_link *links, int32_t head, ifs__box box,
                                float area, float iou_threshold);

#if IFS__X86
ifs__suppressed_fn ifs__suppressed_avx2, ifs__suppressed_avx512;
#endif

#define IFS__NMS_MAX_GRID 64

/* Scratch memory of NMS. All zero at the start, it grows as needed. */
typedef struct ifs__nms {
    ifs__box *boxes;    /* [n] best first; filled by the caller */
    int32_t *class_ids; /* [n] likewise */
    uint8_t *kept;      /* [n] out: 1 where NMS keeps the box */
    uint64_t *groups;   /* [n] class and rank */
    uint64_t *scratch;  /* [n] */
    float *areas;       /* [n] in the order of `groups` */
    uint32_t *order;    /* [n] for the caller: what each rank was before */
    void *pool_block;   /* what `pool`, aligned to 64 bytes, lies in */
    ifs__nms_chunk *pool;
    ifs__nms_link *links; /* [pool_size] */
    size_t boxes_size, class_ids_size, kept_size, groups_size, scratch_size, areas_size, order_size;
    size_t pool_size, links_size;
    size_t pool_count;
    int32_t cells[IFS__NMS_MAX_GRID * IFS__NMS_MAX_GRID]; /* the head of each cell's chain */
} ifs__nms;

ifs_status ifs__nms_reserve(ifs__nms *nms, size_t n);
void ifs__nms_release(ifs__nms *nms);

/* Greedy NMS over the first `n` boxes of the scratch, each class by itself if `by_class`. */
ifs_status ifs__nms_run(ifs__nms *nms, size_t n, bool by_class, float iou_threshold);

#endif
