/*
 * batch.c - a batch of images on the processor's threads: preprocessed, or copied to a device as they are.
 *
 * A device copies from page-locked memory at the speed of the bus, but one thread fills such memory much slower. So
 * several threads fill it, and the copy of each piece is queued as soon as the piece is complete.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device.h"
#include "preprocess_check.h"
#include "workers.h"

#include <string.h>

/* ---- preprocessing ---- */

typedef struct preprocess_job {
    const ifs_image *images;
    const ifs_geometry *geometries;
    const ifs_pixel_transform *transform;
    uint8_t *host_ptr, *device_ptr;
    size_t one; /* bytes of one image's output */
    ifs_stream *stream;
} preprocess_job;

static ifs_status preprocess_one(void *context, int64_t i) {
    const preprocess_job *j = context;
    uint8_t *host = j->host_ptr + (size_t)i * j->one;
    IFS__TRY(ifs_preprocess(&j->images[i], &j->geometries[i], j->transform, host, j->one));
    if (!j->device_ptr)
        return IFS_OK;
    return ifs__copy(ifs_stream_device(j->stream), j->device_ptr + (size_t)i * j->one, host, j->one, j->stream);
}

ifs_status ifs_preprocess_batch(ifs_workers *workers, const ifs_image *images, const ifs_geometry *geometries,
                                int32_t n, const ifs_pixel_transform *transform, void *host_ptr, size_t nbytes,
                                void *device_ptr, ifs_stream *stream) {
    if (n < 0 || (n && (!images || !geometries || !transform || !host_ptr)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d images, but images, geometries, transform or host_ptr is NULL",
                         (int)n);
    if (device_ptr && !stream)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "stream is NULL; copies to a device are queued on a stream");
    if (n == 0)
        return IFS_OK;
    for (int32_t i = 0; i < n; i++)
        if (geometries[i].canvas_width != geometries[0].canvas_width ||
            geometries[i].canvas_height != geometries[0].canvas_height)
            return ifs__fail(IFS_ERR_SHAPE, "image %d goes to a canvas of %d x %d, but image 0 to one of %d x %d",
                             (int)i, (int)geometries[i].canvas_width, (int)geometries[i].canvas_height,
                             (int)geometries[0].canvas_width, (int)geometries[0].canvas_height);
    const size_t one = ifs_preprocess_nbytes(&geometries[0], transform);
    if (one == 0) /* not valid: the check of the first image says why */
        return ifs_preprocess(&images[0], &geometries[0], transform, host_ptr, nbytes);
    if ((size_t)n > nbytes / one)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d images need %zu bytes each, but the destination has %zu", (int)n, one,
                         nbytes);
    preprocess_job j = {images, geometries, transform, host_ptr, device_ptr, one, stream};
    return ifs__workers_run(workers, preprocess_one, &j, n);
}

/* ---- copying images to a device ---- */

#define ALIGNMENT 256 /* bytes, of a plane on the device: what wide loads like */
#define BANDS 8 /* of an image: threads share one image, and the bus does not wait for all of it */

/* The part of an image's plane that is copied; it is dense on the device. */
typedef struct plane {
    const uint8_t *data;
    int64_t stride, row, rows; /* bytes, bytes, number; a row here may be two neighbouring rows of the image */
} plane;

/* The planes to copy, the image on the device (without its addresses), and its geometry there. */
static ifs_status planes_of(const ifs_image *image, const ifs_geometry *geometry, plane planes[2], ifs_image *out,
                            ifs_geometry *out_geometry) {
    const bool nv12 = image->format == IFS_PIXEL_NV12;
    const int64_t row = (int64_t)image->width * ifs__pixel_size(image->format);
    ifs_rows rows;
    IFS__TRY(ifs_geometry_rows(geometry, &rows, out_geometry));
    if (nv12 || (rows.take > 1 && image->stride != row)) {
        rows = (ifs_rows){0, 1, 1};
        *out_geometry = *geometry;
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
        ifs_geometry unused;
        IFS__TRY(ifs__check_image_geometry(&images[i], &geometries[i]));
        IFS__TRY(planes_of(&images[i], &geometries[i], planes, &image, &unused));
        total += plane_nbytes(&planes[0]) + plane_nbytes(&planes[1]);
    }
    *out = total;
    return IFS_OK;
}

typedef struct upload_job {
    const ifs_image *images, *out; /* from the first one that is copied */
    const ifs_geometry *geometries;
    uint8_t *staging, *device_ptr;
    ifs_stream *stream;
} upload_job;

static ifs_status upload_rows(const upload_job *j, const plane *from, const uint8_t *to, int64_t first, int64_t last) {
    const int32_t device = ifs_stream_device(j->stream);
    const size_t row = (size_t)from->row, rows = (size_t)(last - first);
    const size_t start = (size_t)(to - j->device_ptr) + (size_t)first * row;
    const uint8_t *source = from->data + first * from->stride;
    if (rows == 0)
        return IFS_OK;
    if (ifs_is_page_locked(source))
        return ifs__copy_rows(device, j->device_ptr + start, source, (size_t)from->stride, row, rows, j->stream);
    if (from->stride == from->row)
        memcpy(j->staging + start, source, rows * row);
    else
        for (size_t y = 0; y < rows; y++)
            memcpy(j->staging + start + y * row, source + (int64_t)y * from->stride, row);
    return ifs__copy(device, j->device_ptr + start, j->staging + start, rows * row, j->stream);
}

static ifs_status upload_band(void *context, int64_t item) {
    const upload_job *j = context;
    const int64_t i = item / BANDS, band = item % BANDS;
    plane planes[2];
    ifs_image out;
    ifs_geometry unused;
    IFS__TRY(planes_of(&j->images[i], &j->geometries[i], planes, &out, &unused));
    /* A page-locked image is copied from its own memory: its first band is all of it. */
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
                      void *staging, void *device_ptr, size_t nbytes, ifs_stream *stream, ifs_image *out_images,
                      ifs_geometry *out_geometries) {
    if (n < 0 || (n && (!images || !geometries || !device_ptr || !stream || !out_images || !out_geometries)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%d images; the number is not negative, and no pointer but workers and staging may be NULL",
                         (int)n);
    size_t needed = 0;
    IFS__TRY(ifs_upload_nbytes(images, geometries, n, &needed));
    if (needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%d images need %zu bytes on the device, but the destination has %zu",
                         (int)n, needed, nbytes);
    const uint8_t *at = device_ptr;
    bool page_locked = true;
    for (int32_t i = 0; i < n; i++) {
        plane planes[2];
        IFS__TRY(planes_of(&images[i], &geometries[i], planes, &out_images[i], &out_geometries[i]));
        for (int p = 0; p < 2; p++)
            page_locked = page_locked && (!planes[p].rows || ifs_is_page_locked(planes[p].data));
        out_images[i].data = at;
        at += plane_nbytes(&planes[0]);
        if (planes[1].rows)
            out_images[i].uv = at;
        at += plane_nbytes(&planes[1]);
    }
    if (!page_locked && !staging)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "staging is NULL, but an image is not in page-locked memory");
    upload_job j = {images, out_images, geometries, staging, device_ptr, stream};
    if (!page_locked)
        return ifs__workers_run(workers, upload_band, &j, (int64_t)n * BANDS);
    /* There is nothing to copy on the host. Waking other threads up, and their queueing for the driver, takes longer
     * than to queue all copies here. */
    for (int32_t i = 0; i < n; i++)
        IFS__TRY(upload_band(&j, (int64_t)i * BANDS));
    return IFS_OK;
}
