"""Rewrites hard swish for ONNX Runtime.

x * clip(x + 3, 0, 6) / 6 equals x * HardSigmoid(x), which ONNX Runtime fuses with a convolution. PaddlePaddle and
PyTorch export it as four operators, which ONNX Runtime 1.31 runs one by one. PP-OCRv4's networks spend two thirds of
their time in them and in the learned factors and offsets around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..builder import GraphBuilder
from ..factors import fold_factors, only_user
from ..shapes import infer_shapes
from ..weights import constant_of
from .base import Pass, needs_operators

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["HardSwish"]

_TOLERANCE = 1e-6
#: The types for which ONNX Runtime has a HardSigmoid kernel.
_TYPES = ("float16", "float32")


@dataclass(frozen=True)
class HardSwish(Pass):
    """Rewrites hard swish and hard sigmoid with HardSigmoid.

    If there are any, constant factors and offsets are folded into adjacent convolutions (`infersdk.graph.factors`).
    Results differ by rounding only.
    """

    name: ClassVar[str] = "hard-swish"
    version: ClassVar[int] = 3
    concerns = needs_operators(b"Clip", b"Conv")

    def apply(self, model: ir.Model) -> bool:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        graph = model.graph
        clips = [(node, add) for node in graph if (add := _clipped_sum(node)) is not None]
        if any(add.outputs[0].shape is None for _, add in clips):
            infer_shapes(model)
        replaced = [_rewrite(graph, clip, add) for clip, add in clips]
        if not any(replaced):
            return False
        fold_factors(graph)
        RemoveUnusedNodesPass()(model)
        return True


def _clipped_sum(node: ir.Node) -> ir.Node | None:
    """The Add whose result a node clips to 0 and 6; None for other nodes."""
    if node.op_type != "Clip" or node.domain or node.inputs[0] is None:
        return None
    add = node.inputs[0].producer()
    if add is None or add.op_type != "Add" or add.domain:
        return None
    if len(node.inputs) < 3:  # opsets before 11 have attributes
        low, high = (node.attributes.get_float(name, None) for name in ("min", "max"))
    else:
        arrays = [constant_of(value) for value in node.inputs[1:3]]
        low, high = (None if one is None or one.size != 1 else float(one.item()) for one in arrays)
    if low is None or high is None:
        return None
    return add if abs(low) < _TOLERANCE and abs(high - 6) < _TOLERANCE else None


def _rewrite(graph: ir.Graph, clip: ir.Node, add: ir.Node) -> bool:
    """Replaces the operators around a Clip if they compute hard sigmoid or hard swish; returns whether they do."""
    from onnx_ir.convenience import replace_nodes_and_values

    if (source := _other_operand(add, 3.0, None)) is None:
        return False
    last, swish = _sixth_of(graph, clip.outputs[0], source), False  # clip(x + 3, 0, 6) / 6
    product = only_user(graph, clip.outputs[0])
    if product is not None and product.op_type == "Mul" and not product.domain and source in product.inputs:
        last, swish = _sixth_of(graph, product.outputs[0], source), True
    if last is None:
        return False
    build = GraphBuilder(graph, f"{last.name or last.outputs[0].name}_", last)
    value = build("HardSigmoid", source, alpha=1 / 6, beta=0.5)
    by = build("Mul", source, value) if swish else value
    replace_nodes_and_values(graph, last, [last], [], last.outputs, [by])
    return True


def _sixth_of(graph: ir.Graph, value: ir.Value, source: ir.Value) -> ir.Node | None:
    """The only user of a value, if it divides it by 6 and its output is not a model output; else None.

    `source` has the shape of the value.
    """
    node = only_user(graph, value)
    if node is None or node.domain or node.outputs[0].is_graph_output():
        return None
    if node.op_type == "Mul":
        return node if _other_operand(node, 1 / 6, source) is value else None
    divides = node.op_type == "Div" and node.inputs[0] is value
    return node if divides and _is_number(node.inputs[1], 6.0, source) else None


def _other_operand(node: ir.Node, number: float, source: ir.Value | None) -> ir.Value | None:
    """The operand of a binary node whose other operand is the constant `number`; None if neither is.

    Args:
        source: a value with the shape of that operand; by default the operand itself.
    """
    for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
        if other is not None and _is_number(value, number, source or other):
            return other
    return None


def _is_number(value: ir.Value | None, number: float, data: ir.Value) -> bool:
    """Whether a value is the constant `number`, in a shape that does not broadcast the data."""
    array = constant_of(value)
    if array is None or array.size != 1 or array.dtype.name not in _TYPES:
        return False
    if array.ndim and (data.shape is None or array.ndim > len(data.shape)):
        return False
    return abs(float(array.item()) - number) < _TOLERANCE
