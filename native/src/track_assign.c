/*
 * track_assign.c - linear assignment by shortest augmenting paths.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * D. F. Crouse, "On implementing 2D rectangular assignment algorithms", IEEE Transactions on Aerospace and Electronic
 * Systems 52 (2016). Rows are first given their cheapest column where it is free. The others are assigned one after
 * another: Dijkstra's algorithm finds the shortest path from a row to a free column over the reduced costs c - u - v,
 * which are never negative and are 0 on assigned pairs. The path alternates between assigned and other pairs;
 * exchanging them assigns one more row.
 */
#include "track.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FREE (-1)

typedef struct search {
    size_t columns;
    const float *costs;
    double *u, *v;    /* the dual variables of rows and columns */
    double *distance; /* [columns] from the row of the search */
    int32_t *from;    /* [columns] the row before a column on its path */
    int32_t *row_of;  /* [columns] the assigned row, or FREE */
    uint8_t *done;    /* [columns] whether the distance is final */
} search;

/* Extends the paths over `row`, which is `base` away. Returns the nearest column that is not done; of equally near ones
 * a free one, then the first. */
static size_t nearest(search *s, size_t row, double base) {
    const float *costs = s->costs + row * s->columns;
    const double u = s->u[row];
    double least = INFINITY;
    size_t best = 0;
    for (size_t j = 0; j < s->columns; j++) {
        if (s->done[j])
            continue;
        const double through = base + (double)costs[j] - u - s->v[j];
        if (through < s->distance[j]) {
            s->distance[j] = through;
            s->from[j] = (int32_t)row;
        }
        if (s->distance[j] < least || (s->distance[j] == least && s->row_of[j] == FREE && s->row_of[best] != FREE)) {
            least = s->distance[j];
            best = j;
        }
    }
    return best;
}

/* Gives rows their cheapest column where it is free. Returns the number of rows that are left, to `left`. */
static size_t assign_cheapest(search *s, size_t rows, int32_t *column_of, int32_t *left) {
    size_t count = 0;
    for (size_t i = 0; i < rows; i++) {
        const float *costs = s->costs + i * s->columns;
        size_t best = 0;
        for (size_t j = 1; j < s->columns; j++)
            if (costs[j] < costs[best])
                best = j;
        s->u[i] = (double)costs[best];
        if (s->row_of[best] == FREE) {
            s->row_of[best] = (int32_t)i;
            column_of[i] = (int32_t)best;
        } else
            left[count++] = (int32_t)i;
    }
    return count;
}

/* Assigns one more row, by the shortest path from it to a free column. */
static void augment(search *s, int32_t start, int32_t *column_of) {
    memset(s->done, 0, s->columns);
    for (size_t j = 0; j < s->columns; j++)
        s->distance[j] = INFINITY;
    size_t column = nearest(s, (size_t)start, 0);
    while (s->row_of[column] != FREE) {
        s->done[column] = 1;
        column = nearest(s, (size_t)s->row_of[column], s->distance[column]);
    }
    const double length = s->distance[column];
    s->u[start] += length;
    for (size_t j = 0; j < s->columns; j++)
        if (s->done[j]) {
            const double change = length - s->distance[j];
            s->u[s->row_of[j]] += change;
            s->v[j] -= change;
        }
    for (int32_t row = FREE; row != start;) {
        row = s->from[column];
        const int32_t before = row == start ? FREE : column_of[row];
        s->row_of[column] = row;
        column_of[row] = (int32_t)column;
        column = (size_t)before;
    }
}

void ifs__assign(const float *costs, size_t rows, size_t columns, void *scratch, int32_t *column_of) {
    search s = {.columns = columns, .costs = costs, .u = scratch};
    s.v = s.u + rows;
    s.distance = s.v + columns;
    s.from = (int32_t *)(s.distance + columns);
    s.row_of = s.from + columns;
    int32_t *left = s.row_of + columns;
    s.done = (uint8_t *)(left + rows);
    memset(s.v, 0, columns * sizeof *s.v);
    for (size_t j = 0; j < columns; j++)
        s.row_of[j] = FREE;
    const size_t count = assign_cheapest(&s, rows, column_of, left);
    for (size_t i = 0; i < count; i++)
        augment(&s, left[i], column_of);
}

ifs_status ifs_assign(const float *costs, int64_t rows, int64_t columns, int32_t *column_of) {
    if (rows < 0 || columns < 0 || rows > INT32_MAX || columns > INT32_MAX)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "costs of %lld x %lld; each side is 0 to %d", (long long)rows,
                         (long long)columns, INT32_MAX);
    const size_t r = (size_t)rows, c = (size_t)columns, count = r * c;
    if ((!costs && count) || (!column_of && r))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "costs or column_of is NULL");
    for (size_t i = 0; i < count; i++)
        if (!isfinite(costs[i]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the cost of row %zu and column %zu is %g; use finite costs",
                             i / c, i % c, (double)costs[i]);
    for (size_t i = 0; i < r; i++)
        column_of[i] = FREE;
    if (!count)
        return IFS_OK;
    /* Of more rows than columns, the transposed matrix is assigned. */
    const bool tall = r > c;
    const size_t small = tall ? c : r, large = tall ? r : c, own = ifs__assign_nbytes(small, large);
    const size_t nbytes = own + (tall ? count * sizeof(float) + c * sizeof(int32_t) : 0);
    char *scratch = malloc(nbytes);
    if (!scratch)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes for an assignment of %zu x %zu", nbytes, r,
                         c);
    if (tall) {
        float *transposed = (float *)(scratch + own);
        int32_t *row_of = (int32_t *)(transposed + count);
        for (size_t i = 0; i < r; i++)
            for (size_t j = 0; j < c; j++)
                transposed[j * r + i] = costs[i * c + j];
        ifs__assign(transposed, c, r, scratch, row_of);
        for (size_t j = 0; j < c; j++)
            column_of[row_of[j]] = (int32_t)j;
    } else
        ifs__assign(costs, r, c, scratch, column_of);
    free(scratch);
    return IFS_OK;
}
