/*
 * calibrate.c - ranges and histograms of activations.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "calibrate.h"
#include "simd.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

void ifs__range_plain(const float *x, size_t n, ifs__row_range *row) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) <= FLT_MAX)) {
            row->nonfinite++;
            continue;
        }
        row->zeros += x[i] == 0;
        row->min = x[i] < row->min ? x[i] : row->min;
        row->max = x[i] > row->max ? x[i] : row->max;
        row->sums[i % IFS__SUM_LANES] += (double)x[i];
    }
}

int64_t ifs__histogram_plain(const float *x, size_t n, float scale, int32_t half, uint32_t *tables, size_t pitch) {
    const float low = (float)-half, high = (float)(half - 1);
    int64_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) <= FLT_MAX)) {
            bad++;
            continue;
        }
        const float at = floorf(x[i] * scale); /* may be infinite */
        const int32_t bin = (int32_t)(at < low ? low : at > high ? high : at);
        tables[i % IFS__HISTOGRAM_TABLES * pitch + (size_t)(bin + half)]++;
    }
    return bad;
}

static const ifs__calibration_passes ifs__calibration_plain = {ifs__range_plain, ifs__histogram_plain};

static const ifs__calibration_passes *passes(void) { return IFS__VARIANT_AVX2(&ifs__calibration); }

static void add_row(ifs_range *range, const ifs__row_range *row, int64_t count) {
    const bool first = range->count == range->nonfinite; /* no finite value so far */
    range->count += count;
    range->nonfinite += row->nonfinite;
    range->zeros += row->zeros;
    if (row->nonfinite < count) {
        /* One variant may give -0 where another gives 0: both become 0. */
        range->min = (first || row->min < range->min ? row->min : range->min) + 0.0F;
        range->max = (first || row->max > range->max ? row->max : range->max) + 0.0F;
    }
    double sums[IFS__SUM_LANES];
    for (int lane = 0; lane < IFS__SUM_LANES; lane++)
        sums[lane] = row->sums[lane];
    for (int step = IFS__SUM_LANES / 2; step; step /= 2)
        for (int lane = 0; lane < step; lane++)
            sums[lane] += sums[lane + step];
    range->sum += sums[0];
}

ifs_status ifs_ranges_update(const float *x, int64_t outer, int64_t channels, int64_t inner, ifs_range *ranges) {
    if (outer < 0 || channels < 1 || inner < 0 || (inner && outer > INT64_MAX / channels / inner))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "values of shape %lld x %lld x %lld; use 1 or more channels",
                         (long long)outer, (long long)channels, (long long)inner);
    if (!ranges || (!x && outer && inner))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s is NULL", ranges ? "x" : "ranges");
    for (int64_t i = 0; i < outer; i++)
        for (int64_t channel = 0; channel < channels; channel++, x += inner) {
            ifs__row_range row = {.min = FLT_MAX, .max = -FLT_MAX};
            passes()->range(x, (size_t)inner, &row);
            add_row(&ranges[channel], &row, inner);
        }
    return IFS_OK;
}

ifs_status ifs_histogram_add(const float *x, int64_t count, float limit, int64_t *bins, int32_t num_bins,
                             int64_t *nonfinite) {
    if (count < 0 || (!x && count))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%lld values at %s; the number is 0 or more, and the address is not NULL", (long long)count,
                         x ? "an address" : "NULL");
    if (!bins || num_bins < 2 || num_bins % 2 || num_bins > IFS__HISTOGRAM_MAX_BINS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a histogram of %d bins at %s; use an even number from 2 to %d",
                         (int)num_bins, bins ? "an address" : "NULL", IFS__HISTOGRAM_MAX_BINS);
    const int32_t half = num_bins / 2;
    const float scale = (float)half / limit;
    if (!(limit > 0) || !(limit <= FLT_MAX) || !(scale <= FLT_MAX))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "the limit of the histogram is %g; it must be finite, above 0, and large enough that float32 "
                         "can tell %d bins apart",
                         (double)limit, (int)num_bins);
    const size_t pitch = (size_t)num_bins;
    uint32_t *tables = calloc(IFS__HISTOGRAM_TABLES * pitch, sizeof *tables);
    if (!tables)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes for the counters of a histogram",
                         IFS__HISTOGRAM_TABLES * pitch * sizeof *tables);
    int64_t bad = 0;
    const size_t most = (size_t)1 << 30; /* a counter of 32 bits holds it */
    for (size_t at = 0, left = (size_t)count; left;) {
        const size_t n = left < most ? left : most;
        bad += passes()->histogram(x + at, n, scale, half, tables, pitch);
        for (size_t i = 0; i < pitch; i++)
            for (size_t t = 0; t < IFS__HISTOGRAM_TABLES; t++) {
                bins[i] += tables[t * pitch + i];
                tables[t * pitch + i] = 0;
            }
        at += n;
        left -= n;
    }
    free(tables);
    if (nonfinite)
        *nonfinite += bad;
    return IFS_OK;
}
