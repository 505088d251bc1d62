"""What a model computes in a lower precision: the factors of its products are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..graph.builder import GraphBuilder
from ..graph.passes.base import Pass
from ..graph.types import element_types

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["BITS", "RoundFactors"]

#: Bits of the significand behind the point, by precision. TF32 is what NVIDIA's tensor cores round float32 factors to.
BITS = {"tf32": 10, "fp16": 10, "bf16": 7}
#: Bits of the significand of float32, with the one in front of the point.
_SIGNIFICAND = 24
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class RoundFactors(Pass):
    """Rounds both factors of all products in float32, to nearest.

    x is rounded by c = (2^s + 1) x and x' = c - (c - x) (T. J. Dekker, "A floating-point technique for extending the
    available precision", 1971), where s is the number of bits that are dropped.

    Args:
        bits: of the significand that are kept, behind the point.
    """

    name: ClassVar[str] = "round-factors"
    version: ClassVar[int] = 1
    bits: int

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        split = np.float32(2 ** (_SIGNIFICAND - 1 - self.bits) + 1)
        graph, types = model.graph, element_types(model)
        products = [node for node in graph if node.op_type in _PRODUCTS and not node.domain]
        for node in products:
            build = GraphBuilder(graph, f"{node.name}/rounded/", before=node)
            for index, value in enumerate(node.inputs[:2]):
                if value is not None and types.get(value) == ir.DataType.FLOAT:
                    scaled = build("Mul", value, split)
                    node.replace_input_with(index, build("Sub", scaled, build("Sub", scaled, value)))
        return bool(products)
