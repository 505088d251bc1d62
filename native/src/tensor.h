/* tensor.h - the internal functions of memory.c and tensor.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef IFS_TENSOR_H
#define IFS_TENSOR_H

#include "internal.h"

/* Adds a reference and returns `memory`. */
ifs_memory *ifs__memory_retain(ifs_memory *memory);

/* Gives bytes [offset, offset + nbytes) of one side, up to date, and a hold on their block unless `hold` is NULL. All
 * of it happens under the memory's lock, so that no other thread resizes the memory in between. On the device side,
 * copies are queued on `stream`; with NULL, the call waits. */
ifs_status ifs__memory_access(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                              ifs_stream *stream, void **out, ifs_block **hold);

/* ifs_tensor_lend for bytes [offset, offset + nbytes). */
ifs_status ifs__memory_lend(ifs_memory *memory, size_t offset, size_t nbytes, ifs_stream *stream, void **out,
                            ifs_block **hold);

/* Marks a tensor as used by the calling thread until ifs__tensor_end_use; ERR_IN_USE where another thread uses it. */
ifs_status ifs__tensor_begin_use(ifs_tensor *tensor);
void ifs__tensor_end_use(ifs_tensor *tensor);

/* ifs_tensor_hold and ifs_tensor_device_ptr for a caller that uses the tensor already. */
ifs_status ifs__tensor_access(ifs_tensor *tensor, int32_t side, int32_t access, ifs_stream *stream, void **out,
                              ifs_block **hold);

/* The elements and bytes of a shape. Checks the type, the number and sign of the dimensions, and overflow. */
ifs_status ifs__shape_nbytes(int32_t dtype, int32_t ndim, const int64_t *dims, size_t *count, size_t *nbytes);

/* "(1, 3, 640, 640)" or "(5,)" for a message; returns `buffer`. */
const char *ifs__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *dims);

#endif
