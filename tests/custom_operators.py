"""Operators and models that the tests of custom operators share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from infersdk.custom_ops import CSource, CustomOp

DOMAIN = "tests.custom"

#: The kernels of `HSwish` in C, one function for each element type that it takes.
C_SOURCE = r"""
#include "infersdk_custom_op.h"

static float swish(float x, float alpha, float beta) {
    float t = alpha * x + beta;
    return x * (t < 0 ? 0 : t > 1 ? 1 : t);
}

typedef struct job { const ifs_op_call *call; int64_t count; } job;

static void part(void *arg, size_t item) {
    const job *j = arg;
    const float *x = j->call->inputs[0].data;
    float *y = j->call->outputs[0].data;
    int64_t start = (int64_t)item * 1024, stop = start + 1024 < j->count ? start + 1024 : j->count;
    for (int64_t i = start; i < stop; i++)
        y[i] = swish(x[i], j->call->attributes[0].f, j->call->attributes[1].f);
}

int32_t hard_swish(const ifs_op_call *call) {
    job j = {call, ifs_op_count(&call->inputs[0])};
    if (call->inputs[0].dtype != IFS_FLOAT32)
        return IFS_OP_FAIL(call, "dtype %d is not float32", (int)call->inputs[0].dtype);
    call->parallel_for(call, part, &j, (size_t)(j.count + 1023) / 1024);
    return 0;
}
"""


class HSwish(CustomOp):
    """x * clip(alpha * x + beta, 0, 1)"""

    domain = DOMAIN
    inputs = {"x": "T"}
    outputs = {"y": "T"}
    types = {"T": ("float32", "float16")}
    alpha: float = 1 / 6
    beta: float = 0.5

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = x * np.clip(self.alpha * x + self.beta, 0, 1)


class HardSwishInC(CustomOp):
    """The same with a kernel in C."""

    domain = DOMAIN
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}
    alpha: float = 1 / 6
    beta: float = 0.5
    cpu = CSource(C_SOURCE, "hard_swish")

    def shape(self, x: Any) -> Any:
        return x


class Everything(CustomOp):
    """An attribute of each type; two outputs of types and shapes of their own."""

    domain = DOMAIN
    inputs = {"x": "T", "index": "int64"}
    outputs = {"y": "T", "count": "int32"}
    types = {"T": ("float32", "float64")}
    whole: int
    flag: bool = True
    factor: float = 0.1
    text: str = "a b"
    wholes: tuple[int, ...] = (3, -4)
    factors: tuple[float, ...] = (0.5, 0.1)

    def shape(self, x: Any, index: Any) -> Any:
        return (x[0], x[1] * self.whole), (index[0],)

    def cpu(self, x: Any, index: Any, y: Any, count: Any) -> None:
        y[...] = np.tile(x * self.factor, self.whole) + sum(self.factors) + sum(self.wholes) + len(self.text)
        count[...] = index + int(self.flag)


def node(op: type[CustomOp], inputs: list[str], outputs: list[str], name: str = "", **attributes: Any) -> Any:
    """A NodeProto of an operator."""
    from onnx import AttributeProto, helper

    made = helper.make_node(op.name, inputs, outputs, name=name, domain=op.domain)
    kinds = {attribute.name: AttributeProto.AttributeType.Value(attribute.onnx_kind) for attribute in op.attributes}
    made.attribute.extend(
        helper.make_attribute(key, value, attr_type=None if value else kinds[key]) for key, value in attributes.items()
    )
    return made


def save_model(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: Any = None, version: int = 1
) -> Path:
    """Writes a model of these nodes; inputs and outputs are (element type, shape) by name."""
    from onnx_models import save, value

    ends = [[value(name, shape, dtype) for name, (dtype, shape) in tensors.items()] for tensors in (inputs, outputs)]
    return save(path, nodes, *ends, weights, domains={DOMAIN: version})


def swish_model(path: Path, op: type[CustomOp] = HSwish, dtype: str = "float32", **attributes: Any) -> Path:
    """`x` [batch, 8] through Relu, the operator and Relu to `y`."""
    from onnx import helper

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="before"),
        node(op, ["a"], ["b"], "swish", **attributes),
        helper.make_node("Relu", ["b"], ["y"], name="after"),
    ]
    return save_model(path, nodes, {"x": (dtype, ["batch", 8])}, {"y": (dtype, ["batch", 8])})


def swish(x: Any, alpha: float = 1 / 6, beta: float = 0.5) -> Any:
    """What `swish_model` computes."""
    return np.maximum(np.maximum(x, 0) * np.clip(alpha * np.maximum(x, 0) + beta, 0, 1), 0)


def choice_of(then: list[Any]) -> Any:
    """An If of `c` that gives `y`: what these nodes make, `b`, or the negative of x."""
    from onnx import helper

    out = [helper.make_tensor_value_info("b", helper.np_dtype_to_tensor_dtype(np.dtype("float32")), None)]
    branches = {
        "then_branch": helper.make_graph(then, "then", [], out),
        "else_branch": helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "else", [], out),
    }
    return helper.make_node("If", ["c"], ["y"], **branches)


def run_node(node: Any, *arrays: Any) -> list[Any]:
    """Runs a kernel on the processor; returns the outputs."""
    given = [np.ascontiguousarray(array, dtype) for array, dtype in zip(arrays, node.native.inputs, strict=True)]
    shapes = node.shapes([array.shape for array in given])
    made = [np.empty(shape, dtype) for shape, dtype in zip(shapes, node.native.outputs, strict=True)]
    node.run_arrays(given, made)
    return made
