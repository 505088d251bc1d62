/*
 * late_device.h - two devices made of the host's memory, whose streams do nothing before they are waited for.
 *
 * It stands in for cuda/device.cu where there is no GPU, so that the sanitizers see what the host code asks of one: a
 * copy or kernel that was not waited for has not run, and reads and writes its memory as late as it may.
 */
#include "device.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef void late_kernel(void *data, size_t nbytes, size_t value);

typedef struct late_queue late_queue;

/* Rows of `nbytes` from `src` to `dst`, or a kernel over `dst`, or a wait for the first `value` works of `other`. */
typedef struct late_work {
    struct late_work *next;
    void *dst;
    const void *src;
    size_t nbytes, stride, rows, value;
    late_kernel *kernel;
    late_queue *other;
} late_work;

struct late_queue {
    late_work *first, **end;
    size_t queued, done;
    bool captures; /* what is queued becomes part of a graph: an event recorded here can never be waited for */
};

struct ifs_stream {
    int32_t references, device;
    late_queue *queue;
};

struct ifs_event {
    int32_t device;
    late_queue *queue;
    size_t queued;
};

static void late_run(late_queue *queue, size_t until) {
    while (queue->done < until) {
        late_work *w = queue->first;
        queue->first = w->next;
        if (!queue->first)
            queue->end = &queue->first;
        if (w->other)
            late_run(w->other, w->value);
        else if (w->kernel)
            w->kernel(w->dst, w->nbytes, w->value);
        for (size_t y = 0; w->src && y < w->rows; y++)
            memcpy((char *)w->dst + y * w->nbytes, (const char *)w->src + y * w->stride, w->nbytes);
        free(w);
        queue->done++;
    }
}

static void late_queue_work(ifs_stream *stream, late_work work) {
    late_work *w = malloc(sizeof *w);
    if (!w)
        abort();
    *w = work;
    w->next = NULL;
    *stream->queue->end = w;
    stream->queue->end = &w->next;
    stream->queue->queued++;
}

static void late_launch(ifs_stream *stream, late_kernel *kernel, void *data, size_t nbytes, size_t value) {
    late_queue_work(stream, (late_work){.kernel = kernel, .dst = data, .nbytes = nbytes, .value = value});
}

/* ---- devices and memory ---- */

ifs_status ifs__device_check(int32_t device) {
    return device == 0 || device == 1 ? IFS_OK : ifs__fail(IFS_ERR_NO_DEVICE, "no device cuda:%d", (int)device);
}

static ifs_status late_alloc(int32_t device, size_t nbytes, void **out) {
    IFS__TRY(ifs__device_check(device));
    *out = malloc(nbytes);
    return *out ? IFS_OK : ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no %zu bytes", nbytes);
}

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out) { return late_alloc(device, nbytes, out); }
ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out) { return late_alloc(device, nbytes, out); }

/* What another thread does at the moment before a copy is queued, and the queue that freeing device memory waits for.
 */
static void (*late_before_copy)(void);
static late_queue *late_awaited;

void ifs__device_free(int32_t device, void *block) {
    if (late_awaited)
        late_run(late_awaited, late_awaited->queued);
    (void)device, free(block);
}
void ifs__pinned_free(int32_t device, void *block) { (void)device, free(block); }

ifs_status ifs__copy_rows(int32_t device, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows,
                          ifs_stream *stream) {
    late_queue_work(stream, (late_work){.dst = dst, .src = src, .nbytes = nbytes, .stride = stride, .rows = rows});
    return ifs__device_check(device);
}

ifs_status ifs__copy(int32_t device, void *dst, const void *src, size_t nbytes, ifs_stream *stream) {
    if (late_before_copy)
        late_before_copy();
    if (stream)
        return ifs__copy_rows(device, dst, src, nbytes, nbytes, 1, stream);
    memcpy(dst, src, nbytes);
    return ifs__device_check(device);
}

ifs_status ifs__copy_between(int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes) {
    IFS__TRY(ifs__device_check(src_device));
    return ifs__copy(dst_device, dst, src, nbytes, NULL);
}

/* ---- streams and events ---- */

ifs_status ifs_stream_wrap(int32_t device, void *native, ifs_stream **out) {
    ifs_stream *stream = malloc(sizeof *stream);
    if (!stream)
        abort();
    *stream = (ifs_stream){1, device, native};
    *out = stream;
    return IFS_OK;
}

ifs_stream *ifs__stream_retain(ifs_stream *stream) {
    if (stream)
        stream->references++;
    return stream;
}

void ifs_stream_destroy(ifs_stream *stream) {
    if (stream && --stream->references == 0)
        free(stream);
}

int32_t ifs__stream_captures(const ifs_stream *stream) { return stream->queue->captures; }
int32_t ifs_stream_device(const ifs_stream *stream) { return stream->device; }
void *ifs_stream_native(const ifs_stream *stream) { return stream->queue; }

ifs_status ifs_event_create(int32_t device, ifs_event **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        abort();
    (*out)->device = device;
    return IFS_OK;
}

void ifs_event_destroy(ifs_event *event) { free(event); }

ifs_status ifs_event_record(ifs_event *event, ifs_stream *stream) {
    if (event->device != stream->device) /* as CUDA has it */
        return ifs__fail(IFS_ERR_DEVICE, "an event of cuda:%d on a stream of cuda:%d", (int)event->device,
                         (int)stream->device);
    if (stream->queue->captures)
        return ifs__fail(IFS_ERR_DEVICE, "an event that is part of a graph");
    event->queue = stream->queue;
    event->queued = stream->queue->queued;
    return IFS_OK;
}

ifs_status ifs_event_synchronize(ifs_event *event) {
    if (event->queue)
        late_run(event->queue, event->queued);
    return IFS_OK;
}

ifs_status ifs_stream_wait(ifs_stream *stream, ifs_event *event) {
    if (event->queue)
        late_queue_work(stream, (late_work){.other = event->queue, .value = event->queued});
    return IFS_OK;
}
