"""Signed 8-bit activations as unsigned ones, which mean the same and suit x86 processors.

A quantised activation is scale * (q - zero point). With q' = q + 128 and a zero point that is larger by 128 it is the
same number, and so are rounding and clipping: QuantizeLinear gives -128..127 in the one form where it gives 0..255 in
the other. The instructions of x86 multiply unsigned activations by signed weights, and runtimes are written for that:
ONNX Runtime keeps most signed graphs in floating point there, and OpenVINO (2026.4, on processors with AMX) those whose
zero point is not 0. TensorRT takes only the signed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..weights import add_weight

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["UnsignedActivations"]

_ZERO_POINT = "infersdk_zero_point_{}"


@dataclass(frozen=True)
class UnsignedActivations:
    """Changes each QuantizeLinear to int8 with one zero point whose result goes to DequantizeLinear nodes alone."""

    name: ClassVar[str] = "unsigned-activations"
    version: ClassVar[int] = 3

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and source.mentions(b"QuantizeLinear")

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        graph = model.graph
        groups = [group for node in graph if (group := _activation(node))]
        if not groups:
            return False
        unsigned: dict[int, ir.Value] = {}
        for group in groups:
            group[0].outputs[0].dtype = ir.DataType.UINT8
            for node in group:
                before = node.inputs[2]
                assert before is not None
                shifted = _signed_zero_point(before) + 128  # type: ignore[operator]
                if shifted not in unsigned:
                    name = _ZERO_POINT.format(shifted)
                    unsigned[shifted] = add_weight(graph, name, np.array(shifted, np.uint8))
                node.replace_input_with(2, unsigned[shifted])
                if not before.uses() and not before.is_graph_input():
                    del graph.initializers[before.name or ""]
        return True


def _activation(node: ir.Node) -> list[ir.Node]:
    """The QuantizeLinear of an activation that can be unsigned, and the nodes that take its result; else nothing."""
    if node.op_type != "QuantizeLinear" or node.outputs[0].is_graph_output():
        return []
    if node.inputs[0] is not None and node.inputs[0].is_initializer():
        return []  # weights that are quantised in the graph
    uses = list(node.outputs[0].uses())
    if not uses or any(use.node.op_type != "DequantizeLinear" or use.idx != 0 for use in uses):
        return []
    group = [node, *(use.node for use in uses)]
    known = all(len(one.inputs) > 2 and _signed_zero_point(one.inputs[2]) is not None for one in group)
    return group if known else []


def _signed_zero_point(value: ir.Value | None) -> int | None:
    """The constant int8 zero point of a whole tensor; None if `value` is not one."""
    import onnx_ir as ir

    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    tensor = value.const_value
    if tensor.dtype != ir.DataType.INT8 or tensor.size != 1:
        return None
    return int(tensor.numpy().item())
