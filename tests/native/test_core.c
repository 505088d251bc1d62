/*
 * test_core.c - the C interface of memory, tensors, conversion and calibration, by itself: made to run under the
 * sanitizers.
 *
 *     test_core FOLDER
 */
#include "platform.h"
#include "rounds.h"

#include <math.h>
#include <string.h>

static void *host_of(ifs_tensor *tensor, int32_t access) {
    void *host = NULL;
    CHECK(ifs_tensor_host_ptr(tensor, access, &host) == IFS_OK);
    return host;
}

static ifs_tensor *tensor_of(int32_t dtype, int64_t rows, int64_t columns) {
    ifs_tensor *tensor = NULL;
    CHECK(ifs_tensor_create(dtype, 2, (int64_t[]){rows, columns}, IFS_NO_DEVICE, &tensor) == IFS_OK);
    return tensor;
}

static ifs_memory_stats stats(void) {
    ifs_memory_stats now;
    ifs_get_memory_stats(&now);
    return now;
}

static void test_status(void) {
    CHECK(strcmp(ifs_status_text(IFS_OK), "success") == 0);
    CHECK(strcmp(ifs_status_text(IFS_ERR_FORMAT), "malformed data") == 0);
    CHECK(strcmp(ifs_status_text(-12345), "unknown status") == 0);
    CHECK(strcmp(ifs_version(), IFS_VERSION) == 0);
    CHECK(ifs_has_cuda() == 0);
}

static void test_budget(void) {
    ifs_budget *budget = NULL, *other = NULL;
    ifs_reservation *first = NULL, *second = NULL;
    CHECK(ifs_budget_create("a model", 1000, &budget) == IFS_OK);
    CHECK(ifs_budget_create("another", UINT64_MAX, &other) == IFS_OK);
    CHECK(ifs_reservation_create(budget, 700, &first) == IFS_OK);
    CHECK(ifs_reservation_create(budget, 301, &second) == IFS_ERR_OVER_BUDGET && !second);
    CHECK(strstr(ifs_last_error(), "a model is 1000 bytes: 700 are in use, and 301 more are needed"));
    CHECK(ifs_budget_used(budget) == 700);

    CHECK(ifs_budget_use(budget) == NULL);
    ifs_memory *memory = NULL, *host = NULL;
    CHECK(ifs_memory_create(0, &memory) == IFS_OK && ifs_memory_create(IFS_NO_DEVICE, &host) == IFS_OK);
    CHECK(ifs_budget_use(other) == budget);
    CHECK(ifs_budget_use(NULL) == other);
    void *block = NULL;
    CHECK(ifs_memory_resize(memory, 301) == IFS_OK && ifs_memory_resize(host, 10000) == IFS_OK);
    CHECK(ifs_memory_device_ptr(memory, IFS_WRITE, NULL, &block) == IFS_ERR_OVER_BUDGET);
    ifs_reservation_destroy(first);
    CHECK(ifs_memory_device_ptr(memory, IFS_WRITE, NULL, &block) == IFS_ERR_NO_DEVICE); /* fits; there is none here */
    CHECK(ifs_budget_used(budget) == 0 && ifs_budget_peak(budget) == 700);
    CHECK(ifs_memory_host_ptr(host, IFS_WRITE, &block) == IFS_OK); /* the host's does not count */

    CHECK(ifs_reservation_create(budget, 1000, &first) == IFS_OK);
    ifs_budget_destroy(budget); /* it lives on */
    ifs_memory_destroy(memory);
    ifs_memory_destroy(host);
    ifs_reservation_destroy(first);
    ifs_reservation_destroy(NULL);
    CHECK(ifs_reservation_create(other, UINT64_MAX, &first) == IFS_OK);
    CHECK(ifs_reservation_create(other, 1, &second) == IFS_ERR_OVER_BUDGET);
    ifs_reservation_destroy(first);
    ifs_budget_destroy(other);
    ifs_budget_destroy(NULL);
}

static void test_memory(void) {
    ifs_memory *memory = NULL;
    CHECK(ifs_memory_create(IFS_NO_DEVICE, &memory) == IFS_OK);
    void *first = NULL, *second = NULL;
    CHECK(ifs_memory_resize(memory, 100) == IFS_OK);
    CHECK(ifs_memory_host_capacity(memory) == 0);
    CHECK(ifs_memory_host_ptr(memory, IFS_WRITE, &first) == IFS_OK);
    CHECK((uintptr_t)first % 64 == 0);
    memset(first, 1, ifs_memory_host_capacity(memory)); /* the whole capacity is there */
    CHECK(ifs_memory_resize(memory, 7) == IFS_OK);
    CHECK(ifs_memory_host_ptr(memory, IFS_READ, &second) == IFS_OK && second == first);
    CHECK(ifs_memory_head(memory) == IFS_HEAD_HOST);

    ifs_block *block = NULL;
    CHECK(ifs_memory_hold(memory, IFS_SIDE_DEVICE, &block) == IFS_ERR_INVALID_ARGUMENT && !block);
    CHECK(ifs_memory_hold(memory, IFS_SIDE_HOST, &block) == IFS_OK);
    CHECK(ifs_memory_resize(memory, 1 << 20) == IFS_OK);
    CHECK(ifs_memory_head(memory) == IFS_HEAD_UNINITIALIZED);
    ifs_memory_destroy(memory);
    CHECK(((uint8_t *)first)[99] == 1); /* held */
    ifs_block_release(block);
}

static void test_no_device(void) {
    ifs_memory *memory = NULL;
    void *place = &place;
    CHECK(ifs_memory_create(0, &memory) == IFS_OK);
    CHECK(ifs_memory_resize(memory, 16) == IFS_OK);
    CHECK(ifs_memory_device_ptr(memory, IFS_READ, NULL, &place) == IFS_ERR_NO_DEVICE && place == &place);
    CHECK(ifs_memory_host_ptr(memory, IFS_READ, &place) == IFS_ERR_NO_DEVICE && place == &place);
    CHECK(strstr(ifs_last_error(), "CPU-only"));
    ifs_memory_destroy(memory);
}

static void test_wrap(void) {
    float lent[6] = {0, 1, 2, 3, 4, 5};
    ifs_memory *memory = NULL;
    ifs_tensor *tensor = NULL;
    CHECK(ifs_memory_wrap_host(lent, sizeof lent, IFS_NO_DEVICE, 1, &memory) == IFS_OK);
    CHECK(ifs_tensor_on(memory, 2, IFS_FLOAT32, 0, NULL, &tensor) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_tensor_on(memory, 4, IFS_FLOAT32, 1, (int64_t[]){6}, &tensor) == IFS_ERR_TOO_SMALL);
    CHECK(ifs_tensor_on(memory, 28, IFS_FLOAT32, 1, (int64_t[]){0}, &tensor) == IFS_ERR_TOO_SMALL);
    CHECK(!tensor);
    CHECK(ifs_tensor_on(memory, 4, IFS_FLOAT32, 1, (int64_t[]){5}, &tensor) == IFS_OK);
    ifs_memory_destroy(memory); /* the tensor has its own reference */
    CHECK(host_of(tensor, IFS_READ) == lent + 1);
    void *place = NULL;
    CHECK(ifs_tensor_host_ptr(tensor, IFS_WRITE, &place) == IFS_ERR_READ_ONLY);
    CHECK(ifs_tensor_resize(tensor, 1, (int64_t[]){6}) == IFS_ERR_TOO_SMALL);
    ifs_tensor_destroy(tensor);
    CHECK(lent[5] == 5);
}

static void test_views(void) {
    ifs_tensor *tensor = tensor_of(IFS_INT32, 8, 3), *part = NULL, *inner = NULL;
    int32_t *rows = host_of(tensor, IFS_WRITE);
    for (int32_t i = 0; i < 24; i++)
        rows[i] = i;
    CHECK(ifs_tensor_slice(tensor, 3, 9, &part) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_tensor_slice(tensor, 4, 3, &part) == IFS_ERR_INVALID_ARGUMENT && !part);
    CHECK(ifs_tensor_slice(tensor, 2, 7, &part) == IFS_OK);
    CHECK(ifs_tensor_slice(part, 1, 3, &inner) == IFS_OK);
    ifs_tensor_destroy(tensor);
    CHECK(((int32_t *)host_of(inner, IFS_READ_WRITE))[0] == 9);
    CHECK(ifs_tensor_resize(inner, ifs_tensor_ndim(inner), ifs_tensor_dims(inner)) == IFS_OK);
    CHECK(ifs_tensor_resize(inner, 1, (int64_t[]){7}) == IFS_ERR_TOO_SMALL);
    CHECK(ifs_memory_resize(ifs_tensor_memory(part), 40) == IFS_OK); /* its owner shrinks */
    void *place = NULL;
    CHECK(ifs_tensor_host_ptr(inner, IFS_READ, &place) == IFS_ERR_TOO_SMALL && !place);
    ifs_block *block = NULL;
    CHECK(ifs_tensor_hold(inner, IFS_SIDE_HOST, IFS_READ, &place, &block) == IFS_ERR_TOO_SMALL && !block);
    CHECK(ifs_tensor_hold(inner, 7, IFS_READ, &place, &block) == IFS_ERR_INVALID_ARGUMENT && !block);
    CHECK(ifs_tensor_copy(inner, inner) == IFS_ERR_TOO_SMALL);
    CHECK(ifs_tensor_save(inner, "never written") == IFS_ERR_TOO_SMALL);
    ifs_tensor_destroy(inner);
    ifs_tensor_destroy(part);
}

static void test_shapes(void) {
    ifs_tensor *tensor = NULL;
    int64_t many[IFS_MAX_NDIM + 1] = {0};
    CHECK(ifs_tensor_create(IFS_NUM_DTYPES, 0, NULL, -1, &tensor) == IFS_ERR_DTYPE);
    CHECK(ifs_tensor_create(IFS_UINT8, IFS_MAX_NDIM + 1, many, -1, &tensor) == IFS_ERR_SHAPE);
    CHECK(ifs_tensor_create(IFS_UINT8, -1, many, -1, &tensor) == IFS_ERR_SHAPE);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, NULL, -1, &tensor) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_tensor_create(IFS_UINT8, 2, (int64_t[]){INT64_MAX, 2}, -1, &tensor) == IFS_ERR_SHAPE);
    CHECK(ifs_tensor_create(IFS_INT16, 1, (int64_t[]){INT64_MAX}, -1, &tensor) == IFS_ERR_SHAPE);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, (int64_t[]){-1}, -1, &tensor) == IFS_ERR_SHAPE);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, (int64_t[]){1}, -2, &tensor) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(!tensor);
    CHECK(ifs_tensor_create(IFS_UINT8, IFS_MAX_NDIM, many, -1, &tensor) == IFS_OK); /* (0, 0, ...): empty */
    CHECK(host_of(tensor, IFS_READ) != NULL);
    int64_t offset = -1;
    CHECK(ifs_tensor_offset(tensor, 0, NULL, &offset) == IFS_OK && offset == 0);
    CHECK(ifs_tensor_offset(tensor, 1, many, &offset) == IFS_ERR_INVALID_ARGUMENT);
    ifs_tensor_destroy(tensor);
}

/* Every type to every other from random bytes: no value is undefined behaviour. */
static void test_convert(void) {
    enum { COUNT = 1031 };
    uint64_t source[COUNT], target[COUNT];
    for (int i = 0; i < COUNT; i++)
        source[i] = next();
    for (int32_t from = 0; from < IFS_NUM_DTYPES; from++)
        for (int32_t to = 0; to < IFS_NUM_DTYPES; to++)
            CHECK(ifs_convert(source, from, target, to, COUNT) == IFS_OK);
    float special[] = {-1.0f / 0.0f, 1.0f / 0.0f, 0.0f / 0.0f, 3e38f, -3e38f, 9.2233720e18f, 1.8446744e19f};
    for (int32_t to = 0; to < IFS_NUM_DTYPES; to++)
        CHECK(ifs_convert(special, IFS_FLOAT32, target, to, sizeof special / sizeof *special) == IFS_OK);
}

/* ---- calibration ---- */

/* Blocks of exactly the size: a sanitizer sees what a variant reads beyond them. */
static void test_calibration_reads_no_further(void) {
    for (int32_t n = 0; n < 70; n++) {
        float *x = malloc((size_t)n * sizeof *x + 1);
        for (int32_t i = 0; i < n; i++)
            x[i] = i % 11 == 7 ? NAN : i % 13 == 5 ? -INFINITY : (float)((i * 37 + n) % 101 - 50) / 7;
        ifs_range first[2] = {{0}};
        int64_t bins[3][64] = {{0}}, bad[3] = {0};
        const int32_t all[3] = {IFS_SIMD_PLAIN, IFS_SIMD_AVX2, IFS_SIMD_AVX512};
        for (int32_t v = 0; v < 3; v++) {
            if (ifs_set_simd(all[v]) != IFS_OK)
                continue;
            ifs_range ranges[2] = {{0}};
            CHECK(ifs_ranges_update(x, 1, 2, n / 2, ranges) == IFS_OK);
            CHECK(ifs_ranges_update(x, n, 1, 1, ranges) == IFS_OK);
            CHECK(ifs_histogram_add(x, n, 6.0f, bins[v], 64, &bad[v]) == IFS_OK);
            if (v == 0)
                memcpy(first, ranges, sizeof first);
            CHECK(memcmp(ranges, first, sizeof first) == 0);
            CHECK(memcmp(bins[v], bins[0], sizeof bins[0]) == 0);
        }
        free(x);
    }
    CHECK(ifs_set_simd(ifs_simd_best()) == IFS_OK);
}

static void test_wrong_calibration(void) {
    float x[1] = {1};
    int64_t bins[4] = {0};
    ifs_range range = {0};
    CHECK(ifs_ranges_update(NULL, 1, 1, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, -1, 1, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, 1, 0, 1, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, INT64_MAX, 2, 2, &range) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(x, 1, 1, 1, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_ranges_update(NULL, 0, 1, 1, &range) == IFS_OK && range.count == 0);
    CHECK(ifs_histogram_add(x, 1, 0, bins, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 0, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 3, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, NULL, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(NULL, 1, 1, bins, 4, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_histogram_add(x, 1, 1, bins, 4, NULL) == IFS_OK && bins[3] == 1);
}

/* ---- threads: views of one tensor, each in a thread of its own, while the owner grows and shrinks ---- */

enum { THREADS = 4, ROWS = 4, COLUMNS = 64, TURNS = 400 };

typedef struct work {
    ifs_tensor *part;
    int32_t number;
    const char *folder;
} work;

static IFS__THREAD_RESULT use_view(void *argument) {
    work *mine = argument;
    char path[4096];
    snprintf(path, sizeof path, "%s/thread-%d.bin", mine->folder, (int)mine->number);
    for (int32_t turn = 0; turn < TURNS; turn++) {
        void *host = NULL;
        ifs_block *block = NULL;
        ifs_status status = ifs_tensor_hold(mine->part, IFS_SIDE_HOST, IFS_READ_WRITE, &host, &block);
        if (status == IFS_ERR_TOO_SMALL) /* the owner has shrunk just now */
            continue;
        CHECK(status == IFS_OK);
        int32_t *rows = host;
        for (int32_t i = 0; i < ROWS * COLUMNS; i++)
            rows[i] = mine->number * TURNS + turn;
        for (int32_t i = 0; i < ROWS * COLUMNS; i++)
            CHECK(rows[i] == mine->number * TURNS + turn);
        ifs_block_release(block);
        CHECK(ifs_tensor_head(mine->part) <= IFS_HEAD_HOST);
        ifs_tensor *copy = tensor_of(IFS_FLOAT32, ROWS, COLUMNS);
        status = ifs_tensor_copy(copy, mine->part);
        CHECK(status == IFS_OK || status == IFS_ERR_TOO_SMALL);
        ifs_tensor_destroy(copy);
        if (turn % 50 == 0) {
            status = ifs_tensor_save(mine->part, path);
            CHECK(status == IFS_OK || status == IFS_ERR_TOO_SMALL);
        }
    }
    ifs_tensor_destroy(mine->part);
    return 0;
}

static void test_threads(const char *folder) {
    ifs_tensor *tensor = tensor_of(IFS_INT32, THREADS * ROWS, COLUMNS);
    host_of(tensor, IFS_WRITE);
    ifs__thread threads[THREADS];
    work works[THREADS];
    for (int32_t i = 0; i < THREADS; i++) {
        works[i] = (work){NULL, i, folder};
        CHECK(ifs_tensor_slice(tensor, i * ROWS, (i + 1) * ROWS, &works[i].part) == IFS_OK);
    }
    for (int32_t i = 0; i < THREADS; i++)
        CHECK(ifs__thread_start(&threads[i], use_view, &works[i]) == 0);
    for (int64_t turn = 0; turn < TURNS; turn++) {
        CHECK(ifs_tensor_resize(tensor, 2, (int64_t[]){THREADS * ROWS + turn, COLUMNS}) == IFS_OK);
        host_of(tensor, IFS_READ);
        CHECK(ifs_tensor_head(tensor) <= IFS_HEAD_HOST);
        CHECK(ifs_tensor_resize(tensor, 2, (int64_t[]){THREADS * ROWS / 2, COLUMNS}) == IFS_OK);
    }
    ifs_tensor_destroy(tensor);
    for (int32_t i = 0; i < THREADS; i++)
        ifs__thread_join(threads[i]);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    test_status();
    test_memory();
    test_budget();
    test_no_device();
    test_wrap();
    test_views();
    test_shapes();
    test_convert();
    test_calibration_reads_no_further();
    test_wrong_calibration();
    test_threads(argv[1]);
    ifs_memory_destroy(NULL);
    ifs_tensor_destroy(NULL);
    ifs_block_release(NULL);
    CHECK(stats().host_bytes == 0 && stats().memories == 0 && stats().host_peak > 0);
    puts("good");
    return 0;
}
