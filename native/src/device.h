/*
 * device.h - the few things that the host code asks of a device.
 *
 * cuda/device.cu answers them through the CUDA runtime; device_none.c says IFS_ERR_NO_DEVICE in a CPU-only build.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DEVICE_H
#define IFS_DEVICE_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether `device` is a device of this machine; the message says how many there are, or why there is none. */
ifs_status ifs__device_check(int32_t device);

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out);
void ifs__device_free(int32_t device, void *block);

/* Page-locked host memory, so that copies to and from `device` run at the full speed of the bus. */
ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out);
void ifs__pinned_free(int32_t device, void *block);

/* Between host and device, either way; queued on `stream`, or done on return where it is NULL. */
ifs_status ifs__copy(int32_t device, void *dst, const void *src, size_t nbytes, ifs_stream *stream);

/* Rows of `nbytes` each, `stride` bytes apart, from the host to where they lie dense on the device; queued. */
ifs_status ifs__copy_rows(int32_t device, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows,
                          ifs_stream *stream);

/* From a device's memory to a device's memory; done on return. */
ifs_status ifs__copy_between(int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes);

/* One more reference; returns `stream`, which may be NULL. ifs_stream_destroy gives one back. */
ifs_stream *ifs__stream_retain(ifs_stream *stream);

/* Whether what is queued on `stream` becomes part of a graph now, which nothing may wait for. */
int32_t ifs__stream_captures(const ifs_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
