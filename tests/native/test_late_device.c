/*
 * test_late_device.c - a memory with a device side, in random orders of accesses: every read, on the host or by a
 * kernel that runs late, sees what was written last.
 *
 *     test_late_device ROUNDS
 */
#include "late_device.h"
#include "rounds.h"
#include "tensor.h"

#define STREAMS 3

static void fill(void *data, size_t nbytes, size_t value) {
    for (size_t i = 0; i < nbytes; i++)
        ((uint8_t *)data)[i] = (uint8_t)(value + 7 * i);
}

static void expect(void *data, size_t nbytes, size_t value) {
    for (size_t i = 0; i < nbytes; i++)
        CHECK(((uint8_t *)data)[i] == (uint8_t)(value + 7 * i));
}

/* What the memory should hold: `known` bytes of a pattern. */
typedef struct model {
    size_t nbytes, known, value;
} model;

static void write_slice(ifs_memory *memory, const model *m, ifs_stream *stream) {
    const int64_t dims[1] = {(int64_t)m->nbytes};
    const uint32_t from = below((uint32_t)m->nbytes), to = from + 1 + below((uint32_t)m->nbytes - from);
    ifs_tensor *whole, *slice;
    void *data;
    CHECK(ifs_tensor_on(memory, 0, IFS_UINT8, 1, dims, &whole) == IFS_OK);
    CHECK(ifs_tensor_slice(whole, from, to, &slice) == IFS_OK);
    if (below(2)) {
        CHECK(ifs_tensor_device_ptr(slice, IFS_WRITE, stream, &data) == IFS_OK);
        late_launch(stream, fill, data, to - from, m->value + 7 * from);
    } else {
        CHECK(ifs_tensor_host_ptr(slice, IFS_WRITE, &data) == IFS_OK);
        fill(data, to - from, m->value + 7 * from);
    }
    ifs_tensor_destroy(slice);
    ifs_tensor_destroy(whole);
}

static void resize(ifs_memory *memory, model *m) {
    const size_t nbytes = below(3) ? below((uint32_t)m->nbytes + 1) : 1 + below(400);
    const size_t host = ifs_memory_host_capacity(memory), dev = ifs_memory_device_capacity(memory);
    const bool fits = (!host || nbytes <= host) && (!dev || nbytes <= dev);
    if (!fits && m->known > m->nbytes)
        m->known = m->nbytes;
    CHECK(ifs_memory_resize(memory, nbytes) == IFS_OK);
    m->nbytes = nbytes;
    if (ifs_memory_head(memory) == IFS_HEAD_UNINITIALIZED)
        m->known = 0;
}

static void step(ifs_memory *memory, model *m, ifs_stream *stream) {
    const size_t seen = m->known < m->nbytes ? m->known : m->nbytes;
    void *data;
    switch (below(8)) {
    case 0:
        CHECK(ifs_memory_host_ptr(memory, IFS_WRITE, &data) == IFS_OK);
        *m = (model){m->nbytes, m->nbytes, below(256)};
        fill(data, m->nbytes, m->value);
        break;
    case 1:
        CHECK(ifs_memory_device_ptr(memory, IFS_WRITE, stream, &data) == IFS_OK);
        *m = (model){m->nbytes, m->nbytes, below(256)};
        late_launch(stream, fill, data, m->nbytes, m->value);
        break;
    case 2:
        CHECK(ifs_memory_host_ptr(memory, IFS_READ, &data) == IFS_OK);
        expect(data, seen, m->value);
        break;
    case 3:
        CHECK(ifs_memory_device_ptr(memory, IFS_READ, stream, &data) == IFS_OK);
        late_launch(stream, expect, data, seen, m->value);
        break;
    case 4:
        CHECK(ifs_memory_device_ptr(memory, IFS_READ, NULL, &data) == IFS_OK);
        expect(data, seen, m->value);
        break;
    case 5:
        CHECK(ifs_memory_fetch(memory, stream) == IFS_OK);
        break;
    case 6:
        if (seen == m->nbytes && seen) {
            write_slice(memory, m, stream);
            m->known = m->nbytes; /* behind a write, nothing is promised */
        }
        break;
    default:
        resize(memory, m);
    }
}

static void random_orders(unsigned long rounds) {
    for (round_number = 0; round_number < rounds; round_number++) {
        late_queue queues[STREAMS];
        ifs_stream *streams[STREAMS];
        for (int i = 0; i < STREAMS; i++) {
            queues[i] = (late_queue){.end = &queues[i].first};
            CHECK(ifs_stream_wrap(0, &queues[i], &streams[i]) == IFS_OK);
        }
        ifs_memory *memory;
        model m = {1 + below(300), 0, 0};
        CHECK(ifs_memory_create(0, &memory) == IFS_OK);
        CHECK(ifs_memory_resize(memory, m.nbytes) == IFS_OK);
        for (int steps = 0; steps < 30; steps++) {
            step(memory, &m, streams[below(STREAMS)]);
            if (below(8) == 0)
                late_run(&queues[0], below((uint32_t)queues[0].queued + 1));
        }
        ifs_memory_destroy(memory);
        for (int i = 0; i < STREAMS; i++) {
            late_run(&queues[i], queues[i].queued);
            ifs_stream_destroy(streams[i]);
        }
    }
}

/* Refused, and the memory is none the worse for it. */
static void a_stream_of_another_device(void) {
    late_queue queue = {.end = &queue.first};
    ifs_stream *theirs;
    ifs_memory *memory;
    void *data;
    CHECK(ifs_stream_wrap(1, &queue, &theirs) == IFS_OK);
    CHECK(ifs_memory_create(0, &memory) == IFS_OK);
    CHECK(ifs_memory_resize(memory, 100) == IFS_OK);
    CHECK(ifs_memory_host_ptr(memory, IFS_WRITE, &data) == IFS_OK);
    fill(data, 100, 3);
    CHECK(ifs_memory_device_ptr(memory, IFS_READ, theirs, &data) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(strstr(ifs_last_error(), "is on cuda:0 and the stream on cuda:1") != NULL);
    CHECK(ifs_memory_head(memory) == IFS_HEAD_HOST && queue.queued == 0);
    CHECK(ifs_memory_device_ptr(memory, IFS_READ_WRITE, NULL, &data) == IFS_OK);
    expect(data, 100, 3);
    CHECK(ifs_memory_fetch(memory, theirs) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_memory_fetch(memory, NULL) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(ifs_memory_head(memory) == IFS_HEAD_DEVICE && queue.queued == 0);
    CHECK(ifs_memory_host_ptr(memory, IFS_READ, &data) == IFS_OK);
    expect(data, 100, 3);
    ifs_memory_destroy(memory);
    ifs_stream_destroy(theirs);
}

/* A memory goes while the stream that it was last used on captures: nothing is waited for there, and nothing fails. */
static void freed_in_a_capture(void) {
    late_queue queue = {.end = &queue.first};
    ifs_stream *stream;
    ifs_memory *memory;
    void *data;
    CHECK(ifs_stream_wrap(0, &queue, &stream) == IFS_OK);
    CHECK(ifs_memory_create(0, &memory) == IFS_OK);
    CHECK(ifs_memory_resize(memory, 100) == IFS_OK);
    CHECK(ifs_memory_host_ptr(memory, IFS_WRITE, &data) == IFS_OK);
    CHECK(ifs_memory_device_ptr(memory, IFS_READ, stream, &data) == IFS_OK);
    late_run(&queue, queue.queued); /* as ifs_cuda_graph_begin waits */
    queue.captures = true;
    ifs__fail(IFS_OK, "nothing");
    ifs_memory_destroy(memory);
    CHECK(strcmp(ifs_last_error(), "nothing") == 0);
    ifs_stream_destroy(stream);
}

/* A copy that is due in a capture is refused, and the memory is none the worse for it. */
static void copies_in_a_capture(void) {
    late_queue queue = {.end = &queue.first, .captures = true};
    ifs_stream *stream;
    ifs_memory *memory;
    void *data;
    CHECK(ifs_stream_wrap(0, &queue, &stream) == IFS_OK);
    CHECK(ifs_memory_create(0, &memory) == IFS_OK && ifs_memory_resize(memory, 100) == IFS_OK);
    CHECK(ifs_memory_host_ptr(memory, IFS_WRITE, &data) == IFS_OK);
    fill(data, 100, 3);
    CHECK(ifs_memory_device_ptr(memory, IFS_READ, stream, &data) == IFS_ERR_INVALID_ARGUMENT);
    CHECK(strstr(ifs_last_error(), "a copy of 100 bytes between host and device is due while its stream is captured"));
    CHECK(ifs_memory_head(memory) == IFS_HEAD_HOST && queue.queued == 0);
    queue.captures = false;
    CHECK(ifs_memory_device_ptr(memory, IFS_READ_WRITE, NULL, &data) == IFS_OK);
    expect(data, 100, 3);
    fill(data, 100, 4);
    queue.captures = true;
    CHECK(ifs_memory_fetch(memory, stream) == IFS_ERR_INVALID_ARGUMENT);
    queue.captures = false;
    CHECK(ifs_memory_device_ptr(memory, IFS_READ_WRITE, stream, &data) == IFS_OK);
    queue.captures = true;
    CHECK(ifs_memory_resize(memory, 1000) == IFS_ERR_DEVICE && ifs_memory_nbytes(memory) == 100); /* it cannot wait */
    CHECK(ifs_memory_head(memory) == IFS_HEAD_DEVICE && queue.queued == 0);
    queue.captures = false;
    CHECK(ifs_memory_host_ptr(memory, IFS_READ, &data) == IFS_OK);
    expect(data, 100, 4);
    ifs_memory_destroy(memory);
    ifs_stream_destroy(stream);
}

/* A copy between overlapping views runs on the host; on a stream it is refused. */
static void overlapping_views(void) {
    late_queue queue = {.end = &queue.first};
    ifs_stream *stream;
    ifs_tensor *tensor, *from, *to, *beside, *borrowed;
    ifs_memory *memory;
    void *data;
    CHECK(ifs_stream_wrap(0, &queue, &stream) == IFS_OK);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, (int64_t[]){200}, 0, &tensor) == IFS_OK);
    CHECK(ifs_tensor_slice(tensor, 0, 80, &from) == IFS_OK && ifs_tensor_slice(tensor, 1, 81, &to) == IFS_OK);
    CHECK(ifs_tensor_slice(tensor, 80, 160, &beside) == IFS_OK);
    CHECK(ifs_tensor_device_ptr(tensor, IFS_WRITE, NULL, &data) == IFS_OK);
    fill(data, 200, 3);
    CHECK(ifs_tensor_copy_on(to, from, stream) == IFS_ERR_INVALID_ARGUMENT && queue.queued == 0);
    CHECK(strstr(ifs_last_error(), "80 bytes on a device to memory that overlaps the source, at a distance of 1 "));
    CHECK(ifs_memory_wrap_device((uint8_t *)data + 1, 80, 0, 0, &memory) == IFS_OK);
    CHECK(ifs_tensor_on(memory, 0, IFS_UINT8, 1, (int64_t[]){80}, &borrowed) == IFS_OK);
    CHECK(ifs_tensor_copy(borrowed, from) == IFS_ERR_INVALID_ARGUMENT);
    ifs_tensor_destroy(borrowed);
    ifs_memory_destroy(memory);
    CHECK(ifs_tensor_copy(beside, from) == IFS_OK && ifs_tensor_head(tensor) == IFS_HEAD_DEVICE);
    CHECK(ifs_tensor_copy(to, from) == IFS_OK && ifs_tensor_head(tensor) == IFS_HEAD_HOST);
    CHECK(ifs_tensor_host_ptr(tensor, IFS_READ, &data) == IFS_OK);
    expect(data, 1, 3);
    expect((uint8_t *)data + 1, 80, 3);
    expect((uint8_t *)data + 81, 79, 3 + 7);
    ifs_tensor_destroy(tensor);
    ifs_tensor_destroy(from);
    ifs_tensor_destroy(to);
    ifs_tensor_destroy(beside);
    ifs_stream_destroy(stream);
}

static ifs_tensor *owner;

static void grow(void) {
    late_before_copy = NULL;
    CHECK(ifs_tensor_resize(owner, 1, (int64_t[]){4 * ifs_tensor_dims(owner)[0]}) == IFS_OK);
}

/* A tensor grows while another thread copies from a view of it, or while a library uses its memory. */
static void growth_beside_a_copy(void) {
    late_queue queue = {.end = &queue.first};
    ifs_stream *stream;
    ifs_tensor *view, *target;
    ifs_block *block;
    void *data;
    CHECK(ifs_stream_wrap(0, &queue, &stream) == IFS_OK);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, (int64_t[]){200}, 0, &owner) == IFS_OK);
    CHECK(ifs_tensor_create(IFS_UINT8, 1, (int64_t[]){80}, 0, &target) == IFS_OK);
    CHECK(ifs_tensor_slice(owner, 0, 80, &view) == IFS_OK);
    CHECK(ifs_tensor_device_ptr(owner, IFS_WRITE, NULL, &data) == IFS_OK);
    fill(data, 200, 3);
    late_awaited = &queue;
    late_before_copy = grow;
    CHECK(ifs_tensor_copy_on(target, view, stream) == IFS_OK && !late_before_copy);
    CHECK(ifs_tensor_host_ptr(target, IFS_READ, &data) == IFS_OK);
    expect(data, 80, 3);
    CHECK(ifs_tensor_device_ptr(owner, IFS_WRITE, stream, &data) == IFS_OK);
    CHECK(ifs_tensor_lend(view, stream, &data, &block) == IFS_OK);
    grow();
    fill(data, 80, 5); /* held */
    ifs_block_release(block);
    late_awaited = NULL;
    ifs_tensor_destroy(owner);
    ifs_tensor_destroy(view);
    ifs_tensor_destroy(target);
    ifs_stream_destroy(stream);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    a_stream_of_another_device();
    freed_in_a_capture();
    copies_in_a_capture();
    overlapping_views();
    growth_beside_a_copy();
    random_orders(strtoul(argv[1], NULL, 10));
    ifs_memory_stats stats;
    ifs_get_memory_stats(&stats);
    CHECK(stats.pinned_bytes == 0 && stats.device_bytes == 0 && stats.memories == 0);
    printf("good\n");
    return 0;
}
