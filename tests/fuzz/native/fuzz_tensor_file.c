/*
 * fuzz_tensor_file.c - mutated tensor files against the reader.
 *
 * Each is parsed from a block of exactly its size, so that the address sanitizer sees a read of one byte too many.
 * Whether a file is well-formed is worked out here a second time, in 128 bits, and the reader must agree.
 */
#include "fuzz.h"

static void put(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

static uint32_t get(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

/* A well-formed file; returns its size. */
static size_t seed_file(uint8_t *file) {
    uint32_t ndims = below(5), dtype = below(IFS_NUM_DTYPES);
    size_t count = 1;
    put(file, 0xFCCFE2E2u), put(file + 4, ndims), put(file + 8, dtype);
    for (uint32_t i = 0; i < ndims; i++) {
        uint32_t dim = below(8) ? 1 + below(4) : 0;
        put(file + 12 + 4 * i, dim);
        count *= dim;
    }
    size_t header = 12 + 4 * (size_t)ndims, nbytes = count * ifs_dtype_size((int32_t)dtype);
    for (size_t i = 0; i < nbytes; i++)
        file[header + i] = (uint8_t)(dtype == IFS_BOOL ? below(2) : below(256));
    return header + nbytes;
}

static const uint32_t interesting[] = {
    0,          1,          2,          11,         12,         15,         16,         17,
    255,        256,        0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFE, 0x40000000, 0x20000000,
    0x10000000, 0x00010000, 0x00008000, 0xFFFF0000, 0xFCCFE2E2, 0xE2E2CFFC, 0x3FFFFFFF,
};

/* Changes the file one to four times; returns its new size, at most `capacity`. */
static size_t mutate(uint8_t *file, size_t size, size_t capacity) {
    for (uint32_t changes = 1 + below(4); changes; changes--)
        switch (below(7)) {
        case 0: /* cut off */
            size = below((uint32_t)size + 1);
            break;
        case 1: { /* go on */
            size_t more = below(64);
            for (size_t i = 0; i < more && size < capacity; i++)
                file[size++] = (uint8_t)below(256);
            break;
        }
        case 2: /* flip a bit of the header */
            if (size >= 12)
                file[below(12)] ^= (uint8_t)(1u << below(8));
            break;
        case 3: /* flip a bit anywhere */
            if (size)
                file[below((uint32_t)size)] ^= (uint8_t)(1u << below(8));
            break;
        case 4: /* an interesting number for the dimensions, their number, or the type */
            if (size >= 16)
                put(file + 4 + 4 * below((uint32_t)(size - 8) / 4 < 6 ? (uint32_t)(size - 8) / 4 : 6),
                    interesting[below(sizeof interesting / sizeof *interesting)]);
            break;
        case 5: { /* many dimensions, and sizes whose product wraps around 32 or 64 bits to that of the data */
            uint32_t ndims = 2 + below(below(4) ? 6 : 20), small = below(2);
            size_t header = 12 + 4 * (size_t)ndims;
            if (size < header || small) {
                memset(file + size, 0, size < header ? header - size : 0);
                size = header;
            }
            put(file + 4, ndims);
            for (uint32_t i = 0; i < ndims; i++)
                put(file + 12 + 4 * i, small ? below(2) : below(4) ? 1u << (8 + below(23)) : below(3));
            break;
        }
        default: /* noise */
            for (uint32_t i = 0; i < 8 && size; i++)
                file[below((uint32_t)size)] = (uint8_t)below(256);
        }
    return size;
}

/* The layout once more. A dimension of 0 does not excuse the others: sizes that overflow without it are refused. */
static int well_formed(const uint8_t *file, size_t size) {
    if (size < 12 || get(file) != 0xFCCFE2E2u || get(file + 4) > IFS_MAX_NDIM || get(file + 8) >= IFS_NUM_DTYPES)
        return 0;
    uint32_t ndims = get(file + 4);
    if (size < 12 + 4 * (size_t)ndims)
        return 0;
    unsigned __int128 nbytes = ifs_dtype_size((int32_t)get(file + 8));
    int empty = 0;
    for (uint32_t i = 0; i < ndims; i++) {
        uint32_t dim = get(file + 12 + 4 * i);
        if (dim > INT32_MAX)
            return 0;
        empty |= dim == 0;
        nbytes *= dim ? dim : 1;
        if (nbytes > INT64_MAX)
            return 0;
    }
    size_t header = 12 + 4 * (size_t)ndims;
    if (size - header != (empty ? 0 : nbytes))
        return 0;
    for (size_t i = header; get(file + 8) == IFS_BOOL && i < size; i++)
        if (file[i] > 1)
            return 0;
    return 1;
}

static void write_file(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(data, 1, size, file) == size);
    CHECK(fclose(file) == 0);
}

/* A tensor that was read is one: its sizes agree, and its bytes are those of the file. */
static void check_tensor(ifs_tensor *tensor, const uint8_t *file, size_t size) {
    size_t header = 12 + 4 * (size_t)ifs_tensor_ndim(tensor), nbytes = ifs_tensor_nbytes(tensor);
    CHECK(nbytes == size - header);
    CHECK(nbytes == ifs_tensor_count(tensor) * ifs_dtype_size(ifs_tensor_dtype(tensor)));
    void *host = NULL;
    CHECK(ifs_tensor_host_ptr(tensor, IFS_READ_WRITE, &host) == IFS_OK);
    CHECK(memcmp(host, file + header, nbytes) == 0);
    memset(host, 1, nbytes);
    CHECK(ifs_tensor_head(tensor) == IFS_HEAD_HOST);
}

static void one_case(void) {
    static char path[4096], again[4096];
    static uint8_t file[1 << 16];
    size_t size = seed_file(file);
    if (below(16)) /* every sixteenth stays whole */
        size = mutate(file, size, sizeof file);
    uint8_t *data = exact(size);
    memcpy(data, file, size);
    ifs_tensor *const untouched = (ifs_tensor *)(uintptr_t)0x5A5A;
    ifs_tensor *tensor = untouched;
    ifs_status status = counted(ifs_tensor_parse(data, size, IFS_NO_DEVICE, &tensor));
    CHECK(status == (well_formed(file, size) ? IFS_OK : IFS_ERR_FORMAT));
    int through_file = below(64) == 0; /* the disk is the slow part */
    snprintf(path, sizeof path, "%s/fuzz.bin", folder);
    snprintf(again, sizeof again, "%s/again.bin", folder);
    if (status == IFS_OK) {
        if (through_file) { /* what was read can be written, and is the same file */
            CHECK(ifs_tensor_save(tensor, again) == IFS_OK);
            FILE *back = fopen(again, "rb");
            CHECK(back != NULL);
            static uint8_t bytes[sizeof file + 1];
            size_t got = fread(bytes, 1, sizeof bytes, back);
            CHECK(got == size && memcmp(bytes, file, size) == 0);
            fclose(back);
        }
        check_tensor(tensor, file, size);
        ifs_tensor_destroy(tensor);
    } else
        CHECK(tensor == untouched);
    if (through_file) {
        write_file(path, file, size);
        tensor = untouched;
        CHECK(ifs_tensor_load(path, IFS_NO_DEVICE, &tensor) == status);
        if (status == IFS_OK) {
            check_tensor(tensor, file, size);
            ifs_tensor_destroy(tensor);
        } else
            CHECK(tensor == untouched);
    }
    free(data);
}
