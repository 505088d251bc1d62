/*
 * nms.h - greedy NMS over boxes that are already in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_NMS_H
#define IFS_NMS_H

#include "fmath.h"
#include "internal.h"

/* Sixteen kept boxes, one array for each coordinate: five cache lines. Unused lanes hold a box that overlaps nothing,
 * so that a chunk is always compared whole. */
typedef struct ifs__nms_chunk {
    float x1[16], y1[16], x2[16], y2[16], area[16];
} ifs__nms_chunk;

/* The number of lanes of a chunk in use, and the next chunk of its chain (-1: none). */
typedef struct ifs__nms_link {
    int32_t count, next;
} ifs__nms_link;

/* Whether a box of the chain suppresses `box`, whose area is `area`. One function for each SIMD variant. */
typedef bool ifs__suppressed_fn(const ifs__nms_chunk *pool, const ifs__nms_link *links, int32_t head, ifs__box box,
                                float area, int32_t match, float threshold);

ifs__suppressed_fn ifs__suppressed_avx2;

#define IFS__NMS_MAX_GRID 64

/* Scratch memory of NMS. It starts as all zeros, and grows as needed. */
typedef struct ifs__nms {
    char *block;        /* of the arrays of `size` boxes */
    size_t size;
    ifs__box *boxes;    /* best first; filled by the caller */
    int32_t *class_ids; /* likewise */
    uint8_t *kept;      /* out: 1 where NMS keeps the box */
    uint64_t *groups;   /* class and rank */
    uint64_t *scratch;
    float *areas;       /* in the order of `groups` */
    uint32_t *order;    /* for the caller: the index of each rank before sorting */
    uint32_t *keepers;  /* out, with `group`: the rank of the best kept box that suppresses each one */
    ifs__nms_chunk *pool; /* [pool_size] aligned to a cache line */
    ifs__nms_link *links; /* [links_size] */
    uint32_t *ranks;      /* [ranks_size], 16 a chunk, with `group` */
    size_t pool_size, links_size, ranks_size;
    size_t pool_count;
    int32_t cells[IFS__NMS_MAX_GRID * IFS__NMS_MAX_GRID]; /* the head of each cell's chain */
} ifs__nms;

ifs_status ifs__nms_reserve(ifs__nms *nms, size_t n);
void ifs__nms_release(ifs__nms *nms);

/* Greedy NMS over the first `n` boxes of the scratch memory by a test (IFS_MATCH_...); with `by_class`, only boxes of
 * one class suppress one another; with `group`, `keepers` is filled too. */
ifs_status ifs__nms_match(ifs__nms *nms, size_t n, bool by_class, int32_t match, float threshold, bool group);

#endif
