/*
 * nms.c - exact greedy NMS, in time that grows with the number of boxes rather than with its square.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A box is compared with the boxes kept before it until one suppresses it. Two things make that fast without changing a
 * result. Kept boxes lie in chunks of sixteen, which are compared at once. And many boxes get a grid: each kept box is
 * entered in every cell that it touches, and a box is compared only with the cells where a suppressor of it must be.
 *
 * These cells are found as follows. If inter > t * union, then inter > t * area of the box, so the suppressor covers
 * more than t of the box's width and of its height. Divide each side into equal parts no longer than t of it; for t =
 * 0.45 two points a side do that. The suppressor then contains one of the points where these lines cross, four in all,
 * so the cells of these points are enough. The cell of a point never descends as the point moves up, so a suppressor
 * that contains the point was entered in the point's cell. The test itself is still ifs__overlap(), so comparing with
 * more cells than necessary is always right. With ifs__covers() a suppressor may be small and lie anywhere in the box,
 * which is then compared with all cells that it touches.
 */
#include "nms.h"
#include "platform.h"
#include "simd.h"

#include "sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one box against a chain of chunks: one function for each SIMD variant ---- */

static inline bool matches(const ifs__nms_chunk *c, int i, ifs__box box, float area, int32_t match, float threshold) {
    const ifs__box kept = {c->x1[i], c->y1[i], c->x2[i], c->y2[i]};
    return match == IFS_MATCH_IOU ? ifs__overlap(kept, c->area[i], box, area, threshold)
                                  : ifs__covers(kept, c->area[i], box, area, threshold);
}

static bool ifs__suppressed_plain(const ifs__nms_chunk *pool, const ifs__nms_link *links, int32_t head, ifs__box box,
                                  float area, int32_t match, float threshold) {
    for (int32_t at = head; at >= 0; at = links[at].next)
        for (int i = 0; i < links[at].count; i++)
            if (matches(&pool[at], i, box, area, match, threshold))
                return true;
    return false;
}

/* The lowest rank of the boxes of a chain that suppress `box`, or `best` if none is lower. */
static uint32_t best_keeper(const ifs__nms *nms, int32_t head, ifs__box box, float area, int32_t match, float threshold,
                            uint32_t best) {
    for (int32_t at = head; at >= 0; at = nms->links[at].next) {
        const uint32_t *ranks = nms->ranks + (size_t)at * 16;
        for (int i = 0; i < nms->links[at].count; i++)
            if (ranks[i] < best && matches(&nms->pool[at], i, box, area, match, threshold))
                best = ranks[i];
    }
    return best;
}

/* ---- scratch ---- */

static size_t lay_out(ifs__nms *nms, char *block, size_t n) {
    size_t used = 0;
    nms->boxes = ifs__take(block, &used, n * sizeof *nms->boxes);
    nms->class_ids = ifs__take(block, &used, n * sizeof *nms->class_ids);
    nms->kept = ifs__take(block, &used, n * sizeof *nms->kept);
    nms->groups = ifs__take(block, &used, n * sizeof *nms->groups);
    nms->scratch = ifs__take(block, &used, n * sizeof *nms->scratch);
    nms->areas = ifs__take(block, &used, n * sizeof *nms->areas);
    nms->order = ifs__take(block, &used, n * sizeof *nms->order);
    nms->keepers = ifs__take(block, &used, n * sizeof *nms->keepers);
    return used;
}

ifs_status ifs__nms_reserve(ifs__nms *nms, size_t n) {
    if (n <= nms->size)
        return IFS_OK;
    const size_t more = nms->size + nms->size / 2, size = n > more ? n : more;
    free(nms->block);
    nms->size = 0;
    nms->block = malloc(lay_out(nms, NULL, size));
    if (!nms->block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate the scratch memory of NMS of %zu boxes", size);
    lay_out(nms, nms->block, size);
    nms->size = size;
    return IFS_OK;
}

void ifs__nms_release(ifs__nms *nms) {
    free(nms->block);
    ifs__aligned_free(nms->pool);
    free(nms->links);
    free(nms->ranks);
}

/* Makes space for `count` more chunks, with `group` for the ranks of their boxes too. */
static ifs_status reserve_chunks(ifs__nms *nms, size_t count, bool group) {
    size_t wanted = nms->pool_count + count;
    if (group)
        IFS__TRY(
            ifs__grow((void **)&nms->ranks, &nms->ranks_size, wanted * 16, nms->pool_count * 16, sizeof *nms->ranks));
    if (wanted <= nms->pool_size)
        return IFS_OK;
    IFS__TRY(ifs__grow((void **)&nms->links, &nms->links_size, wanted, nms->pool_count, sizeof *nms->links));
    wanted = nms->links_size;
    ifs__nms_chunk *pool = wanted <= INT32_MAX ? ifs__aligned_alloc(wanted * sizeof *pool) : NULL;
    if (!pool)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu chunks of kept boxes", wanted);
    if (nms->pool_count)
        memcpy(pool, nms->pool, nms->pool_count * sizeof *pool);
    ifs__aligned_free(nms->pool);
    nms->pool = pool;
    nms->pool_size = wanted;
    return IFS_OK;
}

/* ---- the grid ---- */

typedef struct grid {
    int32_t size;              /* cells along a side */
    int32_t points; /* points that divide a side of a box; 0: compare with all cells that the box touches */
    double x, y, x_scale, y_scale;
} grid;

static inline int32_t cell_of(double value, double origin, double scale, int32_t size) {
    double cell = (value - origin) * scale;
    return cell >= size ? size - 1 : cell > 0 ? (int32_t)cell : 0;
}

/*
 * A grid for the boxes of a class: fine enough that chains are short, coarse enough that a box touches few cells. It
 * has one cell where that is faster, or where areas are so small or large that products lose the precision that the
 * argument above needs.
 */
static grid grid_for(const ifs__nms *nms, const uint64_t *members, const float *areas, size_t n, int32_t match,
                     float threshold) {
    grid g = {1, 0, 0, 0, 0, 0};
    if (n < 256)
        return g;
    double x1 = INFINITY, y1 = INFINITY, x2 = -INFINITY, y2 = -INFINITY, widths = 0, heights = 0, total = 0;
    size_t solid = 0;
    for (size_t i = 0; i < n; i++) {
        ifs__box b = nms->boxes[(uint32_t)members[i]];
        if (!(areas[i] > 0))
            continue;
        if (areas[i] < 1e-30f || areas[i] > 1e30f)
            return g;
        x1 = b.x1 < x1 ? b.x1 : x1;
        y1 = b.y1 < y1 ? b.y1 : y1;
        x2 = b.x2 > x2 ? b.x2 : x2;
        y2 = b.y2 > y2 ? b.y2 : y2;
        widths += (double)b.x2 - b.x1;
        heights += (double)b.y2 - b.y1;
        total += areas[i];
        solid++;
    }
    if (solid < 256)
        return g;
    double w = x2 - x1, h = y2 - y1, count = (double)solid;
    for (int32_t size = IFS__NMS_MAX_GRID; size > 1; size /= 2) {
        double touched = total / (w * h) * size * size + (widths / w + heights / h) * size + count;
        if (size * size * 4 <= count && touched <= 8 * count) {
            /* A slightly smaller t allows for the rounding of areas and of t times their sum. */
            double parts = match == IFS_MATCH_IOU ? ceil(1 / (threshold * 0.99999)) : 0;
            int32_t points =
                parts >= 1 && parts <= 5 ? (int32_t)parts - 1 : 0; /* of a threshold of -0.0: minus infinity */
            return (grid){size, points, x1, y1, size / w, size / h};
        }
    }
    return g;
}

/* The cells along one side that the box [low, high] is compared with, ascending, each once. `cells` holds as many as
 * the grid has along a side. */
static int32_t cells_to_compare(double low, double high, double origin, double scale, const grid *g, int32_t *cells) {
    int32_t n = 0;
    if (g->points) {
        double part = (high - low) / (g->points + 1);
        for (int32_t i = 1; i <= g->points; i++) {
            int32_t cell = cell_of(low + i * part, origin, scale, g->size);
            if (n == 0 || cells[n - 1] != cell)
                cells[n++] = cell;
        }
    } else {
        int32_t last = cell_of(high, origin, scale, g->size);
        for (int32_t cell = cell_of(low, origin, scale, g->size); cell <= last; cell++)
            cells[n++] = cell;
    }
    return n;
}

static void enter(ifs__nms *nms, int32_t cell, ifs__box box, float area, uint32_t rank, bool group) {
    int32_t at = nms->cells[cell];
    if (at < 0 || nms->links[at].count == 16) {
        nms->links[nms->pool_count] = (ifs__nms_link){0, at};
        at = nms->cells[cell] = (int32_t)nms->pool_count++;
        ifs__nms_chunk *fresh = &nms->pool[at];
        memset(fresh, 0, sizeof *fresh); /* a box of no area at the origin */
    }
    ifs__nms_chunk *c = &nms->pool[at];
    int32_t i = nms->links[at].count++;
    c->x1[i] = box.x1;
    c->y1[i] = box.y1;
    c->x2[i] = box.x2;
    c->y2[i] = box.y2;
    c->area[i] = area;
    if (group)
        nms->ranks[(size_t)at * 16 + (size_t)i] = rank;
}

/* ---- NMS ---- */

/* What one run of NMS does. */
typedef struct task {
    ifs__suppressed_fn *suppressed;
    int32_t match;
    float threshold;
    bool group; /* whether to find the keeper of each box */
} task;

/* These two are inlined: the grid is a local variable then, which the arrays of numbers cannot alias.
 *
 * Compares a box with the one chain of a grid of one cell, and enters it there if none suppresses it. */
IFS__INLINE ifs_status add_to_chain(ifs__nms *nms, uint32_t rank, ifs__box box, float area, const task *t) {
    if (t->suppressed(nms->pool, nms->links, nms->cells[0], box, area, t->match, t->threshold)) {
        nms->kept[rank] = 0;
        if (t->group)
            nms->keepers[rank] = best_keeper(nms, nms->cells[0], box, area, t->match, t->threshold, UINT32_MAX);
        return IFS_OK;
    }
    IFS__TRY(reserve_chunks(nms, 1, t->group));
    enter(nms, 0, box, area, rank, t->group);
    return IFS_OK;
}

/* The same for a grid of several cells. */
IFS__INLINE ifs_status add_to_grid(ifs__nms *nms, uint32_t rank, ifs__box box, float area, const task *t,
                                   const grid *g) {
    int32_t columns[IFS__NMS_MAX_GRID], rows[IFS__NMS_MAX_GRID];
    const int32_t num_columns = cells_to_compare(box.x1, box.x2, g->x, g->x_scale, g, columns);
    const int32_t num_rows = cells_to_compare(box.y1, box.y2, g->y, g->y_scale, g, rows);
    bool kept = true;
    for (int32_t r = 0; r < num_rows && kept; r++)
        for (int32_t c = 0; c < num_columns && kept; c++)
            kept = !t->suppressed(nms->pool, nms->links, nms->cells[rows[r] * g->size + columns[c]], box, area,
                                  t->match, t->threshold);
    if (!kept) {
        nms->kept[rank] = 0;
        if (!t->group)
            return IFS_OK;
        uint32_t best = UINT32_MAX;
        for (int32_t r = 0; r < num_rows; r++)
            for (int32_t c = 0; c < num_columns; c++)
                best = best_keeper(nms, nms->cells[rows[r] * g->size + columns[c]], box, area, t->match, t->threshold,
                                   best);
        nms->keepers[rank] = best;
        return IFS_OK;
    }
    const int32_t first = cell_of(box.x1, g->x, g->x_scale, g->size), last = cell_of(box.x2, g->x, g->x_scale, g->size);
    const int32_t top = cell_of(box.y1, g->y, g->y_scale, g->size), bottom = cell_of(box.y2, g->y, g->y_scale, g->size);
    IFS__TRY(reserve_chunks(nms, (size_t)(last - first + 1) * (size_t)(bottom - top + 1), t->group));
    for (int32_t row = top; row <= bottom; row++)
        for (int32_t column = first; column <= last; column++)
            enter(nms, row * g->size + column, box, area, rank, t->group);
    return IFS_OK;
}

static ifs_status run_class(ifs__nms *nms, const uint64_t *members, float *areas, size_t n, const task *t) {
    if (n == 1) {
        nms->kept[(uint32_t)members[0]] = 1;
        return IFS_OK;
    }
    for (size_t i = 0; i < n; i++)
        areas[i] = ifs__box_area(nms->boxes[(uint32_t)members[i]]);
    const grid g = grid_for(nms, members, areas, n, t->match, t->threshold);
    memset(nms->cells, 0xff, (size_t)g.size * (size_t)g.size * sizeof *nms->cells);
    nms->pool_count = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t rank = (uint32_t)members[i];
        nms->kept[rank] = 1;
        if (!(areas[i] > 0))
            continue; /* overlaps nothing */
        if (g.size == 1)
            IFS__TRY(add_to_chain(nms, rank, nms->boxes[rank], areas[i], t));
        else
            IFS__TRY(add_to_grid(nms, rank, nms->boxes[rank], areas[i], t, &g));
    }
    return IFS_OK;
}

ifs_status ifs__nms_match(ifs__nms *nms, size_t n, bool by_class, int32_t match, float threshold, bool group) {
    task t = {IFS__VARIANT_AVX2(ifs__suppressed), match, threshold, group};
    for (size_t i = 0; i < n && group; i++)
        nms->keepers[i] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) {
        uint32_t order = by_class ? (uint32_t)nms->class_ids[i] : 0;
        nms->groups[i] = (uint64_t)order << 32 | i;
    }
    if (by_class)
        ifs__sort_keys(nms->groups, nms->scratch, n);
    for (size_t start = 0, stop; start < n; start = stop) {
        for (stop = start + 1; stop < n && nms->groups[stop] >> 32 == nms->groups[start] >> 32;)
            stop++;
        IFS__TRY(run_class(nms, nms->groups + start, nms->areas + start, stop - start, &t));
    }
    return IFS_OK;
}

static ifs_status nms_checked(ifs__nms *nms, const float *boxes, const float *scores, const int32_t *class_ids,
                              size_t n, int32_t match, float threshold, int64_t *keep, int64_t *count,
                              int64_t *keepers) {
    IFS__TRY(ifs__nms_reserve(nms, n));
    for (size_t i = 0; i < n; i++) {
        ifs__box box = {boxes[4 * i], boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]};
        if (!ifs__box_finite(box) || !ifs__finite(scores[i]))
            return ifs__fail(
                IFS_ERR_INVALID_ARGUMENT,
                "box %zu is (%g, %g, %g, %g) with score %g; NMS needs finite numbers, so leave this box out", i,
                (double)box.x1, (double)box.y1, (double)box.x2, (double)box.y2, (double)scores[i]);
        nms->groups[i] = (uint64_t)ifs__key_of_score(scores[i]) << 32 | i;
    }
    ifs__sort_keys(nms->groups, nms->scratch, n);
    for (size_t rank = 0; rank < n; rank++) {
        size_t i = (uint32_t)nms->groups[rank];
        nms->order[rank] = (uint32_t)i;
        nms->boxes[rank] = (ifs__box){boxes[4 * i], boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3]};
        if (class_ids)
            nms->class_ids[rank] = class_ids[i];
    }
    IFS__TRY(ifs__nms_match(nms, n, class_ids != NULL, match, threshold, keepers != NULL));
    int64_t kept = 0;
    for (size_t rank = 0; rank < n; rank++) {
        if (nms->kept[rank])
            keep[kept++] = nms->order[rank];
        if (keepers)
            keepers[nms->order[rank]] = nms->order[nms->keepers[rank]];
    }
    *count = kept;
    return IFS_OK;
}

ifs_status ifs_nms(const float *boxes, const float *scores, const int32_t *class_ids, int64_t n, int32_t match,
                   float threshold, int64_t *keep, int64_t *count, int64_t *keepers) {
    if (n < 0 || n > INT32_MAX)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "NMS over %lld boxes; the number must be 0 to %d", (long long)n,
                         INT32_MAX);
    if (!count || (n && (!boxes || !scores || !keep)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "boxes, scores, keep or count is NULL");
    if (match != IFS_MATCH_IOU && match != IFS_MATCH_SMALLER)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "match is %d; use IFS_MATCH_IOU or IFS_MATCH_SMALLER", match);
    if (!(threshold >= 0 && threshold <= 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "threshold is %g; it must be 0 to 1", (double)threshold);
    ifs__nms *nms = calloc(1, sizeof *nms);
    if (!nms)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate the scratch memory of NMS");
    ifs_status status = nms_checked(nms, boxes, scores, class_ids, (size_t)n, match, threshold, keep, count, keepers);
    ifs__nms_release(nms);
    free(nms);
    return status;
}
