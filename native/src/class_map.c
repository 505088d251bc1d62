/*
 * class_map.c - from scores for each class to the class of each pixel of the image.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The best class is found at each point of the scores first. A pixel whose four points agree has their class; only the
 * pixels at borders are interpolated, class by class. Points that a row of the image needs are looked at when the first
 * such row comes.
 */
#include "class_map.h"
#include "platform.h"
#include "simd.h"

#include "masks.h"

#include <stdlib.h>
#include <string.h>

/* ---- the plain reference ---- */

static void best_plain(const ifs__class_scores *s, size_t first, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++) {
        const float *at = s->values + (first + (size_t)x) * s->step;
        float highest = -INFINITY;
        uint8_t best = 0;
        for (int32_t c = 0; c < s->classes; c++) {
            const float score = at[(size_t)c * s->plane];
            if (score > highest) {
                highest = score;
                best = (uint8_t)c;
            }
        }
        dst[x] = s->classes == 1 ? highest > s->threshold : best;
    }
}

static void agree_plain(const uint8_t *top, const uint8_t *bottom, uint8_t *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++) {
        const bool same = top[x] == top[x + 1] && top[x] == bottom[x] && top[x] == bottom[x + 1];
        dst[x] = same ? top[x] : IFS_NO_CLASS;
    }
}

int32_t ifs__class_spread_plain(const uint8_t *row, const ifs__class_columns *columns, uint8_t *dst, int32_t *open) {
    int32_t count = 0;
    for (int32_t x = 0; x < columns->n; x++) {
        dst[x] = row[columns->index[x]];
        open[count] = x;
        count += dst[x] == IFS_NO_CLASS;
    }
    return count;
}

void ifs__class_resolve_plain(const ifs__class_scores *s, size_t top, size_t bottom, const float down[2],
                              const ifs__class_columns *columns, const int32_t *open, int32_t count, uint8_t *dst) {
    for (int32_t i = 0; i < count; i++) {
        const int32_t x = open[i];
        const size_t k = (size_t)columns->index[x], next = (size_t)columns->next[x];
        const float across[2] = {columns->weight[0][x], columns->weight[1][x]};
        float highest = -INFINITY;
        uint8_t best = 0;
        for (int32_t c = 0; c < s->classes; c++) {
            const float *plane = s->values + (size_t)c * s->plane;
            const float score =
                ifs__class_blend(plane[(top + k) * s->step], plane[(top + next) * s->step],
                                 plane[(bottom + k) * s->step], plane[(bottom + next) * s->step], across, down);
            if (score > highest) {
                highest = score;
                best = (uint8_t)c;
            }
        }
        dst[x] = s->classes == 1 ? highest > s->threshold : best;
    }
}

static const ifs__class_passes ifs__class_plain = {best_plain, agree_plain, ifs__class_spread_plain,
                                                   ifs__class_resolve_plain};

/* ---- checks ---- */

ifs_status ifs__class_map_sides(const ifs_class_map_params *p, const ifs_geometry *geometry, ifs__mask_side sides[2]) {
    if (p->num_classes < 1 || p->num_classes > IFS_NO_CLASS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "num_classes is %d; it must be 1 to %d", (int)p->num_classes,
                         IFS_NO_CLASS);
    if (p->layout != IFS_LAYOUT_CHW && p->layout != IFS_LAYOUT_HWC)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown layout %d of the scores; use IFS_LAYOUT_CHW (%d) or IFS_LAYOUT_HWC (%d)",
                         (int)p->layout, IFS_LAYOUT_CHW, IFS_LAYOUT_HWC);
    if (!ifs__finite(p->threshold))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "threshold is %g; it must be finite", (double)p->threshold);
    /* Instance masks are resized from the canvas to the image in the same way. */
    const ifs_mask_params mask = {.dtype = p->dtype, .num_coefficients = 1, .width = p->width, .height = p->height};
    IFS__TRY(ifs__mask_sides(&mask, geometry, sides));
    if ((int64_t)p->width * p->height > INT32_MAX / p->num_classes)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d classes at %d x %d points are more than %d scores",
                         (int)p->num_classes, (int)p->width, (int)p->height, INT32_MAX);
    return IFS_OK;
}

/* ---- one image ---- */

typedef struct scratch {
    float *converted; /* the scores as float32, where they are float16 */
    uint8_t *best;    /* [height, stride] the best class of each point; the last one of a row twice */
    uint8_t *agreed;  /* [stride] of the rows of points at hand */
    size_t stride;
    int32_t *open;
    ifs__class_columns columns;
} scratch;

static size_t lay_out(scratch *s, char *block, const ifs_class_map_params *p, int32_t pixels) {
    size_t used = 0;
    const size_t padded = ((size_t)pixels + 31) / 16 * 16;
    s->stride = (size_t)p->width + 1 + IFS__CLASS_SLACK;
    if (p->dtype == IFS_FLOAT16)
        s->converted =
            ifs__take(block, &used, sizeof(float) * (size_t)p->num_classes * (size_t)p->width * (size_t)p->height);
    s->best = ifs__take(block, &used, s->stride * (size_t)p->height);
    s->agreed = ifs__take(block, &used, s->stride + IFS__CLASS_SLACK);
    s->open = ifs__take(block, &used, padded * sizeof *s->open);
    s->columns.index = ifs__take(block, &used, padded * sizeof(int32_t));
    s->columns.next = ifs__take(block, &used, padded * sizeof(int32_t));
    for (int i = 0; i < 2; i++)
        s->columns.weight[i] = ifs__take(block, &used, padded * sizeof(float));
    return used;
}

static void find_best(const ifs__class_passes *pass, const ifs__class_scores *scores, const ifs_class_map_params *p,
                      scratch *s) {
    for (int32_t y = 0; y < p->height; y++) {
        uint8_t *row = s->best + (size_t)y * s->stride;
        pass->best(scores, (size_t)y * (size_t)p->width, row, p->width);
        memset(row + p->width, row[p->width - 1], 1 + IFS__CLASS_SLACK);
    }
}

static void map_image(const ifs__class_passes *pass, const ifs__class_scores *scores, const ifs_class_map_params *p,
                      const ifs_geometry *geometry, const ifs__mask_side sides[2], scratch *s, uint8_t *out) {
    const size_t width = (size_t)geometry->source_width;
    const int32_t first = sides[0].first, count = sides[0].end - first;
    s->columns.n = count;
    for (int32_t x = 0; x < count; x++) {
        const ifs__class_tap tap = ifs__class_tap_of(&sides[0], first + x);
        s->columns.index[x] = tap.index;
        s->columns.next[x] = tap.next;
        s->columns.weight[0][x] = tap.weight[0];
        s->columns.weight[1][x] = tap.weight[1];
    }
    int32_t top = -1; /* the row of points that `agreed` is of */
    for (int32_t y = 0; y < geometry->source_height; y++) {
        uint8_t *row = out + (size_t)y * width;
        if (y < sides[1].first || y >= sides[1].end || count < (int32_t)width)
            memset(row, IFS_NO_CLASS, width);
        if (y < sides[1].first || y >= sides[1].end || !count)
            continue;
        const ifs__class_tap tap = ifs__class_tap_of(&sides[1], y);
        if (tap.index != top) {
            top = tap.index;
            pass->agree(s->best + (size_t)top * s->stride, s->best + (size_t)tap.beside * s->stride, s->agreed,
                        p->width);
        }
        const int32_t open = pass->spread(s->agreed, &s->columns, row + first, s->open);
        pass->resolve(scores, (size_t)tap.index * (size_t)p->width, (size_t)tap.next * (size_t)p->width, tap.weight,
                      &s->columns, s->open, open, row + first);
    }
}

ifs_status ifs_class_map(const ifs_class_map_params *params, const void *scores, const ifs_geometry *geometry,
                         uint8_t *class_ids, size_t nbytes) {
    ifs__mask_side sides[2];
    IFS__TRY(ifs__class_map_sides(params, geometry, sides));
    if (!scores || !class_ids)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "scores or class_ids is NULL");
    const size_t needed = (size_t)geometry->source_width * (size_t)geometry->source_height;
    if (nbytes < needed)
        return ifs__fail(IFS_ERR_TOO_SMALL, "a class map of %d x %d needs %zu bytes, but there are %zu",
                         (int)geometry->source_width, (int)geometry->source_height, needed, nbytes);
    scratch s = {0};
    const size_t size = lay_out(&s, NULL, params, geometry->source_width);
    char *block = ifs__aligned_alloc(size);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of scratch memory for a class map", size);
    lay_out(&s, block, params, geometry->source_width);
    const size_t points = (size_t)params->width * (size_t)params->height, classes = (size_t)params->num_classes;
    const bool planes = params->layout == IFS_LAYOUT_CHW;
    const ifs__class_scores view = {s.converted ? s.converted : scores, planes ? points : 1, planes ? 1 : classes,
                                    params->num_classes, params->threshold};
    if (s.converted)
        ifs__halves_to_floats(scores, s.converted, classes * points);
    const ifs__class_passes *pass = IFS__VARIANT(&ifs__class);
    find_best(pass, &view, params, &s);
    map_image(pass, &view, params, geometry, sides, &s, class_ids);
    ifs__aligned_free(block);
    return IFS_OK;
}

ifs_status ifs_cuda_class_maps_layout(const ifs_geometry *geometries, int32_t n, int64_t *offsets, size_t *nbytes) {
    if (n < 0 || !nbytes || (n && (!geometries || !offsets)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d class maps; the number is 0 or more, and no pointer may be NULL",
                         (int)n);
    size_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        const ifs_geometry *g = &geometries[i];
        if (g->source_width < 1 || g->source_height < 1)
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "the geometry's source is %d x %d pixels; make the geometry by ifs_geometry_...",
                             (int)g->source_width, (int)g->source_height);
        offsets[i] = (int64_t)used;
        used += ((size_t)g->source_width * (size_t)g->source_height + 255) & ~(size_t)255;
    }
    *nbytes = used;
    return IFS_OK;
}
