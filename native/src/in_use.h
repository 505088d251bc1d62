/*
 * in_use.h - the flag of an object that one thread uses at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_IN_USE_H
#define IFS_IN_USE_H

#include "internal.h"

#include <stdatomic.h>

/* Marks an object as used by the calling thread until ifs__end_use; ERR_IN_USE where another thread uses it. `what` is
 * "a tensor", and `remedy` says what to do in place of it. */
static inline ifs_status ifs__begin_use(atomic_bool *in_use, const char *what, const char *remedy) {
    if (!atomic_exchange_explicit(in_use, true, memory_order_acquire))
        return IFS_OK;
    return ifs__fail(IFS_ERR_IN_USE, "two threads use %s at the same time; %s", what, remedy);
}

static inline void ifs__end_use(atomic_bool *in_use) { atomic_store_explicit(in_use, false, memory_order_release); }

#endif
