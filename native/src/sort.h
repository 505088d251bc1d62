/*
 * sort.h - sorting by key, and arrays that grow: what detection, NMS, top-k and tracking share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_SORT_H
#define IFS_SORT_H

#include "internal.h"

/*
 * Sorts keys of (order << 32 | payload) by their upper halves, ascending and stable: equal ones keep their order. With
 * payloads that ascend, as when candidates are found one after another, that is the order of whole keys.
 * `scratch` holds n.
 */
void ifs__sort_keys(uint64_t *keys, uint64_t *scratch, size_t n);

/* Grows an array to at least `count` elements, and to at least half as much again. The first `keep` elements are kept.
 */
ifs_status ifs__grow(void **array, size_t *capacity, size_t count, size_t keep, size_t element_size);

#endif
