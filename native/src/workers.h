/*
 * workers.h - a pool of threads that work on the items of one job at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_WORKERS_H
#define IFS_WORKERS_H

#include "internal.h"

/* One item of a job: any status but IFS_OK ends the job, with this thread's error text. */
typedef ifs_status (*ifs__work)(void *context, int64_t item);

/* Runs items 0 to count - 1, each once, on the pool's threads and the calling one; returns when all are done. `workers`
 * NULL is the calling thread alone. */
ifs_status ifs__workers_run(ifs_workers *workers, ifs__work work, void *context, int64_t count);

#endif
