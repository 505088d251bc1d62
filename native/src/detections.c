/* detections.c - the block of memory that a device decoder writes its results to. SPDX-License-Identifier: Apache-2.0
 */
#include "internal.h"

/* The bytes of `n` images with `one` each, which has `items`; 0 for numbers below 1, and where that is too large. */
static size_t block_nbytes(int32_t items, size_t one, int32_t n) {
    size_t nbytes = 0;
    return items < 1 || n < 1 || ifs__mul_overflows(one, (size_t)n, &nbytes) ? 0 : nbytes;
}

size_t ifs_cuda_detections_nbytes(int32_t max_detections, int32_t n) {
    /* A multiple of 8, so that the head of each image is aligned. */
    const size_t one = (sizeof(ifs_cuda_detections) + (size_t)max_detections * sizeof(ifs_detection) + 7) & ~(size_t)7;
    return block_nbytes(max_detections, one, n);
}

size_t ifs_cuda_oriented_nbytes(int32_t max_detections, int32_t n) {
    const size_t one = sizeof(ifs_cuda_detections) + (size_t)max_detections * sizeof(ifs_oriented_detection);
    return block_nbytes(max_detections, one, n);
}

size_t ifs_cuda_oriented_workspace_nbytes(int32_t max_candidates, int32_t n) {
    const size_t one = (size_t)max_candidates * 8 * sizeof(float); /* six numbers of a Gaussian, its class, a flag */
    return block_nbytes(max_candidates, one, n);
}
