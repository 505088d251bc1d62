/*
 * custom_ops.h - custom operators inside the core: what Python declares, and what the runtimes run.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * An ifs_custom_op is one declared operator with one combination of element types on one device. An ifs_custom_node is
 * a node of a model: the operator with the values of its attributes. The shapes of its outputs follow from those of its
 * inputs by rules, one for each combination of ranks, which Python traces out of the operator's shape() when a
 * combination comes for the first time. From then on a node with a C or CUDA kernel runs without Python.
 */
#ifndef IFS_CUSTOM_OPS_H
#define IFS_CUSTOM_OPS_H

#include "infersdk_custom_op.h"
#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef] */

#define IFS_OP_MAX_TENSORS 32 /* inputs and outputs of an operator together */

typedef struct ifs_custom_op ifs_custom_op;
typedef struct ifs_custom_node ifs_custom_node;
typedef struct ifs_cuda_code ifs_cuda_code; /* a compiled CUDA kernel that Python launches by a rule */

typedef struct ifs_custom_op_spec {
    int64_t id; /* by which the callbacks name it */
    const char *domain;
    const char *name;
    int32_t version;
    int32_t device; /* IFS_NO_DEVICE, or the CUDA device that it runs on */
    int32_t num_inputs, num_outputs, num_attributes;
    const int32_t *input_dtypes;
    const int32_t *output_dtypes;
    const ifs_op_attribute *attributes; /* their names, kinds and defaults */
    /* One of these runs it; none of them is a kernel in Python. */
    ifs_op_kernel *kernel;
    const ifs_cuda_code *code;
    ifs_op_destroy *destroy; /* of the kernel's state; NULL: it keeps none */
} ifs_custom_op_spec;

/* Copies what the spec points to. An operator lives as long as the process: runtimes keep pointers to it. */
ifs_status ifs_custom_op_create(const ifs_custom_op_spec *spec, ifs_custom_op **out);

/* A node, with a value for each attribute, which are copied. `id` is for the callbacks. */
ifs_status ifs_custom_node_create(const ifs_custom_op *op, int64_t id, const char *name,
                                  const ifs_op_attribute *attributes, ifs_custom_node **out);
void ifs_custom_node_destroy(ifs_custom_node *node);

/* One more rule: the words that infersdk/custom_ops/shapes.py writes, the number of those before its launch (0: it has
 * none), and the texts of its checks. Any thread. */
ifs_status ifs_custom_node_add_rule(ifs_custom_node *node, const int64_t *words, size_t count, size_t launch,
                                    const char *const *texts, int32_t num_texts);

/* The shapes of the outputs for inputs of these shapes: `dims` is [num_outputs][IFS_MAX_NDIM]. */
ifs_status ifs_custom_node_shapes(ifs_custom_node *node, const ifs_op_tensor *inputs, int64_t *dims, int32_t *ndims);

/* Runs the kernel. The outputs have the shapes that the call above gives. `stream` is a cudaStream_t.
 * ERR_UNSUPPORTED with the kernel's own text where the kernel fails. */
ifs_status ifs_custom_node_run(ifs_custom_node *node, const ifs_op_tensor *inputs, const ifs_op_tensor *outputs,
                               void *stream);

/* What the core asks Python. Each returns 0, or else another number with a text in `error`. */
typedef struct ifs_custom_host {
    int32_t (*create)(int64_t op, const char *name, const ifs_op_attribute *attributes, int64_t *id, char *error,
                      size_t error_nbytes);
    int32_t (*trace)(int64_t node, ifs_custom_node *handle, const int32_t *ranks, int32_t count, char *error,
                     size_t error_nbytes);
    int32_t (*run)(int64_t node, const ifs_op_call *call);
    void (*destroy)(int64_t node);
} ifs_custom_host;

/* NULL when the interpreter ends: from then on the core asks nothing. */
void ifs_custom_set_host(const ifs_custom_host *host);

/* What RegisterCustomOps (ONNX Runtime's entry point of this library) registers in this thread, until the next offer.
 * The caller keeps `ops` so long. */
void ifs_custom_offer_to_ort(const ifs_custom_op *const *ops, int32_t count);

/* Compiled CUDA code: a cubin, or PTX that ends in a 0. `function` names the kernel in it. */
ifs_status ifs_cuda_code_load(const void *image, const char *function, int32_t device, ifs_cuda_code **out);

/* [/cdef] */

/* ---- for the core alone ---- */

struct ifs_custom_op {
    ifs_custom_op_spec spec;
    int32_t dtypes[IFS_OP_MAX_TENSORS]; /* inputs, then outputs */
};

/* A node that ONNX Runtime makes: Python checks the attributes and gives it a name of its own. */
ifs_status ifs__custom_node_of_runtime(const ifs_custom_op *op, const char *name, const ifs_op_attribute *attributes,
                                       ifs_custom_node **out);

/* As ifs_custom_node_run, with a parallel_for and what it needs. */
ifs_status ifs__custom_node_call(ifs_custom_node *node, ifs_op_call *call);

/* ---- rules (custom_ops_rules.c) ---- */

typedef struct ifs__rule ifs__rule;
struct ifs__rule {
    ifs__rule *next;
    char **texts;
    int32_t num_texts;
    const int64_t *launch; /* the words of the launch; NULL: none */
    int64_t words[];
};

ifs_status ifs__rule_create(const int64_t *words, size_t count, size_t launch, const char *const *texts,
                            int32_t num_texts, ifs__rule **out);
void ifs__rule_destroy(ifs__rule *rule);
bool ifs__rule_fits(const ifs__rule *rule, const ifs_op_tensor *inputs, int32_t num_inputs);
ifs_status ifs__rule_shapes(const ifs__rule *rule, const ifs_op_tensor *inputs, int64_t *dims, int32_t *ndims);

/* A launch that a rule asks for. Arguments point into the tensors and into `values`. */
#define IFS__MAX_ARGUMENTS 64
typedef struct ifs__launch {
    uint32_t grid[3], block[3];
    size_t shared;
    int32_t num_arguments;
    int64_t values[IFS__MAX_ARGUMENTS];
    float floats[IFS__MAX_ARGUMENTS];
    void *pointers[IFS__MAX_ARGUMENTS];
    void *arguments[IFS__MAX_ARGUMENTS];
} ifs__launch;

/* ERR_UNSUPPORTED where the rule has none. `launch->grid[0]` is 0 where there is nothing to do. */
ifs_status ifs__rule_launch(const ifs__rule *rule, const ifs_op_tensor *inputs, const ifs_op_tensor *outputs,
                            ifs__launch *launch);

/* ---- the device's half (cuda/custom_ops.cu, cuda_missing.c) ---- */

ifs_status ifs__cuda_code_launch(const ifs_cuda_code *code, ifs__launch *launch, int32_t device, void *stream);

/* Runs a launcher with `device` current. */
ifs_status ifs__cuda_call(ifs_op_kernel *kernel, const ifs_op_call *call, int32_t *result);

#ifdef __cplusplus
}
#endif
#endif
