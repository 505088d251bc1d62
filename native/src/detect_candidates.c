/*
 * detect_candidates.c - the classes of an anchor that are above the threshold.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Where several classes of an anchor have the best score, the lowest one wins. With a single label, scores that are not
 * finite are ignored.
 */
#include "detect_decoder.h"
#include "sort.h"

#include <math.h>

static inline void add_candidate(ifs_detection_decoder *d, float score, int32_t anchor, int32_t class_id) {
    uint32_t payload = (uint32_t)anchor * (uint32_t)d->params.num_classes + (uint32_t)class_id;
    d->keys[d->num_keys++] = (uint64_t)ifs__key_of_score(score) << 32 | payload;
}

static ifs_status reserve_candidates(ifs_detection_decoder *d, size_t n) {
    return ifs__grow((void **)&d->keys, &d->keys_size, d->num_keys + n, d->num_keys, sizeof *d->keys);
}

/* Adds a candidate for each class of an anchor whose score is above the threshold. */
static inline ifs_status add_classes(ifs_detection_decoder *d, const ifs__detect_view *v, int32_t anchor,
                                     const float *classes, float objectness) {
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++) {
        size_t n = v->scan->products_above(classes + run->first, run->count, objectness, d->params.conf_threshold,
                                           d->class_ids, d->scores);
        if (n == 0)
            continue;
        if (!ifs__box_finite(v->box(v, anchor)))
            return IFS_OK;
        IFS__TRY(reserve_candidates(d, n));
        for (size_t i = 0; i < n; i++)
            add_candidate(d, d->scores[i], anchor, (int32_t)run->first + d->class_ids[i]);
    }
    return IFS_OK;
}

/* The largest finite product of a run; -inf if there is none. */
static float best_finite(const float *classes, const ifs__class_run *run, float objectness) {
    float best = -INFINITY;
    for (size_t i = run->first; i < run->first + run->count; i++)
        if (ifs__finite(classes[i] * objectness))
            best = ifs__max(classes[i] * objectness, best);
    return best;
}

static inline float best_of_run(const ifs__detect_view *v, const float *classes, const ifs__class_run *run,
                                float objectness) {
    float best = v->scan->best_product(classes + run->first, run->count, objectness);
    return ifs__finite(best) ? best : best_finite(classes, run, objectness);
}

/* Adds a candidate for the best class of an anchor, if its score is above the threshold. */
static inline ifs_status add_best_class(ifs_detection_decoder *d, const ifs__detect_view *v, int32_t anchor,
                                        const float *classes, float objectness) {
    const ifs__class_run *run = d->runs;
    float best = best_of_run(v, classes, run, objectness);
    for (size_t i = 1; i < d->num_runs; i++) {
        float product = best_of_run(v, classes, &d->runs[i], objectness);
        if (product > best) {
            best = product;
            run = &d->runs[i];
        }
    }
    if (!(best > d->params.conf_threshold) || !ifs__box_finite(v->box(v, anchor)))
        return IFS_OK;
    IFS__TRY(reserve_candidates(d, 1));
    size_t class_id = run->first + v->scan->find_product(classes + run->first, run->count, objectness, best);
    add_candidate(d, best, anchor, (int32_t)class_id);
    return IFS_OK;
}

ifs_status ifs__scan_anchor(ifs_detection_decoder *d, const ifs__detect_view *v, int32_t anchor, const float *classes,
                            float objectness) {
    if (d->params.multi_label)
        return add_classes(d, v, anchor, classes, objectness);
    return add_best_class(d, v, anchor, classes, objectness);
}
