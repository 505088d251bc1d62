/*
 * preprocess_check.h - the checks of what preprocessing is given, for the host and the device alike.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_PREPROCESS_CHECK_H
#define IFS_PREPROCESS_CHECK_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a pixel as the image holds it (of the Y plane); 0 for an unknown format. */
int32_t ifs__pixel_size(int32_t format);

/* Bytes of an element of the output; 0 for a type that preprocessing does not write. */
size_t ifs__output_element_size(int32_t dtype);

ifs_status ifs__check_transform(const ifs_pixel_transform *transform);

/* The image, the geometry, and that the geometry is one for an image of this size. */
ifs_status ifs__check_image_geometry(const ifs_image *image, const ifs_geometry *geometry);

/* That `n` outputs of one checked geometry and transform fit `nbytes` bytes at `dst`; `*one` gets the bytes of one. */
ifs_status ifs__check_output(const ifs_geometry *geometry, const ifs_pixel_transform *transform, int32_t n,
                             const void *dst, size_t nbytes, size_t *one);

#ifdef __cplusplus
}
#endif
#endif
