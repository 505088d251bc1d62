"""Changes the fixed image size of a model."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import ConfigError
from ..shape_change import ShapeChange
from ..weights import data_inputs
from ._sizes import fixed, lift_constants, shapes_of, write_outputs
from .base import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ResizeInput", "image_input"]


@dataclass(frozen=True)
class ResizeInput(Pass):
    """Sets the width and height of the image input and rewrites constants that depend on them.

    The result equals an export for that size, except for single numbers that depend on the size, such as a divisor by
    the number of pixels: they are not recognised. A pool over a whole map becomes a global pool.

    Attributes:
        width, height: the new size in pixels.

    Raises (`apply`):
        ConfigError: the model has no image input, or several; or a size is not a whole number from 1.
        UnsupportedModelError: a node does not support the new size, such as a fully connected layer, or a node after
            strides that do not divide the size; the message names it. The model may be partly changed; discard it.
    """

    name: ClassVar[str] = "resize-input"
    version: ClassVar[int] = 1

    width: int
    height: int

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        try:
            width, height = operator.index(self.width), operator.index(self.height)
        except TypeError:
            raise ConfigError(
                f"width and height must be whole numbers, not {self.width!r} and {self.height!r}"
            ) from None
        if min(width, height) < 1:
            raise ConfigError(f"width and height must be at least 1, not {width}x{height}")
        value, rows = image_input(model)
        assert value.shape is not None
        dims = list(value.shape)
        old, new = (fixed(dims[rows]), fixed(dims[rows + 1])), (height, width)
        dims[rows : rows + 2] = new
        if old == new:
            return False
        if old[0] is not None and old[1] is not None:
            lift_constants(model)
            before = shapes_of(model)
            after = {name: list(shape) for name, shape in before.items()}
            after[value.name or ""][rows : rows + 2] = new
            change = ShapeChange(model, before, after, image=((old[0], old[1]), new))
            change.run()
            write_outputs(model, change)
        value.shape = ir.Shape(dims)
        return True


def image_input(model: ir.Model) -> tuple[ir.Value, int]:
    """The image input, and the axis of its height: [n, 3, h, w] or [n, h, w, 3]."""
    result = []
    for value in data_inputs(model):
        if value.shape is not None and len(value.shape) == 4:
            channels_last = fixed(value.shape[3]) in (1, 3, 4) and fixed(value.shape[1]) not in (1, 3, 4)
            result.append((value, 1 if channels_last else 2))
    if len(result) != 1:
        shapes = ", ".join(f"{value.name} {value.shape}" for value in data_inputs(model))
        raise ConfigError(f"the model must have exactly one image input with four axes; its inputs are {shapes}")
    return result[0]
