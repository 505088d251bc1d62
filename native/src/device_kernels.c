/*
 * device_kernels.c - the host's half of the kernels: the layout of what they write, and their absence.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "internal.h"

#include <string.h>

size_t ifs_cuda_detections_nbytes(int32_t max_detections, int32_t n) {
    size_t nbytes = 0;
    if (max_detections < 1 || n < 1)
        return 0;
    /* A multiple of 8, so that each head is aligned. */
    const size_t row = (sizeof(ifs_cuda_detections) + (size_t)max_detections * sizeof(ifs_detection) + 7) & ~(size_t)7;
    return ifs__mul_overflows(row, (size_t)n, &nbytes) ? 0 : nbytes;
}

ifs_status ifs_cuda_detections_unpack(const void *block, size_t nbytes, int32_t max_detections, int32_t index,
                                      ifs_detection *out, int32_t *count, ifs_detect_stats *stats) {
    if (!block || !out || !count || max_detections < 1 || index < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "image %d of a block of %d detections each: needs the block, and places for boxes and their "
                         "count",
                         (int)index, (int)max_detections);
    const size_t row = ifs_cuda_detections_nbytes(max_detections, 1);
    if (nbytes / row <= (size_t)index)
        return ifs__fail(IFS_ERR_TOO_SMALL,
                         "a block of %zu bytes has %zu images of %d detections, not one of number "
                         "%d",
                         nbytes, nbytes / row, (int)max_detections, (int)index);
    const char *at = (const char *)block + (size_t)index * row;
    ifs_cuda_detections head;
    memcpy(&head, at, sizeof head);
    if (head.count < 0 || head.count > max_detections)
        return ifs__fail(IFS_ERR_FORMAT,
                         "image %d of the block says it has %d detections of at most %d; was the copy waited for?",
                         (int)index, (int)head.count, (int)max_detections);
    memcpy(out, at + sizeof head, (size_t)head.count * sizeof *out);
    *count = head.count;
    if (stats)
        *stats = head.stats;
    return IFS_OK;
}

#ifndef IFS_CUDA

static ifs_status none(void) {
    return ifs__fail(IFS_ERR_NO_DEVICE,
                     "no CUDA device: this build of infersdk is CPU-only; build it where nvcc is on PATH "
                     "to use a GPU, or use device=\"cpu\"");
}

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter" /* the names are the documentation */
#endif

ifs_status ifs_cuda_preprocess(const ifs_image *images, const ifs_geometry *geometries, int32_t n,
                               const ifs_pixel_transform *transform, void *dst, size_t nbytes, int32_t device,
                               void *stream) {
    return none();
}
ifs_status ifs_cuda_detector_create(const ifs_detect_params *params, int32_t max_batch, int32_t device,
                                    ifs_cuda_detector **out) {
    return none();
}
void ifs_cuda_detector_destroy(ifs_cuda_detector *detector) {}
size_t ifs_cuda_detector_nbytes(const ifs_cuda_detector *detector) { return 0; }
ifs_status ifs_cuda_detector_run(ifs_cuda_detector *detector, const void *output, const ifs_geometry *geometries,
                                 int32_t n, void *detections, size_t nbytes, void *stream) {
    return none();
}
ifs_status ifs_cuda_topk(const void *scores, int32_t dtype, int64_t rows, int64_t n, int32_t k, int32_t softmax,
                         int32_t *class_ids, float *out_scores, int32_t device, void *stream) {
    return none();
}

#endif
