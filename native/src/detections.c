/* detections.c - the block of memory that a device decoder writes its results to. SPDX-License-Identifier: Apache-2.0
 */
#include "internal.h"

#include <string.h>

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

ifs_status ifs_cuda_detections_unpack(const void *block, size_t nbytes, int32_t max_detections, int32_t index,
                                      ifs_detection *out, int32_t *count, ifs_detect_stats *stats) {
    if (!block || !out || !count)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "block, out or count is NULL");
    if (max_detections < 1 || index < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "image %d of a block of %d detections an image; the index is 0 or more, the number 1 or more",
                         (int)index, (int)max_detections);
    const size_t one = ifs_cuda_detections_nbytes(max_detections, 1);
    if (nbytes / one <= (size_t)index)
        return ifs__fail(IFS_ERR_TOO_SMALL,
                         "a block of %zu bytes has %zu images of %d detections, so there is no image %d", nbytes,
                         nbytes / one, (int)max_detections, (int)index);
    const char *at = (const char *)block + (size_t)index * one;
    ifs_cuda_detections head;
    memcpy(&head, at, sizeof head);
    if (head.count < 0 || head.count > max_detections)
        return ifs__fail(IFS_ERR_FORMAT,
                         "image %d of the block says that it has %d detections, but at most %d fit; was the copy "
                         "waited for?",
                         (int)index, (int)head.count, (int)max_detections);
    memcpy(out, at + sizeof head, (size_t)head.count * sizeof *out);
    *count = head.count;
    if (stats)
        *stats = head.stats;
    return IFS_OK;
}
