/*
 * detect.c - from a network's output to the boxes of an image.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * There are three steps. The scan finds the candidates, each of them a key: its score, then anchor * num_classes +
 * class. The sort puts the best first, and max_candidates of them are kept. NMS chooses among these. Boxes are decoded
 * twice, first to check that they are finite and then, in order, for NMS; that is cheaper than moving them in the sort.
 *
 * A class mask is kept as runs of neighbouring classes that count. The scans look at one run after another, so that
 * each of their variants serves masks too, and classes that do not count are not even read. Without a mask there is one
 * run.
 *
 * A box of zero or negative size is a candidate: it overlaps nothing, so it neither suppresses nor is suppressed, and
 * its edges come out in order.
 */
#include "detect_decoder.h"
#include "sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters ---- */

static ifs_status check_range(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high)
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s is %lld; it must be %lld to %lld", name, (long long)value,
                     (long long)low, (long long)high);
}

static ifs_status check_threshold(const char *name, float value) {
    if (value >= 0 && value <= 1)
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s is %g; it must be 0 to 1", name, (double)value);
}

ifs_status ifs__check_detect_params(const ifs_detect_params *p) {
    IFS__TRY(check_range("head", p->head, IFS_DETECT_HEAD_YOLOV5, IFS_DETECT_HEAD_YOLOX));
    if (p->dtype != IFS_FLOAT32 && p->dtype != IFS_FLOAT16)
        return ifs__fail(IFS_ERR_DTYPE, "dtype is %d; use IFS_FLOAT32 (%d) or IFS_FLOAT16 (%d)", (int)p->dtype,
                         IFS_FLOAT32, IFS_FLOAT16);
    IFS__TRY(check_range("num_classes", p->num_classes, 1, INT32_MAX));
    IFS__TRY(check_range("num_anchors", p->num_anchors, 1, INT32_MAX));
    IFS__TRY(check_range("num_extra", p->num_extra, 0, INT32_MAX));
    if (((int64_t)p->num_classes + p->num_extra + 5) > INT32_MAX / p->num_anchors)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "an output of %d anchors, %d classes and %d extra numbers has more than %d elements",
                         (int)p->num_anchors, (int)p->num_classes, (int)p->num_extra, INT32_MAX);
    IFS__TRY(check_range("multi_label", p->multi_label, 0, 1));
    IFS__TRY(check_range("class_agnostic", p->class_agnostic, 0, 1));
    IFS__TRY(check_range("max_candidates", p->max_candidates, 0, INT32_MAX));
    IFS__TRY(check_range("max_detections", p->max_detections, 1, INT32_MAX));
    IFS__TRY(check_threshold("conf_threshold", p->conf_threshold));
    IFS__TRY(check_threshold("iou_threshold", p->iou_threshold));
    bool grids = p->head == IFS_DETECT_HEAD_YOLOX;
    if (grids ? p->num_strides < 1 || p->num_strides > IFS_MAX_STRIDES : p->num_strides != 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "num_strides is %d; it must be 1 to %d for YOLOX, and 0 for other heads", (int)p->num_strides,
                         IFS_MAX_STRIDES);
    for (int i = 0; i < p->num_strides; i++)
        IFS__TRY(check_range("a stride", p->strides[i], 1, 1 << 16));
    if (p->class_mask && !memchr(p->class_mask, 1, (size_t)p->num_classes))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "class_mask chooses none of the %d classes", (int)p->num_classes);
    return IFS_OK;
}

ifs_status ifs__check_detect_geometry(const ifs_detect_params *p, const ifs_geometry *geometry) {
    if (geometry->source_width < 1 || geometry->source_height < 1)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the geometry's source is %d x %d pixels; make the geometry by ifs_geometry_...",
                         (int)geometry->source_width, (int)geometry->source_height);
    for (int i = 0; i < 6; i++)
        if (!isfinite(geometry->to_source[i]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the geometry's to_source[%d] is %g; it must be finite", i,
                             geometry->to_source[i]);
    if (p->num_strides && (geometry->canvas_width < 1 || geometry->canvas_height < 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the geometry's canvas is %d x %d pixels; make the geometry by ifs_geometry_...",
                         (int)geometry->canvas_width, (int)geometry->canvas_height);
    int64_t cells = 0;
    for (int i = 0; i < p->num_strides; i++)
        cells += (int64_t)(geometry->canvas_width / p->strides[i]) * (geometry->canvas_height / p->strides[i]);
    if (p->num_strides && cells != p->num_anchors)
        return ifs__fail(IFS_ERR_SHAPE, "the grids of a %d x %d canvas have %lld cells, but the head has %d anchors",
                         (int)geometry->canvas_width, (int)geometry->canvas_height, (long long)cells,
                         (int)p->num_anchors);
    return IFS_OK;
}

/* The runs of a mask, or of all classes; their number. With `runs` of NULL, it only counts them. */
static size_t runs_of(const uint8_t *mask, size_t num_classes, ifs__class_run *runs) {
    size_t n = 0;
    for (size_t c = 0; c < num_classes; c++) {
        if (mask && mask[c] != 1)
            continue;
        size_t first = c;
        c = mask ? c + 1 : num_classes;
        while (c < num_classes && mask[c] == 1)
            c++;
        if (runs)
            runs[n] = (ifs__class_run){first, c - first};
        n++;
    }
    return n;
}

static ifs_status create(const ifs_detect_params *params, const ifs_raw_head *raw, ifs_detection_decoder **out) {
    ifs_detection_decoder *d = calloc(1, sizeof *d);
    if (d) {
        size_t classes = (size_t)params->num_classes;
        d->params = *params;
        d->params.class_mask = NULL; /* the caller's */
        d->num_runs = runs_of(params->class_mask, classes, NULL);
        d->runs = malloc(d->num_runs * sizeof *d->runs);
        d->row = malloc((classes + 1) * sizeof *d->row);
        d->halves = malloc(classes * sizeof *d->halves);
        d->class_ids = malloc(classes * sizeof *d->class_ids);
        d->scores = malloc(classes * sizeof *d->scores);
        d->columns = malloc((raw ? IFS__RAW_BLOCK * classes : 1) * sizeof *d->columns);
    }
    if (!d || !d->runs || !d->row || !d->halves || !d->class_ids || !d->scores || !d->columns ||
        (raw && !ifs__set_raw_head(d, raw))) {
        ifs_detection_decoder_destroy(d);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate a decoder of %d classes", (int)params->num_classes);
    }
    runs_of(params->class_mask, (size_t)params->num_classes, d->runs);
    *out = d;
    return IFS_OK;
}

ifs_status ifs_detection_decoder_create(const ifs_detect_params *params, ifs_detection_decoder **out) {
    IFS__TRY(ifs__check_detect_params(params));
    return create(params, NULL, out);
}

ifs_status ifs_detection_decoder_create_raw(const ifs_detect_params *params, const ifs_raw_head *raw,
                                            ifs_detection_decoder **out) {
    IFS__TRY(ifs__check_detect_params(params));
    IFS__TRY(ifs__check_raw_head(params, raw));
    return create(params, raw, out);
}

void ifs_detection_decoder_destroy(ifs_detection_decoder *decoder) {
    if (!decoder)
        return;
    free(decoder->runs);
    free(decoder->row);
    free(decoder->halves);
    free(decoder->class_ids);
    free(decoder->scores);
    free(decoder->keys);
    free(decoder->scratch);
    free(decoder->columns);
    ifs__free_features(decoder);
    ifs__nms_release(&decoder->nms);
    free(decoder);
}

/* ---- one output ---- */

static ifs__box decode(const ifs__detect_view *v, int32_t anchor) {
    size_t first = (size_t)anchor, step = v->row_length;
    if (v->params->head != IFS_DETECT_HEAD_YOLOV8) {
        first *= v->row_length;
        step = 1;
    }
    const int32_t dtype = v->params->dtype;
    float x = ifs__element(v->output, dtype, first), y = ifs__element(v->output, dtype, first + step);
    float w = ifs__element(v->output, dtype, first + 2 * step), h = ifs__element(v->output, dtype, first + 3 * step);
    if (v->params->head != IFS_DETECT_HEAD_YOLOX)
        return ifs__box_of_center(x, y, w, h);
    int level = v->params->num_strides - 1;
    while (anchor < v->first_cell[level])
        level--;
    int32_t cell = anchor - v->first_cell[level], width = v->grid_width[level];
    return ifs__box_of_cell(x, y, w, h, cell % width, cell / width, v->params->strides[level]);
}

static ifs__detect_view view_of(const ifs_detect_params *p, const void *output, const ifs_geometry *geometry) {
    size_t row_length =
        p->head == IFS_DETECT_HEAD_YOLOV8 ? (size_t)p->num_anchors : 5 + (size_t)p->num_classes + (size_t)p->num_extra;
    ifs__detect_view v = {
        .params = p, .scan = ifs__scan_best(), .box = decode, .output = output, .row_length = row_length};
    int32_t cells = 0;
    for (int i = 0; i < p->num_strides; i++) {
        v.first_cell[i] = cells;
        v.grid_width[i] = geometry->canvas_width / p->strides[i];
        cells += v.grid_width[i] * (geometry->canvas_height / p->strides[i]);
    }
    return v;
}

/* ---- the scan ---- */

#define ROWS 1024 /* scanned for objectness, then for classes: both scans find them in the cache */

static ifs_status scan_rows(ifs_detection_decoder *d, const ifs__detect_view *v) {
    size_t num_anchors = (size_t)d->params.num_anchors, length = v->row_length;
    size_t num_scores = 1 + (size_t)d->params.num_classes;
    int32_t hits[ROWS], dtype = d->params.dtype;
    for (size_t start = 0; start < num_anchors; start += ROWS) {
        size_t rows = num_anchors - start < ROWS ? num_anchors - start : ROWS, first = start * length + 4;
        size_t n = v->scan->objectness(ifs__element_at(v->output, dtype, first), dtype, length, rows,
                                       d->params.conf_threshold, hits);
        for (size_t i = 0; i < n; i++) {
            const void *at = ifs__element_at(v->output, dtype, first + (size_t)hits[i] * length);
            if (dtype == IFS_FLOAT16)
                ifs__halves_to_floats(at, d->row, num_scores);
            const float *scores = dtype == IFS_FLOAT16 ? d->row : at;
            IFS__TRY(ifs__scan_anchor(d, v, (int32_t)start + hits[i], scores + 1, scores[0]));
        }
    }
    return IFS_OK;
}

/* Copies the scores of one anchor of YOLOv8, which lie a row apart in the output, to d->row: those that count. */
static void copy_column(ifs_detection_decoder *d, const ifs__detect_view *v, size_t first) {
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++) {
        size_t at = first + run->first * v->row_length, n = run->count;
        float *row = d->row + run->first;
        if (d->params.dtype == IFS_FLOAT32) {
            const float *column = (const float *)v->output + at;
            for (size_t c = 0; c < n; c++)
                row[c] = column[c * v->row_length];
            continue;
        }
        const uint16_t *column = (const uint16_t *)v->output + at;
        for (size_t c = 0; c < n; c++)
            d->halves[c] = column[c * v->row_length];
        ifs__halves_to_floats(d->halves, row, n);
    }
}

/* The anchors, of `width` from `start` on, with a score above the threshold: one bit for each. */
static uint64_t columns_above(const ifs_detection_decoder *d, const ifs__detect_view *v, size_t start, size_t width) {
    size_t num_anchors = (size_t)d->params.num_anchors;
    uint64_t mask = 0;
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++) {
        const void *first = ifs__element_at(v->output, d->params.dtype, (4 + run->first) * num_anchors + start);
        mask |= v->scan->columns(first, d->params.dtype, num_anchors, run->count, width, d->params.conf_threshold);
    }
    return mask;
}

static ifs_status scan_columns(ifs_detection_decoder *d, const ifs__detect_view *v) {
    size_t num_anchors = (size_t)d->params.num_anchors;
    for (size_t start = 0; start < num_anchors; start += IFS__COLUMNS) {
        size_t width = num_anchors - start < IFS__COLUMNS ? num_anchors - start : IFS__COLUMNS;
        for (uint64_t mask = columns_above(d, v, start, width); mask; mask &= mask - 1) {
            size_t anchor = start + (size_t)__builtin_ctzll(mask);
            copy_column(d, v, 4 * num_anchors + anchor);
            IFS__TRY(ifs__scan_anchor(d, v, (int32_t)anchor, d->row, 1.0f));
        }
    }
    return IFS_OK;
}

/* ---- a run ---- */

/* From the candidates to the boxes. */
static ifs_status finish_run(ifs_detection_decoder *d, const ifs__detect_view *v, const ifs_geometry *geometry,
                             ifs_detection *out, int32_t *count, ifs_detect_stats *stats) {
    const ifs_detect_params *p = &d->params;
    size_t n = d->num_keys;
    IFS__TRY(ifs__grow((void **)&d->scratch, &d->scratch_size, n, 0, sizeof *d->scratch));
    ifs__sort_keys(d->keys, d->scratch, n);
    ifs_detect_stats result = {(int64_t)n, 0, 0, 0};
    if (p->max_candidates && n > (size_t)p->max_candidates) {
        n = (size_t)p->max_candidates;
        result.dropped_candidates = result.candidates - p->max_candidates;
    }

    IFS__TRY(ifs__nms_reserve(&d->nms, n));
    for (size_t rank = 0; rank < n; rank++) {
        uint32_t payload = (uint32_t)d->keys[rank];
        d->nms.boxes[rank] = v->box(v, (int32_t)(payload / (uint32_t)p->num_classes));
        d->nms.class_ids[rank] = (int32_t)(payload % (uint32_t)p->num_classes);
    }
    IFS__TRY(
        ifs__nms_match(&d->nms, n, !p->class_agnostic && p->num_classes > 1, IFS_MATCH_IOU, p->iou_threshold, false));

    for (size_t rank = 0; rank < n; rank++) {
        if (!d->nms.kept[rank] || result.kept++ >= p->max_detections)
            continue;
        ifs__box box = ifs__box_to_source(d->nms.boxes[rank], geometry->to_source, geometry->source_width,
                                          geometry->source_height);
        uint64_t key = d->keys[rank];
        *out++ = (ifs_detection){.x1 = box.x1,
                                 .y1 = box.y1,
                                 .x2 = box.x2,
                                 .y2 = box.y2,
                                 .score = ifs__score_of_key((uint32_t)(key >> 32)),
                                 .class_id = d->nms.class_ids[rank],
                                 .row = (int32_t)((uint32_t)key / (uint32_t)p->num_classes)};
    }
    result.dropped_detections = result.kept > p->max_detections ? result.kept - p->max_detections : 0;
    *count = (int32_t)(result.kept - result.dropped_detections);
    if (stats)
        *stats = result;
    return IFS_OK;
}

/* The scan and what follows, by one thread at a time. */
static ifs_status run_alone(ifs_detection_decoder *d, const ifs__detect_view *v, const ifs_geometry *geometry,
                            ifs_detection *out, int32_t *count, ifs_detect_stats *stats) {
    IFS__TRY(ifs__begin_use(&d->in_use, "a detection decoder", "give each thread a decoder of its own, or a lock"));
    d->num_keys = 0;
    ifs_status status = v->maps                                    ? ifs__scan_raw(d, v)
                        : d->params.head == IFS_DETECT_HEAD_YOLOV8 ? scan_columns(d, v)
                                                                   : scan_rows(d, v);
    if (status == IFS_OK)
        status = finish_run(d, v, geometry, out, count, stats);
    ifs__end_use(&d->in_use);
    return status;
}

ifs_status ifs_detection_decoder_run(ifs_detection_decoder *decoder, const void *output, const ifs_geometry *geometry,
                                     ifs_detection *out, int32_t *count, ifs_detect_stats *stats) {
    if (!output)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "output is NULL");
    IFS__TRY(ifs__check_detect_geometry(&decoder->params, geometry));
    if (decoder->raw.num_levels)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "this decoder is for the maps of a raw head; use "
                                                   "ifs_detection_decoder_run_raw");
    const ifs__detect_view v = view_of(&decoder->params, output, geometry);
    return run_alone(decoder, &v, geometry, out, count, stats);
}

ifs_status ifs_detection_decoder_run_raw(ifs_detection_decoder *decoder, const void *const *maps,
                                         const ifs_geometry *geometry, ifs_detection *out, int32_t *count,
                                         ifs_detect_stats *stats) {
    IFS__TRY(ifs__check_detect_geometry(&decoder->params, geometry));
    const int32_t num_maps = ifs__raw_maps(&decoder->params, &decoder->raw);
    if (num_maps == 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "this decoder is for a decoded output; use "
                                                   "ifs_detection_decoder_run");
    for (int32_t i = 0; i < num_maps; i++)
        if (!maps[i])
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "maps[%d] is NULL", (int)i);
    const ifs__detect_view v = {
        .params = &decoder->params, .scan = ifs__scan_best(), .box = ifs__raw_box, .decoder = decoder, .maps = maps};
    return run_alone(decoder, &v, geometry, out, count, stats);
}
