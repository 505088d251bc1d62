"""Names free axes of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..weights import data_inputs
from ._sizes import BATCH, has_name
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["NameAxes", "unclear_axes"]


@dataclass(frozen=True)
class NameAxes(Pass):
    """Names free axes that an exporter wrote as -1, or as a placeholder such as `?` that several axes share.

    ONNX requires axes with the same name to be equal. Names with letters or digits are kept, also if axes share them.
    """

    name: ClassVar[str] = "name-axes"
    version: ClassVar[int] = 1

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
    """Yields each free axis without a distinct name: the input, the axis, and its text."""
    for value in data_inputs(model):
        dims = list(value.shape or ())
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                if dim < 0:
                    yield value, axis, str(dim)
            elif dim.value is not None and not has_name(dim) and dims.count(dim) > 1:
                yield value, axis, dim.value
