/*
 * custom_ops_detection.c - infersdk::DetectionNMS on the host. SPDX-License-Identifier: Apache-2.0
 */
#include "custom_ops_detection.h"

#include <stdlib.h>
#include <string.h>

/* ---- what both sides share ---- */

static int32_t saturated(int64_t value) {
    return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static int32_t whole(const ifs_op_call *call, int attribute) { return saturated(call->attributes[attribute].i); }

static int32_t head_of(const char *name) {
    return strcmp(name, "yolov5") == 0   ? IFS_DETECT_HEAD_YOLOV5
           : strcmp(name, "yolov8") == 0 ? IFS_DETECT_HEAD_YOLOV8
           : strcmp(name, "yolox") == 0  ? IFS_DETECT_HEAD_YOLOX
                                         : -1;
}

ifs_status ifs__detection_nms_setup(const ifs_op_call *call, ifs_detect_params *params, ifs_geometry *geometry) {
    const ifs_op_tensor *x = &call->inputs[0];
    const ifs_op_attribute *strides = &call->attributes[IFS__NMS_STRIDES];
    const char *given = call->attributes[IFS__NMS_HEAD].s, *name = given ? given : ""; /* NULL where it is missing */
    int32_t head = head_of(name);
    if (head < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "head is '%s'; use 'yolov5', 'yolov8' or 'yolox'", name);
    if (strides->count > IFS_MAX_STRIDES)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "strides has %d numbers; at most %d are possible",
                         (int)strides->count, IFS_MAX_STRIDES);
    int64_t anchors = x->dims[head == IFS_DETECT_HEAD_YOLOV8 ? 2 : 1];
    *params = (ifs_detect_params){
        .head = head,
        .dtype = x->dtype,
        .num_classes = whole(call, IFS__NMS_CLASSES),
        .num_anchors = saturated(anchors),
        .num_extra = whole(call, IFS__NMS_EXTRA),
        .multi_label = whole(call, IFS__NMS_MULTI_LABEL),
        .class_agnostic = whole(call, IFS__NMS_AGNOSTIC),
        .max_candidates = whole(call, IFS__NMS_MAX_CANDIDATES),
        .max_detections = whole(call, IFS__NMS_MAX_DETECTIONS),
        .conf_threshold = call->attributes[IFS__NMS_CONF].f,
        .iou_threshold = call->attributes[IFS__NMS_IOU].f,
        .num_strides = strides->count,
    };
    for (int32_t i = 0; i < strides->count; i++)
        params->strides[i] = saturated(strides->ints[i]);
    int32_t width = whole(call, IFS__NMS_WIDTH), height = whole(call, IFS__NMS_HEIGHT);
    return ifs_geometry_stretch(width, height, width, height, geometry);
}

/* ---- on the host ---- */

/* A decoder for each image of a batch, since each serves one thread at a time. */
typedef struct host_state {
    ifs_detect_params params;
    int64_t count;
    ifs_detection_decoder **decoders;
    ifs_detection *boxes; /* [count][max_detections] */
} host_state;

void ifs_detection_nms_destroy(void *raw) {
    host_state *s = raw;
    if (!s)
        return;
    for (int64_t i = 0; s->decoders && i < s->count; i++)
        ifs_detection_decoder_destroy(s->decoders[i]);
    free(s->decoders);
    free(s->boxes);
    free(s);
}

static ifs_status make_state(const ifs_detect_params *params, int64_t count, host_state **out) {
    host_state *s = calloc(1, sizeof *s);
    if (s) {
        s->params = *params;
        s->count = count;
        s->decoders = calloc((size_t)count, sizeof *s->decoders);
        s->boxes = calloc((size_t)count * (size_t)params->max_detections, sizeof *s->boxes);
    }
    if (!s || !s->decoders || !s->boxes) {
        ifs_detection_nms_destroy(s);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for the boxes of %lld images", (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        ifs_status status = ifs_detection_decoder_create(params, &s->decoders[i]);
        if (status != IFS_OK) {
            ifs_detection_nms_destroy(s);
            return status;
        }
    }
    *out = s;
    return IFS_OK;
}

typedef struct host_run {
    const ifs_op_call *call;
    host_state *state;
    ifs_geometry geometry;
    size_t nbytes;      /* of one image's output */
    char (*texts)[256]; /* [batch] of errors; empty for an image without one */
} host_run;

static void write_rows(const ifs_detection *boxes, int32_t count, int32_t most, float *rows) {
    memset(rows, 0, (size_t)most * 6 * sizeof *rows);
    for (int32_t i = 0; i < count; i++, rows += 6) {
        rows[0] = boxes[i].x1;
        rows[1] = boxes[i].y1;
        rows[2] = boxes[i].x2;
        rows[3] = boxes[i].y2;
        rows[4] = boxes[i].score;
        rows[5] = (float)boxes[i].class_id;
    }
}

static void run_image(void *arg, size_t i) {
    const host_run *r = arg;
    const ifs_op_tensor *outputs = r->call->outputs;
    int32_t most = r->state->params.max_detections, count = 0;
    ifs_detection *boxes = r->state->boxes + i * (size_t)most;
    ifs_detect_stats stats;
    const char *output = (const char *)r->call->inputs[0].data + i * r->nbytes;
    if (ifs_detection_decoder_run(r->state->decoders[i], output, &r->geometry, boxes, &count, &stats) != IFS_OK) {
        strncpy(r->texts[i], ifs_last_error(), sizeof *r->texts - 1);
        return;
    }
    write_rows(boxes, count, most, (float *)outputs[0].data + i * (size_t)most * 6);
    ((int32_t *)outputs[1].data)[i] = count;
    int32_t *s = (int32_t *)outputs[2].data + i * 4;
    s[0] = saturated(stats.candidates);
    s[1] = saturated(stats.dropped_candidates);
    s[2] = saturated(stats.kept);
    s[3] = saturated(stats.dropped_detections);
}

int32_t ifs_detection_nms(const ifs_op_call *call) {
    const ifs_op_tensor *x = &call->inputs[0];
    size_t batch = (size_t)x->dims[0];
    ifs_detect_params params;
    host_run r = {.call = call};
    if (ifs__detection_nms_setup(call, &params, &r.geometry) != IFS_OK)
        return IFS_OP_FAIL(call, "%s", ifs_last_error());
    host_state *s = *call->state;
    if (!s || s->count < (int64_t)batch || memcmp(&s->params, &params, sizeof params) != 0) {
        ifs_detection_nms_destroy(s);
        *call->state = NULL;
        if (make_state(&params, (int64_t)(batch ? batch : 1), &s) != IFS_OK)
            return IFS_OP_FAIL(call, "%s", ifs_last_error());
        *call->state = s;
    }
    r.state = s;
    r.nbytes = (size_t)(x->dims[1] * x->dims[2]) * ifs_dtype_size(x->dtype);
    r.texts = calloc(batch + 1, sizeof *r.texts);
    int32_t result = 0;
    if (!r.texts)
        result = IFS_OP_FAIL(call, "no memory for %zu images", batch);
    else
        call->parallel_for(call, run_image, &r, batch);
    for (size_t i = 0; !result && i < batch; i++)
        if (*r.texts[i])
            result = IFS_OP_FAIL(call, "image %zu: %s", i, r.texts[i]);
    free(r.texts);
    return result;
}
