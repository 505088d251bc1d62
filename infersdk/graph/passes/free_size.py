"""A model that was exported for images of one size, for images of any size up to that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import UnsupportedModelError
from ..size_freeing import SizeFreeing
from ._sizes import fixed, lift_constants, shapes_of, write_outputs
from .resize_input import image_input

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["FreeSize"]

#: The names of a free height and width.
_HEIGHT, _WIDTH = "height", "width"


@dataclass(frozen=True)
class FreeSize:
    """Makes the height and width of the image input free, and computes from them what the graph holds for one size.

    The model then takes each size up to its own that is a multiple of `stride`, and gives what an export of that size
    gives. A model whose height and width are free stays as it is.

    Attributes:
        stride: of the coarsest feature map, in pixels.

    Raises (`apply`):
        ConfigError: the model has no input for images, or several.
        UnsupportedModelError: a node cannot take other sizes, or its numbers cannot be computed; the message names it.
            The model is changed in part then: discard it.
    """

    name: ClassVar[str] = "free-size"
    version: ClassVar[int] = 1

    stride: int = 32

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        value, rows = image_input(model)
        assert value.shape is not None
        dims = list(value.shape)
        size = fixed(dims[rows]), fixed(dims[rows + 1])
        if size == (None, None):
            return False
        lift_constants(model)
        before = shapes_of(model)
        after = {name: list(shape) for name, shape in before.items()}
        old = before[value.name or ""][rows : rows + 2]
        after[value.name or ""][rows : rows + 2] = self._example(old[0], old[1])
        change = SizeFreeing(model, (value, rows), before, after)
        change.run()
        write_outputs(model, change)
        _open_outputs(model, change)
        dims[rows : rows + 2] = ir.SymbolicDim(_HEIGHT), ir.SymbolicDim(_WIDTH)
        value.shape = ir.Shape(dims)
        return True

    def _example(self, height: int, width: int) -> tuple[int, int]:
        """A smaller size, of another number of rows than columns, and neither as before."""
        rows = max(height // self.stride // 2, 1)
        columns = max(width // self.stride - 1, 1)
        if columns == rows:
            columns -= 1
        if not 0 < rows * self.stride < height or not 0 < columns * self.stride < width:
            raise UnsupportedModelError(
                f"images of {width} x {height} are too small for further sizes that are multiples of {self.stride}"
            )
        return rows * self.stride, columns * self.stride


def _open_outputs(model: ir.Model, change: SizeFreeing) -> None:
    """Names the axes of outputs that depend on the size."""
    import onnx_ir as ir

    for output in model.graph.outputs:
        old, new = change.old.shapes.get(output), change.new.shapes.get(output)
        if output.shape is None or old is None or new is None or len(old) != len(new):
            continue
        dims = list(output.shape)
        for axis, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after and fixed(dims[axis]) is not None:
                dims[axis] = ir.SymbolicDim(f"{output.name}_{axis}")
        output.shape = ir.Shape(dims)
