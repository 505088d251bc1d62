"""Converts signed 8-bit activations to the equivalent unsigned ones for x86 processors.

A quantised activation is scale * (q - zero point). Adding 128 to q and to the zero point gives the same number, with
the same rounding and clipping. The instructions of x86 multiply unsigned activations by signed weights. There, ONNX
Runtime computes most graphs with signed activations in floating point, and OpenVINO 2026.4 (with AMX) those whose zero
point is not 0. TensorRT supports only signed activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..weights import add_weight, constant_tensor, drop_unused_weights
from .base import Pass, needs_quantizers

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["UnsignedActivations"]


@dataclass(frozen=True)
class UnsignedActivations(Pass):
    """Converts each QuantizeLinear to int8 with a scalar zero point that only DequantizeLinear nodes read."""

    name: ClassVar[str] = "unsigned-activations"
    version: ClassVar[int] = 4
    concerns = needs_quantizers

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
                    array = np.array(shifted, np.uint8)
                    unsigned[shifted] = add_weight(graph, f"infersdk_zero_point_{shifted}", array)
                node.replace_input_with(2, unsigned[shifted])
            group[0].attributes.pop("output_dtype", None)  # it would repeat the type of the zero point
        for one in model.graphs():
            drop_unused_weights(one)
        return True


def _activation(node: ir.Node) -> list[ir.Node]:
    """A convertible QuantizeLinear of an activation, followed by its readers; [] for other nodes."""
    if node.op_type != "QuantizeLinear" or node.outputs[0].is_graph_output():
        return []
    if node.inputs[0] is not None and node.inputs[0].is_initializer():
        return []  # quantises a weight
    uses = list(node.outputs[0].uses())
    if not uses or any(use.node.op_type != "DequantizeLinear" or use.idx != 0 for use in uses):
        return []
    group = [node, *(use.node for use in uses)]
    known = all(len(one.inputs) > 2 and _signed_zero_point(one.inputs[2]) is not None for one in group)
    return group if known else []


def _signed_zero_point(value: ir.Value | None) -> int | None:
    """The value of a constant scalar int8 zero point; else None."""
    import onnx_ir as ir

    tensor = None if value is None else constant_tensor(value)
    if tensor is None or tensor.dtype != ir.DataType.INT8 or tensor.size != 1:
        return None
    return int(tensor.numpy().item())
