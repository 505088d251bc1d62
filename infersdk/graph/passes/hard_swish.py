"""Hard swish in the form that runtimes have a kernel for, and the constant factors around it in convolutions.

x * clip(x + 3, 0, 6) / 6 is x * HardSigmoid(x), which ONNX Runtime computes inside a convolution. PaddlePaddle and
PyTorch write it as four operators, each of which reads and writes the whole tensor; ONNX Runtime 1.31 runs them one by
one. PP-OCRv4's networks spend two thirds of their time in them and in the learned factors and offsets around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..factors import constant_of, fold_factors
from ..weights import drop_unused_weights

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["HardSwish"]

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class HardSwish:
    """Writes hard swish and hard sigmoid as HardSigmoid; where there are some, constant factors and offsets next to
    convolutions go into their weights (`infersdk.graph.factors`).

    Results stay the same but for rounding.
    """

    name: ClassVar[str] = "hard-swish"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and source.mentions(b"Clip") and source.mentions(b"Conv")

    def apply(self, model: ir.Model) -> bool:
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        graph = model.graph
        replaced = [_rewritten(graph, node) for node in list(graph) if node.op_type == "Clip"]
        if not any(replaced):
            return False
        fold_factors(graph)
        RemoveUnusedNodesPass()(model)
        drop_unused_weights(graph)
        return True


def _rewritten(graph: ir.Graph, clip: ir.Node) -> bool:
    """Replaces the operators around a Clip, if they are a hard sigmoid or a hard swish; returns whether they are."""
    source = _before_offset(clip)
    if source is None:
        return False
    scaled = _sixth_of(clip.outputs[0])
    if scaled is not None:  # clip(x + 3, 0, 6) / 6
        _replace(graph, scaled, _hard_sigmoid(graph, scaled, source))
        return True
    product = _only_user(clip.outputs[0])
    if product is None or product.op_type != "Mul" or source not in product.inputs:
        return False
    scaled = _sixth_of(product.outputs[0])
    if scaled is None:
        return False
    import onnx_ir as ir

    swish = ir.node("Mul", [source, _hard_sigmoid(graph, scaled, source)], name=f"{scaled.name or ''}_swish")
    graph.insert_before(scaled, swish)
    _replace(graph, scaled, swish.outputs[0])
    return True


def _before_offset(clip: ir.Node) -> ir.Value | None:
    """x, where a node is clip(x + 3, 0, 6)."""
    limits = [constant_of(value) for value in clip.inputs[1:3]]
    if len(limits) < 2:  # opsets before 11 have attributes
        low, high = (clip.attributes.get_float(name, None) for name in ("min", "max"))
    else:
        low, high = (None if one is None or one.size != 1 else float(one.item()) for one in limits)
    if low is None or high is None or abs(low) > _TOLERANCE or abs(high - 6) > _TOLERANCE:
        return None
    add = clip.inputs[0].producer() if clip.inputs[0] is not None else None
    if add is None or add.op_type != "Add":
        return None
    return _other_operand(add, 3.0)


def _sixth_of(value: ir.Value) -> ir.Node | None:
    """The only user of a value, if it divides it by 6 and its result is inside the graph."""
    node = _only_user(value)
    if node is None or node.outputs[0].is_graph_output():
        return None
    if node.op_type == "Mul":
        return node if _other_operand(node, 1 / 6) is value else None
    divides = node.op_type == "Div" and node.inputs[0] is value
    divisor = constant_of(node.inputs[1]) if divides else None
    return node if divisor is not None and divisor.size == 1 and abs(divisor.item() - 6) < _TOLERANCE else None


def _other_operand(node: ir.Node, number: float) -> ir.Value | None:
    """The operand of a node of two whose other operand is this number."""
    for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
        array = constant_of(value)
        if array is not None and array.size == 1 and abs(float(array.item()) - number) < _TOLERANCE:
            return other
    return None


def _only_user(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _hard_sigmoid(graph: ir.Graph, at: ir.Node, source: ir.Value) -> ir.Value:
    import onnx_ir as ir

    node = ir.node("HardSigmoid", [source], {"alpha": 1 / 6, "beta": 0.5}, name=f"{at.name or ''}_hard_sigmoid")
    graph.insert_before(at, node)
    return node.outputs[0]


def _replace(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    """Gives the users of a node this value, which takes its name, type and shape."""
    old = node.outputs[0]
    value.type, value.shape = old.type, old.shape
    for use in list(old.uses()):
        use.node.replace_input_with(use.idx, value)
    name = old.name
    graph.remove(node, safe=True)
    value.name = name
