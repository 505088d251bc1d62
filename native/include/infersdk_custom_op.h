/*
 * infersdk_custom_op.h - what the kernel of a custom operator gets: the ABI between infersdk and your C or CUDA code.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A kernel is one function:
 *
 *     #include "infersdk_custom_op.h"
 *
 *     int32_t scale(const ifs_op_call *call) {
 *         const float *x = call->inputs[0].data;
 *         float *y = call->outputs[0].data, factor = call->attributes[0].f;
 *         int64_t count = ifs_op_count(&call->inputs[0]);
 *         for (int64_t i = 0; i < count; i++)
 *             y[i] = factor * x[i];
 *         return 0;
 *     }
 *
 * Compile it into a shared library and name it in the declaration: `cpu = CFunction("libscale.so", "scale")`. A CUDA
 * launcher is the same kind of function: its pointers lie on the device, and it queues its work on `call->stream`.
 *
 * Rules
 *
 *   - infersdk owns the tensors, the attributes and the call. They are valid until the kernel returns; the work that a
 *     launcher queues may use the tensors' data until that work is done.
 *   - A kernel writes its outputs in full. It writes neither its inputs nor their shapes.
 *   - Several threads may call one kernel at the same time. `*call->state` belongs to one call at a time.
 *   - A kernel prints nothing, and lets no exception of C++ through. It returns 0, or else any other number after it
 *     has written a text to `call->error`: IFS_OP_FAIL does both.
 *   - A CUDA launcher waits for nothing, and allocates nothing but state in its first call, so that calls can be
 *     captured into a CUDA graph. The device of the tensors is current.
 *   - The structs grow at their end only. `call->abi` is the IFS_OP_ABI that the caller was built with.
 */
#ifndef INFERSDK_CUSTOM_OP_H
#define INFERSDK_CUSTOM_OP_H

#include "infersdk.h" /* the element types: IFS_FLOAT32, ... */

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef] */

#define IFS_OP_ABI 1

/* An input or output: dense, in C order. `data` is undefined where there are no elements. */
typedef struct ifs_op_tensor {
    void *data;
    const int64_t *dims; /* [ndim] */
    int32_t ndim;
    int32_t dtype; /* IFS_FLOAT32, ... */
} ifs_op_tensor;

/* The kinds of attributes, and the member of ifs_op_attribute that holds each. A bool is an INT of 0 or 1. */
#define IFS_OP_INT 0    /* i */
#define IFS_OP_FLOAT 1  /* f */
#define IFS_OP_STRING 2 /* s, UTF-8 */
#define IFS_OP_INTS 3   /* ints[count] */
#define IFS_OP_FLOATS 4 /* floats[count] */

typedef struct ifs_op_attribute {
    const char *name;
    int32_t kind; /* IFS_OP_INT, ... */
    int32_t count;
    int64_t i;
    float f;
    const char *s;
    const int64_t *ints;
    const float *floats;
} ifs_op_attribute;

typedef struct ifs_op_call {
    int32_t abi;
    int32_t num_inputs, num_outputs, num_attributes;
    const ifs_op_tensor *inputs;  /* in the order of the declaration, as all of these */
    const ifs_op_tensor *outputs; /* of the shapes that the operator's shape() gives */
    const ifs_op_attribute *attributes;
    int32_t device; /* the CUDA device that the tensors lie on; IFS_NO_DEVICE is the host */
    void *stream;   /* cudaStream_t; NULL on the host */
    /* For a kernel that was declared with a function to destroy its state: where it keeps what it wants to find again.
     * NULL before the first call. There is one such place for each stream and for each call that runs at the same
     * time. NULL itself for a kernel without state. */
    void **state;
    /* Runs body(arg, 0) to body(arg, count - 1) on the runtime's threads, and returns when all are done. On the host
     * only. It is worth its cost from some ten thousand elements for each item on. */
    void (*parallel_for)(const struct ifs_op_call *call, void (*body)(void *arg, size_t item), void *arg, size_t count);
    void *runtime; /* what parallel_for needs */
    char *error; /* the text of a failure */
    size_t error_nbytes; /* what may be written there, the final 0 included */
} ifs_op_call;

/* A kernel of the host, or a launcher of CUDA kernels. */
typedef int32_t ifs_op_kernel(const ifs_op_call *call);

/* Frees what a kernel keeps in `*call->state`. */
typedef void ifs_op_destroy(void *state);

/* [/cdef] */

/* The number of elements. */
static inline int64_t ifs_op_count(const ifs_op_tensor *tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->dims[i];
    return count;
}

/* Writes the error text, as printf does, and is the value to return: `return IFS_OP_FAIL(call, "no %d", n);` */
#define IFS_OP_FAIL(call, ...) (snprintf((call)->error, (call)->error_nbytes, __VA_ARGS__), -1)

#ifdef __cplusplus
}
#endif
#endif /* INFERSDK_CUSTOM_OP_H */
