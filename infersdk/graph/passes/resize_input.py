"""A model for images of one size, for images of another size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...errors import ConfigError
from ..shape_change import ShapeChange
from ._sizes import data_inputs, fixed, lift_constants, shapes_of, write_outputs

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...model_source import ModelSource

__all__ = ["ResizeInput", "image_input"]


@dataclass(frozen=True)
class ResizeInput:
    """Gives the image input another width and height, and rewrites the sizes and grids that the graph holds.

    The result is what an export of that size is: the weights are the same, and each constant is what it would be there.

    Attributes:
        width, height: in pixels.

    Raises (`apply`):
        ConfigError: the model has no input for images, or several.
        UnsupportedModelError: a node cannot take the new size: a fully connected layer, or any where the size is not a
            multiple of the strides. The message names the node. The model is changed in part then: discard it.
    """

    name: ClassVar[str] = "resize-input"
    version: ClassVar[int] = 1

    width: int
    height: int

    def concerns(self, source: ModelSource) -> bool:
        return True

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        if min(self.width, self.height) < 1:
            raise ConfigError(f"a size is of whole numbers from 1, not {self.width}x{self.height}")
        value, rows = image_input(model)
        assert value.shape is not None
        dims = list(value.shape)
        old, new = (fixed(dims[rows]), fixed(dims[rows + 1])), (self.height, self.width)
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
    """The input that takes images, and which of its axes is the height: [n, 3, h, w] or [n, h, w, 3].

    Raises:
        ConfigError: there is none, or more than one.
    """
    result = []
    for value in data_inputs(model):
        if value.shape is not None and len(value.shape) == 4:
            channels_last = fixed(value.shape[3]) in (1, 3, 4) and fixed(value.shape[1]) not in (1, 3, 4)
            result.append((value, 1 if channels_last else 2))
    if len(result) != 1:
        shapes = ", ".join(f"{value.name} {value.shape}" for value in data_inputs(model))
        raise ConfigError(f"one input with four axes is needed, an image; the inputs are {shapes}")
    return result[0]
