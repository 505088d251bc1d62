/* sort.c - sorting by key, and arrays that grow. SPDX-License-Identifier: Apache-2.0 */
#include "sort.h"

#include <stdlib.h>
#include <string.h>

#define INSERTION_MAX 64 /* up to here, shifting costs less than counting digits */
#define FEW 1024 /* up to here, four digits of 8 bits cost less than three of 11 */
#define MAX_DIGITS 4
#define MAX_BINS 2048

static void insertion_sort(uint64_t *keys, size_t n) {
    for (size_t i = 1; i < n; i++) {
        uint64_t key = keys[i];
        size_t j = i;
        for (; j > 0 && (keys[j - 1] >> 32) > (key >> 32); j--)
            keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

/* Least significant digit first. One pass counts all digits; a digit that all keys share costs nothing. */
static inline __attribute__((always_inline)) void sort_digits(uint64_t *keys, uint64_t *scratch, size_t n, int bits,
                                                              int digits) {
    uint32_t counts[MAX_DIGITS][MAX_BINS];
    const uint32_t bins = 1u << bits;
    for (int d = 0; d < digits; d++)
        memset(counts[d], 0, bins * sizeof **counts);
    for (size_t i = 0; i < n; i++)
        for (int d = 0; d < digits; d++)
            counts[d][(keys[i] >> (32 + d * bits)) & (bins - 1)]++;
    uint64_t *from = keys, *to = scratch;
    for (int d = 0; d < digits; d++) {
        const int shift = 32 + d * bits;
        if (counts[d][(keys[0] >> shift) & (bins - 1)] == n)
            continue;
        uint32_t start = 0;
        for (uint32_t bin = 0; bin < bins; bin++) {
            uint32_t count = counts[d][bin];
            counts[d][bin] = start;
            start += count;
        }
        for (size_t i = 0; i < n; i++)
            to[counts[d][(from[i] >> shift) & (bins - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys)
        memcpy(keys, from, n * sizeof *keys);
}

void ifs__sort_keys(uint64_t *keys, uint64_t *scratch, size_t n) {
    if (n <= INSERTION_MAX)
        insertion_sort(keys, n);
    else if (n <= FEW)
        sort_digits(keys, scratch, n, 8, 4);
    else
        sort_digits(keys, scratch, n, 11, 3);
}

ifs_status ifs__grow(void **array, size_t *capacity, size_t count, size_t keep, size_t element_size) {
    if (count <= *capacity)
        return IFS_OK;
    size_t wanted = *capacity + *capacity / 2, nbytes;
    if (wanted < count)
        wanted = count;
    void *grown = ifs__mul_overflows(wanted, element_size, &nbytes) ? NULL : malloc(nbytes);
    if (!grown)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate scratch memory for %zu elements of %zu bytes", wanted,
                         element_size);
    if (keep)
        memcpy(grown, *array, keep * element_size);
    free(*array);
    *array = grown;
    *capacity = wanted;
    return IFS_OK;
}
