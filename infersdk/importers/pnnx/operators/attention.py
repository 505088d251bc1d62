"""Attention: scaled dot products, and the module of several heads around them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..translation import Translation, operator


@operator("F.scaled_dot_product_attention")
def scaled_dot_product_attention(t: Translation) -> Any:
    """softmax(q k^T / sqrt(d) + mask) v (Vaswani et al., 2017)."""
    query, key, value = (t.given(name, i) for i, name in enumerate(("query", "key", "value")))
    mask = t.given("attn_mask")
    q, k = t.shape(0), t.shape(1)
    if t.param("enable_gqa", False) and q[-3] != k[-3]:  # each head of keys serves several of queries
        if q[-3] % max(k[-3], 1):
            raise t.damaged(f"{q[-3]} heads of queries for {k[-3]} of keys")
        index = np.repeat(np.arange(k[-3]), q[-3] // k[-3])
        key, value = (t.build("Gather", x, index, axis=len(q) - 3) for x in (key, value))
    scale = t.param("scale", None)
    scale = 1 / math.sqrt(q[-1]) if scale is None else t.number("scale")
    if t.param("is_causal", False):
        t.limit(q[-2], k[-2])
        mask = np.where(np.tril(np.ones((q[-2], k[-2]), bool)), np.float32(0), np.float32(-np.inf))
    axes = list(range(len(q)))
    axes[-2:] = axes[-1], axes[-2]
    scores = t.build("Mul", t.build("MatMul", query, t.transpose(key, *axes)), t.scalar(scale))
    if mask is not None:
        scores = masked(t, scores, mask)
    return t.build("MatMul", t.build("Softmax", scores, axis=-1), value)


def masked(t: Translation, scores: Any, mask: Any) -> Any:
    """A mask of bools lets pass where it is true; one of numbers is added."""
    if t.dtype(mask).kind == "b":
        return t.build("Where", mask, scores, t.scalar(-np.inf))
    return t.build("Add", scores, mask)


@operator("nn.MultiheadAttention")
def multihead_attention(t: Translation) -> Any:
    """PyTorch's module: queries, keys and values projected, split into heads, attended to, and projected back.

    It takes [steps, batch, channels], or [batch, steps, channels] with `batch_first`; `add_bias_kv` and `add_zero_attn`
    append a step to keys and values.
    """
    heads, channels = t.integer("num_heads"), t.integer("embed_dim")
    if heads < 1 or channels % heads:
        raise t.damaged(f"{channels} channels for {heads} heads")
    mask = t.given("attn_mask")
    inputs = [i for i in range(len(t.values)) if t.one.input_names.get(i) != "attn_mask"]
    which = {1: (0, 0, 0), 2: (0, 1, 1), 3: (0, 1, 2)}.get(len(inputs))
    if which is None:
        raise t.unsupported(f"{len(inputs)} inputs")
    batch_first = bool(t.param("batch_first", False))
    shapes = [t.shape(inputs[i]) for i in which]
    if len(shapes[0]) != 3:
        raise t.unsupported("inputs without a batch")
    values = [t.values[inputs[i]] for i in which]
    if not batch_first:
        values = [t.transpose(value, 1, 0, 2) for value in values]
        shapes = [(shape[1], shape[0], shape[2]) for shape in shapes]
    width = channels // heads
    projected = [
        _added(t, t.build("MatMul", value, weight.T), bias)
        for value, (weight, bias) in zip(values, _projections(t, channels), strict=True)
    ]
    batch = shapes[0][0]
    steps = [shape[1] for shape in shapes]
    extra = 0
    for name, on in (("bias", t.param("add_bias_kv", False)), ("zero", t.param("add_zero_attn", False))):
        if on:
            extra += 1
            for i, key in ((1, "bias_k"), (2, "bias_v")):
                row = t.required_weight(key) if name == "bias" else np.zeros((1, 1, channels), np.float32)
                repeated = t.build("Expand", row, np.asarray([batch, 1, channels], np.int64))
                projected[i] = t.build("Concat", projected[i], repeated, axis=1)
                steps[i] += 1
    split = [t.transpose(t.reshape(value, 0, 0, heads, width), 0, 2, 1, 3) for value in projected]
    scores = t.build("MatMul", split[0], t.transpose(split[1], 0, 1, 3, 2))
    scores = t.build("Mul", scores, t.scalar(1 / math.sqrt(width)))
    if mask is not None:
        scores = masked(t, scores, _mask(t, mask, batch, heads, extra))
    weights = t.build("Softmax", scores, axis=-1)
    attended = t.transpose(t.build("MatMul", weights, split[2]), 0, 2, 1, 3)
    output = t.build("MatMul", t.reshape(attended, 0, 0, channels), t.required_weight("out_proj.weight").T)
    output = _added(t, output, t.weight("out_proj.bias"))
    output = output if batch_first else t.transpose(output, 1, 0, 2)
    if len(t.one.outputs) == 1:
        return output
    return [output, t.build("ReduceMean", weights, np.asarray([1]), keepdims=0)]


def _added(t: Translation, value: Any, bias: Any) -> Any:
    return value if bias is None else t.build("Add", value, bias)


def _projections(t: Translation, channels: int) -> list[tuple[Any, Any]]:
    """Weight and bias of queries, keys and values: in one array, or in three."""
    whole, bias = t.weight("in_proj_weight"), t.weight("in_proj_bias")
    for array in (whole, bias):
        if array is not None and array.shape[0] != 3 * channels:
            raise t.damaged(f"a projection of {array.shape[0]} rows for {channels} channels")
    weights = np.split(whole, 3) if whole is not None else [t.required_weight(f"{name}_proj_weight") for name in "qkv"]
    return list(zip(weights, [None] * 3 if bias is None else np.split(bias, 3), strict=True))


def _mask(t: Translation, mask: Any, batch: int, heads: int, extra: int) -> Any:
    """[steps, keys] for all, or [batch * heads, steps, keys]; the steps that are appended are seen by all."""
    index = next(i for i, name in t.one.input_names.items() if name == "attn_mask")
    shape = t.shape(index)
    if extra:
        pads = [0] * (2 * len(shape))
        pads[-1] = extra
        mask = t.build("Pad", mask, np.asarray(pads, np.int64))
    return mask if len(shape) == 2 else t.reshape(mask, batch, heads, shape[1], shape[2] + extra)
