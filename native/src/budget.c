/*
 * budget.c - a limit on the device memory that several memories, decoders and reservations hold together.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "budget.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct ifs_budget {
    _Atomic int32_t references;
    uint64_t limit;
    _Atomic uint64_t used, peak;
    char name[256];
};

struct ifs_reservation {
    ifs_budget *budget;
    uint64_t nbytes;
};

static _Thread_local ifs_budget *in_use;

ifs_status ifs_budget_create(const char *name, uint64_t limit, ifs_budget **out) {
    ifs_budget *budget = calloc(1, sizeof *budget);
    if (!budget)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *budget);
    budget->references = 1;
    budget->limit = limit;
    snprintf(budget->name, sizeof budget->name, "%s", name);
    *out = budget;
    return IFS_OK;
}

ifs_budget *ifs__budget_retain(ifs_budget *budget) {
    if (budget)
        atomic_fetch_add(&budget->references, 1);
    return budget;
}

void ifs_budget_destroy(ifs_budget *budget) {
    if (budget && atomic_fetch_sub(&budget->references, 1) == 1)
        free(budget);
}

uint64_t ifs_budget_used(const ifs_budget *budget) { return budget->used; }

uint64_t ifs_budget_peak(const ifs_budget *budget) { return budget->peak; }

ifs_budget *ifs_budget_use(ifs_budget *budget) {
    ifs_budget *before = in_use;
    in_use = budget;
    return before;
}

ifs_budget *ifs__budget_in_use(void) { return ifs__budget_retain(in_use); }

ifs_status ifs__budget_charge(ifs_budget *budget, uint64_t nbytes) {
    if (!budget)
        return IFS_OK;
    uint64_t used = atomic_load(&budget->used);
    do {
        if (nbytes > budget->limit || used > budget->limit - nbytes)
            return ifs__fail(IFS_ERR_OVER_BUDGET,
                             "the memory limit of %s is %llu bytes: %llu are in use, and %llu more are needed; raise "
                             "the limit, or use smaller batches, smaller images or fewer instances",
                             budget->name, (unsigned long long)budget->limit, (unsigned long long)used,
                             (unsigned long long)nbytes);
    } while (!atomic_compare_exchange_weak(&budget->used, &used, used + nbytes));
    uint64_t peak = atomic_load(&budget->peak);
    while (used + nbytes > peak && !atomic_compare_exchange_weak(&budget->peak, &peak, used + nbytes)) {
    }
    return IFS_OK;
}

void ifs__budget_credit(ifs_budget *budget, uint64_t nbytes) {
    if (budget)
        atomic_fetch_sub(&budget->used, nbytes);
}

ifs_status ifs_reservation_create(ifs_budget *budget, uint64_t nbytes, ifs_reservation **out) {
    ifs_reservation *reservation = malloc(sizeof *reservation);
    if (!reservation)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "cannot allocate %zu bytes of host memory", sizeof *reservation);
    ifs_status status = ifs__budget_charge(budget, nbytes);
    if (status != IFS_OK) {
        free(reservation);
        return status;
    }
    *reservation = (ifs_reservation){.budget = ifs__budget_retain(budget), .nbytes = nbytes};
    *out = reservation;
    return IFS_OK;
}

void ifs_reservation_destroy(ifs_reservation *reservation) {
    if (!reservation)
        return;
    ifs__budget_credit(reservation->budget, reservation->nbytes);
    ifs_budget_destroy(reservation->budget);
    free(reservation);
}
