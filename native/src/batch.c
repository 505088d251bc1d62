/*
 * batch.c - a batch of images on the processor's threads: preprocessed, or brought to a device as they are.
 *
 * A device copies from page-locked memory at the speed of the bus, but one thread fills such memory far slower than
 * that. So the threads share the work out, and each piece is queued for its copy as soon as it is there.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device.h"
#include "preprocess.h"
#include "workers.h"

#include <string.h>

/* ---- preprocessing ---- */

typedef struct preprocess_job {
    const ifs_image *images;
    const ifs_geometry *geometries;
    const ifs_pixel_transform *transform;
    uint8_t *host, *dev;
    size_t row; /* bytes of one image's output */
    ifs_stream *stream;
} preprocess_job;

static ifs_status preprocess_one(void *context, int64_t i) {
    const preprocess_job *j = context;
    uint8_t *host = j->host + (size_t)i * j->row;
    IFS__TRY(ifs_preprocess(&j->images[i], &j->geometries[i], j->transform, host, j->row));
    if (!j->dev)
        return IFS_OK;
    return ifs__copy(ifs_stream_device(j->stream), j->dev + (size_t)i * j->row, host, j->row, j->stream);
}

ifs_status ifs_preprocess_batch(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries,
                                int32_t n, const ifs_pixel_transform *transform, void *host, size_t nbytes, void *dev,
                                ifs_stream *stream) {
    if (n < 0 || (n && (!images || !geometries || !transform || !host)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d images, but images, geometries, transform or host is NULL",
                         (int)n);
    if (dev && !stream)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "copies to a device are queued on a stream, and stream is NULL");
    if (n == 0)
        return IFS_OK;
    size_t row = ifs_preprocess_nbytes(&geometries[0], transform);
    for (int32_t i = 0; i < n; i++)
        if (ifs_preprocess_nbytes(&geometries[i], transform) != row)
            return ifs__fail(IFS_ERR_SHAPE, "image %d goes to a canvas of %d x %d, but the batch's is %d x %d", (int)i,
                             (int)geometries[i].canvas_width, (int)geometries[i].canvas_height,
                             (int)geometries[0].canvas_width, (int)geometries[0].canvas_height);
    if (row == 0) /* not valid: the first image's own check says why */
        return ifs_preprocess(&images[0], &geometries[0], transform, host, nbytes);
    if ((size_t)n > nbytes / row)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d images of %zu bytes do not fit the %zu that may be written", (int)n,
                         row, nbytes);
    preprocess_job j = {images, geometries, transform, host, dev, row, stream};
    return ifs__workers_run(workers, preprocess_one, &j, n);
}

/* ---- bringing images to a device ---- */

#define ALIGNMENT 256 /* bytes, of a plane on the device: what wide loads like */
#define BANDS                                                                                                          \
    8 /* that an image is cut into, so that threads share one image and the bus does not wait for all of it            \
       */

/* What is wanted of an image's plane; dense on the device. */
typedef struct plane {
    const uint8_t *data;
    int64_t stride, row, rows; /* bytes, bytes, number; here a row may be two neighbours that are wanted together */
} plane;

/* The planes, `out` as it will lie on the device without its addresses, and its geometry there. */
static ifs_status planes_of(const ifs_image *image, const ifs_geometry *geometry, plane planes[2], ifs_image *out,
                            ifs_geometry *way) {
    const bool nv12 = image->format == IFS_PIXEL_NV12;
    const int64_t row = (int64_t)image->width * ifs__pixel_size(image->format);
    ifs_rows rows;
    IFS__TRY(ifs_geometry_rows(geometry, &rows, way));
    if (nv12 || (rows.take > 1 && image->stride != row)) {
        rows = (ifs_rows){0, 1, 1};
        *way = *geometry;
    }
    const int64_t groups = image->height / rows.step;
    planes[0] = (plane){image->data + rows.first * image->stride, rows.step * image->stride, rows.take * row, groups};
    planes[1] = (plane){0};
    *out = *image;
    out->stride = row;
    out->height = (int32_t)(groups * rows.take);
    if (nv12) {
        planes[1] = (plane){image->uv, image->uv_stride, image->width, image->height / 2};
        out->uv_stride = planes[1].row;
    }
    return IFS_OK;
}

static size_t plane_nbytes(const plane *p) {
    size_t nbytes = (size_t)(p->row * p->rows);
    return (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

ifs_status ifs_upload_nbytes(const ifs_image *images, const ifs_geometry *geometries, int32_t n, size_t *out) {
    size_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        plane planes[2];
        ifs_image image;
        ifs_geometry way;
        IFS__TRY(ifs__check_image_geometry(&images[i], &geometries[i]));
        IFS__TRY(planes_of(&images[i], &geometries[i], planes, &image, &way));
        total += plane_nbytes(&planes[0]) + plane_nbytes(&planes[1]);
    }
    *out = total;
    return IFS_OK;
}

typedef struct upload_job {
    const ifs_image *images, *out;
    const ifs_geometry *geometries;
    uint8_t *staging, *dev;
    ifs_stream *stream;
} upload_job;

static ifs_status upload_rows(const upload_job *j, const plane *from, const uint8_t *to, int64_t first, int64_t last) {
    const int32_t device = ifs_stream_device(j->stream);
    const size_t row = (size_t)from->row, rows = (size_t)(last - first);
    const size_t start = (size_t)(to - j->dev) + (size_t)first * row;
    const uint8_t *source = from->data + first * from->stride;
    if (rows == 0)
        return IFS_OK;
    if (ifs_is_page_locked(source))
        return ifs__copy_rows(device, j->dev + start, source, (size_t)from->stride, row, rows, j->stream);
    if (from->stride == from->row)
        memcpy(j->staging + start, source, rows * row);
    else
        for (size_t y = 0; y < rows; y++)
            memcpy(j->staging + start + y * row, source + (int64_t)y * from->stride, row);
    return ifs__copy(device, j->dev + start, j->staging + start, rows * row, j->stream);
}

static ifs_status upload_band(void *context, int64_t item) {
    const upload_job *j = context;
    const int64_t i = item / BANDS, band = item % BANDS;
    plane planes[2];
    ifs_image out;
    ifs_geometry way;
    IFS__TRY(planes_of(&j->images[i], &j->geometries[i], planes, &out, &way));
    /* A page-locked image needs no hands: its first band is all of it. */
    const bool whole = ifs_is_page_locked(planes[0].data);
    for (int p = 0; p < 2; p++) {
        const int64_t rows = planes[p].rows;
        const int64_t first = whole ? (band ? rows : 0) : rows * band / BANDS;
        const int64_t last = whole ? rows : rows * (band + 1) / BANDS;
        IFS__TRY(upload_rows(j, &planes[p], p ? j->out[i].uv : j->out[i].data, first, last));
    }
    return IFS_OK;
}

ifs_status ifs_upload(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                      void *staging, void *dev, size_t nbytes, ifs_stream *stream, ifs_image *out, ifs_geometry *ways) {
    if (n < 0 || (n && (!images || !geometries || !staging || !dev || !stream || !out || !ways)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%d images, but images, geometries, staging, dev, stream, out or ways is NULL", (int)n);
    size_t needed = 0;
    IFS__TRY(ifs_upload_nbytes(images, geometries, n, &needed));
    if (needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d images take %zu bytes on the device, and %zu are there", (int)n, needed,
                         nbytes);
    const uint8_t *at = dev;
    for (int32_t i = 0; i < n; i++) {
        plane planes[2];
        IFS__TRY(planes_of(&images[i], &geometries[i], planes, &out[i], &ways[i]));
        out[i].data = at;
        at += plane_nbytes(&planes[0]);
        if (planes[1].rows)
            out[i].uv = at;
        at += plane_nbytes(&planes[1]);
    }
    upload_job j = {images, out, geometries, staging, dev, stream};
    return ifs__workers_run(workers, upload_band, &j, (int64_t)n * BANDS);
}
