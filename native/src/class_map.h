/*
 * class_map.h - the passes of class maps, one set of functions for each SIMD variant, and what host and device share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_CLASS_MAP_H
#define IFS_CLASS_MAP_H

#include "class_map_math.h"
#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The two sides of a geometry ([0] is x), with the checks of all arguments that do not depend on memory. */
ifs_status ifs__class_map_sides(const ifs_class_map_params *params, const ifs_geometry *geometry,
                                ifs__mask_side sides[2]);

/* Scores: class c of point i is values[c * plane + i * step]. */
typedef struct ifs__class_scores {
    const float *values;
    size_t plane, step;
    int32_t classes;
    float threshold; /* for a single class */
} ifs__class_scores;

/* Points around pixels, one array for each number, for `n` pixels; arrays are padded to a multiple of 16. */
typedef struct ifs__class_columns {
    int32_t n;
    int32_t *index, *next;
    float *weight[2];
} ifs__class_columns;

/* Bytes that may be read behind a row of classes of points. */
#define IFS__CLASS_SLACK 64

typedef struct ifs__class_passes {
    /* The best class of each of `n` points from `first` on. */
    void (*best)(const ifs__class_scores *scores, size_t first, uint8_t *dst, int32_t n);
    /* dst[x] = the class that x and x + 1 of both rows have, or IFS_NO_CLASS; reads and writes up to the slack. */
    void (*agree)(const uint8_t *top, const uint8_t *bottom, uint8_t *dst, int32_t n);
    /* dst[x] = row[index[x]]; the x where that is IFS_NO_CLASS to `open`, which has space for 16 more than n. Returns
     * their number. */
    int32_t (*spread)(const uint8_t *row, const ifs__class_columns *columns, uint8_t *dst, int32_t *open);
    /* The classes of the pixels `open`, between the rows of points that begin at points `top` and `bottom`. */
    void (*resolve)(const ifs__class_scores *scores, size_t top, size_t bottom, const float down[2],
                    const ifs__class_columns *columns, const int32_t *open, int32_t count, uint8_t *dst);
} ifs__class_passes;

int32_t ifs__class_spread_plain(const uint8_t *row, const ifs__class_columns *columns, uint8_t *dst, int32_t *open);
void ifs__class_resolve_plain(const ifs__class_scores *s, size_t top, size_t bottom, const float down[2],
                              const ifs__class_columns *columns, const int32_t *open, int32_t count, uint8_t *dst);

extern const ifs__class_passes ifs__class_avx2, ifs__class_avx512;

#ifdef __cplusplus
}
#endif
#endif
