"""Constant folding and clean-up with onnxslim.

For models with free axes, onnxslim leaves fewer nodes than the optimizer of onnxscript: 236 instead of 272 for YOLOv5n,
393 instead of 422 for PP-OCRv4's recogniser. Speed and results are equal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import BackendUnavailableError, UnsupportedModelError
from ..shapes import node_label
from ..types import RANDOM
from ..weights import data_inputs
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CleanUp"]


@dataclass(frozen=True)
class CleanUp(Pass):
    """Folds constants, fuses convolutions with batch normalisation, and removes nodes without effect.

    Fused batch normalisation changes the rounding of results. Inputs and outputs of the model stay, unused ones too.

    Raises (`apply`):
        BackendUnavailableError: the package `onnxslim` is not installed.
        UnsupportedModelError: onnxslim fails, or a node has random results.
    """

    name: ClassVar[str] = "clean-up"
    version: ClassVar[int] = 2

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        try:
            import onnxslim
        except ImportError:
            raise BackendUnavailableError(
                'cleaning up a graph needs onnxslim, which is not installed: pip install "infersdk[graph]"'
            ) from None
        of_functions = (node for function in model.functions.values() for node in function.all_nodes())
        for node in (*model.graph.all_nodes(), *of_functions):
            if node.op_type in RANDOM:
                raise UnsupportedModelError(
                    f"{node_label(node)} has random results, which onnxslim would make constant or equal; make the "
                    "random numbers an input of the model, or omit the clean-up"
                )
        ir.external_data.load_to_model(model)
        before = ir.to_proto(model)
        inputs = [ir.to_proto(value) for value in data_inputs(model)]
        nodes = Counter(node.op_type for node in model.graph)
        try:
            slim = onnxslim.slim(before)
        except Exception as error:  # it raises several types
            raise UnsupportedModelError(f"onnxslim cannot clean up the model: {error}") from None
        left = {entry.name for entry in slim.graph.input}
        for index, entry in enumerate(inputs):
            if entry.name not in left:
                slim.graph.input.insert(index, entry)
        cleaned = ir.from_proto(slim)
        model.graph = cleaned.graph
        model.functions.clear()
        model.functions.update(cleaned.functions)
        return Counter(node.op_type for node in model.graph) != nodes
