"""Limits the input of each pair of QuantizeLinear and DequantizeLinear with 16 bits to the range of its codes.

QuantizeLinear clips values beyond that range, and ONNX Runtime's quantiser removes a ReLU before it for this reason.
OpenVINO 2026.4 removes such a pair if its scale and zero point are constants, and computes in floating point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import UnsupportedModelError
from ..builder import GraphBuilder
from ..weights import constant_of, constant_tensor
from .base import Pass, needs_quantizers

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["SaturatedQuantizers"]


@dataclass(frozen=True)
class SaturatedQuantizers(Pass):
    """Inserts a Clip before each QuantizeLinear of an activation to int16 or uint16 that a DequantizeLinear follows.

    `apply` raises UnsupportedModelError for a scale or a zero point of each channel.
    """

    name: ClassVar[str] = "saturated-quantizers"
    version: ClassVar[int] = 2
    concerns = needs_quantizers

    def apply(self, model: ir.Model) -> bool:
        changed = False
        found = [(graph, node, codes) for graph in model.graphs() for node in graph if (codes := _codes(node))]
        for graph, node, codes in found:
            scale = constant_of(node.inputs[1])
            point = next(iter(node.inputs[2:3]), None)
            zero = np.zeros(1) if point is None else constant_of(point)
            if scale is None or zero is None:  # OpenVINO keeps the pair
                continue
            if scale.size != 1 or zero.size != 1:
                raise UnsupportedModelError(
                    f"node {node.name!r} quantises to 16 bits with a scale or a zero point for each channel, which "
                    "OpenVINO computes incorrectly; load the model on onnxruntime, or quantise to 8 bits"
                )
            limits = (np.asarray((code - zero.item()) * scale.item(), scale.dtype) for code in (codes.min, codes.max))
            build = GraphBuilder(graph, f"{node.name or node.outputs[0].name}/", node)
            node.replace_input_with(0, build("Clip", node.inputs[0], *limits, name="saturated"))
            changed = True
        return changed


def _codes(node: ir.Node) -> Any:
    """The limits of the 16-bit codes of an activation that is dequantised again; None for other nodes."""
    import onnx_ir as ir

    if node.op_type != "QuantizeLinear" or constant_of(node.inputs[0]) is not None:
        return None
    if all(user.op_type != "DequantizeLinear" for user in node.outputs[0].consumers()):
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    kind: Any = node.attributes.get_int("output_dtype", 0)
    if zero is not None:
        kind = zero.dtype if (tensor := constant_tensor(zero)) is None else tensor.dtype
    codes = {ir.DataType.INT16: np.iinfo(np.int16), ir.DataType.UINT16: np.iinfo(np.uint16)}
    return codes.get(kind)
