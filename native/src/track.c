/*
 * track.c - ByteTrack.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A state is the four edges and their velocities. Transition, process noise (0.01 I) and measurement noise (0.1 I)
 * treat the four edges alike and apart, and the first covariance is I. So the covariance of 8 x 8 consists of four
 * equal blocks of 2 x 2, and one of them is kept.
 */
#include "platform.h"
#include "track.h"
#include "in_use.h"
#include "sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double PROCESS_NOISE = 0.01, MEASUREMENT_NOISE = 0.1;

typedef struct track {
    double edge[4], velocity[4];
    double p00, p01, p11; /* the covariance of an edge and its velocity */
    int64_t id;
    int32_t lost;   /* frames since the last box */
    int32_t streak; /* boxes in consecutive frames */
} track;

/* Boxes with their areas, edge by edge. */
typedef struct edges {
    double *x1, *y1, *x2, *y2, *area;
} edges;

/* What an update works with: one block, which grows with the frames. */
typedef struct scratch {
    char *block;
    size_t nbytes;
    edges track_edges, box_edges;
    int32_t *tracks, *boxes;     /* the tracks and boxes of a round by index; then those that are left */
    int32_t *low;                /* the boxes of the second round */
    int32_t *column_of, *box_of; /* the assignment, by row and by track */
    float *costs;                /* -IoU; of fewer tracks than boxes [tracks, boxes], else [boxes, tracks] */
    void *assign;
} scratch;

struct ifs_tracker {
    ifs_tracker_params params;
    atomic_bool in_use;
    track *tracks;
    size_t count, capacity;
    int64_t next_id;
    scratch scratch;
};

/* ---- the Kalman filter ---- */

static void predict(track *t) {
    for (int k = 0; k < 4; k++)
        t->edge[k] += t->velocity[k];
    t->p00 = (t->p00 + t->p01) + (t->p01 + t->p11) + PROCESS_NOISE;
    t->p01 += t->p11;
    t->p11 += PROCESS_NOISE;
    if (t->lost > 0)
        t->streak = 0;
    t->lost++;
}

static void correct(track *t, const ifs_detection *box) {
    const double measured[4] = {box->x1, box->y1, box->x2, box->y2}, inverse = 1 / (t->p00 + MEASUREMENT_NOISE);
    const double gain = t->p00 * inverse, gain_v = t->p01 * inverse, rest = 1 - gain;
    for (int k = 0; k < 4; k++) {
        const double innovation = measured[k] - t->edge[k];
        t->edge[k] += gain * innovation;
        t->velocity[k] += gain_v * innovation;
    }
    /* Joseph's form, (I - K H) P (I - K H)' + K R K' */
    const double a00 = rest * t->p00, a01 = rest * t->p01, a10 = t->p01 - gain_v * t->p00,
                 a11 = t->p11 - gain_v * t->p01;
    t->p00 = a00 * rest + gain * MEASUREMENT_NOISE * gain;
    t->p01 = a01 - a00 * gain_v + gain * MEASUREMENT_NOISE * gain_v;
    t->p11 = a11 - a10 * gain_v + gain_v * MEASUREMENT_NOISE * gain_v;
    t->lost = 0;
    t->streak++;
}

/* ---- association ---- */

static void add_edges(const edges *e, size_t i, double x1, double y1, double x2, double y2) {
    e->x1[i] = x1, e->y1[i] = y1, e->x2[i] = x2, e->y2[i] = y2;
    e->area[i] = (x2 - x1) * (y2 - y1);
}

/* The costs of box `i` of `rows` and each box of `columns`. */
static void fill_costs(const edges *rows, size_t i, const edges *columns, size_t count, float *costs) {
    const double x1 = rows->x1[i], y1 = rows->y1[i], x2 = rows->x2[i], y2 = rows->y2[i], area = rows->area[i];
    for (size_t j = 0; j < count; j++) {
        const double right = x2 < columns->x2[j] ? x2 : columns->x2[j],
                     left = x1 > columns->x1[j] ? x1 : columns->x1[j];
        const double low = y2 < columns->y2[j] ? y2 : columns->y2[j], top = y1 > columns->y1[j] ? y1 : columns->y1[j];
        const double width = right - left, height = low - top, both = width * height;
        const double either = area + columns->area[j] - both;
        costs[j] = width > 0 && height > 0 && either > 0 ? -(float)(both / either) : 0;
    }
}

/* One round: gives boxes of `s->boxes` to tracks of `s->tracks`. The tracks and boxes that are left stay there, in
 * their order. */
static void associate(ifs_tracker *t, const ifs_detection *boxes, size_t *num_tracks, size_t *num_boxes,
                      int64_t *track_ids) {
    scratch *s = &t->scratch;
    const size_t n = *num_tracks, m = *num_boxes;
    if (!n || !m)
        return;
    for (size_t i = 0; i < n; i++) {
        const double *e = t->tracks[s->tracks[i]].edge;
        add_edges(&s->track_edges, i, e[0], e[1], e[2], e[3]);
        s->box_of[i] = -1;
    }
    for (size_t i = 0; i < m; i++) {
        const ifs_detection *b = &boxes[s->boxes[i]];
        add_edges(&s->box_edges, i, b->x1, b->y1, b->x2, b->y2);
    }
    const bool wide = n <= m;
    const size_t rows = wide ? n : m, columns = wide ? m : n;
    const edges *row_edges = wide ? &s->track_edges : &s->box_edges;
    const edges *column_edges = wide ? &s->box_edges : &s->track_edges;
    for (size_t i = 0; i < rows; i++)
        fill_costs(row_edges, i, column_edges, columns, s->costs + i * columns);
    ifs__assign(s->costs, rows, columns, s->assign, s->column_of);
    for (size_t i = 0; i < rows; i++) {
        const int32_t column = s->column_of[i];
        if (-s->costs[i * columns + (size_t)column] >= t->params.iou_threshold)
            s->box_of[wide ? i : (size_t)column] = wide ? column : (int32_t)i;
    }
    *num_tracks = *num_boxes = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t number = s->tracks[i];
        if (s->box_of[i] < 0) {
            s->tracks[(*num_tracks)++] = number;
            continue;
        }
        int32_t *box = &s->boxes[s->box_of[i]];
        track *one = &t->tracks[number];
        correct(one, &boxes[*box]);
        if (one->id == IFS_NO_TRACK && one->streak >= t->params.min_consecutive)
            one->id = t->next_id++;
        track_ids[*box] = one->id;
        *box = -1;
    }
    for (size_t i = 0; i < m; i++)
        if (s->boxes[i] >= 0)
            s->boxes[(*num_boxes)++] = s->boxes[i];
}

static void begin_track(ifs_tracker *t, const ifs_detection *box) {
    t->tracks[t->count++] =
        (track){.edge = {box->x1, box->y1, box->x2, box->y2}, .p00 = 1, .p11 = 1, .id = IFS_NO_TRACK, .streak = 1};
}

static void end_tracks(ifs_tracker *t) {
    size_t kept = 0;
    for (size_t i = 0; i < t->count; i++) {
        const track *one = &t->tracks[i];
        const bool mature = one->id != IFS_NO_TRACK || one->streak >= t->params.min_consecutive;
        if (one->lost <= t->params.max_lost && (mature || one->lost == 0))
            t->tracks[kept++] = *one;
    }
    t->count = kept;
}

/* ---- memory ---- */

static size_t lay_out(scratch *s, size_t n, size_t m) {
    size_t used = 0;
    double **parts[] = {&s->track_edges.x1,   &s->track_edges.y1, &s->track_edges.x2, &s->track_edges.y2,
                        &s->track_edges.area, &s->box_edges.x1,   &s->box_edges.y1,   &s->box_edges.x2,
                        &s->box_edges.y2,     &s->box_edges.area};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] = ifs__take(s->block, &used, (i < 5 ? n : m) * sizeof(double));
    s->tracks = ifs__take(s->block, &used, n * sizeof(int32_t));
    s->box_of = ifs__take(s->block, &used, n * sizeof(int32_t));
    s->boxes = ifs__take(s->block, &used, m * sizeof(int32_t));
    s->low = ifs__take(s->block, &used, m * sizeof(int32_t));
    s->column_of = ifs__take(s->block, &used, (n < m ? n : m) * sizeof(int32_t));
    s->costs = ifs__take(s->block, &used, n * m * sizeof(float));
    s->assign = ifs__take(s->block, &used, ifs__assign_nbytes(n < m ? n : m, n < m ? m : n));
    return used;
}

/* Makes room for a frame of `count` boxes. */
static ifs_status reserve(ifs_tracker *t, size_t count) {
    scratch *s = &t->scratch, measured = {0};
    const size_t needed = lay_out(&measured, t->count, count);
    IFS__TRY(ifs__grow((void **)&t->tracks, &t->capacity, t->count + count, t->count, sizeof *t->tracks));
    if (needed > s->nbytes)
        IFS__TRY(ifs__grow((void **)&s->block, &s->nbytes, 2 * needed, 0, 1));
    lay_out(s, t->count, count);
    return IFS_OK;
}

/* ---- the interface ---- */

ifs_status ifs_tracker_create(const ifs_tracker_params *params, ifs_tracker **out) {
    if (isnan(params->high_score) || isnan(params->start_score))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "high_score=%g and start_score=%g; use numbers",
                         (double)params->high_score, params->start_score);
    if (!(params->iou_threshold > 0 && params->iou_threshold <= 1))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "iou_threshold=%g; use a number above 0, at most 1",
                         (double)params->iou_threshold);
    if (params->min_consecutive < 1 || params->max_lost < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "min_consecutive=%d and max_lost=%d; use at least 1 and at least 0",
                         (int)params->min_consecutive, (int)params->max_lost);
    ifs_tracker *tracker = calloc(1, sizeof *tracker);
    if (!tracker)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate a tracker");
    tracker->params = *params;
    *out = tracker;
    return IFS_OK;
}

void ifs_tracker_destroy(ifs_tracker *tracker) {
    if (!tracker)
        return;
    free(tracker->tracks);
    free(tracker->scratch.block);
    free(tracker);
}

static ifs_status begin_use(ifs_tracker *tracker) {
    return ifs__begin_use(&tracker->in_use, "a tracker",
                          "give each stream a tracker of its own, whose frames come one after another");
}

static ifs_status check_boxes(const ifs_detection *boxes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const ifs_detection *b = &boxes[i];
        if (!isfinite(b->x1) || !isfinite(b->y1) || !isfinite(b->x2) || !isfinite(b->y2) || isnan(b->score))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "box %zu of %zu is %g, %g, %g, %g with score %g; use finite edges and no NaN", i, count,
                             (double)b->x1, (double)b->y1, (double)b->x2, (double)b->y2, (double)b->score);
    }
    return IFS_OK;
}

static void update(ifs_tracker *t, const ifs_detection *boxes, size_t count, int64_t *track_ids) {
    scratch *s = &t->scratch;
    size_t tracks = t->count, high = 0, low = 0;
    if (!tracks && !count)
        return;
    for (size_t i = 0; i < tracks; i++) {
        predict(&t->tracks[i]);
        s->tracks[i] = (int32_t)i;
    }
    for (size_t i = 0; i < count; i++) {
        track_ids[i] = IFS_NO_TRACK;
        if (boxes[i].score >= t->params.high_score)
            s->boxes[high++] = (int32_t)i;
        else
            s->low[low++] = (int32_t)i;
    }
    associate(t, boxes, &tracks, &high, track_ids);
    for (size_t i = 0; i < high; i++)
        if ((double)boxes[s->boxes[i]].score >= t->params.start_score)
            begin_track(t, &boxes[s->boxes[i]]);
    memcpy(s->boxes, s->low, low * sizeof *s->low);
    associate(t, boxes, &tracks, &low, track_ids);
    end_tracks(t);
}

ifs_status ifs_tracker_update(ifs_tracker *tracker, const ifs_detection *boxes, int64_t count, int64_t *track_ids) {
    if (count < 0 || count > INT32_MAX || (count && (!boxes || !track_ids)))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%lld boxes; the number is 0 to %d, boxes and track_ids are not NULL", (long long)count,
                         INT32_MAX);
    IFS__TRY(check_boxes(boxes, (size_t)count));
    IFS__TRY(begin_use(tracker));
    const ifs_status status = reserve(tracker, (size_t)count);
    if (status == IFS_OK)
        update(tracker, boxes, (size_t)count, track_ids);
    ifs__end_use(&tracker->in_use);
    return status;
}

ifs_status ifs_tracker_reset(ifs_tracker *tracker) {
    IFS__TRY(begin_use(tracker));
    tracker->count = 0;
    tracker->next_id = 0;
    ifs__end_use(&tracker->in_use);
    return IFS_OK;
}
