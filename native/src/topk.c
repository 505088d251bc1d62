/*
 * topk.c - the k best of n scores, and softmax.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Softmax gives the same bits on every machine. First comes the maximum, then the sum of exp(x - max) in sixteen lanes:
 * lane i adds the elements i, i + 16, i + 32, ... in order. The lanes are then added as a tree, i and i + 8, then + 4,
 * + 2, + 1. A result is exp(x - max) / sum, with ifs__exp.
 *
 * The selection reads the scores once. A score above a threshold goes into a buffer. A full buffer is sorted and cut to
 * the k best, and the threshold rises to the last of them. After the first cut few scores are above it.
 */
#include "topk.h"
#include "simd.h"

#include "fmath.h"
#include "sort.h"

#include <math.h>
#include <stdlib.h>

#define CHUNK 2048 /* scores at a time; a multiple of 64 */
#define SMALL 64   /* keys that fit the buffer on the stack */

bool ifs__maximum_plain(const float *x, size_t n, float *max) {
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        good &= x[i] == x[i];
        *max = ifs__max(x[i], *max);
    }
    return good;
}

void ifs__add_exps_plain(const float *x, size_t n, float max, float lanes[IFS__TOPK_LANES]) {
    for (size_t i = 0; i < n; i++)
        lanes[i % IFS__TOPK_LANES] += ifs__exp(x[i] - max);
}

static uint64_t above_plain(const float *x, size_t n, float threshold) {
    uint64_t mask = 0;
    for (size_t i = 0; i < n; i++)
        mask |= (uint64_t)(x[i] > threshold) << i;
    return mask;
}

static const ifs__topk_passes ifs__topk_plain = {ifs__maximum_plain, ifs__add_exps_plain, above_plain};

/* The scores from `start` on as float32, at most CHUNK of them. `buffer` holds them where they are converted. */
static const float *chunk_of(const void *scores, int32_t dtype, size_t start, size_t n, float *buffer) {
    if (dtype == IFS_FLOAT32)
        return (const float *)scores + start;
    ifs__halves_to_floats((const uint16_t *)scores + start, buffer, n);
    return buffer;
}

static ifs_status topk(const ifs__topk_passes *pass, const void *scores, int32_t dtype, size_t n, size_t k,
                       bool softmax, uint64_t *keys, size_t size, int32_t *class_ids, float *out_scores) {
    float buffer[CHUNK], max = -INFINITY, sum = 1;
    for (size_t start = 0; start < n; start += CHUNK) {
        size_t length = n - start < CHUNK ? n - start : CHUNK;
        const float *x = chunk_of(scores, dtype, start, length, buffer);
        if (!pass->maximum(x, length, &max)) {
            size_t i = 0;
            while (x[i] == x[i])
                i++;
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "score %zu of %zu is NaN; top-k needs numbers", start + i, n);
        }
    }
    if (softmax) {
        if (!ifs__finite(max))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the largest of %zu scores is %g; softmax needs a finite one", n,
                             (double)max);
        float lanes[IFS__TOPK_LANES] = {0};
        for (size_t start = 0; start < n; start += CHUNK) {
            size_t length = n - start < CHUNK ? n - start : CHUNK;
            pass->add_exps(chunk_of(scores, dtype, start, length, buffer), length, max, lanes);
        }
        for (int width = IFS__TOPK_LANES / 2; width > 0; width /= 2)
            for (int i = 0; i < width; i++)
                lanes[i] += lanes[i + width];
        sum = lanes[0];
    }

    size_t count = 0;
    float threshold = -INFINITY;
    bool cut = false; /* before the first cut every score is taken, -inf too */
    for (size_t start = 0; start < n; start += CHUNK) {
        size_t length = n - start < CHUNK ? n - start : CHUNK;
        const float *x = chunk_of(scores, dtype, start, length, buffer);
        for (size_t block = 0; block < length; block += 64) {
            size_t width = length - block < 64 ? length - block : 64;
            uint64_t mask = cut ? pass->above(x + block, width, threshold) : ~(uint64_t)0 >> (64 - width);
            for (; mask; mask &= mask - 1) {
                size_t i = block + (size_t)__builtin_ctzll(mask);
                keys[count++] = (uint64_t)ifs__key_of_score(x[i]) << 32 | (start + i);
                if (count == size) {
                    ifs__sort_keys(keys, keys + size, count);
                    count = k;
                    threshold = ifs__score_of_key((uint32_t)(keys[k - 1] >> 32));
                    cut = true;
                }
            }
        }
    }
    ifs__sort_keys(keys, keys + size, count);
    for (size_t i = 0; i < k; i++) {
        size_t at = (uint32_t)keys[i];
        float score = *chunk_of(scores, dtype, at, 1, buffer); /* not that of the key, which takes -0 for 0 */
        class_ids[i] = (int32_t)at;
        out_scores[i] = softmax ? ifs__exp(score - max) / sum : score;
    }
    return IFS_OK;
}

static ifs_status check_arguments(const void *scores, int32_t dtype, int64_t n, int32_t k, const int32_t *class_ids,
                                  const float *out_scores) {
    if (!scores || !class_ids || !out_scores)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "scores, class_ids or out_scores is NULL");
    if (dtype != IFS_FLOAT32 && dtype != IFS_FLOAT16)
        return ifs__fail(IFS_ERR_DTYPE, "scores have element type %d; use IFS_FLOAT32 (%d) or IFS_FLOAT16 (%d)",
                         (int)dtype, IFS_FLOAT32, IFS_FLOAT16);
    if (n < 1 || n > INT32_MAX)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%lld scores; the number must be 1 to %d", (long long)n, INT32_MAX);
    if (k < 1 || k > n)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the %d best of %lld scores; k must be 1 to %lld", (int)k,
                         (long long)n, (long long)n);
    return IFS_OK;
}

ifs_status ifs_topk(const void *scores, int32_t dtype, int64_t n, int32_t k, int32_t softmax, int32_t *class_ids,
                    float *out_scores) {
    IFS__TRY(check_arguments(scores, dtype, n, k, class_ids, out_scores));
    uint64_t small[2 * SMALL], *keys = small;
    size_t size = SMALL;
    if ((size_t)k > SMALL / 2) {
        size = 2 * (size_t)k;
        keys = malloc(2 * size * sizeof *keys);
        if (!keys)
            return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate a buffer for the %d best scores", (int)k);
    }
    ifs_status status = topk(IFS__VARIANT_AVX2(&ifs__topk), scores, dtype, (size_t)n, (size_t)k, softmax != 0, keys,
                             size, class_ids, out_scores);
    if (keys != small)
        free(keys);
    return status;
}
