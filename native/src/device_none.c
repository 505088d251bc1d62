/* device_none.c - the device half of a CPU-only build: it says so. SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#ifndef IFS_CUDA

static ifs_status none(void) {
    return ifs__fail(IFS_ERR_NO_DEVICE,
                     "no CUDA device: this build of infersdk is CPU-only; build it where nvcc is on PATH "
                     "to use a GPU, or use device=\"cpu\"");
}

/* Functions that can only fail here, whatever they are given. */
#define NONE(name, ...)                                                                                                \
    ifs_status name(__VA_ARGS__) { return none(); }

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the names are the documentation */
#endif

NONE(ifs_device_count, int32_t *out)
NONE(ifs_get_device_info, int32_t device, ifs_device_info *out)
NONE(ifs_pointer_device, const void *address, int32_t *out)
NONE(ifs__device_check, int32_t device)
NONE(ifs__device_alloc, int32_t device, size_t nbytes, void **out)
NONE(ifs__pinned_alloc, int32_t device, size_t nbytes, void **out)
NONE(ifs__copy, int32_t device, void *dst, const void *src, size_t nbytes, ifs_stream *stream)
NONE(ifs__copy_between, int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes)
NONE(ifs_stream_create, int32_t device, ifs_stream **out)
NONE(ifs_stream_wrap, int32_t device, void *native, ifs_stream **out)
NONE(ifs_stream_synchronize, ifs_stream *stream)
NONE(ifs_stream_wait, ifs_stream *stream, ifs_event *event)
NONE(ifs_event_create, int32_t device, int32_t timing, ifs_event **out)
NONE(ifs_event_record, ifs_event *event, ifs_stream *stream)
NONE(ifs_event_synchronize, ifs_event *event)
NONE(ifs_event_query, ifs_event *event, int32_t *done)
NONE(ifs_event_elapsed, ifs_event *start, ifs_event *stop, float *milliseconds)

/* Nothing of these can exist here, so there is nothing to free or to ask. */
void ifs__device_free(int32_t device, void *block) {}
void ifs__pinned_free(int32_t device, void *block) {}
void ifs_stream_destroy(ifs_stream *stream) {}
void ifs_event_destroy(ifs_event *event) {}
ifs_stream *ifs__stream_retain(ifs_stream *stream) { return stream; }
int32_t ifs_stream_device(const ifs_stream *stream) { return IFS_NO_DEVICE; }
void *ifs_stream_native(const ifs_stream *stream) { return NULL; }

#endif
