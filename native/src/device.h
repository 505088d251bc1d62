/*
 * device.h - the few functions of a device that the host code needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * cuda/device.cu implements them through the CUDA runtime; in a CPU-only build, cuda_missing.c returns
 * IFS_ERR_NO_DEVICE.
 */
#ifndef IFS_DEVICE_H
#define IFS_DEVICE_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* IFS_OK if this machine has CUDA device `device`; else the message says how many it has, or why it has none. */
ifs_status ifs__device_check(int32_t device);

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out);
void ifs__device_free(int32_t device, void *block);

/* Page-locked host memory, so that copies to and from `device` run at the full speed of the bus. */
ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out);
void ifs__pinned_free(int32_t device, void *block);

/* Copies between host and device, in either direction: queued on `stream`, or done on return where that is NULL. */
ifs_status ifs__copy(int32_t device, void *dst, const void *src, size_t nbytes, ifs_stream *stream);

/* Queues a copy of rows of `nbytes` each, `stride` bytes apart on the host, to dense rows on the device. */
ifs_status ifs__copy_rows(int32_t device, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows,
                          ifs_stream *stream);

/* Copies from one device's memory to another's, or within one; done on return. */
ifs_status ifs__copy_between(int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes);

/* Adds a reference and returns `stream`, which may be NULL. ifs_stream_destroy drops one. */
ifs_stream *ifs__stream_retain(ifs_stream *stream);

/* Whether `stream` is being captured into a graph. Nothing may wait for it then. */
int32_t ifs__stream_captures(const ifs_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
