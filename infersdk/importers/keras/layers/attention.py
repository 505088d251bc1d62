"""Attention layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..tensors import Tensor
from ..translation import LayerCall, layer
from .core import einsum


@layer("Attention", "AdditiveAttention")
def attention(call: LayerCall) -> Tensor:
    """Scores of queries and keys, softmax, and the values so weighted. The inputs are query, value, and key if it
    differs.
    """
    query, value, *more = call.inputs
    key = more[0] if more else value
    if any(one.masked for one in call.inputs):
        raise call.unsupported("steps that a mask leaves out")
    if call.flag("causal") or call.named.get("use_causal_mask"):
        raise call.unsupported("a causal mask")
    scale = call.weight("scale")
    build = call.build
    if call.kind == "AdditiveAttention" or call.config.get("score_mode") == "concat":
        pairs = build("Add", build("Unsqueeze", query.last(), call.i64(2)), build("Unsqueeze", key.last(), call.i64(1)))
        curved = build("Tanh", pairs)
        if call.kind == "Attention":
            scores = build("ReduceSum", curved, call.i64(3), keepdims=0)
            weight = call.weight("concat_score_weight")
            scores = scores if weight is None else build("Mul", scores, weight)
        else:
            scores = build(
                "ReduceSum", curved if scale is None else build("Mul", curved, scale), call.i64(3), keepdims=0
            )
    else:
        scores = build("MatMul", query.last(), build("Transpose", key.last(), perm=[0, 2, 1]))
        scores = scores if scale is None else build("Mul", scores, scale)
    made = build("MatMul", build("Softmax", scores, axis=-1), value.last())
    return call.tensor(made, (*query.shape[:-1], value.shape[-1]))


@layer("MultiHeadAttention")
def multi_head_attention(call: LayerCall) -> Any:
    """Queries, keys and values projected for each head; the scores divided by the root of a key's length."""
    query, *others = call.inputs
    named = {name: given for name, given in call.named.items() if isinstance(given, Tensor)}
    value = named.get("value", others[0] if others else query)
    key = named.get("key", others[1] if len(others) > 1 else value)
    if (
        call.named.get("use_causal_mask")
        or isinstance(call.named.get("attention_mask"), Tensor)
        or query.masked
        or value.masked
    ):
        raise call.unsupported("a mask")
    if call.config.get("attention_axes") not in (None, [1], (1,)) or query.rank != 3:
        raise call.unsupported(f"attention_axes={call.config.get('attention_axes')}")
    projected = []
    for name, one in (("query", query), ("key", key), ("value", value)):
        made, _ = einsum(call, "abc,cde->abde", one, call.required("kernel", name))
        bias = call.weight("bias", name)
        projected.append(made if bias is None else call.build("Add", made, bias))
    width = call.required("kernel", "query").shape[-1]
    scaled = call.build("Mul", projected[0], np.float32(1 / math.sqrt(width)))
    scores = call.build("Einsum", projected[1], scaled, equation="aecd,abcd->acbe")
    weights = call.build("Softmax", scores, axis=-1)
    attended = call.build("Einsum", weights, projected[2], equation="acbe,aecd->abcd")
    kernel, bias = call.required("kernel", "attention_output"), call.weight("bias", "attention_output")
    output = call.build("Einsum", attended, kernel, equation="abcd,cde->abe")
    output = output if bias is None else call.build("Add", output, bias)
    result = call.tensor(output, (*query.shape[:-1], kernel.shape[-1]))
    if call.named.get("return_attention_scores"):
        heads = kernel.shape[0]
        return [result, call.tensor(weights, (query.shape[0], heads, query.shape[1], value.shape[1]))]
    return result
