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
 *     0, or 1 and a launch: grid (3 expressions), block (3), shared bytes (1), arguments, for each its kind and what
 *         it takes: the number of an input or output, an expression, or the bits of a float
 *
 * An expression is the number of its words and the words, in postfix order: PUSH value, DIM input * 16 + axis, and
 * operations on the two topmost values. infersdk/custom_ops/shapes.py writes them. They are checked once, here, so that
 * reading them in a run cannot go wrong.
 */
#include "custom_ops.h"

#include <stdlib.h>
#include <string.h>

enum { PUSH, DIM, ADD, SUB, MUL, FLOOR_DIV, CEIL_DIV, MIN, MAX, NUM_OPERATIONS };
enum { ARG_INPUT, ARG_OUTPUT, ARG_INT, ARG_FLOAT };

#define DEPTH 32 /* of the stack */
#define AXES 16

/* ---- reading: a place in the words ---- */

typedef struct cursor {
    const int64_t *at, *end;
} cursor;

static ifs_status next_word(cursor *c, int64_t low, int64_t high, const char *what, int64_t *out) {
    if (c->at == c->end)
        return ifs__fail(IFS_ERR_FORMAT, "a rule ends where %s should be", what);
    int64_t word = *c->at++;
    if (word < low || word > high)
        return ifs__fail(IFS_ERR_FORMAT, "a rule has %lld for %s; it is %lld to %lld", (long long)word, what,
                         (long long)low, (long long)high);
    *out = word;
    return IFS_OK;
}

/* ---- checking, once ---- */

static ifs_status check_expression(const ifs_custom_op *op, const int64_t *ranks, cursor *c) {
    int64_t length, word, depth = 0;
    IFS__TRY(next_word(c, 1, c->end - c->at - 1, "the length of an expression", &length));
    cursor inner = {c->at, c->at + length};
    while (inner.at < inner.end) {
        IFS__TRY(next_word(&inner, 0, NUM_OPERATIONS - 1, "an operation", &word));
        if (word == PUSH || word == DIM) {
            bool dim = word == DIM;
            IFS__TRY(next_word(&inner, dim ? 0 : INT64_MIN, dim ? AXES * op->spec.num_inputs - 1 : INT64_MAX,
                               "an operand", &word));
            if (dim && word % AXES >= ranks[word / AXES])
                return ifs__fail(IFS_ERR_FORMAT, "a rule asks for dimension %d of input %d, which has %d",
                                 (int)(word % AXES), (int)(word / AXES), (int)ranks[word / AXES]);
            depth++;
        } else {
            depth--;
        }
        if (depth < 1 || depth > DEPTH)
            return ifs__fail(IFS_ERR_FORMAT, "an expression has %d values on its stack of %d", (int)depth, DEPTH);
    }
    if (depth != 1)
        return ifs__fail(IFS_ERR_FORMAT, "an expression leaves %d values; it is one", (int)depth);
    c->at = inner.end;
    return IFS_OK;
}

static ifs_status check_launch(const ifs_custom_op *op, const int64_t *ranks, cursor *c) {
    int64_t count, kind, word;
    for (int i = 0; i < 7; i++)
        IFS__TRY(check_expression(op, ranks, c));
    IFS__TRY(next_word(c, 0, IFS__MAX_ARGUMENTS, "the number of arguments", &count));
    for (int64_t i = 0; i < count; i++) {
        IFS__TRY(next_word(c, ARG_INPUT, ARG_FLOAT, "the kind of an argument", &kind));
        if (kind == ARG_INPUT)
            IFS__TRY(next_word(c, 0, op->spec.num_inputs - 1, "an input", &word));
        else if (kind == ARG_OUTPUT)
            IFS__TRY(next_word(c, 0, op->spec.num_outputs - 1, "an output", &word));
        else if (kind == ARG_FLOAT)
            IFS__TRY(next_word(c, 0, UINT32_MAX, "the bits of a float", &word));
        else
            IFS__TRY(check_expression(op, ranks, c));
    }
    return IFS_OK;
}

/* Checks a rule. `launch` is the number of the words before its launch; 0: it has none. */
static ifs_status check_rule(const ifs_custom_op *op, const int64_t *words, size_t count, int32_t num_texts,
                             size_t *launch) {
    cursor c = {words, words + count};
    int64_t word, ndim, ranks[IFS_OP_MAX_TENSORS] = {0};
    IFS__TRY(next_word(&c, op->spec.num_inputs, op->spec.num_inputs, "the number of inputs", &word));
    for (int32_t i = 0; i < op->spec.num_inputs; i++)
        IFS__TRY(next_word(&c, 0, IFS_MAX_NDIM, "a rank", &ranks[i]));
    IFS__TRY(next_word(&c, op->spec.num_outputs, op->spec.num_outputs, "the number of outputs", &word));
    for (int32_t i = 0; i < op->spec.num_outputs; i++) {
        IFS__TRY(next_word(&c, 0, IFS_MAX_NDIM, "a rank", &ndim));
        for (int64_t d = 0; d < ndim; d++)
            IFS__TRY(check_expression(op, ranks, &c));
    }
    int64_t checks;
    IFS__TRY(next_word(&c, 0, INT32_MAX, "the number of checks", &checks));
    for (int64_t i = 0; i < checks; i++) {
        IFS__TRY(check_expression(op, ranks, &c));
        IFS__TRY(check_expression(op, ranks, &c));
        IFS__TRY(next_word(&c, 0, num_texts - 1, "a text", &word));
    }
    IFS__TRY(next_word(&c, 0, 1, "whether there is a launch", &word));
    *launch = word ? (size_t)(c.at - words) : 0;
    if (word)
        IFS__TRY(check_launch(op, ranks, &c));
    if (c.at != c.end)
        return ifs__fail(IFS_ERR_FORMAT, "a rule has %d words too many", (int)(c.end - c.at));
    return IFS_OK;
}

ifs_status ifs__rule_create(const ifs_custom_op *op, const int64_t *words, size_t count, const char *const *texts,
                            int32_t num_texts, ifs__rule **out) {
    size_t launch;
    IFS__TRY(check_rule(op, words, count, num_texts, &launch));
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
