/*
 * test_calibrate.c - the calibration functions without Python. SPDX-License-Identifier: Apache-2.0
 */
#include "infersdk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, ifs_last_error());                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static uint32_t state = 12345;

static float random_float(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* Blocks of exactly the size: reading beyond is what a sanitizer sees. */
static void variants_agree(void) {
    for (int32_t n = 0; n < 70; n++) {
        float *x = malloc((size_t)n * sizeof *x + 1);
        for (int32_t i = 0; i < n; i++)
            x[i] = i % 11 == 7 ? NAN : i % 13 == 5 ? -INFINITY : random_float() * 8;
        ifs_range first[2] = {{0}};
        int64_t bins[3][64] = {{0}}, bad[3] = {0};
        const int32_t all[3] = {IFS_SIMD_PLAIN, IFS_SIMD_AVX2, IFS_SIMD_AVX512};
        for (int32_t v = 0; v < 3; v++) {
            if (ifs_set_simd(all[v]) != IFS_OK)
                continue;
            ifs_range ranges[2] = {{0}};
            CHECK(ifs_ranges_update(x, 1, 2, n / 2, ranges) == IFS_OK);
            CHECK(ifs_ranges_update(x, n, 1, 1, ranges) == IFS_OK);
            CHECK(ifs_histogram_add(x, n, 6.0f, bins[v], 64, &bad[v]) == IFS_OK);
            if (v == 0)
                memcpy(first, ranges, sizeof first);
            CHECK(memcmp(ranges, first, sizeof first) == 0);
            CHECK(memcmp(bins[v], bins[0], sizeof bins[0]) == 0);
        }
        free(x);
    }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
}

static void channels(void) {
    const float x[12] = {1, 2, -3, 0, 5, 6, 7, 8, 9, NAN, 11, 12}; /* [2, 3, 2] */
    ifs_range ranges[3] = {{0}};
    CHECK(ifs_ranges_update(x, 2, 3, 2, ranges) == IFS_OK);
    CHECK(ranges[0].min == 1 && ranges[0].max == 8 && ranges[0].sum == 18 && ranges[0].count == 4);
    CHECK(ranges[1].min == -3 && ranges[1].max == 9 && ranges[1].sum == 6 && ranges[1].nonfinite == 1);
    CHECK(ranges[1].zeros == 1 && ranges[2].min == 5 && ranges[2].max == 12 && ranges[2].sum == 34);
}

static void thresholds(void) {
    int64_t bins[2048] = {0};
    int32_t best = -1, plain = -1;
    double divergence = -1, reference = -1;
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 0, &best, &divergence) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(best == -1 && divergence == -1);
    for (int32_t i = 0; i < 2048; i++)
        bins[i] = (int64_t)(1e6 * exp(-i / 90.0)) + (i % 97 == 0);
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 0, &best, &divergence) == IFS_OK);
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 1, &plain, &reference) == IFS_OK);
    CHECK(best == plain && divergence == reference);
    CHECK(best >= 128 && best < 2048);
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 0, &best, NULL) == IFS_OK);
    bins[5] = -1;
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 0, &best, NULL) == IFS_ERR_INVALID_ARGUMENT);
    bins[5] = INT64_MAX;
    CHECK(ifs_entropy_threshold(bins, 2048, 128, 0, &best, NULL) == IFS_ERR_INVALID_ARGUMENT);
}

static void wrong_use(void) {
    float x[1] = {1};
    int64_t bins[4] = {0};
    ifs_range range = {0};
    CHECK(ifs_ranges_update(NULL, 1, 1, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, -1, 1, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, 1, 0, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, INT64_MAX, 2, 2, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, 1, 1, 1, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(NULL, 0, 1, 1, &range) == IFS_OK && range.count == 0);
    CHECK(ifs_histogram_add(x, 1, 0, bins, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 0, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 3, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, NULL, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(NULL, 1, 1, bins, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 4, NULL) == IFS_OK && bins[3] == 1);
}

int main(void) {
    variants_agree();
    channels();
    thresholds();
    wrong_use();
    puts("good");
    return 0;
}
