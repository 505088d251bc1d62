/*
 * geometry.h - what geometry.c offers the rest of the core: limits, the check of a geometry, what a resize covers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_GEOMETRY_H
#define IFS_GEOMETRY_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

#define IFS__MAX_SIDE (1 << 20)  /* pixels of a source, canvas or resized side */
#define IFS__MAX_REACH (1 << 29) /* pixels from where a WARP puts a canvas corner to the source's corner */

ifs_status ifs__check_geometry(const ifs_geometry *geometry);

/* Whether a RESIZE halves both sides exactly: then a pixel is the mean of four. */
static inline bool ifs__resize_halves(const ifs_geometry *g) {
    return g->source_width == 2 * (int64_t)g->resized_width && g->source_height == 2 * (int64_t)g->resized_height;
}

/* The part of a canvas side that the resized image covers: `count` pixels from `from` on. The first one shows pixel
 * `first` of the resized image. */
typedef struct ifs__cover {
    int32_t from, count, first;
} ifs__cover;

static inline ifs__cover ifs__cover_of(int32_t canvas, int32_t resized, int32_t offset) {
    const int64_t from = offset > 0 ? offset : 0, end = (int64_t)offset + resized;
    const int64_t count = (end < canvas ? end : canvas) - from;
    ifs__cover cover = {0, 0, 0};
    if (count > 0) {
        cover.from = (int32_t)from;
        cover.count = (int32_t)count;
        cover.first = (int32_t)(from - offset);
    }
    return cover;
}

#ifdef __cplusplus
}
#endif
#endif
