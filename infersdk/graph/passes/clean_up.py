"""Constant folding and clean-up, by onnxslim.

Tried on 20 models were onnxslim 0.1 and the optimizer of onnxscript 0.7. Both give the same results as before, to
rounding. onnxslim leaves fewer nodes where a model has free axes, since it replaces what is computed from shapes by a
Reshape that means the same: YOLOv5n 236 nodes instead of 272, PP-OCRv4's recogniser 393 instead of 422, its classifier
179 instead of 233. Runtimes fold what is left in either case, so the speed is the same; what reads or edits the graph
is better off. onnxscript takes a half to a third of the time, 0.3 to 1.8 s instead of 0.4 to 3 s.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import BackendUnavailableError, UnsupportedModelError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["CleanUp"]


@dataclass(frozen=True)
class CleanUp:
    """Folds constants, fuses convolutions with batch normalisation, and takes out nodes that do nothing.

    Results stay the same but for rounding, where batch normalisation is fused.

    Raises (`apply`):
        BackendUnavailableError: the package `onnxslim` is not installed.
        UnsupportedModelError: onnxslim cannot do it.
    """

    name: ClassVar[str] = "clean-up"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        try:
            import onnxslim
        except ImportError:
            raise BackendUnavailableError(
                'cleaning a graph up needs onnxslim, which is not installed: pip install "infersdk[graph]"'
            ) from None
        ir.external_data.load_to_model(model)
        before = ir.to_proto(model)
        nodes = Counter(node.op_type for node in model.graph)
        try:
            cleaned = ir.from_proto(onnxslim.slim(before))
        except Exception as error:  # it has no exceptions of its own
            raise UnsupportedModelError(f"onnxslim cannot clean the model up: {error}") from None
        model.graph = cleaned.graph
        model.functions.clear()
        model.functions.update(cleaned.functions)
        return Counter(node.op_type for node in model.graph) != nodes
