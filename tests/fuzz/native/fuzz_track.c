/*
 * fuzz_track.c - trackers out of any settings, frame after frame of any boxes; assignments of any costs.
 *
 * What comes out keeps the promises of the header: numbers begin at 0, none is given to two boxes of a frame, and
 * refused frames change nothing. An assignment is as cheap as the cheapest of all, which are tried here one by one.
 */
#include "fuzz.h"

#include <math.h>

#define MOST 24
#define FRAMES 12

/* ---- trackers ---- */

static ifs_tracker_params some_params(int wild) {
    ifs_tracker_params p = {.high_score = (float)below(65) / 64,
                            .iou_threshold = (float)(1 + below(64)) / 64,
                            .start_score = (double)below(65) / 64,
                            .min_consecutive = 1 + (int32_t)below(4),
                            .max_lost = (int32_t)below(8)};
    if (wild)
        switch (below(5)) {
        case 0:
            p.high_score = odd_float();
            break;
        case 1:
            p.iou_threshold = odd_float();
            break;
        case 2:
            p.start_score = odd_double();
            break;
        case 3:
            p.min_consecutive = below(2) ? -(int32_t)below(3) : odd_number(4);
            break;
        default:
            p.max_lost = below(2) ? -(int32_t)below(3) : odd_number(4);
        }
    return p;
}

static int is_good(const ifs_detection *b) {
    return isfinite(b->x1) && isfinite(b->y1) && isfinite(b->x2) && isfinite(b->y2) && !isnan(b->score);
}

/* Boxes near those of the last frame, and others: with sides of any sign and size. */
static int some_boxes(ifs_detection *boxes, size_t count, ifs_detection *last, int wild) {
    int good = 1;
    for (size_t i = 0; i < count; i++) {
        ifs_detection *b = &boxes[i];
        *b = last[i];
        float *edges[] = {&b->x1, &b->y1, &b->x2, &b->y2};
        for (int k = 0; k < 4; k++)
            *edges[k] = below(8) ? *edges[k] + (float)below(9) - 4 : (float)below(200);
        b->score = (float)below(65) / 64;
        if (wild && !below(12))
            *edges[below(4)] = odd_float();
        if (wild && !below(24))
            b->score = odd_float();
        if (is_good(b))
            last[i] = *b;
        else
            good = 0;
    }
    return good;
}

static void frames_of(ifs_tracker *tracker, ifs_tracker *other) {
    ifs_detection last[MOST] = {{0}};
    for (size_t i = 0; i < MOST; i++)
        last[i].x2 = last[i].y2 = 40;
    int64_t highest = -1;
    for (int frame = 0; frame < FRAMES; frame++) {
        const int wild = !below(4);
        const size_t count = below(MOST + 1);
        ifs_detection *boxes = exact(count * sizeof *boxes);
        int64_t *numbers = exact(8 * count), *same = exact(8 * count);
        const int good = some_boxes(boxes, count, last, wild);
        if (!below(24))
            CHECK(counted(ifs_tracker_update(tracker, boxes, -(int64_t)below(9) - 1, numbers)) != IFS_OK);
        if (!below(24) && count)
            CHECK(counted(ifs_tracker_update(tracker, below(2) ? NULL : boxes, (int64_t)count, NULL)) != IFS_OK);
        const ifs_status status = counted(ifs_tracker_update(tracker, boxes, (int64_t)count, numbers));
        CHECK((status == IFS_OK) == good);
        if (status == IFS_OK) {
            CHECK(ifs_tracker_update(other, boxes, (int64_t)count, same) == IFS_OK); /* without what was refused */
            CHECK(memcmp(numbers, same, 8 * count) == 0);
            digest("track numbers", numbers, 8 * count);
            const int64_t before = highest;
            for (size_t i = 0; i < count; i++) {
                CHECK(numbers[i] >= IFS_NO_TRACK && numbers[i] <= before + (int64_t)count);
                highest = numbers[i] > highest ? numbers[i] : highest;
                for (size_t k = 0; k < i; k++)
                    CHECK(numbers[i] == IFS_NO_TRACK || numbers[i] != numbers[k]);
            }
        }
        if (!below(32)) {
            CHECK(ifs_tracker_reset(tracker) == IFS_OK && ifs_tracker_reset(other) == IFS_OK);
            highest = -1;
        }
        free(boxes), free(numbers), free(same);
    }
}

/* ---- assignments ---- */

/* The least sum of costs of the rows from `row` on, in the columns that `taken` leaves; of more rows than columns,
 * `spare` rows get none. */
static double least(const float *costs, int rows, int columns, int row, unsigned taken, int spare) {
    if (row == rows)
        return 0;
    double best = spare ? least(costs, rows, columns, row + 1, taken, spare - 1) : INFINITY;
    for (int j = 0; j < columns; j++)
        if (!(taken >> j & 1)) {
            const double sum =
                (double)costs[row * columns + j] + least(costs, rows, columns, row + 1, taken | 1U << j, spare);
            best = sum < best ? sum : best;
        }
    return best;
}

static void some_assignment(void) {
    const int rows = (int)below(6), columns = (int)below(6), wild = !below(6), coarse = coin();
    float *costs = exact((size_t)(rows * columns) * sizeof *costs);
    int32_t *column_of = exact((size_t)rows * sizeof *column_of);
    int good = 1;
    double largest = 1;
    for (int i = 0; i < rows * columns; i++) {
        costs[i] = coarse ? (float)below(4) - 2 : (float)below(1 << 16) / 1024;
        if (wild && !below(12))
            costs[i] = odd_float();
        good &= isfinite(costs[i]) != 0;
        largest = fabs((double)costs[i]) > largest ? fabs((double)costs[i]) : largest;
    }
    CHECK((counted(ifs_assign(costs, rows, columns, column_of)) == IFS_OK) == good);
    if (good) {
        double sum = 0;
        int pairs = 0;
        unsigned taken = 0;
        for (int i = 0; i < rows; i++)
            if (column_of[i] != -1) {
                CHECK(column_of[i] >= 0 && column_of[i] < columns && !(taken >> column_of[i] & 1));
                taken |= 1U << column_of[i];
                sum += (double)costs[i * columns + column_of[i]];
                pairs++;
            }
        CHECK(pairs == (rows < columns ? rows : columns));
        CHECK(sum <= least(costs, rows, columns, 0, 0, rows > columns ? rows - columns : 0) + 1e-12 * largest);
    }
    free(costs), free(column_of);
}

static void one_case(void) {
    const ifs_tracker_params p = some_params(!below(4));
    ifs_tracker *tracker = NULL, *other = NULL;
    const ifs_status status = counted(ifs_tracker_create(&p, &tracker));
    CHECK((status == IFS_OK) == (!isnan(p.high_score) && !isnan(p.start_score) && p.iou_threshold > 0 &&
                                 p.iou_threshold <= 1 && p.min_consecutive >= 1 && p.max_lost >= 0));
    if (status == IFS_OK) {
        CHECK(ifs_tracker_create(&p, &other) == IFS_OK);
        frames_of(tracker, other);
    } else
        CHECK(tracker == NULL);
    ifs_tracker_destroy(tracker);
    ifs_tracker_destroy(other);
    some_assignment();
}
