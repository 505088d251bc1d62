/*
 * custom_ops_rules.c - shapes and launches of custom operators, worked out without Python.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A rule is a list of words, for one combination of ranks:
 *
 *     inputs, their ranks...
 *     outputs, for each: its rank, an expression for each dimension
 *     checks, for each: two expressions that have to be equal, and the number of the text that says why
 *     a launch, where there is one: grid (3 expressions), block (3), shared bytes (1), arguments, for each its kind and
 *         its value: the number of an input or output, an expression, or the bits of a float
 *
 * An expression is the number of its words and the words, in postfix order: PUSH value, DIM input * 16 + axis, and
 * operations on the two topmost values. infersdk/custom_ops/shapes.py writes them, and keeps to the limits of the
 * stack, of the dimensions and of the arguments.
 */
#include "custom_ops.h"

#include <stdlib.h>
#include <string.h>

enum { PUSH, DIM, ADD, SUB, MUL, FLOOR_DIV, CEIL_DIV, MIN, MAX };
enum { ARG_INPUT, ARG_OUTPUT, ARG_INT, ARG_FLOAT };

#define DEPTH 32 /* of the stack */
#define AXES 16

ifs_status ifs__rule_create(const int64_t *words, size_t count, size_t launch, const char *const *texts,
                            int32_t num_texts, ifs__rule **out) {
    ifs__rule *rule = calloc(1, sizeof *rule + count * sizeof *words);
    if (rule)
        rule->texts = calloc((size_t)num_texts + 1, sizeof *rule->texts);
    bool whole = rule && rule->texts;
    for (; whole && rule->num_texts < num_texts; rule->num_texts++)
        whole = (rule->texts[rule->num_texts] = strdup(texts[rule->num_texts])) != NULL;
    if (!whole) {
        ifs__rule_destroy(rule);
        return ifs__fail(IFS_ERR_OUT_OF_MEMORY, "no memory for a rule of %zu words", count);
    }
    memcpy(rule->words, words, count * sizeof *words);
    rule->launch = launch ? rule->words + launch : NULL;
    *out = rule;
    return IFS_OK;
}

void ifs__rule_destroy(ifs__rule *rule) {
    if (!rule)
        return;
    for (int32_t i = 0; rule->texts && i < rule->num_texts; i++)
        free(rule->texts[i]);
    free(rule->texts);
    free(rule);
}

/* ---- running ---- */

bool ifs__rule_fits(const ifs__rule *rule, const ifs_op_tensor *inputs, int32_t num_inputs) {
    for (int32_t i = 0; i < num_inputs; i++)
        if (rule->words[1 + i] != inputs[i].ndim)
            return false;
    return true;
}

static int64_t floor_div(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static ifs_status apply(int64_t operation, int64_t a, int64_t b, int64_t *out) {
    bool fits = true;
    if (operation == FLOOR_DIV || operation == CEIL_DIV) {
        if (b == 0 || (a == INT64_MIN && b == -1))
            return ifs__fail(IFS_ERR_SHAPE, "shape() divides %lld by %lld", (long long)a, (long long)b);
        *out = floor_div(a, b) + (operation == CEIL_DIV && a % b != 0);
    } else if (operation == ADD) {
        fits = !__builtin_add_overflow(a, b, out);
    } else if (operation == SUB) {
        fits = !__builtin_sub_overflow(a, b, out);
    } else if (operation == MUL) {
        fits = !__builtin_mul_overflow(a, b, out);
    } else {
        *out = (operation == MIN) == (a < b) ? a : b;
    }
    return fits ? IFS_OK : ifs__fail(IFS_ERR_SHAPE, "a size that shape() works out has more than 63 bits");
}

static ifs_status evaluate(const int64_t **words, const ifs_op_tensor *inputs, int64_t *out) {
    int64_t stack[DEPTH];
    int depth = 0;
    const int64_t *at = *words + 1, *end = at + **words;
    while (at < end) {
        int64_t word = *at++;
        if (word == PUSH) {
            stack[depth++] = *at++;
        } else if (word == DIM) {
            stack[depth++] = inputs[*at / AXES].dims[*at % AXES];
            at++;
        } else {
            depth--;
            IFS__TRY(apply(word, stack[depth - 1], stack[depth], &stack[depth - 1]));
        }
    }
    *words = end;
    *out = stack[0];
    return IFS_OK;
}

ifs_status ifs__rule_shapes(const ifs__rule *rule, const ifs_op_tensor *inputs, int64_t *dims, int32_t *ndims) {
    const int64_t *at = rule->words + 1 + rule->words[0]; /* behind the ranks */
    int64_t outputs = *at++;
    for (int64_t i = 0; i < outputs; i++) {
        ndims[i] = (int32_t)*at++;
        for (int32_t d = 0; d < ndims[i]; d++) {
            int64_t *size = &dims[i * IFS_MAX_NDIM + d];
            IFS__TRY(evaluate(&at, inputs, size));
            if (*size < 0)
                return ifs__fail(IFS_ERR_SHAPE, "shape() gives output %d the size %lld in dimension %d", (int)i,
                                 (long long)*size, (int)d);
        }
    }
    int64_t checks = *at++;
    for (int64_t i = 0; i < checks; i++) {
        int64_t a, b;
        IFS__TRY(evaluate(&at, inputs, &a));
        IFS__TRY(evaluate(&at, inputs, &b));
        if (a != b)
            return ifs__fail(IFS_ERR_SHAPE, "%s: it is %lld, not %lld", rule->texts[*at], (long long)a, (long long)b);
        at++;
    }
    return IFS_OK;
}

ifs_status ifs__rule_launch(const ifs__rule *rule, const ifs_op_tensor *inputs, const ifs_op_tensor *outputs,
                            ifs__launch *launch) {
    static const char *const what[] = {"grid", "grid", "grid", "block", "block", "block", "shared"};
    static const int64_t most[] = {INT32_MAX, 65535, 65535, 1024, 1024, 64, INT32_MAX};
    if (!rule->launch)
        return ifs__fail(IFS_ERR_UNSUPPORTED, "its rule has no launch");
    const int64_t *at = rule->launch;
    int64_t sizes[7];
    bool nothing = false;
    for (int i = 0; i < 7; i++) {
        IFS__TRY(evaluate(&at, inputs, &sizes[i]));
        if (sizes[i] < 0 || sizes[i] > most[i])
            return ifs__fail(IFS_ERR_SHAPE, "its launch has a %s of %lld in dimension %d; CUDA takes up to %lld",
                             what[i], (long long)sizes[i], i % 3, (long long)most[i]);
        nothing |= i < 6 && sizes[i] == 0;
    }
    for (int i = 0; i < 3; i++) {
        launch->grid[i] = nothing ? 0 : (uint32_t)sizes[i];
        launch->block[i] = (uint32_t)sizes[3 + i];
    }
    launch->shared = (size_t)sizes[6];
    launch->num_arguments = (int32_t)*at++;
    for (int32_t i = 0; i < launch->num_arguments; i++) {
        int64_t kind = *at++;
        if (kind == ARG_INT) {
            IFS__TRY(evaluate(&at, inputs, &launch->values[i]));
            launch->arguments[i] = &launch->values[i];
        } else if (kind == ARG_FLOAT) {
            uint32_t bits = (uint32_t)*at++;
            memcpy(&launch->floats[i], &bits, sizeof bits);
            launch->arguments[i] = &launch->floats[i];
        } else {
            launch->pointers[i] = (kind == ARG_INPUT ? inputs : outputs)[*at++].data;
            launch->arguments[i] = &launch->pointers[i];
        }
    }
    return IFS_OK;
}
