"""Limits the input of each QuantizeLinear to 16 bits to the range of its codes.

QuantizeLinear clips values beyond that range, and ONNX Runtime's quantiser removes a ReLU before it for this reason.
OpenVINO 2026.4 clips with 8 bits only. With 16 bits it computes in floating point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import UnsupportedModelError
from ..builder import GraphBuilder
from ..weights import constant_of, constant_tensor
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...core.model_source import ModelSource

__all__ = ["SaturatedQuantizers"]


@dataclass(frozen=True)
class SaturatedQuantizers(Pass):
    """Inserts a Clip before each QuantizeLinear of an activation to int16 or uint16.

    `apply` raises UnsupportedModelError if the scale or the zero point is not one constant.
    """

    name: ClassVar[str] = "saturated-quantizers"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return source.is_onnx and source.mentions(b"QuantizeLinear")

    def apply(self, model: ir.Model) -> bool:
        found = [(graph, node, codes) for graph in model.graphs() for node in graph if (codes := _codes(node))]
        for graph, node, codes in found:
            scale = constant_of(node.inputs[1])
            zero = constant_of(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
            if scale is None or zero is None or scale.size != 1 or zero.size != 1:
                raise UnsupportedModelError(
                    f"node {node.name!r} quantises to 16 bits, and its scale or its zero point is not one constant; "
                    "OpenVINO computes such nodes incorrectly; load the model on onnxruntime, or quantise to 8 bits"
                )
            limits = (np.asarray((code - zero.item()) * scale.item(), scale.dtype) for code in (codes.min, codes.max))
            build = GraphBuilder(graph, f"{node.name or node.outputs[0].name}/", node)
            node.replace_input_with(0, build("Clip", node.inputs[0], *limits, name="saturated"))
        return bool(found)


def _codes(node: ir.Node) -> Any:
    """The limits of the 16-bit codes of an activation; None for other nodes."""
    import onnx_ir as ir

    if node.op_type != "QuantizeLinear" or constant_of(node.inputs[0]) is not None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    kind: Any = node.attributes.get_int("output_dtype", 0)
    if zero is not None:
        kind = zero.dtype if (tensor := constant_tensor(zero)) is None else tensor.dtype
    codes = {ir.DataType.INT16: np.iinfo(np.int16), ir.DataType.UINT16: np.iinfo(np.uint16)}
    return codes.get(kind)
