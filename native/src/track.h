/*
 * track.h - the assignment that the tracker shares with ifs_assign.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_TRACK_H
#define IFS_TRACK_H

#include "internal.h"

/* The bytes that ifs__assign needs as `scratch`, a multiple of 8; `scratch` is aligned to 8. */
static inline size_t ifs__assign_nbytes(size_t rows, size_t columns) {
    return (rows * (sizeof(double) + sizeof(int32_t)) + columns * (2 * sizeof(double) + 2 * sizeof(int32_t) + 1) + 7) /
           8 * 8;
}

/* ifs_assign without checks, for rows <= columns: every row gets a column. */
void ifs__assign(const float *costs, size_t rows, size_t columns, void *scratch, int32_t *column_of);

#endif
