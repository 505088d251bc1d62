/*
 * calibrate.c - ranges and histograms of activations.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "calibrate.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static int64_t range_plain(const float *x, size_t n, float *min, float *max, int64_t *zeros) {
    int64_t bad = 0, zero = 0;
    float low = *min, high = *max;
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(x[i]) <= FLT_MAX)) {
            bad++;
            continue;
        }
        zero += x[i] == 0;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *min = low;
    *max = high;
    *zeros += zero;
    return bad;
}

static int64_t histogram_plain(const float *x, size_t n, float scale, int32_t last, uint32_t *tables, size_t pitch) {
    int64_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        const float at = fabsf(x[i]);
        if (!(at <= FLT_MAX)) {
            bad++;
            continue;
        }
        const float scaled = at * scale; /* at most infinite, which the last bin takes */
        tables[i % IFS__HISTOGRAM_TABLES * pitch + (size_t)(scaled < (float)last ? (int32_t)scaled : last)]++;
    }
    return bad;
}

static const ifs__calibration_passes passes_plain = {range_plain, histogram_plain};

static const ifs__calibration_passes *passes(void) {
#if IFS__X86
    if (ifs_simd() == IFS_SIMD_AVX512)
        return &ifs__calibration_avx512;
    if (ifs_simd() == IFS_SIMD_AVX2)
        return &ifs__calibration_avx2;
#endif
    return &passes_plain;
}

static ifs_status check_values(const float *x, int64_t count) {
    if (count < 0 || (!x && count))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%lld values at %s; the number is 0 or more, and the address is not NULL", (long long)count,
                         x ? "an address" : "NULL");
    return IFS_OK;
}

ifs_status ifs_range_update(const float *x, int64_t count, ifs_range *range) {
    IFS__TRY(check_values(x, count));
    if (!range)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "range is NULL");
    const bool first = range->count == range->nonfinite; /* no finite value so far */
    float min = first ? FLT_MAX : range->min, max = first ? -FLT_MAX : range->max;
    const int64_t bad = passes()->range(x, (size_t)count, &min, &max, &range->zeros);
    range->count += count;
    range->nonfinite += bad;
    if (range->count == range->nonfinite)
        min = max = 0;
    /* One variant may give -0 where another gives 0: both become 0. */
    range->min = min + 0.0F;
    range->max = max + 0.0F;
    return IFS_OK;
}

ifs_status ifs_histogram_add(const float *x, int64_t count, float absmax, int64_t *bins, int32_t num_bins,
                             int64_t *nonfinite) {
    IFS__TRY(check_values(x, count));
    if (!bins || num_bins < 1 || num_bins > IFS__HISTOGRAM_MAX_BINS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a histogram of %d bins at %s; use 1 to %d bins", (int)num_bins,
                         bins ? "an address" : "NULL", IFS__HISTOGRAM_MAX_BINS);
    const float scale = (float)num_bins / absmax;
    if (!(absmax > 0) || !(absmax <= FLT_MAX) || !(scale <= FLT_MAX))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "absmax is %g; it must be finite, above 0, and so large that %d bins up to it differ in "
                         "float32",
                         (double)absmax, (int)num_bins);
    const size_t pitch = (size_t)num_bins;
    uint32_t *tables = calloc(IFS__HISTOGRAM_TABLES * pitch, sizeof *tables);
    if (!tables)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes for the counters of a histogram",
                         IFS__HISTOGRAM_TABLES * pitch * sizeof *tables);
    int64_t bad = 0;
    const size_t limit = (size_t)1 << 30; /* a counter of 32 bits holds it */
    for (size_t at = 0, left = (size_t)count; left;) {
        const size_t n = left < limit ? left : limit;
        bad += passes()->histogram(x + at, n, scale, num_bins - 1, tables, pitch);
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
