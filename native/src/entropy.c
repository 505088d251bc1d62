/*
 * entropy.c - the threshold of a histogram that loses the least information in 8 bits.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * For a candidate of i bins let r be the histogram, p its first i bins with everything beyond added to the last one, N
 * the sum of p (the total), R the sum of r[0..i), and S and c a level's sum of r and its number of bins with p > 0.
 * Then q = S / c within the level, and
 *
 *     KL = sum p/N log((p/N) / (q/R)) = (sum p log p - sum over levels of (sum of p) log(S/c)) / N - log N + log R.
 *
 * The first sum is a prefix sum of r log r with one bin corrected; S and c are differences of prefix sums; the sum of p
 * in a level is S, but for the last. So a candidate costs one logarithm a level instead of one a bin.
 */
#include "internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BINS 65536

/* The first bin of a level. Bin k belongs to level floor(k levels / bins). */
static int32_t level_start(int32_t level, int32_t bins, int32_t levels) {
    return (int32_t)(((int64_t)level * bins + levels - 1) / levels);
}

static void expand(const double *raw, const double *reference, int32_t n, int32_t levels, double *out) {
    for (int32_t level = 0; level < levels; level++) {
        const int32_t from = level_start(level, n, levels), to = level_start(level + 1, n, levels);
        double sum = 0;
        int32_t count = 0;
        for (int32_t k = from; k < to; k++) {
            sum += raw[k];
            count += reference[k] > 0;
        }
        for (int32_t k = from; k < to; k++)
            out[k] = reference[k] > 0 ? sum / count : 0;
    }
}

typedef struct search {
    int32_t num_bins, levels;
    double total;
    double *raw;         /* [num_bins] */
    double *p, *q;       /* [num_bins] scratch of the reference */
    double *sum;         /* [num_bins + 1] of raw before each bin */
    double *log_sum;     /* [num_bins + 1] of raw log raw before each bin */
    int32_t *filled;     /* [num_bins + 1] bins that are not empty before each bin */
    double *log_count;   /* [num_bins + 1] log of 0, 1, 2, ... */
    double *divergences; /* [num_bins] by the number of bins of the candidate */
} search;

/* The reference: the formula as it is written. */
static double divergence_plain(const search *s, int32_t n) {
    double beyond = 0, p_sum = 0, q_sum = 0, divergence = 0;
    for (int32_t k = n; k < s->num_bins; k++)
        beyond += s->raw[k];
    memcpy(s->p, s->raw, (size_t)n * sizeof *s->p);
    s->p[n - 1] += beyond;
    expand(s->raw, s->p, n, s->levels, s->q);
    for (int32_t k = 0; k < n; k++) {
        p_sum += s->p[k];
        q_sum += s->q[k];
    }
    for (int32_t k = 0; k < n; k++) {
        if (s->p[k] > 0 && !(s->q[k] > 0))
            return INFINITY;
        if (s->p[k] > 0)
            divergence += s->p[k] / p_sum * log(s->p[k] / p_sum / (s->q[k] / q_sum));
    }
    return divergence;
}

static double x_log_x(double x) { return x > 0 ? x * log(x) : 0; }

/* The same from prefix sums. */
static double divergence_fast(const search *s, int32_t n) {
    const double inside = s->sum[n], beyond = s->total - inside, last = s->raw[n - 1];
    if (!(inside > 0))
        return INFINITY;
    double across = s->log_sum[n - 1] + x_log_x(last + beyond);
    int32_t from = 0;
    for (int32_t level = 0; level < s->levels; level++) {
        const int32_t to = level_start(level + 1, n, s->levels);
        const bool ends = level == s->levels - 1;
        const double sum = s->sum[to] - s->sum[from], p_sum = ends ? sum + beyond : sum;
        const int32_t count = s->filled[to] - s->filled[from] + (ends && last == 0 && beyond > 0);
        from = to;
        if (p_sum == 0)
            continue;
        if (sum == 0)
            return INFINITY;
        across -= p_sum * (log(sum) - s->log_count[count]);
    }
    return across / s->total - log(s->total) + log(inside);
}

static ifs_status allocate(search *s) {
    const size_t n = (size_t)s->num_bins + 1;
    double *block = calloc(8 * n, sizeof *block);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes for the search of a threshold",
                         8 * n * sizeof *block);
    double **parts[] = {&s->raw, &s->p, &s->q, &s->sum, &s->log_sum, &s->log_count, &s->divergences};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        *parts[i] = block + i * n;
    s->filled = (int32_t *)(block + 7 * n);
    return IFS_OK;
}

static void fill(search *s, const int64_t *bins) {
    for (int32_t k = 0; k < s->num_bins; k++) {
        const double count = (double)bins[k];
        s->raw[k] = count;
        s->sum[k + 1] = s->sum[k] + count;
        s->log_sum[k + 1] = s->log_sum[k] + x_log_x(count);
        s->filled[k + 1] = s->filled[k] + (count > 0);
        s->log_count[k + 1] = log(k + 1.0);
    }
}

ifs_status ifs_entropy_threshold(const int64_t *bins, int32_t num_bins, int32_t levels, int32_t plain, int32_t *best,
                                 double *divergence) {
    if (!bins || !best || num_bins < 2 || num_bins > MAX_BINS || levels < 1 || levels >= num_bins)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "%d bins for %d levels; use 2 to %d bins, more than levels; bins and best must not be NULL",
                         (int)num_bins, (int)levels, MAX_BINS);
    search s = {.num_bins = num_bins, .levels = levels};
    int64_t total = 0;
    for (int32_t k = 0; k < num_bins; k++) {
        if (bins[k] < 0 || bins[k] > ((int64_t)1 << 52) - total)
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                             "bin %d holds %lld; a count must not be negative, and all counts together at most 2^52",
                             (int)k, (long long)bins[k]);
        total += bins[k];
    }
    if (total == 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the histogram is empty: all of its %d bins are 0; add values first",
                         (int)num_bins);
    s.total = (double)total;
    IFS__TRY(allocate(&s));
    fill(&s, bins);
    /* One filled bin takes everything beyond it and has a divergence of 0, but all values are clipped to it. */
    int32_t first = levels;
    while (first < num_bins && s.filled[first] < 2)
        first++;
    double least = INFINITY;
    for (int32_t n = first; n < num_bins; n++) {
        s.divergences[n] = plain ? divergence_plain(&s, n) : divergence_fast(&s, n);
        least = s.divergences[n] < least ? s.divergences[n] : least;
    }
    /* The two functions round differently, and that must not decide: candidates within the rounding error of the least
     * are computed again by the reference. */
    const double near = least + 1e-9 * (1 + fabs(least));
    int32_t winner = num_bins; /* without a candidate, nothing is cut off */
    double smallest = INFINITY;
    for (int32_t n = first; n < num_bins && isfinite(least); n++) {
        if (!(s.divergences[n] <= near))
            continue;
        const double exact = plain ? s.divergences[n] : divergence_plain(&s, n);
        if (exact < smallest) {
            smallest = exact;
            winner = n;
        }
    }
    free(s.raw);
    *best = winner;
    if (divergence)
        *divergence = isfinite(smallest) ? smallest : 0;
    return IFS_OK;
}
