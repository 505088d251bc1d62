/* preprocess_check.c - the checks of what preprocessing is given. SPDX-License-Identifier: Apache-2.0 */
#include "preprocess_check.h"

#include "geometry.h"

#include <math.h>
#include <stddef.h>

/* ---- images ---- */

int32_t ifs__pixel_size(int32_t format) {
    switch (format) {
    case IFS_PIXEL_BGR:
    case IFS_PIXEL_RGB:
        return 3;
    case IFS_PIXEL_BGRA:
    case IFS_PIXEL_RGBA:
        return 4;
    case IFS_PIXEL_GRAY:
    case IFS_PIXEL_NV12:
        return 1;
    default:
        return 0;
    }
}

static ifs_status check_plane(const char *name, const uint8_t *data, int64_t stride, int64_t row, int32_t rows) {
    if (!data)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the image's %s is NULL; it must point to the first pixel", name);
    if (stride < row)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the stride of the image's %s is %lld bytes, but a row has %lld; copy images whose rows are "
                         "mirrored or overlap",
                         name, (long long)stride, (long long)row);
    if (stride > PTRDIFF_MAX / rows)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the image's %s has %d rows of %lld bytes, which is more than memory can hold", name,
                         (int)rows, (long long)stride);
    return IFS_OK;
}

static ifs_status check_image(const ifs_image *image) {
    const int32_t width = image->width, height = image->height, pixel = ifs__pixel_size(image->format);
    if (!pixel)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown pixel format %d; use IFS_PIXEL_BGR (%d) to IFS_PIXEL_NV12 (%d)", (int)image->format,
                         IFS_PIXEL_BGR, IFS_PIXEL_NV12);
    if (width < 1 || height < 1 || width > IFS__MAX_SIDE || height > IFS__MAX_SIDE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the image is %d x %d; each side must be 1 to %d pixels", (int)width,
                         (int)height, IFS__MAX_SIDE);
    IFS__TRY(check_plane("data", image->data, image->stride, (int64_t)width * pixel, height));
    if (image->format == IFS_PIXEL_NV12) {
        if (width % 2 || height % 2)
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the NV12 image is %d x %d; both sides must be even", (int)width,
                             (int)height);
        return check_plane("uv", image->uv, image->uv_stride, width, height / 2);
    }
    return IFS_OK;
}

ifs_status ifs__check_image_geometry(const ifs_image *image, const ifs_geometry *g) {
    IFS__TRY(check_image(image));
    IFS__TRY(ifs__check_geometry(g));
    if (image->width != g->source_width || image->height != g->source_height)
        return ifs__fail(IFS_ERR_SHAPE,
                         "the image is %d x %d, but the geometry was made for %d x %d; make a geometry for this image",
                         (int)image->width, (int)image->height, (int)g->source_width, (int)g->source_height);
    return IFS_OK;
}

/* ---- transforms and outputs ---- */

size_t ifs__output_element_size(int32_t dtype) {
    return dtype == IFS_FLOAT32 ? 4 : dtype == IFS_FLOAT16 ? 2 : dtype == IFS_UINT8 ? 1 : 0;
}

ifs_status ifs__check_transform(const ifs_pixel_transform *t) {
    if (t->order < IFS_ORDER_RGB || t->order > IFS_ORDER_GRAY)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown channel order %d; use IFS_ORDER_RGB (%d), IFS_ORDER_BGR (%d) or IFS_ORDER_GRAY (%d)",
                         (int)t->order, IFS_ORDER_RGB, IFS_ORDER_BGR, IFS_ORDER_GRAY);
    if (t->layout != IFS_LAYOUT_CHW && t->layout != IFS_LAYOUT_HWC)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "unknown layout %d; use IFS_LAYOUT_CHW (%d) or IFS_LAYOUT_HWC (%d)",
                         (int)t->layout, IFS_LAYOUT_CHW, IFS_LAYOUT_HWC);
    if (!ifs__output_element_size(t->dtype))
        return ifs__fail(IFS_ERR_DTYPE,
                         "a network's input cannot have element type %d; use IFS_FLOAT32 (%d), IFS_FLOAT16 (%d) or "
                         "IFS_UINT8 (%d)",
                         (int)t->dtype, IFS_FLOAT32, IFS_FLOAT16, IFS_UINT8);
    const int channels = t->order == IFS_ORDER_GRAY ? 1 : 3;
    for (int c = 0; c < channels; c++)
        if (!isfinite(t->scale[c]) || !isfinite(t->bias[c]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "channel %d has scale %g and bias %g; both must be finite", c,
                             (double)t->scale[c], (double)t->bias[c]);
    return IFS_OK;
}

/* The bytes of one output; false if the size overflows. */
static bool output_nbytes(const ifs_geometry *g, const ifs_pixel_transform *t, size_t *out) {
    const size_t channels = t->order == IFS_ORDER_GRAY ? 1 : 3;
    size_t size = (size_t)g->canvas_width;
    return !ifs__mul_overflows(size, (size_t)g->canvas_height, &size) &&
           !ifs__mul_overflows(size, channels * ifs__output_element_size(t->dtype), out);
}

size_t ifs_preprocess_nbytes(const ifs_geometry *geometry, const ifs_pixel_transform *transform) {
    size_t nbytes = 0;
    if (ifs__check_geometry(geometry) != IFS_OK || ifs__check_transform(transform) != IFS_OK)
        return 0;
    return output_nbytes(geometry, transform, &nbytes) ? nbytes : 0;
}

ifs_status ifs__check_output(const ifs_geometry *g, const ifs_pixel_transform *t, int32_t n, const void *dst,
                             size_t nbytes, size_t *one) {
    size_t needed = SIZE_MAX; /* where the product overflows */
    if (!output_nbytes(g, t, one) || ifs__mul_overflows(*one, (size_t)n, &needed) || needed > nbytes)
        return ifs__fail(IFS_ERR_TOO_SMALL,
                         "a batch of %d on a canvas of %d x %d needs %zu bytes, but the destination has %zu", (int)n,
                         (int)g->canvas_width, (int)g->canvas_height, needed, nbytes);
    if (!dst)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the destination is NULL");
    const size_t element = ifs__output_element_size(t->dtype);
    if ((uintptr_t)dst % element)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the destination %p is not aligned to its elements of %zu bytes",
                         dst, element);
    return IFS_OK;
}
