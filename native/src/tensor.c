/* tensor.c - a shape and an element type over a memory. SPDX-License-Identifier: Apache-2.0 */
#include "tensor.h"

#include "device.h"
#include "in_use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ifs_tensor {
    atomic_bool in_use; /* by the thread inside of a function that may change it, or reads several of its members */
    ifs_memory *memory; /* one reference */
    size_t offset;      /* bytes from the start of the memory */
    size_t limit;       /* a view: the bytes that it may grow to; an owner: SIZE_MAX */
    size_t count, nbytes;
    int32_t dtype, ndim;
    int64_t dims[IFS_MAX_NDIM];
};

/* Shapes and addresses must not change under a thread that uses them, so a second thread gets an error. */
#define USE(tensor, call)                                                                                              \
    do {                                                                                                               \
        IFS__TRY(ifs__tensor_begin_use(tensor));                                                                       \
        const ifs_status status_of_use = (call);                                                                       \
        ifs__tensor_end_use(tensor);                                                                                   \
        return status_of_use;                                                                                          \
    } while (0)

ifs_status ifs__tensor_begin_use(ifs_tensor *tensor) {
    return ifs__begin_use(&tensor->in_use, "a tensor",
                          "give each thread a tensor or a view (tensor[:]) of its own, or a lock");
}

void ifs__tensor_end_use(ifs_tensor *tensor) { ifs__end_use(&tensor->in_use); }

static bool is_view(const ifs_tensor *tensor) { return tensor->limit != SIZE_MAX; }

const char *ifs__shape_text(char *buffer, size_t size, int32_t ndim, const int64_t *dims) {
    size_t used = (size_t)snprintf(buffer, size, "(");
    for (int32_t i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, i ? ", %lld" : "%lld", (long long)dims[i]);
    if (used < size)
        snprintf(buffer + used, size - used, ndim == 1 ? ",)" : ")");
    return buffer;
}

ifs_status ifs__shape_nbytes(int32_t dtype, int32_t ndim, const int64_t *dims, size_t *count, size_t *nbytes) {
    if (!ifs_dtype_size(dtype))
        return ifs__fail(IFS_ERR_DTYPE, "unknown element type %d; use 0 to %d", (int)dtype, IFS_NUM_DTYPES - 1);
    if (ndim < 0 || ndim > IFS_MAX_NDIM)
        return ifs__fail(IFS_ERR_SHAPE, "a tensor has 0 to %d dimensions, not %d", IFS_MAX_NDIM, (int)ndim);
    if (ndim && !dims)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d dimensions, but dims is NULL", (int)ndim);
    /* Sizes are checked as if no dimension were 0: (0, 2^62) must not pass here and overflow when it grows. */
    size_t total = 1, bytes = 0;
    bool empty = false, overflow = false;
    for (int32_t i = 0; i < ndim; i++) {
        if (dims[i] < 0)
            return ifs__fail(IFS_ERR_SHAPE, "dimension %d is %lld; a dimension cannot be negative", (int)i,
                             (long long)dims[i]);
        empty |= dims[i] == 0;
        overflow |= ifs__mul_overflows(total, dims[i] ? (size_t)dims[i] : 1, &total);
    }
    overflow = overflow || ifs__mul_overflows(total, ifs_dtype_size(dtype), &bytes) || bytes > INT64_MAX;
    if (overflow) {
        char shape[256];
        return ifs__fail(IFS_ERR_SHAPE, "the size of shape %s overflows",
                         ifs__shape_text(shape, sizeof shape, ndim, dims));
    }
    *count = empty ? 0 : total;
    *nbytes = empty ? 0 : bytes;
    return IFS_OK;
}

/* Takes over the caller's reference to `memory`, also where it fails. */
static ifs_status tensor_new(ifs_memory *memory, size_t offset, size_t limit, int32_t dtype, int32_t ndim,
                             const int64_t *dims, size_t count, size_t nbytes, ifs_tensor **out) {
    ifs_tensor *tensor = malloc(sizeof *tensor);
    if (!tensor) {
        ifs_memory_destroy(memory);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *tensor);
    }
    *tensor = (ifs_tensor){.memory = memory,
                           .offset = offset,
                           .limit = limit,
                           .count = count,
                           .nbytes = nbytes,
                           .dtype = dtype,
                           .ndim = ndim};
    if (ndim)
        memcpy(tensor->dims, dims, (size_t)ndim * sizeof *dims);
    *out = tensor;
    return IFS_OK;
}

ifs_status ifs_tensor_create(int32_t dtype, int32_t ndim, const int64_t *dims, int32_t device, ifs_tensor **out) {
    size_t count, nbytes;
    IFS__TRY(ifs__shape_nbytes(dtype, ndim, dims, &count, &nbytes));
    ifs_memory *memory = NULL;
    IFS__TRY(ifs_memory_create(device, &memory));
    ifs_status status = ifs_memory_resize(memory, nbytes);
    if (status == IFS_OK)
        return tensor_new(memory, 0, SIZE_MAX, dtype, ndim, dims, count, nbytes, out);
    ifs_memory_destroy(memory);
    return status;
}

ifs_status ifs_tensor_on(ifs_memory *memory, size_t offset, int32_t dtype, int32_t ndim, const int64_t *dims,
                         ifs_tensor **out) {
    size_t count, nbytes;
    IFS__TRY(ifs__shape_nbytes(dtype, ndim, dims, &count, &nbytes));
    if (offset % ifs_dtype_size(dtype))
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "offset %zu is not a multiple of the %zu bytes of a %s", offset,
                         ifs_dtype_size(dtype), ifs_dtype_name(dtype));
    size_t available = ifs_memory_nbytes(memory);
    if (offset > available || nbytes > available - offset)
        return ifs__fail(IFS_ERR_TOO_SMALL, "%zu bytes from byte %zu on do not fit the memory's %zu", nbytes, offset,
                         available);
    return tensor_new(ifs__memory_retain(memory), offset, available - offset, dtype, ndim, dims, count, nbytes, out);
}

static ifs_status slice(const ifs_tensor *tensor, int64_t start, int64_t stop, ifs_tensor **out) {
    if (tensor->ndim == 0)
        return ifs__fail(IFS_ERR_SHAPE, "a scalar has no axis to slice");
    if (start < 0 || stop < start || stop > tensor->dims[0])
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "slice [%lld, %lld) does not lie within the first axis of %lld",
                         (long long)start, (long long)stop, (long long)tensor->dims[0]);
    int64_t dims[IFS_MAX_NDIM];
    memcpy(dims, tensor->dims, sizeof dims);
    dims[0] = stop - start;
    size_t row = tensor->dims[0] ? tensor->nbytes / (size_t)tensor->dims[0] : 0;
    size_t nbytes = row * (size_t)dims[0], count = nbytes / ifs_dtype_size(tensor->dtype);
    return tensor_new(ifs__memory_retain(tensor->memory), tensor->offset + row * (size_t)start, nbytes, tensor->dtype,
                      tensor->ndim, dims, count, nbytes, out);
}

ifs_status ifs_tensor_slice(const ifs_tensor *tensor, int64_t start, int64_t stop, ifs_tensor **out) {
    USE((ifs_tensor *)tensor, slice(tensor, start, stop, out)); /* only its flag is written */
}

void ifs_tensor_destroy(ifs_tensor *tensor) {
    if (!tensor)
        return;
    ifs_memory_destroy(tensor->memory);
    free(tensor);
}

static ifs_status resize(ifs_tensor *tensor, int32_t ndim, const int64_t *dims) {
    size_t count, nbytes;
    IFS__TRY(ifs__shape_nbytes(tensor->dtype, ndim, dims, &count, &nbytes));
    if (!is_view(tensor))
        IFS__TRY(ifs_memory_resize(tensor->memory, nbytes));
    else if (nbytes > tensor->limit)
        return ifs__fail(
            IFS_ERR_TOO_SMALL,
            "a view of %zu bytes cannot grow to %zu; resize the tensor that it is a view of, or wrap a larger array",
            tensor->limit, nbytes);
    tensor->count = count;
    tensor->nbytes = nbytes;
    tensor->ndim = ndim;
    if (ndim) /* `dims` may be the tensor's own */
        memmove(tensor->dims, dims, (size_t)ndim * sizeof *dims);
    return IFS_OK;
}

ifs_status ifs_tensor_resize(ifs_tensor *tensor, int32_t ndim, const int64_t *dims) {
    USE(tensor, resize(tensor, ndim, dims));
}

int32_t ifs_tensor_dtype(const ifs_tensor *tensor) { return tensor->dtype; }
int32_t ifs_tensor_ndim(const ifs_tensor *tensor) { return tensor->ndim; }
const int64_t *ifs_tensor_dims(const ifs_tensor *tensor) { return tensor->dims; }
size_t ifs_tensor_count(const ifs_tensor *tensor) { return tensor->count; }
size_t ifs_tensor_nbytes(const ifs_tensor *tensor) { return tensor->nbytes; }
int32_t ifs_tensor_head(const ifs_tensor *tensor) { return ifs_memory_head(tensor->memory); }
int32_t ifs_tensor_device(const ifs_tensor *tensor) { return ifs_memory_device(tensor->memory); }
ifs_memory *ifs_tensor_memory(const ifs_tensor *tensor) { return tensor->memory; }

ifs_status ifs__tensor_access(ifs_tensor *tensor, int32_t side, int32_t access, ifs_stream *stream, void **out,
                              ifs_block **hold) {
    return ifs__memory_access(tensor->memory, side, access, tensor->offset, tensor->nbytes, stream, out, hold);
}

ifs_status ifs_tensor_host_ptr(ifs_tensor *tensor, int32_t access, void **out) {
    USE(tensor, ifs__tensor_access(tensor, IFS_SIDE_HOST, access, NULL, out, NULL));
}

ifs_status ifs_tensor_device_ptr(ifs_tensor *tensor, int32_t access, ifs_stream *stream, void **out) {
    USE(tensor, ifs__tensor_access(tensor, IFS_SIDE_DEVICE, access, stream, out, NULL));
}

ifs_status ifs_tensor_lend(ifs_tensor *tensor, ifs_stream *stream, void **out, ifs_block **block) {
    if (!stream)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "stream is NULL; wrap the borrower's stream by ifs_stream_wrap");
    USE(tensor, ifs__memory_lend(tensor->memory, tensor->offset, tensor->nbytes, stream, out, block));
}

ifs_status ifs_tensor_hold(ifs_tensor *tensor, int32_t side, int32_t access, void **out, ifs_block **block) {
    USE(tensor, ifs__tensor_access(tensor, side, access, NULL, out, block));
}

ifs_status ifs_tensor_offset(const ifs_tensor *tensor, int32_t n, const int64_t *index, int64_t *out) {
    if (n < 0 || n > tensor->ndim)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d indices for a tensor of %d dimensions", (int)n,
                         (int)tensor->ndim);
    int64_t offset = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t at = i < n ? index[i] : 0;
        if (i < n && (at < 0 || at >= tensor->dims[i]))
            return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "index %lld is out of range for dimension %d of %lld",
                             (long long)at, (int)i, (long long)tensor->dims[i]);
        offset = offset * tensor->dims[i] + at;
    }
    *out = offset;
    return IFS_OK;
}

static bool overlap(uintptr_t a, size_t a_nbytes, uintptr_t b, size_t b_nbytes) {
    return a < b + b_nbytes && b < a + a_nbytes;
}

/* CUDA copies only between ranges that do not overlap. Nothing changes where they are the same. */
static ifs_status check_device_copy(const void *from, const void *to, size_t nbytes) {
    if (from == to || !overlap((uintptr_t)from, nbytes, (uintptr_t)to, nbytes))
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                     "cannot copy %zu bytes on a device to memory that overlaps the source, at a distance of %lld "
                     "bytes; copy the source to other memory first",
                     nbytes, (long long)((intptr_t)to - (intptr_t)from));
}

static ifs_status copy(ifs_tensor *dst, ifs_tensor *src) {
    if (dst->count != src->count) {
        char a[256], b[256];
        return ifs__fail(IFS_ERR_SHAPE, "cannot copy %s (%zu elements) into %s (%zu elements)",
                         ifs__shape_text(a, sizeof a, src->ndim, src->dims), src->count,
                         ifs__shape_text(b, sizeof b, dst->ndim, dst->dims), dst->count);
    }
    /* Both blocks are held: another thread may resize the tensors that these are views of. */
    void *from = NULL, *to = NULL;
    ifs_block *source = NULL, *target = NULL;
    int32_t src_device = ifs_tensor_device(src), dst_device = ifs_tensor_device(dst);
    const bool shared = src->memory == dst->memory && overlap(src->offset, src->nbytes, dst->offset, dst->nbytes);
    bool on_device = !shared && src_device >= 0 && dst_device >= 0 && src->dtype == dst->dtype &&
                     ifs_tensor_head(src) & IFS_HEAD_DEVICE;
    int32_t side = on_device ? IFS_SIDE_DEVICE : IFS_SIDE_HOST;
    ifs_status status = ifs__tensor_access(src, side, IFS_READ, NULL, &from, &source);
    if (status == IFS_OK)
        status = ifs__tensor_access(dst, side, IFS_WRITE, NULL, &to, &target);
    if (status == IFS_OK && on_device)
        status = check_device_copy(from, to, src->nbytes);
    if (status == IFS_OK && src->dtype != dst->dtype &&
        overlap((uintptr_t)from, src->nbytes, (uintptr_t)to, dst->nbytes))
        status = ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                           "cannot convert %s to %s in the same memory, where results overwrite elements that are not "
                           "read yet; copy the source first",
                           ifs_dtype_name(src->dtype), ifs_dtype_name(dst->dtype));
    else if (status == IFS_OK && on_device)
        status = ifs__copy_between(dst_device, to, src_device, from, src->nbytes);
    else if (status == IFS_OK)
        status = ifs_convert(from, src->dtype, to, dst->dtype, src->count);
    ifs_block_release(source);
    ifs_block_release(target);
    return status;
}

static ifs_status copy_on(ifs_tensor *dst, ifs_tensor *src, ifs_stream *stream) {
    if (!stream)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "stream is NULL; ifs_tensor_copy waits for its copy");
    if (dst->dtype != src->dtype || dst->count != src->count)
        return ifs__fail(
            IFS_ERR_INVALID_ARGUMENT,
            "cannot copy %zu elements of type %d into %zu of type %d on a stream; ifs_tensor_copy converts", src->count,
            (int)src->dtype, dst->count, (int)dst->dtype);
    const int32_t device = ifs_stream_device(stream);
    if (ifs_tensor_device(src) != device || ifs_tensor_device(dst) != device)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "cannot copy from device %d to device %d on a stream of device %d",
                         (int)ifs_tensor_device(src), (int)ifs_tensor_device(dst), (int)device);
    void *from = NULL, *to = NULL;
    ifs_block *source = NULL, *target = NULL; /* held, as in copy() */
    ifs_status status = ifs__tensor_access(src, IFS_SIDE_DEVICE, IFS_READ, stream, &from, &source);
    if (status == IFS_OK)
        status = ifs__tensor_access(dst, IFS_SIDE_DEVICE, IFS_WRITE, stream, &to, &target);
    if (status == IFS_OK)
        status = check_device_copy(from, to, src->nbytes);
    if (status == IFS_OK)
        status = ifs__copy(device, to, from, src->nbytes, stream);
    ifs_block_release(source);
    ifs_block_release(target);
    return status;
}

/* Uses both, which may be the same. */
static ifs_status begin_both(ifs_tensor *dst, ifs_tensor *src) {
    IFS__TRY(ifs__tensor_begin_use(dst));
    const ifs_status status = dst == src ? IFS_OK : ifs__tensor_begin_use(src);
    if (status != IFS_OK)
        ifs__tensor_end_use(dst);
    return status;
}

static ifs_status end_both(ifs_tensor *dst, ifs_tensor *src, ifs_status status) {
    ifs__tensor_end_use(dst);
    if (dst != src)
        ifs__tensor_end_use(src);
    return status;
}

ifs_status ifs_tensor_copy(ifs_tensor *dst, ifs_tensor *src) {
    IFS__TRY(begin_both(dst, src));
    return end_both(dst, src, copy(dst, src));
}

ifs_status ifs_tensor_copy_on(ifs_tensor *dst, ifs_tensor *src, ifs_stream *stream) {
    IFS__TRY(begin_both(dst, src));
    return end_both(dst, src, copy_on(dst, src, stream));
}
