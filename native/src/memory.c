/*
 * memory.c - a host block and a device block that hold the same bytes.
 *
 * The idea is Caffe's SyncedMemory: the head says which side is newer, and an access copies only when the other side
 * is. Blocks have reference counts of their own, so that a view stays valid when the memory grows or is destroyed.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "budget.h"
#include "device.h"
#include "platform.h"
#include "tensor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- statistics of the process ---- */

typedef struct gauge {
    _Atomic uint64_t now, peak;
} gauge;

static gauge host_gauge, pinned_gauge, device_gauge;
static _Atomic uint64_t memories_alive;

static void gauge_add(gauge *g, uint64_t nbytes) {
    uint64_t now = atomic_fetch_add(&g->now, nbytes) + nbytes;
    uint64_t peak = atomic_load(&g->peak);
    while (now > peak && !atomic_compare_exchange_weak(&g->peak, &peak, now)) {
    }
}

void ifs_get_memory_stats(ifs_memory_stats *out) {
    *out = (ifs_memory_stats){
        .host_bytes = host_gauge.now,
        .host_peak = host_gauge.peak,
        .pinned_bytes = pinned_gauge.now,
        .pinned_peak = pinned_gauge.peak,
        .device_bytes = device_gauge.now,
        .device_peak = device_gauge.peak,
        .memories = memories_alive,
    };
}

/* ---- blocks ---- */

typedef enum block_kind { BORROWED, HOST, PINNED, DEVICE } block_kind;

struct ifs_block {
    _Atomic int32_t references;
    block_kind kind;
    int32_t device;
    size_t capacity;
    void *data;
    ifs_budget *budget; /* DEVICE: what the capacity counts against, or NULL */
};

static gauge *gauge_of(block_kind kind) {
    return kind == HOST ? &host_gauge : kind == PINNED ? &pinned_gauge : &device_gauge;
}

static ifs_status out_of_memory(size_t nbytes) {
    return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", nbytes);
}

/* Adds to the message of a failed allocation how much memory of that kind infersdk holds. */
static ifs_status add_usage(ifs_status status, block_kind kind) {
    if (status != IFS_ERR_OUT_OF_MEMORY && status != IFS_ERR_DEVICE_OUT_OF_MEMORY)
        return status;
    char before[512];
    snprintf(before, sizeof before, "%s", ifs_last_error());
    return ifs__fail(status, "%s (infersdk holds %llu bytes of that kind)", before,
                     (unsigned long long)atomic_load(&gauge_of(kind)->now));
}

/* A block on a device, counted against `budget` before it is allocated. */
static ifs_status device_alloc(int32_t device, size_t nbytes, ifs_budget *budget, void **out) {
    IFS__TRY(ifs__budget_charge(budget, nbytes));
    ifs_status status = ifs__device_alloc(device, nbytes, out);
    if (status != IFS_OK)
        ifs__budget_credit(budget, nbytes);
    return status;
}

/* A block of at least `nbytes`; for BORROWED, `data` is the caller's. */
static ifs_status block_new(block_kind kind, int32_t device, void *data, size_t nbytes, ifs_budget *budget,
                            ifs_block **out) {
    ifs_block *block = malloc(sizeof *block);
    if (!block)
        return out_of_memory(sizeof *block);
    *block = (ifs_block){.references = 1, .kind = kind, .device = device, .capacity = nbytes, .data = data};
    if (kind != BORROWED) {
        /* At least one whole vector: an empty tensor has an address too, and a kernel may read its last vector whole.
         */
        if (nbytes > SIZE_MAX - IFS__ALIGNMENT) {
            free(block);
            return out_of_memory(nbytes);
        }
        size_t size = nbytes ? (nbytes + IFS__ALIGNMENT - 1) / IFS__ALIGNMENT * IFS__ALIGNMENT : IFS__ALIGNMENT;
        ifs_status status = IFS_OK;
        if (kind == HOST)
            status = (block->data = ifs__aligned_alloc(size)) ? IFS_OK : out_of_memory(size);
        else if (kind == PINNED)
            status = ifs__pinned_alloc(device, size, &block->data);
        else
            status = device_alloc(device, size, budget, &block->data);
        if (status != IFS_OK) {
            free(block);
            return add_usage(status, kind);
        }
        block->capacity = size;
        block->budget = kind == DEVICE ? ifs__budget_retain(budget) : NULL;
        gauge_add(gauge_of(kind), size);
    }
    *out = block;
    return IFS_OK;
}

void ifs_block_release(ifs_block *block) {
    if (!block || atomic_fetch_sub(&block->references, 1) != 1)
        return;
    if (block->kind != BORROWED)
        atomic_fetch_sub(&gauge_of(block->kind)->now, block->capacity);
    if (block->kind == HOST)
        ifs__aligned_free(block->data);
    else if (block->kind == PINNED)
        ifs__pinned_free(block->device, block->data);
    else if (block->kind == DEVICE)
        ifs__device_free(block->device, block->data);
    ifs__budget_credit(block->budget, block->capacity);
    ifs_budget_destroy(block->budget);
    free(block);
}

/* ---- memories ---- */

struct ifs_memory {
    _Atomic int32_t references;
    ifs__mutex lock; /* guards everything below: views in several threads share a memory */
    int32_t device;
    bool read_only;
    int32_t head;
    size_t nbytes;
    int32_t origin; /* SYNCED: the side that was copied from, and how many bytes; behind them the other side is older */
    size_t copied;
    ifs_block *host_block, *device_block;
    /* Queued work. `last_stream` is the stream on which the device side was last used; NULL: nothing is queued. Events
     * are created when first needed. A copy is pending from the record of its event until the event was waited for.
     */
    ifs_stream *last_stream;
    ifs_event *to_host_done, *to_device_done, *order;
    bool to_host_pending, to_device_pending;
    ifs_budget *budget; /* of its device blocks, or NULL */
};

ifs_status ifs_memory_create(int32_t device, ifs_memory **out) {
    if (device < IFS_NO_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown device %d; use a CUDA ordinal from 0 on, or IFS_NO_DEVICE (-1) for the host alone",
                         (int)device);
    ifs_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return out_of_memory(sizeof *memory);
    memory->references = 1;
    memory->device = device;
    memory->budget = ifs__budget_in_use();
    ifs__mutex_init(&memory->lock);
    atomic_fetch_add(&memories_alive, 1);
    *out = memory;
    return IFS_OK;
}

static ifs_status wrap(void *data, size_t nbytes, int32_t device, int32_t read_only, int32_t head, ifs_memory **out) {
    if (!data && nbytes)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "cannot wrap %zu bytes at NULL; give the address of the block",
                         nbytes);
    ifs_memory *memory = NULL;
    IFS__TRY(ifs_memory_create(device, &memory));
    ifs_block **side = head == IFS_HEAD_HOST ? &memory->host_block : &memory->device_block;
    ifs_status status = block_new(BORROWED, device, data, nbytes, NULL, side);
    if (status != IFS_OK) {
        ifs_memory_destroy(memory);
        return status;
    }
    memory->nbytes = nbytes;
    memory->read_only = read_only != 0;
    memory->head = head;
    *out = memory;
    return IFS_OK;
}

ifs_status ifs_memory_wrap_host(void *address, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out) {
    return wrap(address, nbytes, device, read_only, IFS_HEAD_HOST, out);
}

ifs_status ifs_memory_wrap_device(void *address, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out) {
    IFS__TRY(ifs__device_check(device));
    return wrap(address, nbytes, device, read_only, IFS_HEAD_DEVICE, out);
}

ifs_memory *ifs__memory_retain(ifs_memory *memory) {
    atomic_fetch_add(&memory->references, 1);
    return memory;
}

/* ---- queued work ---- */

static ifs_status record(ifs_memory *memory, ifs_event **event, ifs_stream *stream) {
    if (!*event)
        IFS__TRY(ifs_event_create(memory->device, event));
    return ifs_event_record(*event, stream);
}

static void set_last_stream(ifs_memory *memory, ifs_stream *stream) {
    if (memory->last_stream == stream)
        return;
    ifs_stream_destroy(memory->last_stream);
    memory->last_stream = ifs__stream_retain(stream);
}

static ifs_status wait_for(ifs_event *event, bool *pending) {
    if (*pending)
        IFS__TRY(ifs_event_synchronize(event));
    *pending = false;
    return IFS_OK;
}

/* Waits on the host for all work that is queued for the memory. */
static ifs_status wait_for_all(ifs_memory *memory) {
    if (memory->last_stream) {
        IFS__TRY(record(memory, &memory->order, memory->last_stream));
        IFS__TRY(ifs_event_synchronize(memory->order));
        set_last_stream(memory, NULL);
    }
    memory->to_host_pending = memory->to_device_pending = false; /* their streams were ordered before `last_stream` */
    return IFS_OK;
}

/* An event cannot be recorded on a stream of another device. Checked first, so that a failure changes nothing. */
static ifs_status check_stream(const ifs_memory *memory, const ifs_stream *stream) {
    if (!stream || ifs_stream_device(stream) == memory->device)
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                     "the memory is on cuda:%d and the stream on cuda:%d; use a stream of the memory's device",
                     (int)memory->device, (int)ifs_stream_device(stream));
}

/* Makes `stream` run after all work that is queued for the memory, and its last stream from now on. */
static ifs_status order_after(ifs_memory *memory, ifs_stream *stream) {
    if (!stream)
        return wait_for_all(memory);
    if (memory->last_stream && ifs_stream_native(memory->last_stream) != ifs_stream_native(stream)) {
        IFS__TRY(record(memory, &memory->order, memory->last_stream));
        IFS__TRY(ifs_stream_wait(stream, memory->order));
    }
    set_last_stream(memory, stream);
    return IFS_OK;
}

void ifs_memory_destroy(ifs_memory *memory) {
    if (!memory || atomic_fetch_sub(&memory->references, 1) != 1)
        return;
    /* A block must not be freed while a copy still uses it; if the wait fails, the device is lost anyway. During a
     * capture (the garbage collector may run at any moment) there is nothing to wait for: ifs_cuda_graph_begin has
     * waited. */
    if (!memory->last_stream || !ifs__stream_captures(memory->last_stream))
        wait_for_all(memory);
    set_last_stream(memory, NULL);
    ifs_event_destroy(memory->to_host_done);
    ifs_event_destroy(memory->to_device_done);
    ifs_event_destroy(memory->order);
    ifs_block_release(memory->host_block);
    ifs_block_release(memory->device_block);
    ifs_budget_destroy(memory->budget);
    ifs__mutex_destroy(&memory->lock);
    atomic_fetch_sub(&memories_alive, 1);
    free(memory);
}

/* Returns what a call returns under the memory's lock: views in several threads share the memory. */
#define LOCKED(memory, call)                                                                                           \
    do {                                                                                                               \
        ifs__mutex_lock(&(memory)->lock);                                                                              \
        const ifs_status status_of_call = (call);                                                                      \
        ifs__mutex_unlock(&(memory)->lock);                                                                            \
        return status_of_call;                                                                                         \
    } while (0)

/* Whether a block must be replaced because `nbytes` do not fit it. */
static bool is_outgrown(const ifs_block *block, size_t nbytes) { return block && block->capacity < nbytes; }

static ifs_status resize(ifs_memory *memory, size_t nbytes) {
    ifs_block **sides[] = {&memory->host_block, &memory->device_block};
    for (int i = 0; i < 2; i++)
        if (is_outgrown(*sides[i], nbytes) && (*sides[i])->kind == BORROWED)
            return ifs__fail(IFS_ERR_TOO_SMALL, "%zu bytes do not fit the borrowed block of %zu; wrap a larger one",
                             nbytes, (*sides[i])->capacity);
    if (is_outgrown(memory->host_block, nbytes) || is_outgrown(memory->device_block, nbytes))
        IFS__TRY(wait_for_all(memory)); /* first: a failure changes nothing */
    if (memory->head == IFS_HEAD_SYNCED && nbytes > memory->copied)
        memory->head = memory->origin;
    bool keeps_host = memory->head & IFS_HEAD_HOST && !is_outgrown(memory->host_block, nbytes);
    bool keeps_device = memory->head & IFS_HEAD_DEVICE && !is_outgrown(memory->device_block, nbytes);
    memory->head = (keeps_host ? IFS_HEAD_HOST : 0) | (keeps_device ? IFS_HEAD_DEVICE : 0);
    for (int i = 0; i < 2; i++)
        if (is_outgrown(*sides[i], nbytes)) {
            ifs_block_release(*sides[i]);
            *sides[i] = NULL;
        }
    memory->nbytes = nbytes;
    return IFS_OK;
}

ifs_status ifs_memory_resize(ifs_memory *memory, size_t nbytes) { LOCKED(memory, resize(memory, nbytes)); }

/* Allocates the block of a side if it has none. */
static ifs_status ensure_block(ifs_memory *memory, int32_t side) {
    ifs_block **block = side == IFS_SIDE_HOST ? &memory->host_block : &memory->device_block;
    if (*block)
        return IFS_OK;
    block_kind kind = side == IFS_SIDE_DEVICE ? DEVICE : memory->device == IFS_NO_DEVICE ? HOST : PINNED;
    return block_new(kind, memory->device, NULL, memory->nbytes, memory->budget, block);
}

/* ERR_INVALID_ARGUMENT if a copy would be captured into a graph: its event could not be waited for. */
static ifs_status check_not_captured(const ifs_memory *memory, ifs_stream *stream) {
    if (!stream || !ifs__stream_captures(stream))
        return IFS_OK;
    return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                     "a copy of %zu bytes between host and device is due while its stream is captured into a graph; "
                     "access the memory before the capture, and fetch it after the launch",
                     memory->nbytes);
}

/* Copies between the blocks: queued on `stream`, which is the memory's last stream and is not captured, with `done`
 * behind it; or at once, where that is NULL. */
static ifs_status copy(ifs_memory *memory, void *dst, const void *src, ifs_stream *stream, ifs_event **done,
                       bool *pending) {
    if (stream && !*done) /* before the copy: what cannot be waited for is not queued */
        IFS__TRY(ifs_event_create(memory->device, done));
    IFS__TRY(ifs__copy(memory->device, dst, src, memory->nbytes, stream));
    if (stream) {
        IFS__TRY(ifs_event_record(*done, stream));
        *pending = true;
    }
    memory->origin = memory->head;
    memory->copied = memory->nbytes;
    memory->head = IFS_HEAD_SYNCED;
    return IFS_OK;
}

static ifs_status copy_to_host(ifs_memory *memory, ifs_stream *stream) {
    return copy(memory, memory->host_block->data, memory->device_block->data, stream, &memory->to_host_done,
                &memory->to_host_pending);
}

/* The heads are bits: HOST | DEVICE == SYNCED. */
static bool must_copy(const ifs_memory *memory, int32_t access, int32_t my_head) {
    return access & IFS_READ && memory->head && !(memory->head & my_head);
}

static ifs_status access_host(ifs_memory *memory, int32_t access, void **out) {
    IFS__TRY(ensure_block(memory, IFS_SIDE_HOST));
    if (must_copy(memory, access, IFS_HEAD_HOST)) {
        IFS__TRY(check_not_captured(memory, memory->last_stream));
        IFS__TRY(copy_to_host(memory, memory->last_stream));
    }
    IFS__TRY(wait_for(memory->to_host_done, &memory->to_host_pending));
    if (access & IFS_WRITE) {
        IFS__TRY(wait_for(memory->to_device_done, &memory->to_device_pending));
        memory->head = IFS_HEAD_HOST;
    }
    *out = memory->host_block->data;
    return IFS_OK;
}

static ifs_status access_device(ifs_memory *memory, int32_t access, ifs_stream *stream, void **out) {
    if (memory->device == IFS_NO_DEVICE)
        return ifs__fail(IFS_ERR_NO_DEVICE, "this memory is on the host alone; create it for a device to use it there");
    IFS__TRY(check_stream(memory, stream));
    if (must_copy(memory, access, IFS_HEAD_DEVICE))
        IFS__TRY(check_not_captured(memory, stream)); /* first: a refused access changes nothing */
    IFS__TRY(ensure_block(memory, IFS_SIDE_DEVICE));
    IFS__TRY(order_after(memory, stream));
    if (must_copy(memory, access, IFS_HEAD_DEVICE))
        IFS__TRY(copy(memory, memory->device_block->data, memory->host_block->data, stream, &memory->to_device_done,
                      &memory->to_device_pending));
    if (access & IFS_WRITE)
        memory->head = IFS_HEAD_DEVICE;
    *out = memory->device_block->data;
    return IFS_OK;
}

static ifs_status access_side(ifs_memory *memory, int32_t side, int32_t access, ifs_stream *stream, void **out) {
    if (access < IFS_READ || access > IFS_READ_WRITE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "unknown access %d; use IFS_READ (1), IFS_WRITE (2) or IFS_READ_WRITE (3)", (int)access);
    if (memory->read_only && access & IFS_WRITE)
        return ifs__fail(IFS_ERR_READ_ONLY, "this memory was wrapped as read-only; copy it to write");
    return side == IFS_SIDE_HOST ? access_host(memory, access, out) : access_device(memory, access, stream, out);
}

ifs_status ifs_memory_host_ptr(ifs_memory *memory, int32_t access, void **out) {
    LOCKED(memory, access_side(memory, IFS_SIDE_HOST, access, NULL, out));
}

ifs_status ifs_memory_device_ptr(ifs_memory *memory, int32_t access, ifs_stream *stream, void **out) {
    LOCKED(memory, access_side(memory, IFS_SIDE_DEVICE, access, stream, out));
}

static ifs_status fetch(ifs_memory *memory, ifs_stream *stream) {
    if (memory->head != IFS_HEAD_DEVICE)
        return IFS_OK;
    IFS__TRY(check_stream(memory, stream));
    IFS__TRY(check_not_captured(memory, stream));
    IFS__TRY(ensure_block(memory, IFS_SIDE_HOST));
    IFS__TRY(order_after(memory, stream));
    return copy_to_host(memory, stream);
}

ifs_status ifs_memory_fetch(ifs_memory *memory, ifs_stream *stream) {
    if (!stream)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "stream is NULL; ifs_memory_host_ptr waits for its copy");
    LOCKED(memory, fetch(memory, stream));
}

static ifs_status check_range(const ifs_memory *memory, size_t offset, size_t nbytes) {
    if (offset <= memory->nbytes && nbytes <= memory->nbytes - offset)
        return IFS_OK;
    return ifs__fail(IFS_ERR_TOO_SMALL,
                     "this view needs bytes %zu to %zu, but its tensor has shrunk to %zu; slice the tensor again",
                     offset, offset + nbytes, memory->nbytes);
}

static ifs_status access_range(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                               ifs_stream *stream, void **out, ifs_block **hold) {
    IFS__TRY(check_range(memory, offset, nbytes));
    if (access == IFS_WRITE && nbytes != memory->nbytes)
        access = IFS_READ_WRITE; /* the rest of the memory must stay valid */
    void *base = NULL;
    IFS__TRY(access_side(memory, side, access, stream, &base));
    if (hold) {
        *hold = side == IFS_SIDE_HOST ? memory->host_block : memory->device_block;
        atomic_fetch_add(&(*hold)->references, 1);
    }
    *out = (char *)base + offset;
    return IFS_OK;
}

ifs_status ifs__memory_access(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                              ifs_stream *stream, void **out, ifs_block **hold) {
    if (side != IFS_SIDE_HOST && side != IFS_SIDE_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "side %d is neither IFS_SIDE_HOST nor IFS_SIDE_DEVICE", (int)side);
    LOCKED(memory, access_range(memory, side, access, offset, nbytes, stream, out, hold));
}

static ifs_status lend(ifs_memory *memory, size_t offset, size_t nbytes, ifs_stream *stream, void **out,
                       ifs_block **hold) {
    ifs_stream *last = memory->last_stream;
    IFS__TRY(check_stream(memory, stream));
    IFS__TRY(access_range(memory, IFS_SIDE_DEVICE, IFS_READ_WRITE, offset, nbytes, last, out, hold));
    if (!last || ifs_stream_native(last) == ifs_stream_native(stream))
        return IFS_OK;
    ifs_status status = record(memory, &memory->order, last);
    if (status == IFS_OK)
        status = ifs_stream_wait(stream, memory->order);
    if (status != IFS_OK)
        ifs_block_release(*hold);
    return status;
}

ifs_status ifs__memory_lend(ifs_memory *memory, size_t offset, size_t nbytes, ifs_stream *stream, void **out,
                            ifs_block **hold) {
    LOCKED(memory, lend(memory, offset, nbytes, stream, out, hold));
}

ifs_status ifs_memory_hold(ifs_memory *memory, int32_t side, ifs_block **out) {
    if (side != IFS_SIDE_HOST && side != IFS_SIDE_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "side %d is neither IFS_SIDE_HOST nor IFS_SIDE_DEVICE", (int)side);
    ifs__mutex_lock(&memory->lock);
    ifs_block *block = side == IFS_SIDE_HOST ? memory->host_block : memory->device_block;
    if (block)
        atomic_fetch_add(&block->references, 1);
    ifs__mutex_unlock(&memory->lock);
    if (!block)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "the %s side has no block yet; access it first",
                         side == IFS_SIDE_HOST ? "host" : "device");
    *out = block;
    return IFS_OK;
}

/* ---- the state, read under the lock too: a view in another thread may be moving the head ---- */

typedef struct state {
    int32_t head;
    size_t nbytes, host_capacity, device_capacity;
} state;

static state state_of(const ifs_memory *constant) {
    ifs_memory *memory = (ifs_memory *)constant; /* only the lock is written */
    ifs__mutex_lock(&memory->lock);
    state now = {memory->head, memory->nbytes, memory->host_block ? memory->host_block->capacity : 0,
                 memory->device_block ? memory->device_block->capacity : 0};
    ifs__mutex_unlock(&memory->lock);
    return now;
}

int32_t ifs_memory_head(const ifs_memory *memory) { return state_of(memory).head; }
int32_t ifs_memory_device(const ifs_memory *memory) { return memory->device; }
size_t ifs_memory_nbytes(const ifs_memory *memory) { return state_of(memory).nbytes; }
size_t ifs_memory_host_capacity(const ifs_memory *memory) { return state_of(memory).host_capacity; }
size_t ifs_memory_device_capacity(const ifs_memory *memory) { return state_of(memory).device_capacity; }
