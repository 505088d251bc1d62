/* workers.c - a pool of threads that work on the items of one job at a time. SPDX-License-Identifier: Apache-2.0 */
#include "workers.h"

#include "platform.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct job {
    ifs__work work;
    void *context;
    int64_t count;
    _Atomic int64_t next;
    _Atomic int32_t failed; /* the first status that is not IFS_OK */
    char message[512];      /* of that thread, which writes it once it has set `failed` */
} job;

struct ifs_workers {
    ifs__mutex job_lock; /* held during a job: one at a time */
    ifs__mutex lock;     /* guards everything below */
    ifs__condition wake, done;
    job *current;
    uint64_t serial; /* of the job, so that a thread takes part in each job once */
    int32_t busy;
    bool stop;
    int64_t process; /* the process that started the threads; a fork of it has none of them */
    int32_t threads;
    ifs__thread thread[];
};

/* Takes items until none are left. */
static void work_on(job *j) {
    for (;;) {
        int64_t item = atomic_fetch_add(&j->next, 1);
        if (item >= j->count || atomic_load(&j->failed) != IFS_OK)
            return;
        ifs_status status = j->work(j->context, item);
        int32_t ok = IFS_OK;
        if (status != IFS_OK && atomic_compare_exchange_strong(&j->failed, &ok, status))
            snprintf(j->message, sizeof j->message, "%s", ifs_last_error());
    }
}

static IFS__THREAD_RESULT serve(void *argument) {
    ifs_workers *pool = argument;
    uint64_t seen = 0;
    ifs__mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && (!pool->current || pool->serial == seen))
            ifs__condition_wait(&pool->wake, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->serial;
        job *mine = pool->current;
        pool->busy++;
        ifs__mutex_unlock(&pool->lock);
        work_on(mine);
        ifs__mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            ifs__condition_wake_all(&pool->done);
    }
    ifs__mutex_unlock(&pool->lock);
    return 0;
}

ifs_status ifs_workers_create(int32_t threads, ifs_workers **out) {
    if (threads < 1 || threads > 256)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a pool of %d threads; it must have 1 to 256", (int)threads);
    /* The caller works too, so one thread fewer is started. */
    ifs_workers *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof *pool->thread);
    if (!pool)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate a pool of %d threads", (int)threads);
    pool->process = ifs__process();
    ifs__mutex_init(&pool->job_lock);
    ifs__mutex_init(&pool->lock);
    ifs__condition_init(&pool->wake);
    ifs__condition_init(&pool->done);
    for (; pool->threads < threads - 1; pool->threads++) {
        int error = ifs__thread_start(&pool->thread[pool->threads], serve, pool);
        if (error) {
            ifs_workers_destroy(pool);
            return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot start %d threads (error %d); ask for fewer", (int)threads,
                             error);
        }
    }
    *out = pool;
    return IFS_OK;
}

void ifs_workers_destroy(ifs_workers *pool) {
    if (!pool)
        return;
    if (pool->process != ifs__process()) {
        free(pool);
        return;
    }
    ifs__mutex_lock(&pool->lock);
    pool->stop = true;
    ifs__condition_wake_all(&pool->wake);
    ifs__mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->threads; i++)
        ifs__thread_join(pool->thread[i]);
    ifs__condition_destroy(&pool->wake);
    ifs__condition_destroy(&pool->done);
    ifs__mutex_destroy(&pool->lock);
    ifs__mutex_destroy(&pool->job_lock);
    free(pool);
}

int32_t ifs_workers_threads(const ifs_workers *pool) {
    return pool && pool->process == ifs__process() ? pool->threads + 1 : 1;
}

ifs_status ifs__workers_run(ifs_workers *pool, ifs__work work, void *context, int64_t count) {
    job j = {.work = work, .context = context, .count = count};
    bool shared = pool && pool->threads && count > 1 && pool->process == ifs__process();
    if (shared) {
        ifs__mutex_lock(&pool->job_lock);
        ifs__mutex_lock(&pool->lock);
        pool->current = &j;
        pool->serial++;
        ifs__condition_wake_all(&pool->wake);
        ifs__mutex_unlock(&pool->lock);
    }
    work_on(&j);
    if (shared) {
        ifs__mutex_lock(&pool->lock);
        pool->current = NULL; /* a thread that wakes up late finds no job */
        while (pool->busy)
            ifs__condition_wait(&pool->done, &pool->lock);
        ifs__mutex_unlock(&pool->lock);
        ifs__mutex_unlock(&pool->job_lock);
    }
    return j.failed == IFS_OK ? IFS_OK : ifs__fail(j.failed, "%s", j.message);
}
