/*
 * custom_ops.c - operators that Python declares, and their nodes. SPDX-License-Identifier: Apache-2.0
 */
#include "custom_ops.h"
#include "platform.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_NBYTES 1024

/* What a kernel keeps between its calls, for one stream and one call at a time. */
typedef struct kept {
    struct kept *next;
    void *stream;
    void *state;
    bool in_use;
} kept;

struct ifs_custom_node {
    const ifs_custom_op *op;
    int64_t id;
    bool of_runtime; /* Python made its half for this one, and lets go of it when this one ends */
    char *name;
    ifs_op_attribute *attributes;
    _Atomic(ifs__rule *) rules; /* they are only added to */
    ifs__mutex lock;       /* guards the adding, and `states` */
    kept *states;
};

/* ---- Python ---- */

static ifs_custom_host host_table;
static _Atomic(bool) host_set;

void ifs_custom_set_host(const ifs_custom_host *host) {
    if (host)
        host_table = *host;
    atomic_store(&host_set, host != NULL);
}

static ifs_status check_host(const ifs_custom_op *op) {
    if (atomic_load(&host_set))
        return IFS_OK;
    return ifs__fail(IFS_ERR_UNSUPPORTED, "operator %s::%s runs in Python, which has ended", op->spec.domain,
                     op->spec.name);
}

/* ---- attributes ---- */

static size_t padded(size_t nbytes) { return (nbytes + 7) & ~(size_t)7; }

static size_t attribute_nbytes(const ifs_op_attribute *a) {
    size_t nbytes = padded(strlen(a->name) + 1) + padded(a->s ? strlen(a->s) + 1 : 0);
    return nbytes + padded((size_t)a->count * ((a->ints ? sizeof *a->ints : 0) + (a->floats ? sizeof *a->floats : 0)));
}

static const void *moved(char **to, const void *from, size_t nbytes) {
    if (!from)
        return NULL;
    void *at = memcpy(*to, from, nbytes);
    *to += padded(nbytes);
    return at;
}

/* Copies attributes with all that they point to into one block. */
static ifs_status copy_attributes(const ifs_op_attribute *attributes, int32_t count, ifs_op_attribute **out) {
    size_t nbytes = padded((size_t)count * sizeof *attributes);
    for (int32_t i = 0; i < count; i++)
        nbytes += attribute_nbytes(&attributes[i]);
    ifs_op_attribute *block = calloc(1, nbytes + 1);
    if (!block)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for %d attributes", (int)count);
    char *rest = (char *)block + padded((size_t)count * sizeof *attributes);
    for (int32_t i = 0; i < count; i++) {
        const ifs_op_attribute *a = &attributes[i];
        block[i] = *a;
        block[i].name = moved(&rest, a->name, strlen(a->name) + 1);
        block[i].s = moved(&rest, a->s, a->s ? strlen(a->s) + 1 : 0);
        block[i].ints = moved(&rest, a->ints, (size_t)a->count * sizeof *a->ints);
        block[i].floats = moved(&rest, a->floats, (size_t)a->count * sizeof *a->floats);
    }
    *out = block;
    return IFS_OK;
}

/* ---- operators ---- */

ifs_status ifs_custom_op_create(const ifs_custom_op_spec *spec, ifs_custom_op **out) {
    if (spec->num_inputs + spec->num_outputs > IFS_OP_MAX_TENSORS)
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "operator %s::%s has %d tensors; the maximum is %d", spec->domain,
                         spec->name, (int)(spec->num_inputs + spec->num_outputs), IFS_OP_MAX_TENSORS);
    ifs_custom_op *op = calloc(1, sizeof *op);
    if (!op)
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for operator %s::%s", spec->domain, spec->name);
    op->spec = *spec;
    for (int32_t i = 0; i < spec->num_inputs; i++)
        op->dtypes[i] = spec->input_dtypes[i];
    for (int32_t i = 0; i < spec->num_outputs; i++)
        op->dtypes[spec->num_inputs + i] = spec->output_dtypes[i];
    op->spec.input_dtypes = op->dtypes;
    op->spec.output_dtypes = op->dtypes + spec->num_inputs;
    op->spec.domain = strdup(spec->domain);
    op->spec.name = strdup(spec->name);
    ifs_op_attribute *attributes = NULL;
    ifs_status status = copy_attributes(spec->attributes, spec->num_attributes, &attributes);
    if (status == IFS_OK && (!op->spec.domain || !op->spec.name))
        status = ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for operator %s::%s", spec->domain, spec->name);
    if (status != IFS_OK) {
        free((char *)op->spec.domain);
        free((char *)op->spec.name);
        free(attributes);
        free(op);
        return status;
    }
    op->spec.attributes = attributes;
    *out = op;
    return IFS_OK;
}

/* ---- nodes ---- */

ifs_status ifs_custom_node_create(const ifs_custom_op *op, int64_t id, const char *name,
                                  const ifs_op_attribute *attributes, ifs_custom_node **out) {
    ifs_custom_node *node = calloc(1, sizeof *node);
    char *copy = strdup(name);
    if (!node || !copy) {
        free(node);
        free(copy);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for a node of operator %s::%s", op->spec.domain,
                         op->spec.name);
    }
    node->op = op;
    node->id = id;
    node->name = copy;
    ifs__mutex_init(&node->lock);
    ifs_status status = copy_attributes(attributes, op->spec.num_attributes, &node->attributes);
    if (status != IFS_OK) {
        ifs_custom_node_destroy(node);
        return status;
    }
    *out = node;
    return IFS_OK;
}

ifs_status ifs__custom_node_of_runtime(const ifs_custom_op *op, const char *name, const ifs_op_attribute *attributes,
                                       ifs_custom_node **out) {
    char error[ERROR_NBYTES] = "";
    ifs_custom_node *node;
    IFS__TRY(check_host(op));
    IFS__TRY(ifs_custom_node_create(op, 0, name, attributes, &node));
    if (host_table.create(op->spec.id, name, node->attributes, &node->id, error, sizeof error)) {
        ifs_custom_node_destroy(node);
        return ifs__fail(IFS_ERR_INVALID_ARGUMENT, "%s", error);
    }
    node->of_runtime = true;
    *out = node;
    return IFS_OK;
}

void ifs_custom_node_destroy(ifs_custom_node *node) {
    if (!node)
        return;
    for (kept *k = node->states, *next; k; k = next) {
        next = k->next;
        if (k->state)
            node->op->spec.destroy(k->state);
        free(k);
    }
    for (ifs__rule *rule = atomic_load(&node->rules), *next; rule; rule = next) {
        next = rule->next;
        ifs__rule_destroy(rule);
    }
    if (node->of_runtime && atomic_load(&host_set))
        host_table.destroy(node->id);
    ifs__mutex_destroy(&node->lock);
    free(node->attributes);
    free(node->name);
    free(node);
}

/* ---- rules ---- */

ifs_status ifs_custom_node_add_rule(ifs_custom_node *node, const int64_t *words, size_t count, size_t launch,
                                    const char *const *texts, int32_t num_texts) {
    ifs__rule *rule;
    IFS__TRY(ifs__rule_create(words, count, launch, texts, num_texts, &rule));
    ifs__mutex_lock(&node->lock);
    rule->next = atomic_load(&node->rules);
    atomic_store(&node->rules, rule);
    ifs__mutex_unlock(&node->lock);
    return IFS_OK;
}

static const ifs__rule *known_rule(ifs_custom_node *node, const ifs_op_tensor *inputs) {
    for (ifs__rule *rule = atomic_load(&node->rules); rule; rule = rule->next)
        if (ifs__rule_fits(rule, inputs, node->op->spec.num_inputs))
            return rule;
    return NULL;
}

static ifs_status rule_for(ifs_custom_node *node, const ifs_op_tensor *inputs, const ifs__rule **out) {
    if ((*out = known_rule(node, inputs)))
        return IFS_OK;
    char error[ERROR_NBYTES] = "";
    int32_t ranks[IFS_OP_MAX_TENSORS];
    IFS__TRY(check_host(node->op));
    for (int32_t i = 0; i < node->op->spec.num_inputs; i++)
        ranks[i] = inputs[i].ndim;
    if (host_table.trace(node->id, node, ranks, node->op->spec.num_inputs, error, sizeof error))
        return ifs__fail(IFS_ERR_SHAPE, "%s", error);
    *out = known_rule(node, inputs);
    return *out ? IFS_OK
                : ifs__fail(IFS_ERR_SHAPE, "operator %s::%s, node %s: no rule for these ranks", node->op->spec.domain,
                            node->op->spec.name, node->name);
}

/* The last error again, with the operator and the node in front of it. */
static ifs_status named(const ifs_custom_node *node, ifs_status status) {
    char text[ERROR_NBYTES];
    strncpy(text, ifs_last_error(), sizeof text - 1);
    text[sizeof text - 1] = 0;
    return ifs__fail(status, "operator %s::%s, node %s: %s", node->op->spec.domain, node->op->spec.name, node->name,
                     text);
}

ifs_status ifs_custom_node_shapes(ifs_custom_node *node, const ifs_op_tensor *inputs, int64_t *dims, int32_t *ndims) {
    const ifs__rule *rule;
    IFS__TRY(rule_for(node, inputs, &rule));
    ifs_status status = ifs__rule_shapes(rule, inputs, dims, ndims);
    return status == IFS_OK ? IFS_OK : named(node, status);
}

/* ---- state ---- */

static ifs_status take_state(ifs_custom_node *node, void *stream, kept **out) {
    ifs__mutex_lock(&node->lock);
    kept *k = node->states;
    while (k && (k->in_use || k->stream != stream))
        k = k->next;
    if (!k && (k = calloc(1, sizeof *k))) {
        k->stream = stream;
        k->next = node->states;
        node->states = k;
    }
    if (k)
        k->in_use = true;
    ifs__mutex_unlock(&node->lock);
    *out = k;
    return k ? IFS_OK : ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for the state of node %s", node->name);
}

static void give_state(ifs_custom_node *node, kept *k) {
    ifs__mutex_lock(&node->lock);
    k->in_use = false;
    ifs__mutex_unlock(&node->lock);
}

/* ---- running ---- */

static ifs_status launch_code(ifs_custom_node *node, ifs_op_call *call) {
    const ifs__rule *rule;
    ifs__launch launch;
    IFS__TRY(rule_for(node, call->inputs, &rule));
    ifs_status status = ifs__rule_launch(rule, call->inputs, call->outputs, &launch);
    if (status == IFS_OK && launch.grid[0])
        status = ifs__cuda_code_launch(node->op->spec.code, &launch, node->op->spec.device, call->stream);
    return status == IFS_OK ? IFS_OK : named(node, status);
}

static ifs_status call_kernel(ifs_custom_node *node, ifs_op_call *call) {
    const ifs_custom_op_spec *spec = &node->op->spec;
    kept *k = NULL;
    int32_t result = 0;
    ifs_status status = IFS_OK;
    if (spec->destroy) {
        IFS__TRY(take_state(node, call->stream, &k));
        call->state = &k->state;
    }
    if (spec->device < 0)
        result = spec->kernel(call);
    else
        status = ifs__cuda_call(spec->kernel, call, &result);
    if (k)
        give_state(node, k);
    if (status != IFS_OK)
        return named(node, status);
    if (!result)
        return IFS_OK;
    call->error[call->error_nbytes - 1] = 0;
    return ifs__fail(IFS_ERR_UNSUPPORTED, "operator %s::%s, node %s: its %s kernel failed: %s", spec->domain,
                     spec->name, node->name, spec->device < 0 ? "CPU" : "CUDA",
                     *call->error ? call->error : "it gives no reason; write one to call->error");
}

ifs_status ifs__custom_node_call(ifs_custom_node *node, ifs_op_call *call) {
    const ifs_custom_op_spec *spec = &node->op->spec;
    char error[ERROR_NBYTES] = "";
    call->abi = IFS_OP_ABI;
    call->num_inputs = spec->num_inputs;
    call->num_outputs = spec->num_outputs;
    call->num_attributes = spec->num_attributes;
    call->attributes = node->attributes;
    call->device = spec->device;
    call->state = NULL;
    call->error = error;
    call->error_nbytes = sizeof error;
    if (spec->code)
        return launch_code(node, call);
    if (spec->kernel)
        return call_kernel(node, call);
    IFS__TRY(check_host(node->op));
    return host_table.run(node->id, call) ? ifs__fail(IFS_ERR_UNSUPPORTED, "%s", error) : IFS_OK;
}

static void one_by_one(const ifs_op_call *call, void (*body)(void *, size_t), void *arg, size_t count) {
    (void)call;
    for (size_t i = 0; i < count; i++)
        body(arg, i);
}

ifs_status ifs_custom_node_run(ifs_custom_node *node, const ifs_op_tensor *inputs, const ifs_op_tensor *outputs,
                               void *stream) {
    ifs_op_call call = {.inputs = inputs, .outputs = outputs, .stream = stream, .parallel_for = one_by_one};
    return ifs__custom_node_call(node, &call);
}
