"""Free axes of inputs get names of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ._sizes import BATCH, data_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["NameAxes", "unclear_axes"]


@dataclass(frozen=True)
class NameAxes:
    """Names the free axes that an exporter wrote as -1, or as a placeholder such as `?` that another axis has as well.

    Axes of one name are equal by ONNX's rules. An axis whose name is a word keeps it, also where two axes share it.
    """

    name: ClassVar[str] = "name-axes"
    version: ClassVar[int] = 1

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        result = list(unclear_axes(model))
        for value, axis, _ in result:
            assert value.shape is not None
            dims = list(value.shape)
            dims[axis] = ir.SymbolicDim(BATCH if axis == 0 else f"{value.name}_{axis}")
            value.shape = ir.Shape(dims)
        for output in model.graph.outputs if result else ():
            if output.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in output.shape):
                output.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in output.shape])
        return bool(result)


def unclear_axes(model: ir.Model) -> Iterator[tuple[ir.Value, int, str]]:
    """Each axis of an input that is free and has no name of its own, and how it is written."""
    for value in data_inputs(model):
        dims = list(value.shape or ())
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                if dim < 0:
                    yield value, axis, str(dim)
            elif dim.value is not None and not _is_word(dim.value) and _times(dims, dim.value) > 1:
                yield value, axis, dim.value


def _is_word(name: str) -> bool:
    return any(letter.isalnum() for letter in name)


def _times(dims: list[int | ir.SymbolicDim], name: str) -> int:
    return sum(not isinstance(dim, int) and dim.value == name for dim in dims)
