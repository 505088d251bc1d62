/* device.cu - devices, their memory, streams and events, through the CUDA runtime. SPDX-License-Identifier: Apache-2.0
 */
#include "common.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ifs_status ifs__cuda_failed(cudaError_t error, int device, const char *what) {
    cudaGetLastError(); /* cleared, so that the caller's next check does not report it */
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorInvalidDevice) {
        ifs_status status = ifs__device_check(device);
        if (status != IFS_OK)
            return status;
    }
    return ifs__fail(IFS_ERR_DEVICE, "%s on cuda:%d failed: %s (%s)", what, device, cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

ifs_status ifs__check_stream(const ifs_stream *stream) {
    if (stream)
        return IFS_OK;
    IFS__TRY(ifs__device_check(0)); /* without a device there can be no stream */
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                     "stream is NULL; ifs_stream_wrap(device, NULL, ...) gives the legacy default stream of a device");
}

/* ---- devices ---- */

int32_t ifs_has_cuda(void) { return 1; }

/* The number of devices. `name` is the device that was asked for, for the message. */
static ifs_status count_devices(const char *name, int32_t *out) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        cudaGetLastError();
        return ifs__fail(IFS_ERR_NO_DEVICE,
                         "no device %s: %s; install or update the NVIDIA driver, or use device=\"cpu\"", name,
                         cudaGetErrorString(error));
    }
    *out = count;
    return IFS_OK;
}

ifs_status ifs_device_count(int32_t *out) { return count_devices("cuda", out); }

ifs_status ifs_device_select(int32_t device, int32_t *previous) {
    IFS__TRY(ifs__device_check(device));
    IFS__CUDA(cudaGetDevice(previous), device, "selecting a device");
    IFS__CUDA(cudaSetDevice(device), device, "selecting a device");
    return IFS_OK;
}

ifs_status ifs__device_check(int32_t device) {
    int32_t count = 0;
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)device);
    IFS__TRY(count_devices(name, &count));
    if (device < 0 || device >= count)
        return ifs__fail(IFS_ERR_NO_DEVICE, "no device %s: this machine has %d CUDA device(s), numbered from 0", name,
                         (int)count);
    return IFS_OK;
}

ifs_status ifs_get_device_info(int32_t device, ifs_device_info *out) {
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "reading its properties");
    cudaDeviceProp properties;
    IFS__CUDA(cudaGetDeviceProperties(&properties, device), device, "reading its properties");
    size_t free_bytes = 0, total_bytes = 0;
    IFS__CUDA(cudaMemGetInfo(&free_bytes, &total_bytes), device, "reading its free memory");
    memset(out, 0, sizeof *out);
    strncpy(out->name, properties.name, sizeof out->name - 1);
    out->major = properties.major;
    out->minor = properties.minor;
    out->multiprocessors = properties.multiProcessorCount;
    out->total_bytes = total_bytes;
    out->free_bytes = free_bytes;
    return IFS_OK;
}

/* For calls whose failure is not reported: it must not show as that of the next launch. */
static void ignore(cudaError_t error) {
    if (error != cudaSuccess)
        cudaGetLastError();
}

ifs_status ifs_pointer_device(const void *address, int32_t *out) {
    int32_t count = 0;
    IFS__TRY(ifs_device_count(&count));
    cudaPointerAttributes attributes;
    IFS__CUDA(cudaPointerGetAttributes(&attributes, address), 0, "looking up the device of an address");
    bool on_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    *out = on_device ? attributes.device : IFS_NO_DEVICE;
    return IFS_OK;
}

int32_t ifs_is_page_locked(const void *address) {
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeHost;
}

/* ---- memory ---- */

ifs_status ifs__device_alloc(int32_t device, size_t nbytes, void **out) {
    IFS__GUARD(device, "allocating device memory");
    cudaError_t error = cudaMalloc(out, nbytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError();
        ignore(cudaMemGetInfo(&free_bytes, &total));
        return ifs__fail(
            IFS_ERR_DEVICE_OUT_OF_MEMORY,
            "cuda:%d cannot allocate %zu bytes: %zu of its %zu are free; use a smaller batch, or close models and "
            "tensors that are no longer needed",
            (int)device, nbytes, free_bytes, total);
    }
    return error == cudaSuccess ? IFS_OK : ifs__cuda_failed(error, device, "allocating device memory");
}

void ifs__device_free(int32_t device, void *block) {
    ifs__device_guard guard(device);
    ignore(cudaFree(block));
}

ifs_status ifs__pinned_alloc(int32_t device, size_t nbytes, void **out) {
    IFS__GUARD(device, "allocating page-locked memory");
    cudaError_t error = cudaHostAlloc(out, nbytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot page-lock %zu bytes of host memory", nbytes);
    }
    return error == cudaSuccess ? IFS_OK : ifs__cuda_failed(error, device, "allocating page-locked memory");
}

void ifs__pinned_free(int32_t device, void *block) {
    ifs__device_guard guard(device);
    ignore(cudaFreeHost(block));
}

/* ---- streams ---- */

struct ifs_stream {
    int32_t references; /* one of the creator, and one of each memory that was last used on it */
    int32_t device;
    bool owned;
    cudaStream_t native;
};

static ifs_status stream_new(int32_t device, bool owned, cudaStream_t native, ifs_stream **out) {
    ifs_stream *stream = (ifs_stream *)calloc(1, sizeof *stream);
    if (!stream)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *stream);
    stream->references = 1;
    stream->device = device;
    stream->owned = owned;
    stream->native = native;
    *out = stream;
    return IFS_OK;
}

ifs_status ifs_stream_create(int32_t device, ifs_stream **out) {
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "creating a stream");
    cudaStream_t native;
    IFS__CUDA(cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking), device, "creating a stream");
    ifs_status status = stream_new(device, true, native, out);
    if (status != IFS_OK)
        ignore(cudaStreamDestroy(native));
    return status;
}

ifs_status ifs_stream_wrap(int32_t device, void *native, ifs_stream **out) {
    IFS__TRY(ifs__device_check(device));
    return stream_new(device, false, (cudaStream_t)native, out);
}

ifs_stream *ifs__stream_retain(ifs_stream *stream) {
    if (stream)
        __atomic_fetch_add(&stream->references, 1, __ATOMIC_ACQ_REL);
    return stream;
}

void ifs_stream_destroy(ifs_stream *stream) {
    if (!stream || __atomic_fetch_sub(&stream->references, 1, __ATOMIC_ACQ_REL) != 1)
        return;
    if (stream->owned) {
        ifs__device_guard guard(stream->device);
        ignore(cudaStreamDestroy(stream->native));
    }
    free(stream);
}

int32_t ifs_stream_device(const ifs_stream *stream) { return stream->device; }
void *ifs_stream_native(const ifs_stream *stream) { return (void *)stream->native; }

ifs_status ifs_stream_synchronize(ifs_stream *stream) {
    IFS__CUDA_ON(cudaStreamSynchronize(stream->native), stream->device, "waiting for a stream");
}

/* ---- events ---- */

struct ifs_event {
    int32_t device;
    cudaEvent_t native;
};

ifs_status ifs_event_create(int32_t device, ifs_event **out) {
    IFS__TRY(ifs__device_check(device));
    IFS__GUARD(device, "creating an event");
    ifs_event *event = (ifs_event *)calloc(1, sizeof *event);
    if (!event)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *event);
    event->device = device;
    cudaError_t error = cudaEventCreateWithFlags(&event->native, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(event);
        return ifs__cuda_failed(error, device, "creating an event");
    }
    *out = event;
    return IFS_OK;
}

void ifs_event_destroy(ifs_event *event) {
    if (!event)
        return;
    ifs__device_guard guard(event->device);
    ignore(cudaEventDestroy(event->native));
    free(event);
}

ifs_status ifs_event_record(ifs_event *event, ifs_stream *stream) {
    IFS__CUDA_ON(cudaEventRecord(event->native, stream->native), stream->device, "recording an event");
}

ifs_status ifs_event_synchronize(ifs_event *event) {
    IFS__CUDA_ON(cudaEventSynchronize(event->native), event->device, "waiting for an event");
}

ifs_status ifs_event_query(ifs_event *event, int32_t *done) {
    IFS__GUARD(event->device, "querying an event");
    cudaError_t error = cudaEventQuery(event->native);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        return ifs__cuda_failed(error, event->device, "querying an event");
    *done = error == cudaSuccess;
    return IFS_OK;
}

ifs_status ifs_stream_wait(ifs_stream *stream, ifs_event *event) {
    IFS__CUDA_ON(cudaStreamWaitEvent(stream->native, event->native, 0), stream->device,
                 "letting a stream wait for an event");
}

/* ---- graphs ---- */

struct ifs_cuda_graph {
    int32_t device;
    cudaGraphExec_t native;
};

ifs_status ifs_cuda_graph_begin(ifs_stream *stream) {
    IFS__GUARD(stream->device, "beginning a graph");
    /* Waits for what was queued before. A memory that was last used on this stream and is freed during the capture
     * cannot wait for the stream then (see ifs_memory_destroy). */
    IFS__CUDA(cudaStreamSynchronize(stream->native), stream->device, "beginning a graph");
    /* Relaxed: other threads may allocate and copy meanwhile, and this one may free memory and events. */
    IFS__CUDA(cudaStreamBeginCapture(stream->native, cudaStreamCaptureModeRelaxed), stream->device,
              "beginning a graph");
    return IFS_OK;
}

int32_t ifs__stream_captures(const ifs_stream *stream) {
    ifs__device_guard guard(stream->device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    ignore(cudaStreamIsCapturing(stream->native, &status));
    return status != cudaStreamCaptureStatusNone;
}

ifs_status ifs_cuda_graph_end(ifs_stream *stream, ifs_cuda_graph **out) {
    IFS__GUARD(stream->device, "ending a graph");
    cudaGraph_t captured = NULL;
    IFS__CUDA(cudaStreamEndCapture(stream->native, &captured), stream->device, "ending a graph");
    ifs_cuda_graph *graph = (ifs_cuda_graph *)calloc(1, sizeof *graph);
    if (!graph) {
        cudaGraphDestroy(captured);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *graph);
    }
    graph->device = stream->device;
    cudaError_t error = cudaGraphInstantiate(&graph->native, captured, 0);
    cudaGraphDestroy(captured);
    if (error != cudaSuccess) {
        free(graph);
        return ifs__cuda_failed(error, stream->device, "instantiating a graph");
    }
    *out = graph;
    return IFS_OK;
}

ifs_status ifs_cuda_graph_launch(ifs_cuda_graph *graph, ifs_stream *stream) {
    IFS__CUDA_ON(cudaGraphLaunch(graph->native, stream->native), graph->device, "launching a graph");
}

void ifs_cuda_graph_destroy(ifs_cuda_graph *graph) {
    if (!graph)
        return;
    ifs__device_guard guard(graph->device);
    ignore(cudaGraphExecDestroy(graph->native));
    free(graph);
}

/* ---- copies ---- */

ifs_status ifs__copy(int32_t device, void *dst, const void *src, size_t nbytes, ifs_stream *stream) {
    IFS__GUARD(device, "copying memory");
    if (stream)
        IFS__CUDA(cudaMemcpyAsync(dst, src, nbytes, cudaMemcpyDefault, stream->native), device, "copying memory");
    else {
        IFS__CUDA(cudaMemcpy(dst, src, nbytes, cudaMemcpyDefault), device, "copying memory");
        /* From pageable memory, cudaMemcpy returns while the copy still runs, and other streams would not wait for it.
         */
        IFS__CUDA(cudaStreamSynchronize(cudaStreamLegacy), device, "copying memory");
    }
    return IFS_OK;
}

ifs_status ifs__copy_rows(int32_t device, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows,
                          ifs_stream *stream) {
    if (stride == nbytes)
        return ifs__copy(device, dst, src, rows * nbytes, stream);
    IFS__CUDA_ON(cudaMemcpy2DAsync(dst, nbytes, src, stride, nbytes, rows, cudaMemcpyHostToDevice, stream->native),
                 device, "copying memory");
}

ifs_status ifs__copy_between(int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes) {
    IFS__GUARD(dst_device, "copying between devices");
    if (dst_device == src_device)
        IFS__CUDA(cudaMemcpy(dst, src, nbytes, cudaMemcpyDeviceToDevice), dst_device, "copying on the device");
    else
        IFS__CUDA(cudaMemcpyPeer(dst, dst_device, src, src_device, nbytes), dst_device, "copying between devices");
    /* A copy on the device may return before it is done. */
    IFS__CUDA(cudaStreamSynchronize(cudaStreamLegacy), dst_device, "copying on the device");
    return IFS_OK;
}
