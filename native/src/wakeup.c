/* wakeup.c - threads that wait, woken ahead of the time at which they may run. SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

#if defined(__linux__)
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    LONGEST_WORK = 1000000, /* ns: work that takes longer counts as this */
    QUICK_WORK = 150000,    /* ns: threads whose work takes longer on average are not waited for */
    UNHURRIED = 2,          /* threads awake at a time where none waits for another one's work */
    AVERAGED = 16,          /* pieces of work in the average */
    ENOUGH = 2,             /* threads awake at a time that let the one that runs wake others later */
};

struct ifs_wakeup {
    pthread_mutex_t lock;      /* guards the queue, `awake`, and the flags of the waiters */
    ifs_waiter *first, *last;  /* released, and still asleep */
    int32_t awake, concurrent; /* awake: woken, and not let through yet */
    int64_t patience;
    _Atomic int64_t work; /* ns, the average of the work between two waits */
    char gap[64];         /* many processors read what follows */
    _Atomic int64_t running; /* when the thread that runs was let through, which names it as well; 0: none runs */
};

/* Of this thread; 0: not since its last wait. */
static _Thread_local int64_t let_through, work_began;
/* What this thread wakes others of when it waits again. Never followed: it may be gone. */
static _Thread_local const ifs_wakeup *indebted_to;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 8; i++)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
    for (int i = 0; i < 8; i++)
        __asm__ volatile("yield");
#endif
}

ifs_status ifs_wakeup_create(int32_t concurrent, int64_t patience, ifs_wakeup **out) {
    if (concurrent < 1 || patience < 0)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%d threads awake and %lld ns of patience; at least 1 and 0",
                         (int)concurrent, (long long)patience);
    ifs_wakeup *wakeup = calloc(1, sizeof *wakeup);
    if (!wakeup)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes", sizeof *wakeup);
#if defined(PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP)
    wakeup->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP; /* held for nanoseconds: no one sleeps */
#else
    pthread_mutex_init(&wakeup->lock, NULL);
#endif
    wakeup->concurrent = concurrent;
    wakeup->patience = patience;
    atomic_store(&wakeup->work, LONGEST_WORK); /* no trust to begin with */
    *out = wakeup;
    return IFS_OK;
}

void ifs_wakeup_destroy(ifs_wakeup *wakeup) {
    if (!wakeup)
        return;
    pthread_mutex_destroy(&wakeup->lock);
    free(wakeup);
}

static bool spins(ifs_wakeup *wakeup) { return wakeup->patience && atomic_load(&wakeup->work) <= QUICK_WORK; }

/* Takes the waiters that are to be woken now out of the queue; returns them, linked. Under the lock. */
static ifs_waiter *pick(ifs_wakeup *wakeup) {
    int32_t most = wakeup->concurrent < UNHURRIED || spins(wakeup) ? wakeup->concurrent : UNHURRIED;
    ifs_waiter *picked = wakeup->first, *last = NULL;
    for (; wakeup->first && wakeup->awake < most; wakeup->awake++) {
        last = wakeup->first;
        last->waking = 1;
        wakeup->first = last->next;
    }
    if (!wakeup->first)
        wakeup->last = NULL;
    if (!last)
        return NULL;
    last->next = NULL;
    return picked;
}

/* Without the lock. A waiter may be gone as soon as its `woken` is set; the kernel does not mind. */
static void wake(ifs_waiter *picked) {
    while (picked) {
        ifs_waiter *next = picked->next;
        __atomic_store_n(&picked->woken, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &picked->woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        picked = next;
    }
}

static void unlink_waiter(ifs_wakeup *wakeup, ifs_waiter *waiter) {
    ifs_waiter *before = NULL;
    for (ifs_waiter *w = wakeup->first; w != waiter; w = w->next)
        before = w;
    if (before)
        before->next = waiter->next;
    else
        wakeup->first = waiter->next;
    if (wakeup->last == waiter)
        wakeup->last = before;
}

/*
 * This thread does not wait any more: others may be woken. Whether it was released.
 *
 * To wake a thread takes longer than the work of most, above all on virtual machines. A thread that works has others
 * waiting for it, so as long as enough of them are awake it wakes no one before it waits again (`later`), when the
 * next one is at work. A thread that never does leaves that to those.
 */
static int32_t leave(ifs_wakeup *wakeup, ifs_waiter *waiter, bool later) {
    ifs_waiter *picked = NULL;
    pthread_mutex_lock(&wakeup->lock);
    if (!waiter->gone) {
        waiter->gone = 1;
        if (waiter->waking) {
            wakeup->awake--;
            if (later && wakeup->awake >= ENOUGH)
                indebted_to = wakeup;
            else
                picked = pick(wakeup);
        } else if (waiter->released && waiter->waiting)
            unlink_waiter(wakeup, waiter);
    }
    int32_t released = waiter->released, waking = waiter->waking;
    pthread_mutex_unlock(&wakeup->lock);
    wake(picked);
    while (waking && !__atomic_load_n(&waiter->woken, __ATOMIC_SEQ_CST))
        sched_yield(); /* another thread is about to write there */
    return released;
}

/* Others may run in place of this thread. */
static void give_up(ifs_wakeup *wakeup) {
    int64_t own = let_through;
    let_through = 0;
    if (own)
        atomic_compare_exchange_strong(&wakeup->running, &own, 0);
}

/* Waits until the thread that was let through last waits again, or for as long as that is worth while. */
static void await_turn(ifs_wakeup *wakeup) {
    for (;;) {
        int64_t running = atomic_load(&wakeup->running), time = now();
        if ((!running || time > running + wakeup->patience) &&
            atomic_compare_exchange_strong(&wakeup->running, &running, time)) {
            let_through = time;
            return;
        }
        pause_briefly();
    }
}

void ifs_wakeup_hold(ifs_wakeup *wakeup) {
    let_through = now();
    atomic_store(&wakeup->running, let_through);
}

void ifs_wakeup_let_go(ifs_wakeup *wakeup) { give_up(wakeup); }

void ifs_wakeup_release(ifs_wakeup *wakeup, ifs_waiter *waiter) {
    ifs_waiter *picked = NULL;
    pthread_mutex_lock(&wakeup->lock);
    if (!waiter->gone && !waiter->released && !waiter->waiting) {
        waiter->released = 1; /* its thread is at work still, and others need not wait for that */
        __atomic_store_n(&waiter->woken, 1, __ATOMIC_SEQ_CST);
    } else if (!waiter->gone && !waiter->released) {
        waiter->released = 1;
        waiter->next = NULL;
        if (wakeup->last)
            wakeup->last->next = waiter;
        else
            wakeup->first = waiter;
        wakeup->last = waiter;
        picked = pick(wakeup);
    }
    pthread_mutex_unlock(&wakeup->lock);
    wake(picked);
}

void ifs_wakeup_forget(ifs_wakeup *wakeup, ifs_waiter *waiter) {
    leave(wakeup, waiter, false);
    work_began = now();
}

int32_t ifs_wakeup_wait(ifs_wakeup *wakeup, ifs_waiter *waiter, int64_t deadline) {
    if (work_began) {
        int64_t took = now() - work_began, average = atomic_load(&wakeup->work);
        atomic_store(&wakeup->work, average + ((took < LONGEST_WORK ? took : LONGEST_WORK) - average) / AVERAGED);
        work_began = 0;
    }
    give_up(wakeup);
    ifs_waiter *picked = NULL;
    pthread_mutex_lock(&wakeup->lock);
    int32_t released = waiter->released;
    waiter->waiting |= !released; /* after a signal it may be in the queue */
    if (indebted_to == wakeup)
        picked = pick(wakeup);
    indebted_to = NULL;
    pthread_mutex_unlock(&wakeup->lock);
    wake(picked);
    if (released)
        return 1;
    struct timespec end = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    while (!__atomic_load_n(&waiter->woken, __ATOMIC_SEQ_CST)) {
        long error = syscall(SYS_futex, &waiter->woken, FUTEX_WAIT_BITSET_PRIVATE, 0, deadline < 0 ? NULL : &end, NULL,
                             FUTEX_BITSET_MATCH_ANY);
        if (error && errno == EINTR)
            return -1;
        if (error && errno == ETIMEDOUT)
            return leave(wakeup, waiter, false);
    }
    if (!spins(wakeup))
        return 1;
    await_turn(wakeup);
    return leave(wakeup, waiter, true);
}

#else

ifs_status ifs_wakeup_create(int32_t concurrent, int64_t patience, ifs_wakeup **out) {
    (void)concurrent, (void)patience, (void)out;
    return ifs__fail(IFS_ERR_UNSUPPORTED, "threads are woken ahead on Linux only");
}
void ifs_wakeup_destroy(ifs_wakeup *wakeup) { (void)wakeup; }
void ifs_wakeup_hold(ifs_wakeup *wakeup) { (void)wakeup; }
void ifs_wakeup_let_go(ifs_wakeup *wakeup) { (void)wakeup; }
void ifs_wakeup_release(ifs_wakeup *wakeup, ifs_waiter *waiter) { (void)wakeup, (void)waiter; }
void ifs_wakeup_forget(ifs_wakeup *wakeup, ifs_waiter *waiter) { (void)wakeup, (void)waiter; }
int32_t ifs_wakeup_wait(ifs_wakeup *wakeup, ifs_waiter *waiter, int64_t deadline) {
    (void)wakeup, (void)waiter, (void)deadline;
    return 1;
}

#endif
