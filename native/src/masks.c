/*
 * masks.c - from mask coefficients and prototypes to masks of the image, one bit for each pixel.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A mask is computed for the pixels of its box alone, from top to bottom. The activations of a row of prototypes are
 * computed when the first row of the image needs them, and resized to the width of the box; three such rows are kept. A
 * row of the mask is then three products and a comparison for each pixel.
 */
#include "masks.h"
#include "platform.h"
#include "simd.h"

#include "geometry.h"
#include "workers.h"

#include <stdlib.h>
#include <string.h>

/* ---- the plain reference ---- */

static void activate_plain(const void *prototypes, int32_t dtype, size_t plane, const float *coefficients, int32_t num,
                           float *dst, int32_t n) {
    for (int32_t x = 0; x < n; x++) {
        float sum = 0;
        for (int32_t k = 0; k < num; k++)
            sum += coefficients[k] * ifs__element(prototypes, dtype, (size_t)k * plane + (size_t)x);
        dst[x] = ifs__mask_sigmoid(sum);
    }
}

static void columns_plain(const float *row, const ifs__mask_columns *t, float *dst) {
    for (int32_t x = 0; x < t->padded; x++) {
        const float weight[3] = {t->weight[0][x], t->weight[1][x], t->weight[2][x]};
        dst[x] = ifs__mask_blend(row[t->index[0][x]], row[t->index[1][x]], row[t->index[2][x]], weight);
    }
}

static void rows_plain(const float *const row[3], const float weight[3], float threshold, uint8_t *bits, int32_t n) {
    memset(bits, 0, (size_t)ifs__mask_stride(n));
    for (int32_t x = 0; x < n; x++)
        bits[x / 8] |= (uint8_t)((ifs__mask_blend(row[0][x], row[1][x], row[2][x], weight) > threshold) << (x % 8));
}

static const ifs__mask_passes ifs__mask_plain = {activate_plain, columns_plain, rows_plain};

/* ---- checks, and the layout ---- */

static ifs_status check_params(const ifs_mask_params *p) {
    if (p->dtype != IFS_FLOAT32 && p->dtype != IFS_FLOAT16)
        return ifs__fail(IFS_ERR_DTYPE, "dtype is %d; use IFS_FLOAT32 (%d) or IFS_FLOAT16 (%d)", (int)p->dtype,
                         IFS_FLOAT32, IFS_FLOAT16);
    if (p->num_coefficients < 1 || p->num_coefficients > IFS_MAX_COEFFICIENTS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "num_coefficients is %d; it must be 1 to %d",
                         (int)p->num_coefficients, IFS_MAX_COEFFICIENTS);
    if (!(p->threshold >= 0 && p->threshold < 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "threshold is %g; it must be at least 0 and below 1",
                         (double)p->threshold);
    return IFS_OK;
}

static ifs_status side_of(const char *name, const ifs_geometry *g, int axis, int32_t prototypes, ifs__mask_side *out) {
    const int32_t canvas = axis ? g->canvas_height : g->canvas_width;
    const int32_t source = axis ? g->source_height : g->source_width;
    const double *m = g->to_source;
    if (prototypes < 1 || prototypes > canvas)
        return ifs__fail(IFS_ERR_SHAPE, "the maps have a %s of %d, but the canvas has %d; there must be 1 to as many",
                         name, (int)prototypes, (int)canvas);
    ifs__mask_side side = {.low = 0, .high = canvas - 1, .canvas = canvas, .prototypes = prototypes};
    double edges[2] = {0, canvas}; /* the pixels whose centres lie between them are on the canvas */
    if (g->kind == IFS_GEOMETRY_RESIZE) {
        const int32_t resized = axis ? g->resized_height : g->resized_width, offset = axis ? g->offset_y : g->offset_x;
        const ifs__cover cover = ifs__cover_of(canvas, resized, offset);
        side.scale = (double)resized / source;
        side.shift = offset - 0.5;
        if (cover.count) {
            side.low = cover.from;
            side.high = cover.from + cover.count - 1;
        }
        const double first = (double)cover.from - offset; /* an offset may be anything where nothing is covered */
        edges[0] = first / side.scale;
        edges[1] = (first + cover.count) / side.scale;
    } else {
        const double step = m[axis ? 4 : 0], origin = m[axis ? 5 : 2];
        side.scale = 1 / step;
        side.shift = -origin / step - 0.5;
        edges[0] = origin;
        edges[1] = origin + step * canvas;
        const double edge0 = -origin / step, edge1 = (source - origin) / step; /* of the image, on the canvas */
        const double low = fmin(edge0, edge1), high = fmax(edge0, edge1);
        side.low = (int32_t)ifs__mask_clamp(ceil(low - 0.5), 0, canvas - 1);
        side.high = (int32_t)ifs__mask_clamp(ceil(high - 0.5) - 1, 0, canvas - 1);
        if (side.high < side.low) /* the image lies between two centres: the pixel that it lies in */
            side.low = side.high = (int32_t)ifs__mask_clamp(floor(low), 0, canvas - 1);
    }
    side.first = (int32_t)ifs__mask_clamp(ceil(fmin(edges[0], edges[1]) - 0.5), 0, source);
    side.end = (int32_t)ifs__mask_clamp(ceil(fmax(edges[0], edges[1]) - 0.5), side.first, source);
    *out = side;
    return IFS_OK;
}

ifs_status ifs__mask_sides(const ifs_mask_params *params, const ifs_geometry *geometry, ifs__mask_side sides[2]) {
    IFS__TRY(check_params(params));
    IFS__TRY(ifs__check_geometry(geometry));
    if (geometry->kind == IFS_GEOMETRY_WARP && (geometry->to_source[1] != 0 || geometry->to_source[3] != 0))
        return ifs__fail(IFS_ERR_UNSUPPORTED,
                         "the geometry rotates or shears the image ([[%g, %g], [%g, %g]]), and masks are resized along "
                         "rows and columns; use a letterbox, a resize, or an affine map without rotation",
                         geometry->to_source[0], geometry->to_source[1], geometry->to_source[3],
                         geometry->to_source[4]);
    IFS__TRY(side_of("width", geometry, 0, params->width, &sides[0]));
    return side_of("height", geometry, 1, params->height, &sides[1]);
}

ifs_status ifs_masks_layout(const ifs_mask_params *params, const ifs_geometry *geometry,
                            const ifs_detection *detections, int32_t n, ifs_mask *masks, size_t *nbytes) {
    ifs__mask_side sides[2];
    IFS__TRY(ifs__mask_sides(params, geometry, sides));
    if (n < 0 || !nbytes || (n && (!detections || !masks)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d masks; the number is 0 or more, and no pointer may be NULL",
                         (int)n);
    int64_t used = 0;
    for (int32_t i = 0; i < n; i++) {
        const ifs_detection *d = &detections[i];
        const int32_t x = ifs__mask_edge(d->x1, sides[0].first, sides[0].end);
        const int32_t y = ifs__mask_edge(d->y1, sides[1].first, sides[1].end);
        const int32_t end_x = ifs__mask_edge(d->x2, x, sides[0].end), end_y = ifs__mask_edge(d->y2, y, sides[1].end);
        masks[i] = (ifs_mask){.x = x, .y = y, .width = end_x - x, .height = end_y - y, .offset = used};
        masks[i].stride = ifs__mask_stride(masks[i].width);
        used += (int64_t)masks[i].stride * masks[i].height;
    }
    *nbytes = (size_t)used;
    return IFS_OK;
}

/* ---- assembly ---- */

typedef struct job {
    const ifs_mask_params *params;
    const ifs__mask_passes *passes;
    ifs__mask_side sides[2];
    const void *prototypes;
    const float *coefficients;
    const ifs_mask *masks;
    uint8_t *bits;
} job;

/* What one mask needs while it is made, in one block of memory. */
typedef struct scratch {
    float *activations; /* of one row of prototypes, for the columns of the mask */
    float *resized[3];  /* rows of activations at the width of the mask */
    int32_t row[3];     /* the rows of prototypes that they are; -1: none */
    ifs__mask_columns columns;
    int32_t first, count; /* the columns of prototypes */
} scratch;

static size_t lay_out(scratch *s, char *block) {
    size_t used = 0;
    const size_t row = (size_t)s->columns.padded * sizeof(float);
    s->activations = ifs__take(block, &used, (size_t)(s->count + 16) * sizeof(float));
    for (int i = 0; i < 3; i++) {
        s->resized[i] = ifs__take(block, &used, row);
        s->columns.index[i] = ifs__take(block, &used, row);
        s->columns.weight[i] = ifs__take(block, &used, row);
    }
    return used;
}

static int32_t clamp_index(int32_t index, int32_t last) { return index < last ? index : last; }

static void fill_columns(scratch *s, const ifs__mask_side *side, const ifs_mask *mask) {
    const int32_t last = side->prototypes - 1;
    for (int32_t x = 0; x < s->columns.padded; x++) {
        const bool inside = x < mask->width;
        const ifs__mask_tap tap = ifs__mask_tap_of(side, mask->x + (inside ? x : mask->width - 1));
        for (int i = 0; i < 3; i++) {
            s->columns.index[i][x] = clamp_index(tap.index + i, last) - s->first;
            s->columns.weight[i][x] = inside ? tap.weight[i] : 0;
        }
    }
}

/* A row of prototypes, activated and resized to the width of the mask. */
static const float *resized_row(const job *j, scratch *s, const float *coefficients, int32_t row) {
    const int slot = row % 3;
    if (s->row[slot] == row)
        return s->resized[slot];
    const ifs_mask_params *p = j->params;
    const size_t plane = (size_t)p->width * (size_t)p->height;
    const size_t at = (size_t)row * (size_t)p->width + (size_t)s->first;
    j->passes->activate(ifs__element_at(j->prototypes, p->dtype, at), p->dtype, plane, coefficients,
                        p->num_coefficients, s->activations, s->count);
    j->passes->columns(s->activations, &s->columns, s->resized[slot]);
    s->row[slot] = row;
    return s->resized[slot];
}

static ifs_status assemble_one(void *context, int64_t i) {
    const job *j = context;
    const ifs_mask *mask = &j->masks[i];
    if (mask->width < 1 || mask->height < 1)
        return IFS_OK;
    const float *coefficients = j->coefficients + (size_t)i * (size_t)j->params->num_coefficients;
    const int32_t left = ifs__mask_tap_of(&j->sides[0], mask->x).index;
    const int32_t right = ifs__mask_tap_of(&j->sides[0], mask->x + mask->width - 1).index;
    const int32_t first = left < right ? left : right, end = (left < right ? right : left) + 3;
    scratch s = {.row = {-1, -1, -1}, .first = first};
    s.count = clamp_index(end, j->sides[0].prototypes) - first;
    s.columns.padded = (mask->width + 31) / 32 * 32;
    const size_t size = lay_out(&s, NULL);
    char *block = ifs__aligned_alloc(size);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of scratch memory for a mask of %d x %d",
                         size, (int)mask->width, (int)mask->height);
    lay_out(&s, block);
    fill_columns(&s, &j->sides[0], mask);
    const int32_t last = j->sides[1].prototypes - 1;
    uint8_t *bits = j->bits + mask->offset;
    for (int32_t y = 0; y < mask->height; y++, bits += mask->stride) {
        const ifs__mask_tap tap = ifs__mask_tap_of(&j->sides[1], mask->y + y);
        const float *rows[3];
        for (int r = 0; r < 3; r++) /* a row without weight is not computed: the first one is read in its place */
            rows[r] =
                r && tap.weight[r] == 0 ? rows[0] : resized_row(j, &s, coefficients, clamp_index(tap.index + r, last));
        j->passes->rows(rows, tap.weight, j->params->threshold, bits, mask->width);
    }
    ifs__aligned_free(block);
    return IFS_OK;
}

/* That a mask is one of ifs_masks_layout, as far as memory is concerned. */
static ifs_status check_mask(const ifs_mask *mask, int32_t i, const ifs__mask_side sides[2], size_t nbytes) {
    const bool inside = mask->x >= 0 && mask->y >= 0 && mask->width >= 0 && mask->height >= 0 &&
                        mask->width <= sides[0].end - mask->x && mask->height <= sides[1].end - mask->y;
    if (!inside || mask->stride != ifs__mask_stride(mask->width))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "mask %d has %d x %d pixels at (%d, %d) and rows of %d bytes; lay masks out by "
                         "ifs_masks_layout with the same geometry",
                         (int)i, (int)mask->width, (int)mask->height, (int)mask->x, (int)mask->y, (int)mask->stride);
    const int64_t size = (int64_t)mask->stride * mask->height;
    if (mask->offset < 0 || mask->offset % 4 || (uint64_t)mask->offset > nbytes ||
        (uint64_t)size > nbytes - (uint64_t)mask->offset)
        return ifs__fail(IFS_ERR_TOO_SMALL, "mask %d needs %lld bytes from byte %lld on, but there are %zu", (int)i,
                         (long long)size, (long long)mask->offset, nbytes);
    return IFS_OK;
}

ifs_status ifs_masks_assemble(ifs_workers *workers, const ifs_mask_params *params, const void *prototypes,
                              const float *coefficients, const ifs_geometry *geometry, const ifs_mask *masks, int32_t n,
                              uint8_t *bits, size_t nbytes) {
    job j = {.params = params,
             .passes = IFS__VARIANT(&ifs__mask),
             .prototypes = prototypes,
             .coefficients = coefficients,
             .masks = masks,
             .bits = bits};
    IFS__TRY(ifs__mask_sides(params, geometry, j.sides));
    if (n < 0 || !prototypes || (n && (!coefficients || !masks)) || (nbytes && !bits))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d masks; the number is 0 or more, and no pointer may be NULL",
                         (int)n);
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(check_mask(&masks[i], i, j.sides, nbytes));
    return ifs__workers_run(workers, assemble_one, &j, n);
}

/* ---- run lengths ---- */

static inline uint32_t bit_at(const uint8_t *bits, const ifs_mask *mask, int32_t x, int32_t y) {
    return bits[(size_t)y * (size_t)mask->stride + (size_t)(x / 8)] >> (x % 8) & 1u;
}

ifs_status ifs_mask_runs(const ifs_mask *mask, const uint8_t *bits, int32_t image_width, int32_t image_height,
                         uint32_t *runs, int64_t capacity, int64_t *count) {
    if (!mask || !count || (!bits && mask->width && mask->height) || (capacity && !runs) || capacity < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "mask, bits, runs or count is NULL, or capacity is negative");
    if (image_width < 1 || image_height < 1 || mask->x < 0 || mask->y < 0 || mask->width < 0 || mask->height < 0 ||
        mask->width > image_width - mask->x || mask->height > image_height - mask->y)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a mask of %d x %d at (%d, %d) does not lie in an image of %d x %d",
                         (int)mask->width, (int)mask->height, (int)mask->x, (int)mask->y, (int)image_width,
                         (int)image_height);
    if (mask->stride != ifs__mask_stride(mask->width))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a mask of %d pixels has rows of %d bytes, but they take %d",
                         (int)mask->width, (int)mask->stride, (int)ifs__mask_stride(mask->width));
    if ((int64_t)image_width * image_height > UINT32_MAX)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "an image of %d x %d has more pixels than a run length can count",
                         (int)image_width, (int)image_height);
    int64_t number = 0, start = 0; /* where the current run begins, counted down the columns */
    uint32_t value = 0;
    const uint8_t *first = mask->width && mask->height ? bits : NULL;
#define ADD_RUN(end)                                                                                                   \
    do {                                                                                                               \
        if (number < capacity)                                                                                         \
            runs[number] = (uint32_t)((end) - start);                                                                  \
        number++;                                                                                                      \
        start = (end);                                                                                                 \
        value ^= 1;                                                                                                    \
    } while (0)
    for (int32_t x = 0; first && x < mask->width; x++) {
        const int64_t top = (int64_t)(mask->x + x) * image_height + mask->y;
        if (value && mask->y) /* the pixels above the mask */
            ADD_RUN(top - mask->y);
        for (int32_t y = 0; y < mask->height; y++)
            if (bit_at(first, mask, x, y) != value)
                ADD_RUN(top + y);
        if (value && mask->y + mask->height < image_height)
            ADD_RUN(top + mask->height);
    }
    if (value && mask->x + mask->width < image_width) /* the mask reaches the lower edge; the next column is empty */
        ADD_RUN((int64_t)(mask->x + mask->width) * image_height);
    ADD_RUN((int64_t)image_width * image_height);
#undef ADD_RUN
    *count = number;
    if (number > capacity)
        return ifs__fail(IFS_ERR_TOO_SMALL, "the mask has %lld runs, but there is space for %lld", (long long)number,
                         (long long)capacity);
    return IFS_OK;
}
