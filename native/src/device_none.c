/* device_none.c - the device half of a CPU-only build: it says so. SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include <stdio.h>

#ifndef IFS_CUDA

static ifs_status none(int32_t device) {
    char number[16] = "";
    if (device >= 0)
        snprintf(number, sizeof number, ":%d", (int)device);
    return ifs__fail(
        IFS_ERR_NO_DEVICE,
        "no device cuda%s: this build of infersdk is CPU-only; build it where nvcc is on PATH to use a GPU, "
        "or use device=\"cpu\"",
        number);
}

/* Functions that can only fail here, whatever they are given; the first kind knows which device was asked for. */
#define NONE_ON(name, ...)                                                                                             \
    ifs_status name(int32_t device, __VA_ARGS__) { return none(device); }
#define NONE(name, ...)                                                                                                \
    ifs_status name(__VA_ARGS__) { return none(IFS_NO_DEVICE); }

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the names are the documentation */
#endif

ifs_status ifs__device_check(int32_t device) { return none(device); }
NONE(ifs_device_count, int32_t *out)
NONE_ON(ifs_get_device_info, ifs_device_info *out)
NONE(ifs_pointer_device, const void *address, int32_t *out)
NONE_ON(ifs__device_alloc, size_t nbytes, void **out)
NONE_ON(ifs__pinned_alloc, size_t nbytes, void **out)
NONE_ON(ifs__copy, void *dst, const void *src, size_t nbytes, ifs_stream *stream)
NONE_ON(ifs__copy_rows, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows, ifs_stream *stream)
NONE(ifs__copy_between, int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes)
NONE_ON(ifs_stream_create, ifs_stream **out)
NONE_ON(ifs_stream_wrap, void *native, ifs_stream **out)
NONE(ifs_stream_synchronize, ifs_stream *stream)
NONE(ifs_stream_wait, ifs_stream *stream, ifs_event *event)
NONE(ifs_graph_begin, ifs_stream *stream)
NONE(ifs_graph_end, ifs_stream *stream, ifs_graph **out)
NONE(ifs_graph_launch, ifs_graph *graph, ifs_stream *stream)
NONE_ON(ifs_event_create, int32_t timing, ifs_event **out)
NONE(ifs_event_record, ifs_event *event, ifs_stream *stream)
NONE(ifs_event_synchronize, ifs_event *event)
NONE(ifs_event_query, ifs_event *event, int32_t *done)
NONE(ifs_event_elapsed, ifs_event *start, ifs_event *stop, float *milliseconds)

int32_t ifs_is_page_locked(const void *address) { return 0; }

/* Nothing of these can exist here, so there is nothing to free or to ask. */
void ifs__device_free(int32_t device, void *block) {}
void ifs__pinned_free(int32_t device, void *block) {}
void ifs_stream_destroy(ifs_stream *stream) {}
void ifs_event_destroy(ifs_event *event) {}
void ifs_graph_destroy(ifs_graph *graph) {}
ifs_stream *ifs__stream_retain(ifs_stream *stream) { return stream; }
int32_t ifs__stream_captures(const ifs_stream *stream) { return 0; }
int32_t ifs_stream_device(const ifs_stream *stream) { return IFS_NO_DEVICE; }
void *ifs_stream_native(const ifs_stream *stream) { return NULL; }

#endif
