/* tensor.h - what memory.c and tensor.c lend to their neighbours. SPDX-License-Identifier: Apache-2.0 */
#ifndef IFS_TENSOR_H
#define IFS_TENSOR_H

#include "internal.h"

/* One more reference; returns `memory`. */
ifs_memory *ifs__memory_retain(ifs_memory *memory);

/* Bytes [offset, offset + nbytes) of one side, brought up to date, and a hold on their block unless `hold` is NULL. One
 * step under the memory's lock: between a check, an access and a hold of their own another thread might resize it. On
 * the device side, work is queued on `stream`; NULL waits. */
ifs_status ifs__memory_access(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                              ifs_stream *stream, void **out, ifs_block **hold);

/* ifs_tensor_lend for bytes [offset, offset + nbytes). */
ifs_status ifs__memory_lend(ifs_memory *memory, size_t offset, size_t nbytes, void *native, void **out);

/* Elements and bytes of a shape, all checked: type, number and sign of the dimensions, overflow. */
ifs_status ifs__shape_nbytes(int32_t dtype, int32_t ndim, const int64_t *dims, size_t *count, size_t *nbytes);

/* "(1, 3, 640, 640)" or "(5,)" for a message; returns `buffer`. */
const char *ifs__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *dims);

#endif
