/* tensor.h - what memory.c and tensor.c lend to their neighbours. SPDX-License-Identifier: Apache-2.0 */
#ifndef IFS_TENSOR_H
#define IFS_TENSOR_H

#include "internal.h"

/* One more reference; returns `memory`. */
ifs_memory *ifs__memory_retain(ifs_memory *memory);

/* Elements and bytes of a shape, all checked: type, number and sign of the dimensions, overflow. */
ifs_status ifs__shape_nbytes(int32_t dtype, int32_t ndim, const int64_t *dims, size_t *count, size_t *nbytes);

/* "(1, 3, 640, 640)" for a message; returns `buffer`. */
const char *ifs__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *dims);

#endif
