/* workers.c - a pool of threads that share out the items of one job at a time. SPDX-License-Identifier: Apache-2.0 */
#include "workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct job {
    ifs__work work;
    void *context;
    int64_t count;
    _Atomic int64_t next;
    _Atomic int32_t failed; /* the first status that is not IFS_OK */
    char message[512];      /* of that thread; written by whoever set `failed` */
} job;

struct ifs_workers {
    pthread_mutex_t turn; /* one job at a time */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake, done;
    job *now;
    uint64_t serial; /* of the job, so that a thread takes part in each once */
    int32_t busy;
    bool stop;
    pid_t process; /* whose the threads are: a fork has none of them, and the locks as they were at that moment */
    int32_t threads;
    pthread_t thread[];
};

/* Takes items until there are none left. */
static void take_part(job *j) {
    for (;;) {
        int64_t item = atomic_fetch_add(&j->next, 1);
        if (item >= j->count || atomic_load(&j->failed) != IFS_OK)
            return;
        ifs_status status = j->work(j->context, item);
        int32_t none = IFS_OK;
        if (status != IFS_OK && atomic_compare_exchange_strong(&j->failed, &none, status))
            snprintf(j->message, sizeof j->message, "%s", ifs_last_error());
    }
}

static void *serve(void *argument) {
    ifs_workers *pool = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && (!pool->now || pool->serial == seen))
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->serial;
        job *mine = pool->now;
        pool->busy++;
        pthread_mutex_unlock(&pool->lock);
        take_part(mine);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

ifs_status ifs_workers_create(int32_t threads, ifs_workers **out) {
    if (threads < 1 || threads > 256)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "a pool of %d threads; it can have 1 to 256", (int)threads);
    /* The caller works too. */
    ifs_workers *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof *pool->thread);
    if (!pool)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate a pool of %d threads", (int)threads);
    pool->process = getpid();
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (; pool->threads < threads - 1; pool->threads++) {
        int error = pthread_create(&pool->thread[pool->threads], NULL, serve, pool);
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
    if (pool->process != getpid()) {
        free(pool);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

int32_t ifs_workers_threads(const ifs_workers *pool) { return pool ? pool->threads + 1 : 1; }

ifs_status ifs__workers_run(ifs_workers *pool, ifs__work work, void *context, int64_t count) {
    job j = {.work = work, .context = context, .count = count};
    bool shared = pool && pool->threads && count > 1 && pool->process == getpid();
    if (shared) {
        pthread_mutex_lock(&pool->turn);
        pthread_mutex_lock(&pool->lock);
        pool->now = &j;
        pool->serial++;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
    }
    take_part(&j);
    if (shared) {
        pthread_mutex_lock(&pool->lock);
        pool->now = NULL; /* who wakes up late finds nothing */
        while (pool->busy)
            pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
        pthread_mutex_unlock(&pool->turn);
    }
    return j.failed == IFS_OK ? IFS_OK : ifs__fail(j.failed, "%s", j.message);
}
