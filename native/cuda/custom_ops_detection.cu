/* custom_ops_detection.cu - infersdk::DetectionNMS on a device. SPDX-License-Identifier: Apache-2.0 */
#include "../src/custom_ops_detection.h"
#include "common.cuh"

#include <stdlib.h>
#include <string.h>

namespace {

constexpr int THREADS = 128;

/* What a stream's calls keep. It grows with the batch, which waits for the device: not while a graph is captured. */
struct DeviceState {
    ifs_detect_params params;
    int32_t device;
    int64_t count; /* images that it has memory for */
    ifs_stream *stream;
    ifs_cuda_detection_decoder *decoder;
    ifs_geometry *geometries; /* [count], all the same */
    void *block;
    size_t row_nbytes; /* of one image in the block */
};

/* One block of threads an image: its part of the decoder's block to the operator's outputs. */
__global__ void write_outputs(const char *block, size_t row_nbytes, int32_t most, float *rows, int32_t *counts,
                              int32_t *stats) {
    const char *at = block + blockIdx.x * row_nbytes;
    const ifs_cuda_detections *head = reinterpret_cast<const ifs_cuda_detections *>(at);
    const ifs_detection *boxes = reinterpret_cast<const ifs_detection *>(at + sizeof *head);
    rows += (size_t)blockIdx.x * most * 6;
    for (int32_t i = threadIdx.x; i < most; i += THREADS) {
        ifs_detection box = {};
        if (i < head->count)
            box = boxes[i];
        float *row = rows + (size_t)i * 6;
        row[0] = box.x1;
        row[1] = box.y1;
        row[2] = box.x2;
        row[3] = box.y2;
        row[4] = box.score;
        row[5] = (float)box.class_id;
    }
    if (threadIdx.x)
        return;
    counts[blockIdx.x] = head->count;
    int32_t *s = stats + blockIdx.x * 4;
    s[0] = (int32_t)min(head->stats.candidates, (int64_t)INT32_MAX);
    s[1] = (int32_t)min(head->stats.dropped_candidates, (int64_t)INT32_MAX);
    s[2] = (int32_t)min(head->stats.kept, (int64_t)INT32_MAX);
    s[3] = (int32_t)min(head->stats.dropped_detections, (int64_t)INT32_MAX);
}

ifs_status make_state(const ifs_op_call *call, const ifs_detect_params *params, const ifs_geometry *geometry,
                      int64_t count, DeviceState **out) {
    DeviceState *s = (DeviceState *)calloc(1, sizeof *s);
    if (!s)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for the state of DetectionNMS");
    s->params = *params;
    s->device = call->device;
    s->count = count;
    s->row_nbytes = ifs_cuda_detections_nbytes(params->max_detections, 1);
    s->geometries = (ifs_geometry *)malloc((size_t)count * sizeof *s->geometries);
    ifs_status status =
        s->geometries ? IFS_OK : ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for %d geometries", (int)count);
    for (int64_t i = 0; status == IFS_OK && i < count; i++)
        s->geometries[i] = *geometry;
    if (status == IFS_OK)
        status = ifs_stream_wrap(call->device, call->stream, &s->stream);
    if (status == IFS_OK)
        status = ifs_cuda_detection_decoder_create(params, (int32_t)count, call->device, &s->decoder);
    if (status == IFS_OK)
        status = ifs__device_alloc(call->device, (size_t)count * s->row_nbytes, &s->block);
    if (status != IFS_OK) {
        ifs_cuda_detection_nms_destroy(s);
        return status;
    }
    *out = s;
    return IFS_OK;
}

ifs_status run(const ifs_op_call *call) {
    const ifs_op_tensor *x = &call->inputs[0];
    int64_t batch = x->dims[0];
    ifs_detect_params params;
    ifs_geometry geometry;
    IFS__TRY(ifs__detection_nms_setup(call, &params, &geometry));
    DeviceState *s = (DeviceState *)*call->state;
    if (!s || s->count < batch || memcmp(&s->params, &params, sizeof params) != 0) {
        ifs_cuda_detection_nms_destroy(s);
        *call->state = NULL;
        IFS__TRY(make_state(call, &params, &geometry, batch, &s));
        *call->state = s;
    }
    size_t nbytes = (size_t)batch * s->row_nbytes;
    IFS__TRY(ifs_cuda_detection_decoder_run(s->decoder, x->data, s->geometries, (int32_t)batch, s->block, nbytes,
                                            s->stream));
    write_outputs<<<(unsigned)batch, THREADS, 0, (cudaStream_t)call->stream>>>(
        (const char *)s->block, s->row_nbytes, params.max_detections, (float *)call->outputs[0].data,
        (int32_t *)call->outputs[1].data, (int32_t *)call->outputs[2].data);
    IFS__CUDA(cudaGetLastError(), call->device, "writing the boxes");
    return IFS_OK;
}

} // namespace

void ifs_cuda_detection_nms_destroy(void *raw) {
    DeviceState *s = (DeviceState *)raw;
    if (!s)
        return;
    ifs_cuda_detection_decoder_destroy(s->decoder); /* waits for the device */
    ifs_stream_destroy(s->stream);
    if (s->block)
        ifs__device_free(s->device, s->block);
    free(s->geometries);
    free(s);
}

int32_t ifs_cuda_detection_nms(const ifs_op_call *call) {
    if (call->inputs[0].dims[0] == 0)
        return 0;
    return run(call) == IFS_OK ? 0 : IFS_OP_FAIL(call, "%s", ifs_last_error());
}
