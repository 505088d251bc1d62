/*
 * nms_oriented.c - Fast NMS of oriented boxes by their probabilistic IoU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Boxes are ranked by score and divided by class; each is compared with the better ones of its class until one
 * suppresses it. A box that is suppressed itself suppresses others too, so the comparisons depend on nothing that is
 * found out in between: the device makes them all at once.
 */
#include "nms_oriented.h"
#include "platform.h"
#include "simd.h"

#include "sort.h"

#include <stdlib.h>

static bool ifs__oriented_suppressed_plain(const ifs__oriented_boxes *boxes, size_t first, size_t count,
                                           ifs__oriented box, ifs__oriented_limit limit) {
    for (size_t i = first; i < first + count; i++) {
        const ifs__oriented other = {boxes->x[i], boxes->y[i], boxes->a[i], boxes->b[i], boxes->c[i], boxes->root[i]};
        if (ifs__oriented_overlap(other, box, limit))
            return true;
    }
    return false;
}

/* Scratch memory, in one block. */
typedef struct scratch {
    uint64_t *ranked, *groups, *sorting; /* [n] score and index; class and rank; for the sort */
    uint8_t *kept;                       /* [n] by rank */
    ifs__oriented_boxes boxes;           /* [n + 16] in the order of `groups` */
} scratch;

static size_t lay_out(scratch *s, char *block, size_t n) {
    size_t used = 0;
    s->ranked = ifs__take(block, &used, n * sizeof *s->ranked);
    s->groups = ifs__take(block, &used, n * sizeof *s->groups);
    s->sorting = ifs__take(block, &used, n * sizeof *s->sorting);
    s->kept = ifs__take(block, &used, n);
    float **const arrays[6] = {&s->boxes.x, &s->boxes.y, &s->boxes.a, &s->boxes.b, &s->boxes.c, &s->boxes.root};
    for (int i = 0; i < 6; i++)
        *arrays[i] = ifs__take(block, &used, (n + 16) * sizeof(float));
    return used;
}

static ifs_status rank(scratch *s, const float *boxes, const float *scores, const int32_t *class_ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const float *b = boxes + 5 * i;
        if (!(ifs__finite(b[0]) && ifs__finite(b[1]) && ifs__finite(b[2]) && ifs__finite(b[3]) && ifs__finite(b[4]) &&
              ifs__finite(scores[i])))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "box %zu is (%g, %g, %g, %g, %g) with score %g; NMS needs finite numbers, so leave this "
                             "box out",
                             i, (double)b[0], (double)b[1], (double)b[2], (double)b[3], (double)b[4],
                             (double)scores[i]);
        s->ranked[i] = (uint64_t)ifs__key_of_score(scores[i]) << 32 | i;
    }
    ifs__sort_keys(s->ranked, s->sorting, n);
    for (size_t place = 0; place < n; place++) {
        uint32_t class_id = class_ids ? (uint32_t)class_ids[(uint32_t)s->ranked[place]] : 0;
        s->groups[place] = (uint64_t)class_id << 32 | place;
    }
    if (class_ids)
        ifs__sort_keys(s->groups, s->sorting, n);
    for (size_t i = 0; i < n; i++) {
        const float *b = boxes + 5 * (size_t)(uint32_t)s->ranked[(uint32_t)s->groups[i]];
        const ifs__oriented box = ifs__oriented_of(b[0], b[1], b[2], b[3], b[4]);
        s->boxes.x[i] = box.x;
        s->boxes.y[i] = box.y;
        s->boxes.a[i] = box.a;
        s->boxes.b[i] = box.b;
        s->boxes.c[i] = box.c;
        s->boxes.root[i] = box.root;
    }
    return IFS_OK;
}

static void suppress(scratch *s, size_t n, float iou_threshold) {
    const ifs__oriented_boxes *boxes = &s->boxes;
    const ifs__oriented_limit limit = ifs__oriented_limit_of(iou_threshold);
    ifs__oriented_suppressed_fn *suppressed = IFS__VARIANT_AVX2(ifs__oriented_suppressed);
    for (size_t i = 0, first = 0; i < n; i++) {
        if (s->groups[i] >> 32 != s->groups[first] >> 32)
            first = i;
        const ifs__oriented box = {boxes->x[i], boxes->y[i], boxes->a[i], boxes->b[i], boxes->c[i], boxes->root[i]};
        s->kept[(uint32_t)s->groups[i]] = !suppressed(boxes, first, i - first, box, limit);
    }
}

ifs_status ifs_nms_oriented(const float *boxes, const float *scores, const int32_t *class_ids, int64_t n,
                            float iou_threshold, int64_t *keep, int64_t *count) {
    if (n < 0 || n > INT32_MAX)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "NMS over %lld boxes; the number must be 0 to %d", (long long)n,
                         INT32_MAX);
    if (!count || (n && (!boxes || !scores || !keep)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "boxes, scores, keep or count is NULL");
    if (!(iou_threshold >= 0 && iou_threshold <= 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "iou_threshold is %g; it must be 0 to 1", (double)iou_threshold);
    scratch s;
    const size_t size = lay_out(&s, NULL, (size_t)n);
    char *block = ifs__aligned_alloc(size);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of scratch memory for NMS of %lld boxes",
                         size, (long long)n);
    lay_out(&s, block, (size_t)n);
    ifs_status status = rank(&s, boxes, scores, class_ids, (size_t)n);
    if (status == IFS_OK) {
        suppress(&s, (size_t)n, iou_threshold);
        int64_t kept = 0;
        for (size_t place = 0; place < (size_t)n; place++)
            if (s.kept[place])
                keep[kept++] = (uint32_t)s.ranked[place];
        *count = kept;
    }
    ifs__aligned_free(block);
    return status;
}
