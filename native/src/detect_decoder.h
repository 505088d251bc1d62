/*
 * detect_decoder.h - the decoder of the host, which detect.c and detect_raw.c share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_DETECT_DECODER_H
#define IFS_DETECT_DECODER_H

#include "detect.h"
#include "detect_scan.h"
#include "in_use.h"
#include "nms.h"

/* Neighbouring classes that count. */
typedef struct ifs__class_run {
    size_t first, count;
} ifs__class_run;

/* What the last convolution of a level makes of its features, in the order in which it is read here. */
typedef struct ifs__features {
    float *objectness; /* [anchors][features] */
    float *weights;    /* [anchors][features][values] */
    float *bias;       /* [anchors][values] */
} ifs__features;

struct ifs_detection_decoder {
    atomic_bool in_use; /* by the thread that decodes */
    ifs_detect_params params;
    ifs__class_run *runs; /* [num_runs] ascending */
    size_t num_runs;
    float *row;         /* [1 + classes] an anchor's scores as float32, where the output does not hold them so */
    uint16_t *halves;   /* [classes] */
    int32_t *class_ids; /* [classes] results of products_above */
    float *scores;      /* [classes] */
    uint64_t *keys;     /* [keys_size] candidates */
    size_t keys_size, num_keys;
    uint64_t *scratch; /* [scratch_size] for the sort */
    size_t scratch_size;
    ifs__nms nms;
    ifs_raw_head raw; /* num_levels is 0 for a decoder of decoded outputs */
    int32_t first_row[IFS_MAX_LEVELS + 1]; /* of each level of `raw`, and their sum */
    float logit_limit;                     /* below it, no sigmoid is above the threshold */
    float *columns;                        /* [IFS__RAW_BLOCK * classes] class logits of some positions of `raw` */
    ifs__features features[IFS_MAX_LEVELS]; /* NULL for a level that is a map */
    float *objectness; /* [anchors][positions] logits of the level that is scanned; for features alone, as the next */
    float *values;     /* [values] logits of one box */
    float *boxes;      /* [num_anchors][4] logits of the boxes that were scanned */
};

#define IFS__RAW_BLOCK 16 /* positions whose classes are read together: those of a cache line */

/* One image's output, and the position of an anchor's numbers in it. */
typedef struct ifs__detect_view ifs__detect_view;
struct ifs__detect_view {
    const ifs_detect_params *params;
    const ifs__scan *scan; /* of the variant in use */
    ifs__box (*box)(const ifs__detect_view *v, int32_t anchor); /* in pixels of the canvas */
    const void *output;
    size_t row_length;                   /* elements from a row to the next */
    int32_t first_cell[IFS_MAX_STRIDES]; /* YOLOX: the first anchor of each grid */
    int32_t grid_width[IFS_MAX_STRIDES];
    const ifs_detection_decoder *decoder; /* of a raw head */
    const void *const *maps;              /* of a raw head */
};

/* Adds the candidates of one anchor whose objectness (1 for a head without) is above the threshold. */
ifs_status ifs__scan_anchor(ifs_detection_decoder *d, const ifs__detect_view *v, int32_t anchor, const float *classes,
                            float objectness);

/* The same of the logits of classes, which it changes to their sigmoids. */
static inline ifs_status ifs__scan_logits(ifs_detection_decoder *d, const ifs__detect_view *v, int32_t anchor,
                                          float *classes, float objectness) {
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++)
        v->scan->sigmoids(classes + run->first, run->count);
    return ifs__scan_anchor(d, v, anchor, classes, objectness);
}

/* The same for all anchors of a raw head that may be above the threshold. */
ifs_status ifs__scan_raw(ifs_detection_decoder *d, const ifs__detect_view *v);

/* That the levels are those of the parameters' head. */
ifs_status ifs__check_raw_head(const ifs_detect_params *params, const ifs_raw_head *raw);

/* Makes the decoder one of these levels, which were checked. False where there is no memory. */
bool ifs__set_raw_head(ifs_detection_decoder *d, const ifs_raw_head *raw);

/* The numbers of a box of YOLOV5: x, y, width, height, objectness, classes, extra. */
static inline size_t ifs__yolov5_values(const ifs_detect_params *p) {
    return 5 + (size_t)p->num_classes + (size_t)p->num_extra;
}

/* Copies the weights of the levels that are features. False where there is no memory. */
bool ifs__set_features(ifs_detection_decoder *d, const ifs_raw_head *raw);
void ifs__free_features(ifs_detection_decoder *d);

/* Computes the objectness of all boxes of a level of features, for ifs__scan_features. */
void ifs__weigh_objectness(ifs_detection_decoder *d, const ifs__detect_view *v, int level);

/* Scans up to IFS__COLUMNS positions from `start` on of one anchor of a level of features. */
ifs_status ifs__scan_features(ifs_detection_decoder *d, const ifs__detect_view *v, int level, size_t anchor,
                              size_t start, size_t width);

/* How many maps a raw head has. */
int32_t ifs__raw_maps(const ifs_detect_params *params, const ifs_raw_head *raw);

/* The box of a row of a raw head, in pixels of the canvas. */
ifs__box ifs__raw_box(const ifs__detect_view *v, int32_t row);

#endif
