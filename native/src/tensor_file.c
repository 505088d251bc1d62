/*
 * tensor_file.c - tensors on disk.
 *
 * Little-endian: u32 magic | u32 ndims | u32 dtype | i32 dims[ndims] | raw C-order data. The reader checks the header
 * against the size of the file before it allocates anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "platform.h"
#include "tensor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor files are little-endian, and this code reads them without swapping bytes"
#endif

#define MAGIC 0xFCCFE2E2u
#define FIXED 12 /* bytes of magic, ndims and dtype */
#define MAX_HEADER (FIXED + 4 * IFS_MAX_NDIM)

typedef struct header {
    int32_t dtype, ndim;
    int64_t dims[IFS_MAX_NDIM];
    size_t size, nbytes; /* of the header, of the data */
} header;

/* Reads the header of a file called `name`, of `total` bytes, from the `available` bytes at `data`. */
static ifs_status parse_header(const char *name, const void *data, size_t available, uint64_t total, header *out) {
    uint32_t fixed[3];
    if (available < FIXED)
        return ifs__fail(IFS_ERR_FORMAT, "%s: %llu bytes are too few for a tensor's header of at least %d", name,
                         (unsigned long long)total, FIXED);
    memcpy(fixed, data, FIXED);
    if (fixed[0] != MAGIC)
        return ifs__fail(IFS_ERR_FORMAT, "%s: not a tensor file: it starts with 0x%08X, not 0x%08X", name,
                         (unsigned)fixed[0], MAGIC);
    if (fixed[1] > IFS_MAX_NDIM)
        return ifs__fail(IFS_ERR_FORMAT, "%s: it says that it has %u dimensions; the limit is %d", name,
                         (unsigned)fixed[1], IFS_MAX_NDIM);
    if (fixed[2] >= IFS_NUM_DTYPES)
        return ifs__fail(IFS_ERR_FORMAT, "%s: unknown element type %u; the known ones are 0 to %d", name,
                         (unsigned)fixed[2], IFS_NUM_DTYPES - 1);
    *out = (header){.ndim = (int32_t)fixed[1], .dtype = (int32_t)fixed[2], .size = FIXED + 4 * (size_t)fixed[1]};
    if (available < out->size)
        return ifs__fail(IFS_ERR_FORMAT, "%s: truncated after %zu bytes of its header of %zu", name, available,
                         out->size);
    for (int32_t i = 0; i < out->ndim; i++) {
        int32_t dim;
        memcpy(&dim, (const char *)data + FIXED + 4 * i, 4);
        if (dim < 0)
            return ifs__fail(IFS_ERR_FORMAT, "%s: dimension %d is %d; a dimension cannot be negative", name, (int)i,
                             (int)dim);
        out->dims[i] = dim;
    }
    size_t count;
    if (ifs__shape_nbytes(out->dtype, out->ndim, out->dims, &count, &out->nbytes) != IFS_OK) {
        char shape[256];
        return ifs__fail(IFS_ERR_FORMAT, "%s: the size of its shape %s overflows", name,
                         ifs__shape_text(shape, sizeof shape, out->ndim, out->dims));
    }
    if (total - out->size != out->nbytes) {
        char shape[256];
        return ifs__fail(IFS_ERR_FORMAT, "%s: %s: %s of %s takes %zu bytes of data, but the file has %llu", name,
                         total - out->size < out->nbytes ? "truncated" : "longer than its header says",
                         ifs__shape_text(shape, sizeof shape, out->ndim, out->dims), ifs_dtype_name(out->dtype),
                         out->nbytes, (unsigned long long)(total - out->size));
    }
    return IFS_OK;
}

/* A bool is 0 or 1. No reader expects another value. */
static ifs_status check_bools(const char *name, const header *head, const uint8_t *data) {
    for (size_t i = 0; head->dtype == IFS_BOOL && i < head->nbytes; i++)
        if (data[i] > 1)
            return ifs__fail(IFS_ERR_FORMAT, "%s: element %zu is %u, but a bool is 0 or 1", name, i, (unsigned)data[i]);
    return IFS_OK;
}

ifs_status ifs_tensor_parse(const void *data, size_t nbytes, int32_t device, ifs_tensor **out) {
    if (!data && nbytes)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%zu bytes at NULL", nbytes);
    header head;
    IFS__TRY(parse_header("tensor data", data, nbytes, nbytes, &head));
    const uint8_t *content = (const uint8_t *)data + head.size;
    IFS__TRY(check_bools("tensor data", &head, content));
    ifs_tensor *tensor = NULL;
    IFS__TRY(ifs_tensor_create(head.dtype, head.ndim, head.dims, device, &tensor));
    void *host = NULL;
    ifs_status status = ifs_tensor_host_ptr(tensor, IFS_WRITE, &host);
    if (status != IFS_OK) {
        ifs_tensor_destroy(tensor);
        return status;
    }
    memcpy(host, content, head.nbytes);
    *out = tensor;
    return IFS_OK;
}

static ifs_status load_open(FILE *file, uint64_t nbytes, const char *path, int32_t device, ifs_tensor **tensor) {
    uint8_t start[MAX_HEADER];
    header head;
    size_t got = fread(start, 1, sizeof start, file);
    IFS__TRY(parse_header(path, start, got, nbytes, &head));
    IFS__TRY(ifs_tensor_create(head.dtype, head.ndim, head.dims, device, tensor));
    void *host = NULL;
    IFS__TRY(ifs_tensor_host_ptr(*tensor, IFS_WRITE, &host));
    if (fseek(file, (long)head.size, SEEK_SET) != 0 || fread(host, 1, head.nbytes, file) != head.nbytes)
        return ifs__fail(IFS_ERR_IO, "cannot read the %zu bytes of data in %s; the file may have changed meanwhile",
                         head.nbytes, path);
    return check_bools(path, &head, host);
}

ifs_status ifs_tensor_load(const char *path, int32_t device, ifs_tensor **out) {
    FILE *file = NULL;
    uint64_t nbytes = 0;
    IFS__TRY(ifs__file_open(path, &file, &nbytes));
    ifs_tensor *tensor = NULL;
    ifs_status status = load_open(file, nbytes, path, device, &tensor);
    fclose(file);
    if (status != IFS_OK) {
        ifs_tensor_destroy(tensor);
        return status;
    }
    *out = tensor;
    return IFS_OK;
}

static ifs_status save(ifs_tensor *tensor, const char *path) {
    int32_t ndim = ifs_tensor_ndim(tensor);
    const int64_t *dims = ifs_tensor_dims(tensor);
    uint32_t start[MAX_HEADER / 4] = {MAGIC, (uint32_t)ndim, (uint32_t)ifs_tensor_dtype(tensor)};
    for (int32_t i = 0; i < ndim; i++) {
        if (dims[i] > INT32_MAX)
            return ifs__fail(IFS_ERR_SHAPE, "dimension %d is %lld; the file layout holds at most %d", (int)i,
                             (long long)dims[i], INT32_MAX);
        start[3 + i] = (uint32_t)dims[i];
    }
    void *host = NULL;
    ifs_block *hold = NULL; /* another thread may resize the tensor that this is a view of */
    IFS__TRY(ifs__tensor_access(tensor, IFS_SIDE_HOST, IFS_READ, NULL, &host, &hold));
    const size_t header_size = FIXED + 4 * (size_t)ndim, nbytes = ifs_tensor_nbytes(tensor);
    const header head = {.dtype = ifs_tensor_dtype(tensor), .nbytes = nbytes};
    ifs_status status = check_bools("the tensor", &head, host);
    if (status == IFS_OK) {
        FILE *file = ifs__file_create(path);
        bool good =
            file && fwrite(start, 1, header_size, file) == header_size && fwrite(host, 1, nbytes, file) == nbytes;
        good = file && fclose(file) == 0 && good;
        if (!good)
            status = ifs__fail(IFS_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    }
    ifs_block_release(hold);
    return status;
}

ifs_status ifs_tensor_save(ifs_tensor *tensor, const char *path) {
    IFS__TRY(ifs__tensor_begin_use(tensor));
    const ifs_status status = save(tensor, path);
    ifs__tensor_end_use(tensor);
    return status;
}
