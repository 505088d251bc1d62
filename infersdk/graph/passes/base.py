"""The interface of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...core.model_source import ModelSource

__all__ = ["Pass", "mentions_any", "needs_operators", "needs_quantizers"]


class Pass(Protocol):
    """A change of a graph."""

    name: ClassVar[str]
    version: ClassVar[int]

    def concerns(self, source: ModelSource) -> bool:
        """Whether the pass may change the model, by a search of the file for the names of operators."""
        return True

    def apply(self, model: ir.Model) -> bool:
        """Changes the model in place; returns whether it did."""


def needs_operators(*words: bytes) -> Any:
    """A method `concerns()` of a pass that changes only ONNX models with all these words in names of operators."""
    return lambda _, source: all(map(source.mentions, words))


def mentions_any(*words: bytes) -> Any:
    """A method `concerns()` of a pass that changes only ONNX models with one of these words in names of operators."""
    return lambda _, source: any(map(source.mentions, words))


#: The method `concerns()` of a pass that changes QuantizeLinear nodes, which QuantizedOperators also makes.
needs_quantizers = mentions_any(b"QuantizeLinear", b"QLinear", b"QGemm")
