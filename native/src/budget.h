/*
 * budget.h - what memories and decoders charge to the budget that was in use when they were created.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef IFS_BUDGET_H
#define IFS_BUDGET_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The budget that this thread uses, with a reference for the caller; NULL where it uses none. */
ifs_budget *ifs__budget_in_use(void);

/* Adds a reference and returns `budget`, which may be NULL. ifs_budget_destroy drops one. */
ifs_budget *ifs__budget_retain(ifs_budget *budget);

/* Counts `nbytes` against a budget; ERR_OVER_BUDGET, and nothing is counted, where they exceed it. NULL counts nothing.
 */
ifs_status ifs__budget_charge(ifs_budget *budget, uint64_t nbytes);
void ifs__budget_credit(ifs_budget *budget, uint64_t nbytes);

#ifdef __cplusplus
}
#endif
#endif
