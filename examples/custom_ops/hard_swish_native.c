/* hard_swish_native.c - the kernel of hard_swish_native.py on the processor. SPDX-License-Identifier: Apache-2.0 */
#include "infersdk_custom_op.h"

#define PART 16384 /* elements that one item of work has */

typedef struct job {
    const ifs_op_call *call;
    int64_t count;
} job;

static void part(void *arg, size_t item) {
    const job *j = arg;
    const float *x = j->call->inputs[0].data;
    float *y = j->call->outputs[0].data, alpha = j->call->attributes[0].f;
    int64_t start = (int64_t)item * PART, stop = start + PART < j->count ? start + PART : j->count;
    for (int64_t i = start; i < stop; i++) {
        float t = alpha * x[i] + 0.5f;
        y[i] = x[i] * (t < 0 ? 0 : t > 1 ? 1 : t);
    }
}

int32_t hard_swish(const ifs_op_call *call) {
    job j = {call, ifs_op_count(&call->inputs[0])};
    call->parallel_for(call, part, &j, (size_t)((j.count + PART - 1) / PART));
    return 0;
}
