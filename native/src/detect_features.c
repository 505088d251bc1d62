/*
 * detect_features.c - the values of YOLOv5's boxes, of the features that its last convolutions have.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Of 85 values of a box the objectness alone decides for nearly all boxes, so it is all that is computed of them. A
 * network that ends here is spared 84 of 85 parts of its last convolutions, and writes fewer channels.
 */
#include "detect_decoder.h"

#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

/* Copies the weights of one level, [anchors * values][features]. */
static bool set_level(ifs__features *to, const ifs_detect_level *level, size_t values) {
    size_t anchors = (size_t)level->num_anchors, features = (size_t)level->num_features;
    to->objectness = malloc(anchors * features * sizeof(float));
    to->weights = malloc(anchors * features * values * sizeof(float));
    to->bias = calloc(anchors * values, sizeof(float));
    if (!to->objectness || !to->weights || !to->bias)
        return false;
    if (level->bias)
        memcpy(to->bias, level->bias, anchors * values * sizeof(float));
    for (size_t a = 0; a < anchors; a++)
        for (size_t i = 0; i < values; i++)
            for (size_t k = 0; k < features; k++) {
                float weight = level->weights[(a * values + i) * features + k];
                to->weights[(a * features + k) * values + i] = weight;
                if (i == 4)
                    to->objectness[a * features + k] = weight;
            }
    return true;
}

bool ifs__set_features(ifs_detection_decoder *d, const ifs_raw_head *raw) {
    size_t values = ifs__yolov5_values(&d->params), most = 0;
    for (int i = 0; i < raw->num_levels; i++) {
        if (!raw->levels[i].num_features)
            continue;
        if (!set_level(&d->features[i], &raw->levels[i], values))
            return false;
        size_t rows = (size_t)(d->first_row[i + 1] - d->first_row[i]);
        most = rows > most ? rows : most;
    }
    if (!most)
        return true;
    d->objectness = malloc(most * sizeof(float));
    d->values = malloc(values * sizeof(float));
    d->boxes = malloc((size_t)d->params.num_anchors * 4 * sizeof(float));
    return d->objectness && d->values && d->boxes;
}

void ifs__free_features(ifs_detection_decoder *d) {
    for (int i = 0; i < IFS_MAX_LEVELS; i++) {
        free(d->features[i].objectness);
        free(d->features[i].weights);
        free(d->features[i].bias);
    }
    free(d->objectness);
    free(d->values);
    free(d->boxes);
}

/* ---- the scan ---- */

/* So many positions of so many features are read at a time: neighbours, which come quickly from memory, and few enough
 * to stay in the first cache for all anchors. */
#define POSITIONS 512
#define FEATURES 8

void ifs__weigh_objectness(ifs_detection_decoder *d, const ifs__detect_view *v, int level) {
    const ifs_detect_level *l = &d->raw.levels[level];
    const ifs__features *f = &d->features[level];
    const float *map = v->maps[level];
    size_t plane = (size_t)l->width * (size_t)l->height, features = (size_t)l->num_features,
           anchors = (size_t)l->num_anchors, values = ifs__yolov5_values(&d->params);
    for (size_t a = 0; a < anchors; a++)
        for (size_t i = 0; i < plane; i++)
            d->objectness[a * plane + i] = f->bias[a * values + 4];
    for (size_t start = 0; start < plane; start += POSITIONS) {
        size_t width = plane - start < POSITIONS ? plane - start : POSITIONS;
        for (size_t k = 0; k < features; k += FEATURES) {
            size_t count = features - k < FEATURES ? features - k : FEATURES;
            for (size_t a = 0; a < anchors; a++)
                v->scan->add_weighted(f->objectness + a * features + k, 1, map + k * plane + start, plane, count, width,
                                      d->objectness + a * plane + start);
        }
    }
}

ifs_status ifs__scan_features(ifs_detection_decoder *d, const ifs__detect_view *v, int level, size_t anchor,
                              size_t start, size_t width) {
    const ifs_detect_level *l = &d->raw.levels[level];
    const ifs__features *f = &d->features[level];
    size_t plane = (size_t)l->width * (size_t)l->height, features = (size_t)l->num_features,
           values = ifs__yolov5_values(&d->params);
    const float *logits = d->objectness + anchor * plane + start;
    for (uint64_t mask = v->scan->columns(logits, IFS_FLOAT32, plane, 1, width, d->logit_limit); mask;
         mask &= mask - 1) {
        size_t at = (size_t)__builtin_ctzll(mask);
        float objectness = ifs__sigmoid(logits[at]);
        if (!(objectness > d->params.conf_threshold))
            continue;
        int32_t row = d->first_row[level] + (int32_t)(anchor * plane + start + at);
        memcpy(d->values, f->bias + anchor * values, values * sizeof(float));
        v->scan->add_weighted((const float *)v->maps[level] + start + at, plane,
                              f->weights + anchor * features * values, values, features, values, d->values);
        memcpy(d->boxes + 4 * (size_t)row, d->values, 4 * sizeof(float));
        IFS__TRY(ifs__scan_logits(d, v, row, d->values + 5, objectness));
    }
    return IFS_OK;
}
