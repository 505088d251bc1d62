/*
 * memory.c - a host block and a device block that are one thing.
 *
 * The idea is Caffe's SyncedMemory: the head says which side is newer, and an access copies only when the other side
 * is. Blocks are counted on their own, so that a view that was handed out survives the memory growing or going.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define ALIGNMENT 64 /* a cache line, and the widest vector */

/* ---- what the process holds ---- */

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
};

static gauge *gauge_of(block_kind kind) {
    return kind == HOST ? &host_gauge : kind == PINNED ? &pinned_gauge : &device_gauge;
}

static ifs_status out_of_memory(size_t nbytes) {
    return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", nbytes);
}

/* A block of at least `nbytes`; for BORROWED, `data` is the caller's. */
static ifs_status block_new(block_kind kind, int32_t device, void *data, size_t nbytes, ifs_block **out) {
    ifs_block *block = malloc(sizeof *block);
    if (!block)
        return out_of_memory(sizeof *block);
    *block = (ifs_block){.references = 1, .kind = kind, .device = device, .capacity = nbytes, .data = data};
    if (kind != BORROWED) {
        /* Never nothing, and whole vectors: an empty tensor too has an address, and a kernel may read its last vector.
         */
        if (nbytes > SIZE_MAX - ALIGNMENT) {
            free(block);
            return out_of_memory(nbytes);
        }
        size_t size = nbytes ? (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
        ifs_status status = IFS_OK;
        if (kind == HOST)
            status = posix_memalign(&block->data, ALIGNMENT, size) ? out_of_memory(size) : IFS_OK;
        else if (kind == PINNED)
            status = ifs__pinned_alloc(device, size, &block->data);
        else
            status = ifs__device_alloc(device, size, &block->data);
        if (status != IFS_OK) {
            free(block);
            return status;
        }
        block->capacity = size;
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
        free(block->data);
    else if (block->kind == PINNED)
        ifs__pinned_free(block->device, block->data);
    else if (block->kind == DEVICE)
        ifs__device_free(block->device, block->data);
    free(block);
}

/* ---- memories ---- */

struct ifs_memory {
    _Atomic int32_t references;
    pthread_mutex_t lock; /* guards all that follows: views in several threads share a memory */
    int32_t device;
    bool read_only;
    int32_t head;
    size_t nbytes;
    ifs_block *host, *dev;
};

ifs_status ifs_memory_create(int32_t device, ifs_memory **out) {
    if (device < IFS_NO_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT,
                         "device %d is none; give a CUDA ordinal from 0, or -1 for the host alone", (int)device);
    ifs_memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return out_of_memory(sizeof *memory);
    memory->references = 1;
    memory->device = device;
    pthread_mutex_init(&memory->lock, NULL);
    atomic_fetch_add(&memories_alive, 1);
    *out = memory;
    return IFS_OK;
}

static ifs_status wrap(void *data, size_t nbytes, int32_t device, int32_t read_only, int32_t head, ifs_memory **out) {
    if (!data && nbytes)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "cannot wrap %zu bytes at NULL", nbytes);
    ifs_memory *memory = NULL;
    IFS__TRY(ifs_memory_create(device, &memory));
    ifs_block **side = head == IFS_HEAD_HOST ? &memory->host : &memory->dev;
    ifs_status status = block_new(BORROWED, device, data, nbytes, side);
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

ifs_status ifs_memory_wrap_host(void *host, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out) {
    return wrap(host, nbytes, device, read_only, IFS_HEAD_HOST, out);
}

ifs_status ifs_memory_wrap_device(void *dev, size_t nbytes, int32_t device, int32_t read_only, ifs_memory **out) {
    IFS__TRY(ifs__device_check(device));
    return wrap(dev, nbytes, device, read_only, IFS_HEAD_DEVICE, out);
}

ifs_memory *ifs__memory_retain(ifs_memory *memory) {
    atomic_fetch_add(&memory->references, 1);
    return memory;
}

void ifs_memory_destroy(ifs_memory *memory) {
    if (!memory || atomic_fetch_sub(&memory->references, 1) != 1)
        return;
    ifs_block_release(memory->host);
    ifs_block_release(memory->dev);
    pthread_mutex_destroy(&memory->lock);
    atomic_fetch_sub(&memories_alive, 1);
    free(memory);
}

/* Whether a block has to go because `nbytes` do not fit into it. */
static bool too_small(const ifs_block *block, size_t nbytes) { return block && block->capacity < nbytes; }

ifs_status ifs_memory_resize(ifs_memory *memory, size_t nbytes) {
    pthread_mutex_lock(&memory->lock);
    ifs_block **sides[] = {&memory->host, &memory->dev};
    for (int i = 0; i < 2; i++)
        if (too_small(*sides[i], nbytes) && (*sides[i])->kind == BORROWED) {
            size_t capacity = (*sides[i])->capacity;
            pthread_mutex_unlock(&memory->lock);
            return ifs__fail(IFS_ERR_TOO_SMALL, "%zu bytes do not fit the %zu that were lent; wrap a larger block",
                             nbytes, capacity);
        }
    bool keeps_host = memory->head & IFS_HEAD_HOST && !too_small(memory->host, nbytes);
    bool keeps_device = memory->head & IFS_HEAD_DEVICE && !too_small(memory->dev, nbytes);
    memory->head = (keeps_host ? IFS_HEAD_HOST : 0) | (keeps_device ? IFS_HEAD_DEVICE : 0);
    for (int i = 0; i < 2; i++)
        if (too_small(*sides[i], nbytes)) {
            ifs_block_release(*sides[i]);
            *sides[i] = NULL;
        }
    memory->nbytes = nbytes;
    pthread_mutex_unlock(&memory->lock);
    return IFS_OK;
}

/* One side, brought up to date. The heads are bits: HOST | DEVICE == SYNCED. */
static ifs_status access_side(ifs_memory *memory, int32_t side, int32_t access, void **out) {
    if (access < IFS_READ || access > IFS_READ_WRITE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "access %d is none of IFS_READ, IFS_WRITE, IFS_READ_WRITE",
                         (int)access);
    if (memory->read_only && access & IFS_WRITE)
        return ifs__fail(IFS_ERR_READ_ONLY, "this memory was lent read-only; copy it to write");
    bool on_host = side == IFS_SIDE_HOST;
    if (!on_host && memory->device == IFS_NO_DEVICE)
        return ifs__fail(IFS_ERR_NO_DEVICE,
                         "this memory lives on the host alone; create it for a device to use it there");
    ifs_block **mine = on_host ? &memory->host : &memory->dev;
    ifs_block *other = on_host ? memory->dev : memory->host;
    int32_t my_head = on_host ? IFS_HEAD_HOST : IFS_HEAD_DEVICE;
    if (!*mine) {
        block_kind kind = !on_host ? DEVICE : memory->device == IFS_NO_DEVICE ? HOST : PINNED;
        IFS__TRY(block_new(kind, memory->device, NULL, memory->nbytes, mine));
    }
    if (access & IFS_READ && memory->head && !(memory->head & my_head)) {
        if (on_host)
            IFS__TRY(ifs__copy_to_host(memory->device, (*mine)->data, other->data, memory->nbytes));
        else
            IFS__TRY(ifs__copy_to_device(memory->device, (*mine)->data, other->data, memory->nbytes));
        memory->head = IFS_HEAD_SYNCED;
    }
    if (access & IFS_WRITE)
        memory->head = my_head;
    *out = (*mine)->data;
    return IFS_OK;
}

static ifs_status locked_access(ifs_memory *memory, int32_t side, int32_t access, void **out) {
    pthread_mutex_lock(&memory->lock);
    ifs_status status = access_side(memory, side, access, out);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

ifs_status ifs_memory_host(ifs_memory *memory, int32_t access, void **out) {
    return locked_access(memory, IFS_SIDE_HOST, access, out);
}

ifs_status ifs_memory_device(ifs_memory *memory, int32_t access, void **out) {
    return locked_access(memory, IFS_SIDE_DEVICE, access, out);
}

static ifs_status access_range(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                               void **out, ifs_block **hold) {
    if (offset > memory->nbytes || nbytes > memory->nbytes - offset)
        return ifs__fail(
            IFS_ERR_TOO_SMALL,
            "this view needs bytes %zu to %zu, but the tensor it was made of has shrunk to %zu; slice it again", offset,
            offset + nbytes, memory->nbytes);
    if (access == IFS_WRITE && nbytes != memory->nbytes)
        access = IFS_READ_WRITE; /* the rest of the memory must stay true */
    void *base = NULL;
    IFS__TRY(access_side(memory, side, access, &base));
    if (hold) {
        *hold = side == IFS_SIDE_HOST ? memory->host : memory->dev;
        atomic_fetch_add(&(*hold)->references, 1);
    }
    *out = (char *)base + offset;
    return IFS_OK;
}

ifs_status ifs__memory_access(ifs_memory *memory, int32_t side, int32_t access, size_t offset, size_t nbytes,
                              void **out, ifs_block **hold) {
    if (side != IFS_SIDE_HOST && side != IFS_SIDE_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "side %d is neither IFS_SIDE_HOST nor IFS_SIDE_DEVICE", (int)side);
    pthread_mutex_lock(&memory->lock);
    ifs_status status = access_range(memory, side, access, offset, nbytes, out, hold);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

ifs_status ifs_memory_hold(ifs_memory *memory, int32_t side, ifs_block **out) {
    if (side != IFS_SIDE_HOST && side != IFS_SIDE_DEVICE)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "side %d is neither IFS_SIDE_HOST nor IFS_SIDE_DEVICE", (int)side);
    pthread_mutex_lock(&memory->lock);
    ifs_block *block = side == IFS_SIDE_HOST ? memory->host : memory->dev;
    if (block)
        atomic_fetch_add(&block->references, 1);
    pthread_mutex_unlock(&memory->lock);
    if (!block)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "there is no block on the %s side yet; access it first",
                         side == IFS_SIDE_HOST ? "host" : "device");
    *out = block;
    return IFS_OK;
}

/* ---- what it is now: under the lock too, for a view in another thread may be moving the head ---- */

typedef struct state {
    int32_t head;
    size_t nbytes, host_capacity, device_capacity;
} state;

static state state_of(const ifs_memory *constant) {
    ifs_memory *memory = (ifs_memory *)constant; /* the lock alone is written */
    pthread_mutex_lock(&memory->lock);
    state now = {memory->head, memory->nbytes, memory->host ? memory->host->capacity : 0,
                 memory->dev ? memory->dev->capacity : 0};
    pthread_mutex_unlock(&memory->lock);
    return now;
}

int32_t ifs_memory_head(const ifs_memory *memory) { return state_of(memory).head; }
int32_t ifs_memory_device_id(const ifs_memory *memory) { return memory->device; }
size_t ifs_memory_nbytes(const ifs_memory *memory) { return state_of(memory).nbytes; }
size_t ifs_memory_host_capacity(const ifs_memory *memory) { return state_of(memory).host_capacity; }
size_t ifs_memory_device_capacity(const ifs_memory *memory) { return state_of(memory).device_capacity; }
