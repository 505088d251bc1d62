"""Runs of a model in a lower precision, on hardware without it: its values are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..graph.builder import GraphBuilder
from ..graph.passes.base import Pass
from ..graph.passes.set_opset import at_least_opset
from ..graph.types import element_types
from ..quant.schemes import WEIGHTED

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["LOWER", "RoundValues"]

#: The precisions that values are rounded to. TF32 is that of NVIDIA's tensor cores for FP32 products.
LOWER = ("tf32", "fp16", "bf16")
#: 2^13 + 1: TF32 drops 13 of the bits of float32.
_SPLIT = np.float32(2**13 + 1)
#: The first opset whose Cast has bfloat16.
_CASTS_BFLOAT16 = 13


@dataclass(frozen=True)
class RoundValues(Pass):
    """Rounds values in float32, to nearest: the factors of products to TF32, or the inputs of all nodes to FP16 or
    bfloat16.

    x is rounded to TF32 by c = (2^13 + 1) x and x' = c - (c - x) (T. J. Dekker, "A floating-point technique for
    extending the available precision", 1971).

    Args:
        precision: one of `LOWER`.

    Raises (`apply`):
        UnsupportedModelError: the model has an old opset without bfloat16, and cannot be converted.
    """

    name: ClassVar[str] = "round-values"
    version: ClassVar[int] = 1
    precision: str

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        if self.precision == "bf16":
            at_least_opset(model, _CASTS_BFLOAT16)
        build, types = GraphBuilder(model.graph), element_types(model)
        rounded: dict[ir.Value, ir.Value] = {}
        for node in list(model.graph):
            product = node.op_type in WEIGHTED and not node.domain
            for index, value in enumerate(node.inputs):
                if value is None or types.get(value) != ir.DataType.FLOAT:
                    continue
                if self.precision != "tf32" or (product and index < 2):
                    if value not in rounded:
                        build.prefix, build.before = f"{value.name}/", node
                        rounded[value] = self._rounded(build, value)
                    node.replace_input_with(index, rounded[value])
        return bool(rounded)

    def _rounded(self, build: GraphBuilder, value: ir.Value) -> Any:
        import onnx_ir as ir

        if self.precision == "tf32":
            scaled = build("Mul", value, _SPLIT)
            return build("Sub", scaled, build("Sub", scaled, value), name="rounded")
        kind = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}[self.precision]
        return build("Cast", build("Cast", value, to=int(kind)), to=int(ir.DataType.FLOAT), name="rounded")
