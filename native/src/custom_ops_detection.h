/*
 * custom_ops_detection.h - infersdk::DetectionNMS, a head's output to boxes as a custom operator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_CUSTOM_OPS_DETECTION_H
#define IFS_CUSTOM_OPS_DETECTION_H

#include "infersdk_custom_op.h"
#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef] */

/*
 * The kernels. Input: a head's output, [batch, a, b] of float32 or float16. Outputs: rows [batch, max_detections, 6] of
 * x1, y1, x2, y2 in pixels of the network's input, score and class, best first and 0 behind the last; how many are
 * valid [batch]; and ifs_detect_stats [batch, 4] as int32. The boxes are those of ifs_detection_decoder_run.
 */
int32_t ifs_detection_nms(const ifs_op_call *call);
void ifs_detection_nms_destroy(void *state);
int32_t ifs_cuda_detection_nms(const ifs_op_call *call);
void ifs_cuda_detection_nms_destroy(void *state);

/* [/cdef] */

/* The attributes in the order of infersdk/custom_ops/packaged/detection_nms.py. */
enum {
    IFS__NMS_HEAD,
    IFS__NMS_CLASSES,
    IFS__NMS_WIDTH,
    IFS__NMS_HEIGHT,
    IFS__NMS_EXTRA,
    IFS__NMS_STRIDES,
    IFS__NMS_CONF,
    IFS__NMS_IOU,
    IFS__NMS_MAX_DETECTIONS,
    IFS__NMS_MAX_CANDIDATES,
    IFS__NMS_MULTI_LABEL,
    IFS__NMS_AGNOSTIC,
};

/* The decoder's parameters, and the geometry that leaves boxes in pixels of the network's input. */
ifs_status ifs__detection_nms_setup(const ifs_op_call *call, ifs_detect_params *params, ifs_geometry *geometry);

#ifdef __cplusplus
}
#endif
#endif
