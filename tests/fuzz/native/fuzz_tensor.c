/*
 * fuzz_tensor.c - sequences of calls on memories and tensors, against a model of what they hold.
 *
 * Every tensor has a shadow: an array of bytes of the same size. Views share the bytes of their tensor, as their memory
 * does. After each step the content of a tensor must be that of its shadow.
 */
#include "fuzz.h"

#define TENSORS 6

typedef struct shadow {
    uint8_t *bytes; /* of the whole memory */
    size_t capacity;
    int users;
} shadow;

typedef struct entry {
    ifs_tensor *tensor;
    shadow *memory;
    size_t offset, limit; /* bytes of the memory that the tensor may use */
    int is_view;
} entry;

static entry entries[TENSORS];

static void drop(entry *e) {
    if (!e->tensor)
        return;
    ifs_tensor_destroy(e->tensor);
    if (--e->memory->users == 0) {
        free(e->memory->bytes);
        free(e->memory);
    }
    *e = (entry){0};
}

static int32_t some_dims(int64_t *dims, int wild) {
    int32_t ndim = wild && !below(16) ? odd_number(20) : (int32_t)below(5);
    for (int32_t i = 0; i < (ndim > IFS_MAX_NDIM ? IFS_MAX_NDIM : ndim); i++)
        dims[i] = wild && !below(8) ? (coin() ? odd_number(9) : (int64_t)next()) : (int64_t)below(5);
    return ndim;
}

/* Elements of a shape; -1 where it is not one, or too large to be tried. */
static int64_t count_of(int32_t ndim, const int64_t *dims) {
    if (ndim < 0 || ndim > IFS_MAX_NDIM)
        return -1;
    int64_t count = 1;
    for (int32_t i = 0; i < ndim; i++) {
        if (dims[i] < 0 || dims[i] > 4096)
            return -1;
        count *= dims[i];
        if (count > 1 << 20)
            return -1;
    }
    return count;
}

static void create(entry *e) {
    drop(e);
    int64_t dims[IFS_MAX_NDIM] = {0};
    int32_t ndim = some_dims(dims, 1), dtype = below(16) ? (int32_t)below(IFS_NUM_DTYPES) : odd_number(20);
    ifs_tensor *tensor = NULL;
    int64_t count = count_of(ndim, dims);
    ifs_status status = counted(ifs_tensor_create(dtype, ndim, dims, IFS_NO_DEVICE, &tensor));
    if (status != IFS_OK) {
        CHECK(tensor == NULL);
        CHECK(count < 0 || dtype < 0 || dtype >= IFS_NUM_DTYPES);
        return;
    }
    if (count < 0) { /* valid, and too large to be filled */
        ifs_tensor_destroy(tensor);
        return;
    }
    size_t nbytes = (size_t)count * ifs_dtype_size(dtype);
    CHECK(ifs_tensor_nbytes(tensor) == nbytes && ifs_tensor_count(tensor) == (size_t)count);
    shadow *memory = exact(sizeof *memory);
    *memory = (shadow){exact(nbytes), nbytes, 1};
    memset(memory->bytes, 0, nbytes);
    void *at = NULL;
    CHECK(ifs_tensor_host_ptr(tensor, IFS_WRITE, &at) == IFS_OK);
    memset(at, 0, nbytes);
    *e = (entry){tensor, memory, 0, nbytes, 0};
}

/* The content, or NULL where the owner has shrunk so far that a view has lost its bytes: an error, and no read. */
static void *content(const entry *e, int32_t access) {
    void *at = NULL;
    ifs_status status = counted(ifs_tensor_host_ptr(e->tensor, access, &at));
    int there = e->offset + ifs_tensor_nbytes(e->tensor) <= ifs_memory_nbytes(ifs_tensor_memory(e->tensor));
    CHECK(status == (there ? IFS_OK : IFS_ERR_TOO_SMALL));
    return status == IFS_OK ? at : NULL;
}

static void write_to(entry *e) {
    size_t nbytes = ifs_tensor_nbytes(e->tensor);
    void *at = content(e, IFS_READ_WRITE);
    if (!at)
        return;
    for (uint32_t i = 0; i < 4 && nbytes; i++) {
        size_t where = below((uint32_t)nbytes);
        uint8_t value = ifs_tensor_dtype(e->tensor) == IFS_BOOL ? (uint8_t)below(2) : (uint8_t)next();
        ((uint8_t *)at)[where] = value;
        e->memory->bytes[e->offset + where] = value;
    }
}

static void check(const entry *e) {
    size_t nbytes = ifs_tensor_nbytes(e->tensor);
    const void *at = content(e, IFS_READ);
    CHECK(!at || nbytes == 0 || memcmp(at, e->memory->bytes + e->offset, nbytes) == 0);
}

static void slice(const entry *from, entry *to) {
    if (to == from)
        return;
    drop(to);
    int64_t first = ifs_tensor_ndim(from->tensor) ? ifs_tensor_dims(from->tensor)[0] : 0;
    int64_t start = below(8) ? (int64_t)below(6) : odd_number(9), stop = below(8) ? (int64_t)below(6) : odd_number(9);
    ifs_tensor *tensor = NULL;
    ifs_status status = counted(ifs_tensor_slice(from->tensor, start, stop, &tensor));
    int good = ifs_tensor_ndim(from->tensor) > 0 && start >= 0 && start <= stop && stop <= first;
    CHECK((status == IFS_OK) == good);
    if (status != IFS_OK)
        return;
    size_t row = first ? ifs_tensor_nbytes(from->tensor) / (size_t)first : 0;
    *to = (entry){tensor, from->memory, from->offset + (size_t)start * row, (size_t)(stop - start) * row, 1};
    to->memory->users++;
    CHECK(ifs_tensor_nbytes(tensor) == to->limit);
}

static void view_on(const entry *from, entry *to) {
    if (to == from)
        return;
    drop(to);
    int64_t dims[IFS_MAX_NDIM] = {0};
    int32_t ndim = some_dims(dims, 1), dtype = (int32_t)below(IFS_NUM_DTYPES);
    size_t offset = below(8) ? below(40) : (size_t)next();
    ifs_tensor *tensor = NULL;
    ifs_status status = counted(ifs_tensor_on(ifs_tensor_memory(from->tensor), offset, dtype, ndim, dims, &tensor));
    if (status != IFS_OK)
        return;
    size_t nbytes = ifs_tensor_nbytes(tensor);
    CHECK(offset % ifs_dtype_size(dtype) == 0);
    size_t available = ifs_memory_nbytes(ifs_tensor_memory(from->tensor));
    CHECK(offset + nbytes <= available);
    *to = (entry){tensor, from->memory, offset, available - offset, 1};
    to->memory->users++;
}

/* Sizes that are wrong, or too large to be filled, are tried on a tensor that goes at once. */
static void resize_wildly(int32_t ndim, const int64_t *dims) {
    ifs_tensor *tensor = NULL;
    CHECK(ifs_tensor_create((int32_t)below(IFS_NUM_DTYPES), 0, NULL, IFS_NO_DEVICE, &tensor) == IFS_OK);
    if (counted(ifs_tensor_resize(tensor, ndim, dims)) != IFS_OK)
        CHECK(ifs_tensor_ndim(tensor) == 0 && ifs_tensor_count(tensor) == 1);
    ifs_tensor_destroy(tensor);
}

/* Within its bytes a tensor keeps its content. A view does not grow; the owner does, with undefined content. */
static void resize(entry *e) {
    int64_t dims[IFS_MAX_NDIM] = {0};
    int32_t ndim = some_dims(dims, 1);
    int64_t count = count_of(ndim, dims);
    if (count < 0) {
        resize_wildly(ndim, dims);
        return;
    }
    size_t nbytes = (size_t)count * ifs_dtype_size(ifs_tensor_dtype(e->tensor));
    int grows = nbytes > e->limit;
    if (grows && !e->is_view && e->memory->users > 1)
        return; /* the content of its views would be undefined, too */
    ifs_status status = counted(ifs_tensor_resize(e->tensor, ndim, dims));
    CHECK((status == IFS_OK) == (!grows || !e->is_view));
    if (status != IFS_OK)
        return;
    CHECK(ifs_tensor_nbytes(e->tensor) == nbytes && ifs_tensor_ndim(e->tensor) == ndim);
    if (grows) {
        free(e->memory->bytes);
        e->memory->bytes = exact(nbytes);
        e->memory->capacity = e->limit = nbytes;
        memset(e->memory->bytes, 0, nbytes);
        void *at = NULL;
        CHECK(ifs_tensor_host_ptr(e->tensor, IFS_WRITE, &at) == IFS_OK);
        memset(at, 0, nbytes);
    }
}

static void offset_of(const entry *e) {
    int64_t index[IFS_MAX_NDIM], found = -1;
    int32_t ndim = ifs_tensor_ndim(e->tensor), n = below(8) ? (int32_t)below((uint32_t)ndim + 1) : odd_number(4);
    for (int32_t i = 0; i < IFS_MAX_NDIM; i++)
        index[i] = below(8) ? (int64_t)below(5) : (coin() ? odd_number(5) : (int64_t)next());
    ifs_status status = counted(ifs_tensor_offset(e->tensor, n, index, &found));
    int good = n >= 0 && n <= ndim;
    int64_t expected = 0;
    for (int32_t i = 0; good && i < ndim; i++) {
        int64_t dim = ifs_tensor_dims(e->tensor)[i], at = i < n ? index[i] : 0;
        good = i >= n || (at >= 0 && at < dim);
        expected = good ? expected * dim + at : 0;
    }
    CHECK((status == IFS_OK) == good);
    CHECK(status != IFS_OK || found == expected);
}

static void copy(const entry *from, entry *to) {
    if (from->memory == to->memory || !content(from, IFS_READ) || !content(to, IFS_READ))
        return;
    ifs_status status = counted(ifs_tensor_copy(to->tensor, from->tensor));
    CHECK((status == IFS_OK) == (ifs_tensor_count(from->tensor) == ifs_tensor_count(to->tensor)));
    if (status != IFS_OK)
        return;
    void *at = NULL; /* the conversion has a harness of its own */
    CHECK(ifs_tensor_host_ptr(to->tensor, IFS_READ, &at) == IFS_OK);
    memcpy(to->memory->bytes + to->offset, at, ifs_tensor_nbytes(to->tensor));
    if (ifs_tensor_dtype(to->tensor) == ifs_tensor_dtype(from->tensor))
        CHECK(memcmp(at, from->memory->bytes + from->offset, ifs_tensor_nbytes(from->tensor)) == 0);
}

static void hold_over_destroy(entry *e) {
    if (e->memory->users > 1 || !content(e, IFS_READ))
        return;
    void *at = NULL;
    ifs_block *block = NULL;
    size_t nbytes = ifs_tensor_nbytes(e->tensor);
    CHECK(counted(ifs_tensor_hold(e->tensor, IFS_SIDE_HOST, IFS_READ, &at, &block)) == IFS_OK);
    uint8_t *before = exact(nbytes);
    memcpy(before, e->memory->bytes + e->offset, nbytes);
    drop(e);
    CHECK(nbytes == 0 || memcmp(at, before, nbytes) == 0);
    ifs_block_release(block);
    free(before);
}

static void one_case(void) {
    for (uint32_t steps = 4 + below(24); steps; steps--) {
        entry *a = &entries[below(TENSORS)], *b = &entries[below(TENSORS)];
        if (!a->tensor) {
            create(a);
            continue;
        }
        switch (below(9)) {
        case 0:
            create(a);
            break;
        case 1:
            write_to(a);
            break;
        case 2:
            slice(a, b);
            break;
        case 3:
            view_on(a, b);
            break;
        case 4:
            resize(a);
            break;
        case 5:
            offset_of(a);
            break;
        case 6:
            if (b->tensor)
                copy(a, b);
            break;
        case 7:
            hold_over_destroy(a);
            break;
        default:
            drop(a);
        }
        for (int i = 0; i < TENSORS; i++)
            if (entries[i].tensor)
                check(&entries[i]);
    }
    for (int i = 0; i < TENSORS; i++)
        drop(&entries[i]);
}
