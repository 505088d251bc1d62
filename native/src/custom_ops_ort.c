/*
 * custom_ops_ort.c - custom operators for ONNX Runtime, through its C API alone. SPDX-License-Identifier: Apache-2.0
 *
 * ONNX Runtime's table of functions only ever grows at its end, so a function is known by its number for all time; the
 * header is not needed, nor a library to link. What is used here has been there since API version 17 (ONNX Runtime
 * 1.17). An operator is registered once for each combination of element types, as ONNX Runtime has it.
 *
 * `SessionOptions.register_custom_ops_library(path of this library)` calls RegisterCustomOps, which takes what the same
 * thread has offered just before.
 */
#include "custom_ops.h"
#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API_VERSION 17

typedef struct OrtStatus OrtStatus;
typedef struct OrtApi OrtApi;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtValue OrtValue;

typedef struct OrtApiBase {
    const OrtApi *(*get_api)(uint32_t version);
    const char *(*version_string)(void);
} OrtApiBase;

/* ---- the functions that are used, by their numbers ---- */

#define SLOT(api, number, result, ...) ((result (*)(__VA_ARGS__))((void *const *)(api))[number])

#define CREATE_STATUS(api) SLOT(api, 0, OrtStatus *, int, const char *)
#define CREATE_DOMAIN(api) SLOT(api, 26, OrtStatus *, const char *, OrtCustomOpDomain **)
#define DOMAIN_ADD(api) SLOT(api, 27, OrtStatus *, OrtCustomOpDomain *, const struct OrtCustomOp *)
#define ADD_DOMAIN(api) SLOT(api, 28, OrtStatus *, OrtSessionOptions *, OrtCustomOpDomain *)
#define MUTABLE_DATA(api) SLOT(api, 51, OrtStatus *, OrtValue *, void **)
#define DIMENSIONS_COUNT(api) SLOT(api, 61, OrtStatus *, const OrtTensorTypeAndShapeInfo *, size_t *)
#define DIMENSIONS(api) SLOT(api, 62, OrtStatus *, const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)
#define TYPE_AND_SHAPE(api) SLOT(api, 65, OrtStatus *, const OrtValue *, OrtTensorTypeAndShapeInfo **)
#define ATTRIBUTE_FLOAT(api) SLOT(api, 85, OrtStatus *, const OrtKernelInfo *, const char *, float *)
#define ATTRIBUTE_INT(api) SLOT(api, 86, OrtStatus *, const OrtKernelInfo *, const char *, int64_t *)
#define ATTRIBUTE_STRING(api) SLOT(api, 87, OrtStatus *, const OrtKernelInfo *, const char *, char *, size_t *)
#define GET_INPUT(api) SLOT(api, 90, OrtStatus *, const OrtKernelContext *, size_t, const OrtValue **)
#define GET_OUTPUT(api) SLOT(api, 91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)
#define RELEASE_STATUS(api) SLOT(api, 93, void, OrtStatus *)
#define RELEASE_SHAPE(api) SLOT(api, 99, void, OrtTensorTypeAndShapeInfo *)
#define ATTRIBUTE_FLOATS(api) SLOT(api, 162, OrtStatus *, const OrtKernelInfo *, const char *, float *, size_t *)
#define ATTRIBUTE_INTS(api) SLOT(api, 163, OrtStatus *, const OrtKernelInfo *, const char *, int64_t *, size_t *)
#define GPU_STREAM(api) SLOT(api, 193, OrtStatus *, const OrtKernelContext *, void **)
#define NODE_NAME(api) SLOT(api, 244, OrtStatus *, const OrtKernelInfo *, char *, size_t *)
#define PARALLEL_FOR(api)                                                                                              \
    SLOT(api, 274, OrtStatus *, const OrtKernelContext *, void (*)(void *, size_t), size_t, size_t, void *)

/* The struct that ONNX Runtime reads an operator from, as far as version 17 has it. */
typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
    uint32_t version;
    void *(*create_kernel)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *);
    const char *(*name)(const OrtCustomOp *);
    const char *(*provider)(const OrtCustomOp *);
    int (*input_type)(const OrtCustomOp *, size_t);
    size_t (*num_inputs)(const OrtCustomOp *);
    int (*output_type)(const OrtCustomOp *, size_t);
    size_t (*num_outputs)(const OrtCustomOp *);
    void (*compute)(void *, OrtKernelContext *);
    void (*destroy)(void *);
    int (*input_characteristic)(const OrtCustomOp *, size_t);
    int (*output_characteristic)(const OrtCustomOp *, size_t);
    int (*input_memory)(const OrtCustomOp *, size_t);
    int (*input_arity)(const OrtCustomOp *);
    int (*input_homogeneous)(const OrtCustomOp *);
    int (*output_arity)(const OrtCustomOp *);
    int (*output_homogeneous)(const OrtCustomOp *);
    OrtStatus *(*create_kernel_v2)(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *, void **);
    OrtStatus *(*compute_v2)(void *, OrtKernelContext *);
    OrtStatus *(*infer_shapes)(const OrtCustomOp *, void *);
    int (*first_version)(const OrtCustomOp *);
    int (*last_version)(const OrtCustomOp *);
    void *rest[4]; /* later versions' */
};

typedef struct registration {
    OrtCustomOp face;
    const ifs_custom_op *op;
} registration;

typedef struct kernel {
    const OrtApi *api;
    const ifs_custom_op_spec *spec;
    ifs_custom_node *node;
} kernel;

/* ---- errors ---- */

#define FAIL 1 /* ORT_FAIL */

/* The last error. Its text tells the status, for infersdk/custom_ops/failures.py: ONNX Runtime passes text alone. */
static OrtStatus *failed(const OrtApi *api, ifs_status status) {
    char text[1100];
    snprintf(text, sizeof text, "%s%s", status == IFS_ERR_SHAPE ? "[shape] " : "", ifs_last_error());
    return CREATE_STATUS(api)(FAIL, text);
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        OrtStatus *ort_status = (call);                                                                                \
        if (ort_status)                                                                                                \
            return ort_status;                                                                                         \
    } while (0)

/* Whether a call went well, for those whose failure is an answer. */
static bool went_well(const OrtApi *api, OrtStatus *status) {
    if (status)
        RELEASE_STATUS(api)(status);
    return !status;
}

/* ---- what an operator is ---- */

static const ifs_custom_op_spec *spec_of(const OrtCustomOp *face) { return &((const registration *)face)->op->spec; }

/* ONNX's number of an element type. */
static int onnx_type(int32_t dtype) {
    static const int types[IFS_NUM_DTYPES] = {
        [IFS_FLOAT32] = 1,  [IFS_UINT8] = 2,    [IFS_INT8] = 3,    [IFS_UINT16] = 4,
        [IFS_INT16] = 5,    [IFS_INT32] = 6,    [IFS_INT64] = 7,   [IFS_BOOL] = 9,
        [IFS_FLOAT16] = 10, [IFS_FLOAT64] = 11, [IFS_UINT32] = 12, [IFS_UINT64] = 13,
    };
    return types[dtype];
}

static const char *name_of(const OrtCustomOp *face) { return spec_of(face)->name; }
static const char *provider_of(const OrtCustomOp *face) {
    return spec_of(face)->device < 0 ? "CPUExecutionProvider" : "CUDAExecutionProvider";
}
static int input_type_of(const OrtCustomOp *face, size_t i) { return onnx_type(spec_of(face)->input_dtypes[i]); }
static int output_type_of(const OrtCustomOp *face, size_t i) { return onnx_type(spec_of(face)->output_dtypes[i]); }
static size_t num_inputs_of(const OrtCustomOp *face) { return (size_t)spec_of(face)->num_inputs; }
static size_t num_outputs_of(const OrtCustomOp *face) { return (size_t)spec_of(face)->num_outputs; }
static int version_of(const OrtCustomOp *face) { return spec_of(face)->version; }

static int required_or_default(const OrtCustomOp *face, size_t i) {
    (void)face, (void)i;
    return 0; /* required; where the memory lies: the provider's own */
}

static int one(const OrtCustomOp *face) {
    (void)face;
    return 1;
}

/* ---- making a kernel ---- */

/* Reads one attribute; `memory` gets what has to be freed. Absent ones keep their defaults. A node may give whole
 * numbers for an attribute of floats: ONNX Runtime then finds no float, or none in the list. */
static OrtStatus *read_attribute(const OrtApi *api, const OrtKernelInfo *info, ifs_op_attribute *a, void **memory) {
    size_t size = 0, whole = 0;
    *memory = NULL;
    if (a->kind == IFS_OP_INT || a->kind == IFS_OP_FLOAT) {
        int64_t i;
        float f;
        if (a->kind == IFS_OP_FLOAT && went_well(api, ATTRIBUTE_FLOAT(api)(info, a->name, &f)))
            a->f = f;
        else if (went_well(api, ATTRIBUTE_INT(api)(info, a->name, &i))) {
            if (a->kind == IFS_OP_INT)
                a->i = i;
            else
                a->f = (float)i;
        }
        return NULL;
    }
    bool text = a->kind == IFS_OP_STRING, ints = a->kind == IFS_OP_INTS;
    bool found = went_well(api, text   ? ATTRIBUTE_STRING(api)(info, a->name, NULL, &size)
                                : ints ? ATTRIBUTE_INTS(api)(info, a->name, NULL, &size)
                                       : ATTRIBUTE_FLOATS(api)(info, a->name, NULL, &size));
    bool converts = a->kind == IFS_OP_FLOATS && !(found && size) &&
                    went_well(api, ATTRIBUTE_INTS(api)(info, a->name, NULL, &whole)) && whole;
    if (!found && !converts)
        return NULL;
    size = converts ? whole : size;
    void *values = *memory = calloc(size + 1, text ? 1 : sizeof(int64_t));
    if (!values)
        return CREATE_STATUS(api)(FAIL, "no memory for an attribute");
    a->s = text ? values : NULL;
    a->ints = ints ? values : NULL;
    a->floats = !text && !ints ? values : NULL;
    a->count = text ? 0 : (int32_t)size;
    if (text)
        return ATTRIBUTE_STRING(api)(info, a->name, values, &size);
    if (!ints && !converts)
        return ATTRIBUTE_FLOATS(api)(info, a->name, values, &size);
    TRY(ATTRIBUTE_INTS(api)(info, a->name, values, &size));
    for (size_t k = 0; converts && k < size; k++) { /* in place: a float is the smaller one */
        int64_t i;
        memcpy(&i, (const char *)values + k * sizeof i, sizeof i);
        const float f = (float)i;
        memcpy((char *)values + k * sizeof f, &f, sizeof f);
    }
    return NULL;
}

static OrtStatus *make_node(const OrtApi *api, const ifs_custom_op *op, const OrtKernelInfo *info,
                            ifs_custom_node **out) {
    int32_t count = op->spec.num_attributes, read = 0;
    char name[256] = "";
    size_t size = sizeof name;
    if (!went_well(api, NODE_NAME(api)(info, name, &size)) || !*name)
        strcpy(name, "(without a name)");
    ifs_op_attribute *attributes = calloc((size_t)count + 1, sizeof *attributes);
    void **memory = calloc((size_t)count + 1, sizeof *memory);
    OrtStatus *status = attributes && memory ? NULL : CREATE_STATUS(api)(FAIL, "no memory for attributes");
    for (; !status && read < count; read++) {
        attributes[read] = op->spec.attributes[read];
        status = read_attribute(api, info, &attributes[read], &memory[read]);
    }
    ifs_status made = status ? IFS_OK : ifs__custom_node_of_runtime(op, name, attributes, out);
    if (made != IFS_OK)
        status = failed(api, made);
    for (int32_t i = 0; memory && i < read; i++)
        free(memory[i]);
    free(memory);
    free(attributes);
    return status;
}

static OrtStatus *create(const OrtCustomOp *face, const OrtApi *api, const OrtKernelInfo *info, void **out) {
    kernel *k = calloc(1, sizeof *k);
    if (!k)
        return CREATE_STATUS(api)(FAIL, "no memory for a kernel");
    k->api = api;
    k->spec = spec_of(face);
    OrtStatus *status = make_node(api, ((const registration *)face)->op, info, &k->node);
    if (status)
        free(k);
    else
        *out = k;
    return status;
}

static void destroy(void *raw) {
    kernel *k = raw;
    ifs_custom_node_destroy(k->node);
    free(k);
}

/* ---- running it ---- */

static OrtStatus *take_shape(const OrtApi *api, const OrtTensorTypeAndShapeInfo *info, int64_t *dims, int32_t *ndim) {
    size_t count = 0;
    TRY(DIMENSIONS_COUNT(api)(info, &count));
    if (count > IFS_MAX_NDIM)
        return CREATE_STATUS(api)(FAIL, "an input of a custom operator has more than 16 dimensions");
    *ndim = (int32_t)count;
    return DIMENSIONS(api)(info, dims, count);
}

static OrtStatus *take_input(const OrtApi *api, const OrtKernelContext *context, size_t i, int64_t *dims,
                             ifs_op_tensor *tensor) {
    const OrtValue *value = NULL;
    OrtTensorTypeAndShapeInfo *info = NULL;
    TRY(GET_INPUT(api)(context, i, &value));
    TRY(TYPE_AND_SHAPE(api)(value, &info));
    OrtStatus *status = take_shape(api, info, dims, &tensor->ndim);
    RELEASE_SHAPE(api)(info);
    TRY(status);
    tensor->dims = dims;
    return MUTABLE_DATA(api)((OrtValue *)value, &tensor->data);
}

typedef struct runtime {
    const OrtApi *api;
    const OrtKernelContext *context;
} runtime;

static void parallel_for(const ifs_op_call *call, void (*body)(void *, size_t), void *arg, size_t count) {
    const runtime *r = call->runtime;
    if (count > 1 && went_well(r->api, PARALLEL_FOR(r->api)(r->context, body, count, 0, arg)))
        return;
    for (size_t i = 0; i < count; i++)
        body(arg, i);
}

static OrtStatus *compute(void *raw, OrtKernelContext *context) {
    const kernel *k = raw;
    const OrtApi *api = k->api;
    const ifs_custom_op_spec *spec = k->spec;
    ifs_op_tensor inputs[IFS_OP_MAX_TENSORS], outputs[IFS_OP_MAX_TENSORS];
    int64_t in_dims[IFS_OP_MAX_TENSORS][IFS_MAX_NDIM], out_dims[IFS_OP_MAX_TENSORS][IFS_MAX_NDIM];
    int32_t out_ndims[IFS_OP_MAX_TENSORS];
    for (int32_t i = 0; i < spec->num_inputs; i++) {
        TRY(take_input(api, context, (size_t)i, in_dims[i], &inputs[i]));
        inputs[i].dtype = spec->input_dtypes[i];
    }
    ifs_status status = ifs_custom_node_shapes(k->node, inputs, &out_dims[0][0], out_ndims);
    if (status != IFS_OK)
        return failed(api, status);
    for (int32_t i = 0; i < spec->num_outputs; i++) {
        OrtValue *value = NULL;
        TRY(GET_OUTPUT(api)(context, (size_t)i, out_dims[i], (size_t)out_ndims[i], &value));
        outputs[i] = (ifs_op_tensor){.dims = out_dims[i], .ndim = out_ndims[i], .dtype = spec->output_dtypes[i]};
        if (!value)
            return CREATE_STATUS(api)(FAIL, "a custom operator has an output without a name; name each of its outputs");
        TRY(MUTABLE_DATA(api)(value, &outputs[i].data));
    }
    runtime r = {api, context};
    ifs_op_call call = {.inputs = inputs, .outputs = outputs, .runtime = &r, .parallel_for = parallel_for};
    if (spec->device >= 0)
        TRY(GPU_STREAM(api)(context, &call.stream));
    status = ifs__custom_node_call(k->node, &call);
    return status == IFS_OK ? NULL : failed(api, status);
}

/* ---- registering ---- */

static _Thread_local const ifs_custom_op *const *offered;
static _Thread_local int32_t num_offered;

/* The domains that were made so far, each with the operators of one offer. ONNX Runtime keeps pointers to them. */
typedef struct domain {
    struct domain *next;
    OrtCustomOpDomain *raw;
    int32_t count;
    registration ops[];
} domain;

static domain *domains;
static ifs__mutex domains_lock = IFS__MUTEX_INITIALIZER;

void ifs_custom_offer_to_ort(const ifs_custom_op *const *ops, int32_t count) {
    offered = ops;
    num_offered = count;
}

static const OrtCustomOp FACE = {
    .version = API_VERSION,
    .name = name_of,
    .provider = provider_of,
    .input_type = input_type_of,
    .num_inputs = num_inputs_of,
    .output_type = output_type_of,
    .num_outputs = num_outputs_of,
    .destroy = destroy,
    .input_characteristic = required_or_default,
    .output_characteristic = required_or_default,
    .input_memory = required_or_default,
    .input_arity = one,
    .input_homogeneous = one,
    .output_arity = one,
    .output_homogeneous = one,
    .create_kernel_v2 = create,
    .compute_v2 = compute,
    .first_version = version_of,
    .last_version = version_of,
};

static OrtStatus *make_domain(const OrtApi *api, const ifs_custom_op *const *ops, int32_t count, domain **out) {
    domain *d = calloc(1, sizeof *d + (size_t)count * sizeof *d->ops);
    if (!d)
        return CREATE_STATUS(api)(FAIL, "no memory for a domain of operators");
    d->count = count;
    OrtStatus *status = CREATE_DOMAIN(api)(ops[0]->spec.domain, &d->raw);
    for (int32_t i = 0; !status && i < count; i++) {
        d->ops[i] = (registration){FACE, ops[i]};
        status = DOMAIN_ADD(api)(d->raw, &d->ops[i].face);
    }
    if (status) {
        free(d);
        return status;
    }
    d->next = domains;
    domains = d;
    *out = d;
    return NULL;
}

static bool is_of(const domain *d, const ifs_custom_op *const *ops, int32_t count) {
    bool same = d->count == count;
    for (int32_t i = 0; same && i < count; i++)
        same = d->ops[i].op == ops[i];
    return same;
}

static OrtStatus *domain_for(const OrtApi *api, const ifs_custom_op *const *ops, int32_t count, domain **out) {
    for (domain *d = domains; d; d = d->next)
        if (is_of(d, ops, count)) {
            *out = d;
            return NULL;
        }
    return make_domain(api, ops, count, out);
}

#ifdef _WIN32
__declspec(dllexport)
#else
__attribute__((visibility("default")))
#endif
OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);

/* ONNX Runtime's entry point. The offer is in order of domains. */
OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    const OrtApi *api = base->get_api(API_VERSION);
    OrtStatus *status = NULL;
    ifs__mutex_lock(&domains_lock);
    for (int32_t start = 0, stop; !status && start < num_offered; start = stop) {
        for (stop = start + 1;
             stop < num_offered && strcmp(offered[stop]->spec.domain, offered[start]->spec.domain) == 0;)
            stop++;
        domain *d = NULL;
        status = domain_for(api, offered + start, stop - start, &d);
        if (!status)
            status = ADD_DOMAIN(api)(options, d->raw);
    }
    ifs__mutex_unlock(&domains_lock);
    return status;
}
