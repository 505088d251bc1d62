/*
 * resample.h - the two passes of a resize with a filter, one set of functions for each SIMD variant.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_RESAMPLE_H
#define IFS_RESAMPLE_H

#include "internal.h"

#define IFS__RESAMPLE_BITS 22  /* of the fraction of a weight */
#define IFS__RESAMPLE_SLACK 64 /* bytes behind a row of the intermediate image that may be read and written */

/* The taps of one side: target pixel i is the sum of count[i] source pixels from first[i] on, times the weights from
 * weight[i * most] on. */
typedef struct ifs__taps {
    int32_t most;
    int32_t *first, *count; /* [pixels] */
    int32_t *weight;        /* [pixels][most], scaled by 2^22; 0 behind the last tap */
} ifs__taps;

/* The sum as a byte. */
static inline uint8_t ifs__resample_byte(int32_t sum) {
    int32_t value = sum >> IFS__RESAMPLE_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* All variants compute in integers, so their order does not matter. */
typedef struct ifs__resampler {
    /* `n` pixels of `channels` (1 or 3) bytes, from a row of `pixel` bytes a pixel. `readable` bytes of the source row
     * may be read; behind the target there is the slack. */
    void (*row)(const uint8_t *source, int64_t readable, int32_t pixel, int32_t channels, const ifs__taps *taps,
                int32_t n, uint8_t *target);
    /* `n` bytes, each the sum of `count` bytes that lie `stride` apart. */
    void (*column)(const uint8_t *source, int64_t stride, const int32_t *weight, int32_t count, int64_t n,
                   uint8_t *target);
} ifs__resampler;

/* The plain passes, for what a variant has no code for. */
void ifs__resample_row_plain(const uint8_t *source, int64_t readable, int32_t pixel, int32_t channels,
                             const ifs__taps *taps, int32_t n, uint8_t *target);
void ifs__resample_column_plain(const uint8_t *source, int64_t stride, const int32_t *weight, int32_t count, int64_t n,
                                uint8_t *target);

extern const ifs__resampler ifs__resampler_avx2, ifs__resampler_avx512;

#endif
