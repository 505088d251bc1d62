/*
 * geometry.c - where the pixels of an image go on the network's canvas.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * All coordinates are edge coordinates: an image of width w spans [0, w], and the centre of its first pixel is 0.5. So
 * each map here is a scale and a shift, and the scale of a resize is exactly source / resized.
 */
#include "geometry.h"

#include <math.h>
#include <string.h>

static ifs_status check_side(const char *what, int64_t side) {
    if (side < 1 || side > IFS__MAX_SIDE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s is %lld pixels; it must be 1 to %d", what, (long long)side,
                         IFS__MAX_SIDE);
    return IFS_OK;
}

static ifs_status check_offset(const char *what, int32_t offset) {
    if (offset < -IFS__MAX_SIDE || offset > IFS__MAX_SIDE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s is %d pixels; it must be -%d to %d", what, (int)offset,
                         IFS__MAX_SIDE, IFS__MAX_SIDE);
    return IFS_OK;
}

static ifs_status check_sides(int32_t source_width, int32_t source_height, int32_t canvas_width,
                              int32_t canvas_height) {
    IFS__TRY(check_side("the source's width", source_width));
    IFS__TRY(check_side("the source's height", source_height));
    IFS__TRY(check_side("the canvas's width", canvas_width));
    return check_side("the canvas's height", canvas_height);
}

static ifs_status check_matrix(const double m[6], int32_t canvas_width, int32_t canvas_height) {
    for (int i = 0; i < 6; i++)
        if (!isfinite(m[i]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "to_source[%d] is %g; all six numbers must be finite", i, m[i]);
    const double determinant = m[0] * m[4] - m[1] * m[3];
    if (!isnormal(determinant))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "to_source cannot be inverted: the determinant of [[%g, %g], [%g, %g]] is %g", m[0], m[1],
                         m[3], m[4], determinant);
    for (int corner = 0; corner < 4; corner++) {
        const double x = corner & 1 ? canvas_width : 0, y = corner & 2 ? canvas_height : 0;
        const double sx = m[0] * x + m[1] * y + m[2], sy = m[3] * x + m[4] * y + m[5];
        if (!(fabs(sx) <= IFS__MAX_REACH && fabs(sy) <= IFS__MAX_REACH))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "to_source maps the canvas corner (%g, %g) to (%g, %g); it must stay within %d pixels "
                             "of the source's corner",
                             x, y, sx, sy, IFS__MAX_REACH);
    }
    return IFS_OK;
}

ifs_status ifs__check_geometry(const ifs_geometry *g) {
    IFS__TRY(check_sides(g->source_width, g->source_height, g->canvas_width, g->canvas_height));
    switch (g->kind) {
    case IFS_GEOMETRY_RESIZE:
        IFS__TRY(check_side("the resized width", g->resized_width));
        return check_side("the resized height", g->resized_height);
    case IFS_GEOMETRY_WARP:
        return check_matrix(g->to_source, g->canvas_width, g->canvas_height);
    default:
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown geometry kind %d; use IFS_GEOMETRY_RESIZE (%d) or IFS_GEOMETRY_WARP (%d)",
                         (int)g->kind, IFS_GEOMETRY_RESIZE, IFS_GEOMETRY_WARP);
    }
}

/* A RESIZE with the affine map that is equal to it. */
static ifs_geometry resize_geometry(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                    int32_t canvas_height, int32_t resized_width, int32_t resized_height,
                                    int32_t offset_x, int32_t offset_y) {
    const double sx = (double)source_width / resized_width, sy = (double)source_height / resized_height;
    return (ifs_geometry){
        .kind = IFS_GEOMETRY_RESIZE,
        .source_width = source_width,
        .source_height = source_height,
        .canvas_width = canvas_width,
        .canvas_height = canvas_height,
        .resized_width = resized_width,
        .resized_height = resized_height,
        .offset_x = offset_x,
        .offset_y = offset_y,
        .to_source = {sx, 0, 0 - offset_x * sx, 0, sy, 0 - offset_y * sy}, /* 0 - ...: never a negative zero */
    };
}

/* rint is Python's round: to nearest, ties to even. */
static int32_t side(double length) {
    const double rounded = rint(length);
    return rounded < 1 ? 1 : (int32_t)rounded;
}

ifs_status ifs_geometry_letterbox(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                  int32_t canvas_height, int32_t scale_up, ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    double r = fmin((double)canvas_height / source_height, (double)canvas_width / source_width);
    if (!scale_up)
        r = fmin(r, 1.0);
    const int32_t width = side(source_width * r), height = side(source_height * r);
    const double dw = (canvas_width - width) / 2.0, dh = (canvas_height - height) / 2.0;
    *out = resize_geometry(source_width, source_height, canvas_width, canvas_height, width, height,
                           (int32_t)rint(dw - 0.1), (int32_t)rint(dh - 0.1));
    return IFS_OK;
}

ifs_status ifs_geometry_letterbox_warp(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                       int32_t canvas_height, int32_t scale_up, ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    double s = fmax((double)source_height / canvas_height, (double)source_width / canvas_width);
    if (!scale_up)
        s = fmax(s, 1.0);
    const double to_source[6] = {s, 0, (source_width - s * canvas_width) / 2,
                                 0, s, (source_height - s * canvas_height) / 2};
    return ifs_geometry_affine(source_width, source_height, canvas_width, canvas_height, to_source, out);
}

ifs_status ifs_geometry_stretch(int32_t source_width, int32_t source_height, int32_t canvas_width,
                                int32_t canvas_height, ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    *out = resize_geometry(source_width, source_height, canvas_width, canvas_height, canvas_width, canvas_height, 0, 0);
    return IFS_OK;
}

ifs_status ifs_geometry_resize(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               int32_t resized_width, int32_t resized_height, int32_t offset_x, int32_t offset_y,
                               ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    IFS__TRY(check_side("the resized width", resized_width));
    IFS__TRY(check_side("the resized height", resized_height));
    IFS__TRY(check_offset("offset_x", offset_x));
    IFS__TRY(check_offset("offset_y", offset_y));
    *out = resize_geometry(source_width, source_height, canvas_width, canvas_height, resized_width, resized_height,
                           offset_x, offset_y);
    return IFS_OK;
}

/* The offset of a side of `size` on a crop of `crop`, as torchvision's center_crop computes it: a side that is too long
 * is cut at round((size - crop) / 2), ties to even; one that is too short is padded, with the odd pixel at its end. */
static int32_t center_offset(int32_t size, int32_t crop) {
    return size >= crop ? -(int32_t)rint((size - crop) / 2.0) : (crop - size) / 2;
}

ifs_status ifs_geometry_resize_crop(int32_t source_width, int32_t source_height, int32_t resize, int32_t canvas_width,
                                    int32_t canvas_height, ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    IFS__TRY(check_side("the length that the shorter side is resized to", resize));
    const bool wide = source_width > source_height;
    const int32_t shorter = wide ? source_height : source_width, longer = wide ? source_width : source_height;
    const int64_t length = (int64_t)resize * longer / shorter;
    if (length > IFS__MAX_SIDE)
        return ifs__fail(
            IFS_ERR_INVALID_ARGUMENT,
            "a source of %d x %d whose shorter side is resized to %d gets a longer side of %lld pixels; the "
            "limit is %d",
            (int)source_width, (int)source_height, (int)resize, (long long)length, IFS__MAX_SIDE);
    const int32_t width = wide ? (int32_t)length : resize, height = wide ? resize : (int32_t)length;
    *out = resize_geometry(source_width, source_height, canvas_width, canvas_height, width, height,
                           center_offset(width, canvas_width), center_offset(height, canvas_height));
    return IFS_OK;
}

ifs_status ifs_geometry_affine(int32_t source_width, int32_t source_height, int32_t canvas_width, int32_t canvas_height,
                               const double to_source[6], ifs_geometry *out) {
    IFS__TRY(check_sides(source_width, source_height, canvas_width, canvas_height));
    IFS__TRY(check_matrix(to_source, canvas_width, canvas_height));
    ifs_geometry geometry = {
        .kind = IFS_GEOMETRY_WARP,
        .source_width = source_width,
        .source_height = source_height,
        .canvas_width = canvas_width,
        .canvas_height = canvas_height,
    };
    memcpy(geometry.to_source, to_source, sizeof geometry.to_source);
    *out = geometry;
    return IFS_OK;
}

/*
 * When the height is divided by a whole number, row d of the resized image is sampled at (d + 0.5) factor - 0.5: on a
 * source row if the factor is odd, half-way between two if it is even, for each d. An image of these rows alone gives
 * the same samples with a factor of 1 or 2.
 */
ifs_status ifs_geometry_rows(const ifs_geometry *geometry, ifs_rows *rows, ifs_geometry *out) {
    IFS__TRY(ifs__check_geometry(geometry));
    const ifs_geometry g = *geometry;
    *rows = (ifs_rows){0, 1, 1};
    *out = g;
    if (g.kind != IFS_GEOMETRY_RESIZE || g.source_height % g.resized_height)
        return IFS_OK;
    const int32_t factor = g.source_height / g.resized_height, take = factor % 2 ? 1 : 2;
    if (factor <= 2)
        return IFS_OK;
    const ifs_geometry sparse =
        resize_geometry(g.source_width, g.resized_height * take, g.canvas_width, g.canvas_height, g.resized_width,
                        g.resized_height, g.offset_x, g.offset_y);
    if (ifs__resize_halves(&sparse)) /* halving rounds differently */
        return IFS_OK;
    *rows = (ifs_rows){(factor - take) / 2, take, factor};
    *out = sparse;
    return IFS_OK;
}
