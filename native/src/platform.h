/*
 * platform.h - what POSIX and Windows do differently: aligned memory, locks, threads, files. Paths are UTF-8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_PLATFORM_H
#define IFS_PLATFORM_H

#include "internal.h"

#include <stdio.h>

/* Memory aligned to a cache line and the widest vector; NULL if there is none. Only ifs__aligned_free frees it. */
#define IFS__ALIGNMENT 64
void *ifs__aligned_alloc(size_t nbytes);
void ifs__aligned_free(void *block);

/* The next `nbytes` of an aligned block, in whole cache lines; with a `block` of NULL, `used` only counts them. */
static inline void *ifs__take(char *block, size_t *used, size_t nbytes) {
    void *part = block ? block + *used : NULL;
    *used += (nbytes + IFS__ALIGNMENT - 1) / IFS__ALIGNMENT * IFS__ALIGNMENT;
    return part;
}

#ifdef _WIN32
typedef struct ifs__mutex {
    void *srw_lock;
} ifs__mutex;
typedef struct ifs__condition {
    void *condition_variable;
} ifs__condition;
typedef void *ifs__thread;
#define IFS__THREAD_RESULT unsigned __stdcall
#define IFS__MUTEX_INITIALIZER {0}
#else
#include <pthread.h>
typedef pthread_mutex_t ifs__mutex;
typedef pthread_cond_t ifs__condition;
typedef pthread_t ifs__thread;
#define IFS__THREAD_RESULT void *
#define IFS__MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
#endif

void ifs__mutex_init(ifs__mutex *mutex);
void ifs__mutex_destroy(ifs__mutex *mutex);
void ifs__mutex_lock(ifs__mutex *mutex);
void ifs__mutex_unlock(ifs__mutex *mutex);

void ifs__condition_init(ifs__condition *condition);
void ifs__condition_destroy(ifs__condition *condition);
void ifs__condition_wait(ifs__condition *condition, ifs__mutex *mutex);
void ifs__condition_wake_all(ifs__condition *condition);

/* Starts a thread that calls run(argument), and returns 0 or the system's error number. `run` returns 0. */
typedef IFS__THREAD_RESULT ifs__thread_run(void *argument);
int ifs__thread_start(ifs__thread *thread, ifs__thread_run *run, void *argument);
void ifs__thread_join(ifs__thread thread);

/* The number of this process. A fork has another one. */
int64_t ifs__process(void);

/* Opens a regular file for reading and returns its size. Never waits for the writer of a pipe. */
ifs_status ifs__file_open(const char *path, FILE **file, uint64_t *nbytes);

/* Creates a file for writing, or empties it; NULL with errno if that fails. */
FILE *ifs__file_create(const char *path);

#endif
