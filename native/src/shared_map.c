/*
 * shared_map.c - memory of a file that another process can shrink, mapped so that this ends in no signal.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The idea is that of display servers, whose clients share buffers: the handler of SIGBUS maps zeros over the range
 * that faulted, notes it, and the instruction runs again.
 */
#include "internal.h"

#include <stdatomic.h>
#include <stdlib.h>

#if defined(__unix__) || defined(__APPLE__)
#define HAS_MAPPINGS 1
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

struct ifs_shared_map {
    uint8_t *base; /* at a page */
    size_t length; /* from there, in bytes */
    size_t lead; /* from there to the first byte that was asked for */
    int32_t slot;
};

#ifdef HAS_MAPPINGS

/* What the handler looks at. It takes no lock: a slot is complete when its `base` is set. */
#define SLOTS 4096
static struct slot {
    _Atomic uintptr_t base; /* 0: free, 1: being filled in */
    _Atomic size_t length;
    _Atomic int32_t damaged;
} slots[SLOTS];
static _Atomic int32_t slots_used; /* those from here on were never used */

static struct sigaction previous; /* whose faults are outside of all mappings */

/* A page whose mapping the handler gives up for a moment: a process with as many mappings as the system allows gets no
 * further one, not even in place of another. */
static _Atomic uintptr_t reserve;

static void keep_reserve(size_t page) {
    if (atomic_load(&reserve))
        return;
    /* Shared: the system merges private mappings that are adjacent, and then it would not be one of its own. */
    void *mapped = mmap(NULL, page, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uintptr_t expected = 0;
    if (mapped != MAP_FAILED && !atomic_compare_exchange_strong(&reserve, &expected, (uintptr_t)mapped))
        munmap(mapped, page);
}

/* Maps zeros in place of a mapping; whether it could. Safe in a signal handler. */
static bool map_zeros(uintptr_t base, size_t length) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int attempt = 0; attempt < 100; attempt++) {
        void *zeros = mmap((void *)base, length, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        if (zeros != MAP_FAILED) {
            keep_reserve(page);
            return true;
        }
        uintptr_t given_up = atomic_exchange(&reserve, 0);
        if (given_up)
            munmap((void *)given_up, page);
        else
            sched_yield(); /* another thread has given it up, and is about to map it again */
    }
    return false;
}

/* Passes a fault outside of all mappings on to the handler that was there before. */
static void pass_on(int number, siginfo_t *info, void *context) {
    /* A handler that does nothing, such as that of Python's faulthandler once it is disabled, would be asked for the
     * same instruction for ever. One that has mended the fault may be asked for the same address again later. */
    static _Atomic uintptr_t last;
    static _Atomic int32_t times;
    uintptr_t at = (uintptr_t)info->si_addr;
    bool vain = false;
    if (info->si_code > 0) {
        if (atomic_exchange(&last, at) != at)
            atomic_store(&times, 0);
        vain = atomic_fetch_add(&times, 1) >= 100;
    }
    if (!vain &&
        ((previous.sa_flags & SA_SIGINFO) || (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN))) {
        if (previous.sa_flags & SA_SIGINFO)
            previous.sa_sigaction(number, info, context);
        else
            previous.sa_handler(number);
        /* A handler that reports the fault ends by raising the signal again, for the handler before it. That is how
         * this one is reached again: the system's default is what is left. */
        sigset_t pending;
        if (info->si_code <= 0 || sigpending(&pending) != 0 || !sigismember(&pending, number))
            return;
    }
    /* The instruction runs and faults again, and the system does what it does by default. */
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(number, &action, NULL);
    if (info->si_code <= 0) /* sent by a process: no instruction faults again */
        raise(number);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int before = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    int32_t used = atomic_load(&slots_used);
    for (int32_t i = 0; info->si_code > 0 && i < used; i++) {
        uintptr_t base = atomic_load(&slots[i].base);
        size_t length = atomic_load(&slots[i].length);
        if (base <= 1 || at < base || at - base >= length)
            continue;
        if (atomic_load(&slots[i].base) != base) /* another mapping took the slot: its length is not that of `base` */
            continue;
        atomic_store(&slots[i].damaged, 1); /* first: who reads the zeros sees it */
        if (!map_zeros(base, length))
            break;
        errno = before;
        return;
    }
    /* A handler that was installed later passes faults on by raise(). The instruction runs again, and comes here. */
    if (info->si_code > 0 || info->si_pid != getpid())
        pass_on(number, info, context);
    errno = before;
}

/* Makes the handler the process's own, also after another one took its place: Python's faulthandler.disable() puts back
 * what was there before it was enabled. */
static void install(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction current, action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    /* Without SA_ONSTACK: the stack of the thread is whole, and the alternate one, which others set up, may be too
     * small for the vector registers of this processor, or gone: OpenVINO unmaps the one that it gave to the thread
     * that loaded it, also when it is freed in another thread. The system would then end the process. */
    action.sa_flags = SA_SIGINFO;
    pthread_mutex_lock(&lock);
    if (sigaction(SIGBUS, NULL, &current) == 0 &&
        !((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == on_bus_error)) {
        previous = current;
        sigaction(SIGBUS, &action, NULL);
    }
    pthread_mutex_unlock(&lock);
}

/* The system ends a process at a fault in a thread that blocks the signal, whatever handler there is. */
static void unblock(void) {
    sigset_t bus_error;
    sigemptyset(&bus_error);
    sigaddset(&bus_error, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus_error, NULL);
}

static int32_t take_slot(void) {
    for (int32_t i = 0; i < SLOTS; i++) {
        uintptr_t expected = 0;
        if (!atomic_compare_exchange_strong(&slots[i].base, &expected, 1))
            continue;
        int32_t used = atomic_load(&slots_used);
        while (used <= i && !atomic_compare_exchange_weak(&slots_used, &used, i + 1)) {
        }
        return i;
    }
    return -1;
}

void ifs_shared_map_guard(void) {
    install();
    unblock();
}

ifs_status ifs_shared_map_create(int32_t file, int64_t offset, size_t nbytes, ifs_shared_map **out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (offset < 0 || nbytes == 0 || nbytes > SIZE_MAX / 2 || offset > INT64_MAX / 2)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%zu bytes from offset %lld cannot be mapped", nbytes,
                         (long long)offset);
    ifs_shared_map *map = malloc(sizeof *map);
    if (!map)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *map);
    map->lead = (size_t)(offset % (int64_t)page);
    map->length = (map->lead + nbytes + page - 1) / page * page;
    map->slot = take_slot();
    if (map->slot < 0) {
        free(map);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "%d parts of files are mapped, the most there can be; unmap others",
                         SLOTS);
    }
    struct slot *slot = &slots[map->slot];
    ifs_shared_map_guard();
    keep_reserve(page);
    map->base = mmap(NULL, map->length, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset - (int64_t)map->lead);
    if (map->base == MAP_FAILED) {
        ifs_status status =
            ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%zu bytes from offset %lld of the file cannot be mapped: %s", nbytes,
                      (long long)offset, strerror(errno));
        atomic_store(&slot->base, 0);
        free(map);
        return status;
    }
    atomic_store(&slot->damaged, 0);
    atomic_store(&slot->length, map->length);
    atomic_store(&slot->base, (uintptr_t)map->base);
    *out = map;
    return IFS_OK;
}

void ifs_shared_map_destroy(ifs_shared_map *map) {
    if (!map)
        return;
    atomic_store(&slots[map->slot].base, 1); /* the addresses may belong to others as soon as they are unmapped */
    munmap(map->base, map->length);
    atomic_store(&slots[map->slot].base, 0);
    free(map);
}

int32_t ifs_shared_map_is_damaged(const ifs_shared_map *map) { return atomic_load(&slots[map->slot].damaged); }

int32_t ifs_shared_map_is_whole(const ifs_shared_map *map, int32_t file, int64_t end) {
    struct stat status;
    ifs_shared_map_guard();
    return !ifs_shared_map_is_damaged(map) && fstat(file, &status) == 0 && status.st_size >= end;
}

#else

void ifs_shared_map_guard(void) {}

ifs_status ifs_shared_map_create(int32_t file, int64_t offset, size_t nbytes, ifs_shared_map **out) {
    (void)file, (void)offset, (void)nbytes, (void)out;
    return ifs__fail(IFS_ERR_UNSUPPORTED, "this system has no memory that is mapped from files as POSIX has it");
}

void ifs_shared_map_destroy(ifs_shared_map *map) { (void)map; }

int32_t ifs_shared_map_is_damaged(const ifs_shared_map *map) {
    (void)map;
    return 1;
}

int32_t ifs_shared_map_is_whole(const ifs_shared_map *map, int32_t file, int64_t end) {
    (void)map, (void)file, (void)end;
    return 0;
}

#endif

void *ifs_shared_map_address(const ifs_shared_map *map) { return map->base + map->lead; }
