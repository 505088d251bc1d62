"""Makes a fixed image size free up to that size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import ConfigError, UnsupportedModelError
from ..info import FREE_SIZE
from ..size_freeing import SizeFreeing
from ._sizes import fixed, lift_constants, shapes_of, write_outputs
from .base import Pass
from .resize_input import image_input

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["FreeSize"]


@dataclass(frozen=True)
class FreeSize(Pass):
    """Makes the height and width of the image input free and computes constants that depend on them at run time.

    The model then accepts every multiple of `stride` up to its present size. Results equal those of an export for that
    size, except for single numbers that depend on the size, which are not recognised: see `ResizeInput`. A model with
    free height and width is not changed. The metadata record the largest size and the stride.

    Attributes:
        stride: the stride of the coarsest feature map, in pixels.

    Raises:
        ConfigError: `stride` is below 1.

    Raises (`apply`):
        ConfigError: the model has no image input, or several.
        UnsupportedModelError: a node does not support other sizes, or its constants cannot be computed; the message
            names it. The model may be partly changed; discard it.
    """

    name: ClassVar[str] = "free-size"
    version: ClassVar[int] = 1

    stride: int = 32

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ConfigError(f"stride is a whole number from 1, not {self.stride}")

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
        dims[rows : rows + 2] = ir.SymbolicDim("height"), ir.SymbolicDim("width")
        value.shape = ir.Shape(dims)
        model.metadata_props[FREE_SIZE] = f"[{old[1]}, {old[0]}, {self.stride}]"
        return True

    def _example(self, height: int, width: int) -> tuple[int, int]:
        """A smaller example size, whose rows and columns differ from each other and from those before."""
        rows = max(height // self.stride // 2, 1)
        columns = max(width // self.stride - 1, 1)
        if columns == rows:
            columns -= 1
        if not 0 < rows * self.stride < height or not 0 < columns * self.stride < width:
            raise UnsupportedModelError(
                f"images of {width} x {height} have no smaller multiple of {self.stride} for both sides"
            )
        return rows * self.stride, columns * self.stride
