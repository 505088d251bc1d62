/* sort.c - sorting by key, and arrays that grow. SPDX-License-Identifier: Apache-2.0 */
#include "sort.h"

#include <stdlib.h>
#include <string.h>

#define INSERTION_MAX 64 /* up to here, shifting costs less than counting digits */
#define DIGITS 4
#define BINS 256

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
static void sort_digits(uint64_t *keys, uint64_t *scratch, size_t n) {
    uint32_t counts[DIGITS][BINS] = {0};
    for (size_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++)
            counts[d][keys[i] >> (32 + 8 * d) & 255]++;
    uint64_t *from = keys, *to = scratch;
    for (int d = 0; d < DIGITS; d++) {
        const int shift = 32 + 8 * d;
        if (counts[d][keys[0] >> shift & 255] == n)
            continue;
        uint32_t start = 0;
        for (int bin = 0; bin < BINS; bin++) {
            uint32_t count = counts[d][bin];
            counts[d][bin] = start;
            start += count;
        }
        for (size_t i = 0; i < n; i++)
            to[counts[d][from[i] >> shift & 255]++] = from[i];
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
    else
        sort_digits(keys, scratch, n);
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
