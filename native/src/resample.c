/*
 * resample.c - resizing with a filter that takes all source pixels into account, as Pillow does.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A pixel of the target covers `scale` pixels of the source; the filter is stretched by that much when the image
 * shrinks. Its weights are computed in double, divided by their sum, and rounded to 22 bits. First all rows are resized
 * to bytes, then all columns of these; where the height shrinks by more than twice the pixels that the width does, the
 * columns come first. The definition is that of Image.resize of Pillow 13, and so are the bytes.
 */
#include "resample.h"
#include "geometry.h"
#include "preprocess_check.h"
#include "simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

static double triangle(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

/* Keys' cubic convolution with a = -0.5. */
static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static void free_taps(ifs__taps *taps) {
    free(taps->first);
    free(taps->count);
    free(taps->weight);
}

/* The taps of the pixels `begin` to `begin + count` of a side that is resized from `source` to `target`. */
static ifs_status make_taps(int32_t source, int32_t target, int32_t begin, int32_t count, int32_t filter,
                            ifs__taps *taps) {
    const double scale = (double)source / target, filter_scale = scale < 1.0 ? 1.0 : scale;
    const double support = (filter == IFS_FILTER_BICUBIC ? 2.0 : 1.0) * filter_scale;
    double (*const weight_at)(double) = filter == IFS_FILTER_BICUBIC ? cubic : triangle;
    taps->most = (int32_t)ceil(support) * 2 + 1;
    const size_t pixels = (size_t)count, most = (size_t)taps->most;
    taps->first = malloc(pixels * sizeof *taps->first);
    taps->count = malloc(pixels * sizeof *taps->count);
    taps->weight = most <= SIZE_MAX / 4 / pixels ? calloc(pixels * most, sizeof *taps->weight) : NULL;
    double *weights = malloc(most * sizeof *weights);
    if (!taps->first || !taps->count || !taps->weight || !weights) {
        free(weights);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate the weights of %d pixels", (int)count);
    }
    for (size_t i = 0; i < pixels; i++) {
        const double center = ((double)begin + (double)i + 0.5) * scale;
        int32_t first = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > source ? source : end;
        double sum = 0.0;
        for (int32_t k = 0; k < end - first; k++) {
            weights[k] = weight_at((k + first - center + 0.5) * (1.0 / filter_scale));
            sum += weights[k];
        }
        for (int32_t k = 0; k < end - first; k++) {
            const double w = sum != 0.0 ? weights[k] / sum : weights[k];
            taps->weight[i * most + (size_t)k] = (int32_t)((w < 0 ? -0.5 : 0.5) + w * (1 << IFS__RESAMPLE_BITS));
        }
        taps->first[i] = first;
        taps->count[i] = end - first;
    }
    free(weights);
    return IFS_OK;
}

/* ---- the plain passes ---- */

void ifs__resample_row_plain(const uint8_t *source, int64_t readable, int32_t pixel, int32_t channels,
                             const ifs__taps *taps, int32_t n, uint8_t *target) {
    (void)readable;
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *at = source + (int64_t)taps->first[i] * pixel;
        const int32_t *weight = taps->weight + (int64_t)i * taps->most;
        for (int32_t c = 0; c < channels; c++) {
            int32_t sum = 1 << (IFS__RESAMPLE_BITS - 1);
            for (int32_t k = 0; k < taps->count[i]; k++)
                sum += at[k * pixel + c] * weight[k];
            target[(int64_t)i * channels + c] = ifs__resample_byte(sum);
        }
    }
}

void ifs__resample_column_plain(const uint8_t *source, int64_t stride, const int32_t *weight, int32_t count, int64_t n,
                                uint8_t *target) {
    for (int64_t i = 0; i < n; i++) {
        int32_t sum = 1 << (IFS__RESAMPLE_BITS - 1);
        for (int32_t k = 0; k < count; k++)
            sum += source[k * stride + i] * weight[k];
        target[i] = ifs__resample_byte(sum);
    }
}

static const ifs__resampler ifs__resampler_plain = {ifs__resample_row_plain, ifs__resample_column_plain};

/* ---- a call ---- */

static ifs_status check_call(const ifs_image *image, int32_t width, int32_t height, int32_t filter, int32_t x,
                             int32_t y, int32_t crop_width, int32_t crop_height, const uint8_t *out) {
    if (!image || !image->data || !out)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "image, its data or out is NULL");
    if (image->format < IFS_PIXEL_BGR || image->format > IFS_PIXEL_GRAY)
        return ifs__fail(IFS_ERR_UNSUPPORTED,
                         "pixel format %d cannot be resampled; use BGR, RGB, BGRA, RGBA or gray (0 to 4)",
                         (int)image->format);
    if (filter != IFS_FILTER_BILINEAR && filter != IFS_FILTER_BICUBIC)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown filter %d; use IFS_FILTER_BILINEAR (%d) or IFS_FILTER_BICUBIC (%d)", (int)filter,
                         IFS_FILTER_BILINEAR, IFS_FILTER_BICUBIC);
    const int32_t sides[] = {image->width, image->height, width, height, crop_width, crop_height};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        if (sides[i] < 1 || sides[i] > IFS__MAX_SIDE)
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a side is %d pixels; it must be 1 to %d", (int)sides[i],
                             IFS__MAX_SIDE);
    if (x < 0 || y < 0 || x > width - crop_width || y > height - crop_height)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the part of %d x %d pixels at (%d, %d) lies outside the resized image of %d x %d",
                         (int)crop_width, (int)crop_height, (int)x, (int)y, (int)width, (int)height);
    const int64_t pixel = ifs__pixel_size(image->format);
    if (image->stride < pixel * image->width)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a stride of %lld bytes is less than a row of %lld",
                         (long long)image->stride, (long long)(pixel * image->width));
    return IFS_OK;
}

/* An image and its result. */
typedef struct resampling {
    const ifs_image *image;
    int32_t pixel, channels; /* bytes of a pixel of the image, and of the result */
    ifs__taps columns, rows;
    int32_t width, height; /* of the result */
    uint8_t *out;
} resampling;

static ifs_status out_of_memory(int64_t nbytes) {
    return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %lld bytes for an image between two passes",
                     (long long)nbytes);
}

/* The rows first: of the source rows that are needed. */
static ifs_status rows_first(const resampling *r, const ifs__resampler *passes) {
    const int32_t first = r->rows.first[0], end = r->rows.first[r->height - 1] + r->rows.count[r->height - 1];
    const int64_t row = (int64_t)r->width * r->channels, readable = (int64_t)r->image->width * r->pixel;
    const int64_t nbytes = row * (end - first) + IFS__RESAMPLE_SLACK;
    uint8_t *between = malloc((size_t)nbytes);
    if (!between)
        return out_of_memory(nbytes);
    for (int32_t y = first; y < end; y++) /* in order: a row is written a little beyond its end */
        passes->row(r->image->data + (int64_t)y * r->image->stride, readable, r->pixel, r->channels, &r->columns,
                    r->width, between + (int64_t)(y - first) * row);
    for (int32_t y = 0; y < r->height; y++)
        passes->column(between + (int64_t)(r->rows.first[y] - first) * row, row,
                       r->rows.weight + (int64_t)y * r->rows.most, r->rows.count[y], row, r->out + (int64_t)y * row);
    free(between);
    return IFS_OK;
}

/* The columns first: of the source columns that are needed. Changes the taps. */
static ifs_status columns_first(resampling *r, const ifs__resampler *passes) {
    ifs__taps *columns = &r->columns;
    const int32_t first = columns->first[0], end = columns->first[r->width - 1] + columns->count[r->width - 1];
    const int64_t row = (int64_t)r->width * r->channels, readable = (int64_t)(end - first) * r->pixel;
    const int64_t nbytes = readable + row + 2 * IFS__RESAMPLE_SLACK;
    uint8_t *between = malloc((size_t)nbytes);
    if (!between)
        return out_of_memory(nbytes);
    uint8_t *result = between + readable + IFS__RESAMPLE_SLACK;
    for (int32_t i = 0; i < r->width; i++)
        columns->first[i] -= first;
    for (int32_t y = 0; y < r->height; y++) {
        const uint8_t *source =
            r->image->data + (int64_t)r->rows.first[y] * r->image->stride + (int64_t)first * r->pixel;
        passes->column(source, r->image->stride, r->rows.weight + (int64_t)y * r->rows.most, r->rows.count[y], readable,
                       between);
        passes->row(between, readable, r->pixel, r->channels, columns, r->width, result);
        memcpy(r->out + (int64_t)y * row, result, (size_t)row); /* it is written a little beyond its end */
    }
    free(between);
    return IFS_OK;
}

ifs_status ifs_resample(const ifs_image *image, int32_t width, int32_t height, int32_t filter, int32_t x, int32_t y,
                        int32_t crop_width, int32_t crop_height, uint8_t *out) {
    IFS__TRY(check_call(image, width, height, filter, x, y, crop_width, crop_height, out));
    const int32_t channels = image->format == IFS_PIXEL_GRAY ? 1 : 3;
    resampling r = {
        .image = image,
        .pixel = ifs__pixel_size(image->format),
        .channels = channels,
        .width = crop_width,
        .height = crop_height,
        .out = out,
    };
    ifs_status status = make_taps(image->width, width, x, crop_width, filter, &r.columns);
    if (status == IFS_OK)
        status = make_taps(image->height, height, y, crop_height, filter, &r.rows);
    if (status == IFS_OK) {
        const int64_t fewer_rows = (int64_t)image->height - height, fewer_columns = (int64_t)image->width - width;
        const ifs__resampler *passes = IFS__VARIANT(&ifs__resampler);
        const bool shrinks = fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
        status = shrinks ? columns_first(&r, passes) : rows_first(&r, passes);
    }
    free_taps(&r.columns);
    free_taps(&r.rows);
    return status;
}
