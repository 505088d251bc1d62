/*
 * float_map.c - maps of numbers (depth, anomaly scores, mattes) resized to the image.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "internal.h"
#include "masks.h"

#include <math.h>
#include <stdlib.h>

/* Points of the map, and their weights, for one pixel along one side. Unused weights are 0. */
typedef struct tap {
    int32_t index[4];
    float weight[4];
} tap;

/* The cubic convolution kernel with a = -0.75, as PyTorch and OpenCV have it. */
static double cubic(double x) {
    const double a = -0.75;
    x = fabs(x);
    return x <= 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

static tap tap_of(const ifs__mask_side *side, int32_t filter, int32_t d) {
    const double ratio = (double)side->prototypes / side->canvas;
    /* The points that show the image; beyond them the outermost ones repeat. In integers, since `ratio` is rounded. */
    const int64_t points = side->prototypes, canvas = side->canvas;
    const int32_t low = (int32_t)(side->low * points / canvas);
    const int32_t high = (int32_t)(((side->high + 1) * points + canvas - 1) / canvas) - 1;
    const double at = ((d + 0.5) * side->scale + side->shift + 0.5) * ratio - 0.5, base = floor(at), f = at - base;
    tap t;
    for (int i = 0; i < 4; i++) {
        t.index[i] = (int32_t)ifs__mask_clamp(base - 1 + i, low, high);
        t.weight[i] = filter == IFS_FILTER_BICUBIC ? (float)cubic(f + 1 - i) : i == 1 ? (float)(1 - f) : 0;
    }
    if (filter == IFS_FILTER_BILINEAR)
        t.weight[2] = (float)f;
    return t;
}

/* A value with its weight; of weight 0, none: 0 times an infinity is NaN. */
static inline float term(float weight, float value) { return weight == 0 ? 0 : weight * value; }

static inline float blend(const float weight[4], float a, float b, float c, float d) {
    return (term(weight[0], a) + term(weight[1], b)) + (term(weight[2], c) + term(weight[3], d));
}

static void resize_row(const float *row, const tap *columns, int32_t n, float *out) {
    for (int32_t x = 0; x < n; x++) {
        const int32_t *index = columns[x].index;
        out[x] = blend(columns[x].weight, row[index[0]], row[index[1]], row[index[2]], row[index[3]]);
    }
}

static ifs_status check(const ifs_float_map_params *p, const ifs_geometry *geometry, ifs__mask_side sides[2]) {
    if (p->filter != IFS_FILTER_BILINEAR && p->filter != IFS_FILTER_BICUBIC)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown filter %d; use IFS_FILTER_BILINEAR (%d) or IFS_FILTER_BICUBIC (%d)", (int)p->filter,
                         IFS_FILTER_BILINEAR, IFS_FILTER_BICUBIC);
    const ifs_mask_params mask = {.dtype = p->dtype, .num_coefficients = 1, .width = p->width, .height = p->height};
    return ifs__mask_sides(&mask, geometry, sides);
}

ifs_status ifs_float_map(const ifs_float_map_params *params, const void *values, const ifs_geometry *geometry,
                         float *out, size_t nbytes) {
    ifs__mask_side sides[2];
    IFS__TRY(check(params, geometry, sides));
    if (!values || !out)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "values or out is NULL");
    const size_t width = (size_t)geometry->source_width, height = (size_t)geometry->source_height;
    if (nbytes < width * height * sizeof *out)
        return ifs__fail(IFS_ERR_TOO_SMALL, "a map of %zu x %zu needs %zu bytes, but there are %zu", width, height,
                         width * height * sizeof *out, nbytes);
    const size_t points = (size_t)params->width * (size_t)params->height;
    const int32_t first = sides[0].first, count = sides[0].end - first;
    float *floats = params->dtype == IFS_FLOAT16 ? malloc(points * sizeof *floats) : NULL;
    float *resized = malloc(4 * width * sizeof *resized); /* four rows of points at the width of the image */
    tap *columns = malloc(width * sizeof *columns);
    ifs_status status = IFS_OK;
    if (!resized || !columns || (params->dtype == IFS_FLOAT16 && !floats)) {
        status =
            ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate scratch memory for a map of %zu x %zu", width, height);
        goto done;
    }
    if (floats)
        ifs__halves_to_floats(values, floats, points);
    const float *map = floats ? floats : values;
    int32_t held[4] = {-1, -1, -1, -1}; /* the row of points in each row of `resized` */
    for (int32_t x = 0; x < count; x++)
        columns[x] = tap_of(&sides[0], params->filter, first + x);
    for (size_t i = 0; i < width * height; i++)
        out[i] = NAN;
    for (int32_t y = sides[1].first; y < sides[1].end; y++) {
        const tap t = tap_of(&sides[1], params->filter, y);
        const float *rows[4];
        for (int i = 0; i < 4; i++) {
            const int slot = t.index[i] % 4;
            float *row = resized + (size_t)slot * width;
            if (held[slot] != t.index[i])
                resize_row(map + (size_t)t.index[i] * (size_t)params->width, columns, count, row);
            held[slot] = t.index[i];
            rows[i] = row;
        }
        float *to = out + (size_t)y * width + first;
        for (int32_t x = 0; x < count; x++)
            to[x] = blend(t.weight, rows[0][x], rows[1][x], rows[2][x], rows[3][x]);
    }
done:
    free(floats);
    free(resized);
    free(columns);
    return status;
}
