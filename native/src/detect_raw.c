/*
 * detect_raw.c - from the maps of a raw head to candidates, and to their boxes.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A sigmoid ascends, so logits are compared with a limit a little below the threshold's own logit, 64 positions at
 * once. Only what is above the limit is computed, and compared with the threshold itself. The classes of neighbouring
 * positions share cache lines, which is why those of a block are read together.
 */
#include "detect_decoder.h"

#include <math.h>

/* How much less than the threshold a sigmoid may be that is computed: more than the rounding of limit and sigmoid. */
#define MARGIN 1e-5

static ifs_status check_int(const char *name, int level, int64_t value, int64_t high) {
    if (value >= 1 && value <= high)
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "levels[%d].%s is %lld; it must be 1 to %lld", level, name,
                     (long long)value, (long long)high);
}

static ifs_status check_level(const ifs_detect_params *p, const ifs_detect_level *level, int index) {
    IFS__TRY(check_int("width", index, level->width, 1 << 16));
    IFS__TRY(check_int("height", index, level->height, 1 << 16));
    IFS__TRY(check_int("stride", index, level->stride, 1 << 16));
    bool grouped = p->head == IFS_DETECT_HEAD_YOLOV5;
    IFS__TRY(check_int("num_anchors", index, level->num_anchors, grouped ? IFS_MAX_CELL_ANCHORS : 1));
    if (level->num_features) {
        IFS__TRY(check_int("num_features", index, level->num_features, 1 << 16));
        if (!grouped || p->dtype != IFS_FLOAT32 || !level->weights)
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "levels[%d] has %d features; they need the head YOLOV5, float32, and weights", index,
                             (int)level->num_features);
    }
    for (int i = 0; grouped && i < 2 * level->num_anchors; i++)
        if (!(level->anchors[i] > 0 && ifs__finite(level->anchors[i])))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "levels[%d].anchors[%d] is %g; it must be above 0 and finite",
                             index, i, (double)level->anchors[i]);
    return IFS_OK;
}

ifs_status ifs__check_raw_head(const ifs_detect_params *p, const ifs_raw_head *raw) {
    if (p->head != IFS_DETECT_HEAD_YOLOV5 && p->head != IFS_DETECT_HEAD_YOLOV8)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "head %d has no raw form; use IFS_DETECT_HEAD_YOLOV5 or YOLOV8",
                         (int)p->head);
    if (raw->num_levels < 1 || raw->num_levels > IFS_MAX_LEVELS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "num_levels is %d; it must be 1 to %d", (int)raw->num_levels,
                         IFS_MAX_LEVELS);
    bool binned = p->head == IFS_DETECT_HEAD_YOLOV8;
    if (binned ? raw->num_bins < 1 || raw->num_bins > IFS_MAX_BINS : raw->num_bins != 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "num_bins is %d; it must be 1 to %d for YOLOV8, and 0 for YOLOV5",
                         (int)raw->num_bins, IFS_MAX_BINS);
    for (int i = 0; i < raw->num_bins; i++)
        if (!ifs__finite(raw->bins[i]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "bins[%d] is %g; it must be finite", i, (double)raw->bins[i]);
    if (binned && p->num_extra)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "num_extra is %d; the raw form of YOLOV8 has none",
                         (int)p->num_extra);
    int64_t rows = 0;
    for (int i = 0; i < raw->num_levels; i++) {
        IFS__TRY(check_level(p, &raw->levels[i], i));
        rows += (int64_t)raw->levels[i].width * raw->levels[i].height * raw->levels[i].num_anchors;
    }
    if (rows != p->num_anchors)
        return ifs__fail(IFS_ERR_SHAPE, "the levels have %lld rows, but num_anchors is %d", (long long)rows,
                         (int)p->num_anchors);
    return IFS_OK;
}

bool ifs__set_raw_head(ifs_detection_decoder *d, const ifs_raw_head *raw) {
    d->raw = *raw;
    for (int i = 0; i < raw->num_levels; i++) {
        ifs_detect_level *level = &d->raw.levels[i];
        level->weights = level->bias = NULL; /* the caller's */
        d->first_row[i + 1] = d->first_row[i] + level->width * level->height * level->num_anchors;
    }
    double below = (double)d->params.conf_threshold * (1 - MARGIN);
    d->logit_limit = below > 0 ? (float)log(below / (1 - below)) : -INFINITY;
    return ifs__set_features(d, raw);
}

int32_t ifs__raw_maps(const ifs_detect_params *p, const ifs_raw_head *raw) {
    return p->head == IFS_DETECT_HEAD_YOLOV8 ? 2 * raw->num_levels : raw->num_levels;
}

/* ---- boxes ---- */

/* The box of the logits in `map`, from `first` on. */
static ifs__box yolov5_box(const ifs_detect_level *level, const void *map, int32_t dtype, size_t first, size_t step,
                           size_t anchor, size_t position) {
    float s[4];
    for (size_t i = 0; i < 4; i++)
        s[i] = ifs__sigmoid(ifs__element(map, dtype, first + i * step)) * 2.0f;
    float stride = (float)level->stride, column = (float)(position % (size_t)level->width),
          row = (float)(position / (size_t)level->width);
    return ifs__box_of_center((s[0] + (column - 0.5f)) * stride, (s[1] + (row - 0.5f)) * stride,
                              s[2] * s[2] * level->anchors[2 * anchor], s[3] * s[3] * level->anchors[2 * anchor + 1]);
}

/* The mean of the bins, each with the share that the softmax of its logit gives it. */
static float mean_bin(const ifs_raw_head *raw, int32_t dtype, const void *map, size_t first, size_t plane) {
    float logits[IFS_MAX_BINS], highest = -INFINITY, sum = 0, weighted = 0;
    for (int32_t i = 0; i < raw->num_bins; i++) {
        logits[i] = ifs__element(map, dtype, first + (size_t)i * plane);
        highest = ifs__max(logits[i], highest);
    }
    for (int32_t i = 0; i < raw->num_bins; i++) {
        float share = ifs__exp(logits[i] - highest);
        sum += share;
        weighted += share * raw->bins[i];
    }
    return weighted / sum;
}

static ifs__box yolov8_box(const ifs_raw_head *raw, int32_t dtype, const ifs_detect_level *level, const void *map,
                           size_t position) {
    size_t plane = (size_t)level->width * (size_t)level->height;
    float edges[4]; /* their distances: left, upper, right, lower */
    for (size_t i = 0; i < 4; i++)
        edges[i] = mean_bin(raw, dtype, map, i * (size_t)raw->num_bins * plane + position, plane);
    float stride = (float)level->stride, x = (float)(position % (size_t)level->width) + 0.5f,
          y = (float)(position / (size_t)level->width) + 0.5f;
    float x1 = x - edges[0], y1 = y - edges[1], x2 = x + edges[2], y2 = y + edges[3];
    return ifs__box_of_center((x1 + x2) * 0.5f * stride, (y1 + y2) * 0.5f * stride, (x2 - x1) * stride,
                              (y2 - y1) * stride);
}

ifs__box ifs__raw_box(const ifs__detect_view *v, int32_t row) {
    const ifs_detection_decoder *d = v->decoder;
    int i = d->raw.num_levels - 1;
    while (row < d->first_row[i])
        i--;
    const ifs_detect_level *level = &d->raw.levels[i];
    size_t index = (size_t)(row - d->first_row[i]), plane = (size_t)level->width * (size_t)level->height;
    if (d->params.head == IFS_DETECT_HEAD_YOLOV8)
        return yolov8_box(&d->raw, d->params.dtype, level, v->maps[2 * i], index);
    size_t anchor = index / plane, position = index % plane, values = ifs__yolov5_values(&d->params);
    if (level->num_features)
        return yolov5_box(level, d->boxes, IFS_FLOAT32, 4 * (size_t)row, 1, anchor, position);
    size_t first = anchor * values * plane + position;
    return yolov5_box(level, v->maps[i], d->params.dtype, first, plane, anchor, position);
}

/* ---- the scan ---- */

/* Which of `width` <= 64 neighbouring positions have a logit above the limit, in one of `count` planes: a bit each. */
static uint64_t positions_above(const ifs_detection_decoder *d, const ifs__detect_view *v, const void *map,
                                size_t first, size_t plane, size_t count, size_t width) {
    return v->scan->columns(ifs__element_at(map, d->params.dtype, first), d->params.dtype, plane, count, width,
                            d->logit_limit);
}

/* Copies the class logits of the positions in `mask`, the first of which is `first` in the plane of class 0, to
 * d->columns: one position after another, those classes that count. */
static void read_block(ifs_detection_decoder *d, const void *map, size_t first, size_t plane, uint32_t mask) {
    size_t classes = (size_t)d->params.num_classes;
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++)
        for (size_t c = run->first; c < run->first + run->count; c++) {
            float *to = d->columns + c;
            for (uint32_t rest = mask; rest; rest &= rest - 1, to += classes)
                *to = ifs__element(map, d->params.dtype, first + c * plane + (size_t)__builtin_ctz(rest));
        }
}

/* A block of positions whose logits are above the limit. */
typedef struct block {
    const void *map;
    size_t objectness; /* the index of the first position's logit in the map; YOLOV5 alone has one */
    size_t classes;    /* the same of class 0 */
    size_t plane;
    int32_t row; /* of the first position */
    uint32_t mask;
} block;

static ifs_status scan_block(ifs_detection_decoder *d, const ifs__detect_view *v, const block *b) {
    read_block(d, b->map, b->classes, b->plane, b->mask);
    float *classes = d->columns;
    for (uint32_t rest = b->mask; rest; rest &= rest - 1, classes += d->params.num_classes) {
        int32_t position = __builtin_ctz(rest);
        float objectness = 1.0f;
        if (d->params.head == IFS_DETECT_HEAD_YOLOV5) {
            objectness = ifs__sigmoid(ifs__element(b->map, d->params.dtype, b->objectness + (size_t)position));
            if (!(objectness > d->params.conf_threshold))
                continue;
        }
        IFS__TRY(ifs__scan_logits(d, v, b->row + position, classes, objectness));
    }
    return IFS_OK;
}

/* Scans 64 positions: those in `mask`, whose first one `b` describes. */
static ifs_status scan_blocks(ifs_detection_decoder *d, const ifs__detect_view *v, block b, uint64_t mask) {
    for (; mask; mask >>= IFS__RAW_BLOCK) {
        b.mask = (uint32_t)mask & ((1u << IFS__RAW_BLOCK) - 1);
        if (b.mask)
            IFS__TRY(scan_block(d, v, &b));
        b.objectness += IFS__RAW_BLOCK;
        b.classes += IFS__RAW_BLOCK;
        b.row += IFS__RAW_BLOCK;
    }
    return IFS_OK;
}

/* Scans the positions from `start` on of one anchor. Candidates have to come in the order of their rows. */
static ifs_status scan_yolov5(ifs_detection_decoder *d, const ifs__detect_view *v, int level, size_t anchor,
                              size_t start, size_t width) {
    const ifs_detect_level *l = &d->raw.levels[level];
    size_t plane = (size_t)l->width * (size_t)l->height;
    size_t objectness = (anchor * ifs__yolov5_values(&d->params) + 4) * plane + start;
    uint64_t mask = positions_above(d, v, v->maps[level], objectness, plane, 1, width);
    const block b = {v->maps[level],
                     objectness,
                     objectness + plane,
                     plane,
                     d->first_row[level] + (int32_t)(anchor * plane + start),
                     0};
    return scan_blocks(d, v, b, mask);
}

static ifs_status scan_yolov8(ifs_detection_decoder *d, const ifs__detect_view *v, int level, size_t start,
                              size_t width) {
    const ifs_detect_level *l = &d->raw.levels[level];
    size_t plane = (size_t)l->width * (size_t)l->height;
    const void *map = v->maps[2 * level + 1];
    uint64_t mask = 0;
    for (const ifs__class_run *run = d->runs; run < d->runs + d->num_runs; run++)
        mask |= positions_above(d, v, map, run->first * plane + start, plane, run->count, width);
    const block b = {map, 0, start, plane, d->first_row[level] + (int32_t)start, 0};
    return scan_blocks(d, v, b, mask);
}

ifs_status ifs__scan_raw(ifs_detection_decoder *d, const ifs__detect_view *v) {
    bool binned = d->params.head == IFS_DETECT_HEAD_YOLOV8;
    for (int level = 0; level < d->raw.num_levels; level++) {
        const ifs_detect_level *l = &d->raw.levels[level];
        size_t plane = (size_t)l->width * (size_t)l->height;
        if (l->num_features)
            ifs__weigh_objectness(d, v, level);
        for (size_t anchor = 0; anchor < (size_t)l->num_anchors; anchor++)
            for (size_t start = 0; start < plane; start += IFS__COLUMNS) {
                size_t width = plane - start < IFS__COLUMNS ? plane - start : IFS__COLUMNS;
                IFS__TRY(binned            ? scan_yolov8(d, v, level, start, width)
                         : l->num_features ? ifs__scan_features(d, v, level, anchor, start, width)
                                           : scan_yolov5(d, v, level, anchor, start, width));
            }
    }
    return IFS_OK;
}
