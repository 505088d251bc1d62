/*
 * cuda_missing.c - the CUDA half of a CPU-only build: each of its functions says that there is none.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The build compiles this file or native/cuda, never both.
 */
#include "custom_ops.h"
#include "custom_ops_detection.h"
#include "device.h"

#include <stdio.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the names are the documentation */
#endif

static ifs_status missing(int32_t device) {
    char number[16] = "";
    if (device >= 0)
        snprintf(number, sizeof number, ":%d", (int)device);
    return ifs__fail(IFS_ERR_NO_DEVICE,
                     "no device cuda%s: this build of infersdk is CPU-only; build it with INFERSDK_CUDA=1 and nvcc to "
                     "use a GPU, or use device=\"cpu\"",
                     number);
}

/* Functions that always fail. Those of the second kind name the requested device. */
#define MISSING(name, ...)                                                                                             \
    ifs_status name(__VA_ARGS__) { return missing(IFS_NO_DEVICE); }
#define MISSING_ON(name, ...)                                                                                          \
    ifs_status name(int32_t device, __VA_ARGS__) { return missing(device); }

int32_t ifs_has_cuda(void) { return 0; }

/* ---- devices and their memory ---- */

ifs_status ifs__device_check(int32_t device) { return missing(device); }
MISSING(ifs_device_count, int32_t *out)
MISSING_ON(ifs_device_select, int32_t *previous)
MISSING_ON(ifs_get_device_info, ifs_device_info *out)
MISSING(ifs_pointer_device, const void *address, int32_t *out)
MISSING_ON(ifs__device_alloc, size_t nbytes, void **out)
MISSING_ON(ifs__pinned_alloc, size_t nbytes, void **out)
MISSING_ON(ifs__copy, void *dst, const void *src, size_t nbytes, ifs_stream *stream)
MISSING_ON(ifs__copy_rows, void *dst, const void *src, size_t stride, size_t nbytes, size_t rows, ifs_stream *stream)
MISSING(ifs__copy_between, int32_t dst_device, void *dst, int32_t src_device, const void *src, size_t nbytes)
int32_t ifs_is_page_locked(const void *address) { return 0; }
MISSING_ON(ifs_cuda_ipc_open, const uint8_t *handle, void **address, size_t *nbytes)
MISSING_ON(ifs_cuda_ipc_close, void *address)
MISSING_ON(ifs_cuda_ipc_export, void *address, uint8_t *handle)

/* ---- streams, events, graphs ---- */

MISSING_ON(ifs_stream_create, ifs_stream **out)
MISSING_ON(ifs_stream_wrap, void *native, ifs_stream **out)
MISSING(ifs_stream_synchronize, ifs_stream *stream)
MISSING(ifs_stream_wait, ifs_stream *stream, ifs_event *event)
MISSING_ON(ifs_event_create, ifs_event **out)
MISSING(ifs_event_record, ifs_event *event, ifs_stream *stream)
MISSING(ifs_event_synchronize, ifs_event *event)
MISSING(ifs_event_query, ifs_event *event, int32_t *done)
MISSING(ifs_cuda_graph_begin, ifs_stream *stream)
MISSING(ifs_cuda_graph_end, ifs_stream *stream, ifs_cuda_graph **out)
MISSING(ifs_cuda_graph_launch, ifs_cuda_graph *graph, ifs_stream *stream)

/* ---- kernels ---- */

MISSING(ifs_cuda_preprocess, const ifs_image *images, const ifs_geometry *geometries, int32_t n,
        const ifs_pixel_transform *transform, void *dst, size_t nbytes, ifs_stream *stream)
MISSING(ifs_cuda_detection_decoder_create, const ifs_detect_params *params, int32_t max_batch, int32_t device,
        ifs_cuda_detection_decoder **out)
MISSING(ifs_cuda_detection_decoder_run, ifs_cuda_detection_decoder *decoder, const void *output,
        const ifs_geometry *geometries, int32_t n, void *detections, size_t nbytes, ifs_stream *stream)
MISSING(ifs_cuda_masks, const ifs_mask_params *params, const ifs_detect_params *detect, const void *output,
        const void *prototypes, const ifs_geometry *geometries, int32_t n, const void *detections, ifs_mask *masks,
        uint8_t *bits, size_t capacity, int64_t *needed, ifs_stream *stream)
MISSING(ifs_cuda_oriented, const ifs_detect_params *detect, const void *output, int32_t n, const void *candidates,
        float iou_threshold, int32_t max_detections, void *workspace, size_t workspace_nbytes, void *detections,
        size_t nbytes, ifs_stream *stream)
MISSING(ifs_cuda_class_maps, const ifs_class_map_params *params, const void *scores, const ifs_geometry *geometries,
        int32_t n, uint8_t *workspace, size_t workspace_nbytes, uint8_t *class_ids, size_t nbytes, ifs_stream *stream)

/* ---- custom operators ---- */

MISSING(ifs_cuda_code_load, const void *image, const char *function, int32_t device, ifs_cuda_code **out)
MISSING(ifs__cuda_code_launch, const ifs_cuda_code *code, ifs__launch *launch, int32_t device, void *stream)
MISSING(ifs__cuda_call, ifs_op_kernel *kernel, const ifs_op_call *call, int32_t *result)

int32_t ifs_cuda_detection_nms(const ifs_op_call *call) {
    missing(call->device);
    return IFS_OP_FAIL(call, "%s", ifs_last_error());
}

/* ---- objects that cannot exist in this build: there is nothing to free or to ask ---- */

void ifs__device_free(int32_t device, void *block) {}
void ifs__pinned_free(int32_t device, void *block) {}
void ifs_stream_destroy(ifs_stream *stream) {}
void ifs_event_destroy(ifs_event *event) {}
void ifs_cuda_detection_nms_destroy(void *state) {}
void ifs_cuda_graph_destroy(ifs_cuda_graph *graph) {}
void ifs_cuda_detection_decoder_destroy(ifs_cuda_detection_decoder *decoder) {}
ifs_stream *ifs__stream_retain(ifs_stream *stream) { return stream; }
int32_t ifs__stream_captures(const ifs_stream *stream) { return 0; }
int32_t ifs_stream_device(const ifs_stream *stream) { return IFS_NO_DEVICE; }
void *ifs_stream_native(const ifs_stream *stream) { return NULL; }
size_t ifs_cuda_detection_decoder_nbytes(const ifs_cuda_detection_decoder *decoder) { return 0; }
