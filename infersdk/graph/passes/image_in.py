"""Adds image preprocessing to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ...errors import ConfigError, UnsupportedModelError
from ..builder import GraphBuilder
from ._sizes import BATCH, fixed
from .base import Pass
from .resize_input import image_input
from .set_opset import at_least_opset

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["ImageIn"]


#: The opset of the new nodes.
OPSET = 13


@dataclass(frozen=True)
class ImageIn(Pass):
    """Makes the input uint8 [batch, height, width, channels]; the model resizes and normalises it.

    The normalised input is (x / divide - mean) / std. A model with an opset below 13 is converted to opset 13.

    Attributes:
        resize: `"none"` accepts images of the model's size; `"stretch"` and `"letterbox"` accept any size. Letterbox
            keeps the aspect ratio and pads with `pad`, centred like `Geometry.letterbox`. Results refer to the resized
            image. ONNX's linear resize in floating point differs from OpenCV's 8-bit resize by up to 1.
        bgr: whether to swap the order of channels, from BGR to RGB or from RGB to BGR.
        divide: 255 for networks with inputs from 0 to 1.
        mean, std: one number, or one for each channel, in a tuple.
        pad: the value of the padding, 0 to 255.

    Raises (`apply`):
        ConfigError: the model has no image input, or several, or numbers do not fit the channels or are out of range.
        UnsupportedModelError: the input is uint8, or a resize is requested and the model has no fixed size.
    """

    name: ClassVar[str] = "image-in"
    version: ClassVar[int] = 1

    resize: Literal["none", "stretch", "letterbox"] = "none"
    bgr: bool = False
    divide: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: float = 114.0

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        at_least_opset(model, OPSET)
        value, rows = image_input(model)
        assert value.shape is not None
        if value.dtype is None or not value.dtype.is_floating_point():
            raise UnsupportedModelError(f"input {value.name!r} is {value.dtype}; the pass needs a floating-point input")
        dims = list(value.shape)
        channels = fixed(dims[1] if rows == 2 else dims[3])
        self._check(channels, dims[rows : rows + 2])
        graph, name, kind = model.graph, value.name or "image", value.dtype
        free = ["height", "width"] if self.resize != "none" else dims[rows : rows + 2]
        batch = dims[0] if fixed(dims[0]) is not None else BATCH
        image = ir.Value(
            name=f"{name}_image", type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape([batch, *free, channels])
        )
        build = GraphBuilder(graph, "image_in/", graph[0] if len(graph) else None)
        pixels = build("Cast", image, to=int(ir.DataType.FLOAT))
        pixels = build("Transpose", pixels, perm=[0, 3, 1, 2])
        if self.resize != "none":
            size = build.ints(*(int(fixed(dim) or 0) for dim in dims[rows : rows + 2]))
            pixels = (_letterbox if self.resize == "letterbox" else _stretch)(build, pixels, size, self.pad)
        if self.bgr:
            pixels = build("Gather", pixels, build.ints(*reversed(range(channels or 0))), axis=1)
        pixels = self._normalise(build, pixels)
        if rows == 1:
            pixels = build("Transpose", pixels, perm=[0, 2, 3, 1])
        if kind != ir.DataType.FLOAT:
            pixels = build("Cast", pixels, to=int(kind))
        for use in list(value.uses()):
            if use.node not in build.nodes:
                use.node.replace_input_with(use.idx, pixels)
        inputs = graph.inputs
        inputs[list(inputs).index(value)] = image
        image.name, value.name = name, f"{name}_normalised"
        return True

    def _check(self, channels: int | None, size: list[Any]) -> None:
        numbers = f"divide={self.divide!r}, mean={self.mean!r}, std={self.std!r}, pad={self.pad!r}"
        try:
            divisors = self.divide, *self.std
            finite = np.isfinite([*divisors, *self.mean, self.pad]).all()
        except (TypeError, ValueError):
            raise ConfigError(
                f"divide and pad are numbers, and mean and std tuples of numbers, such as (0.5,): {numbers}"
            ) from None
        for what in ("mean", "std"):
            given = getattr(self, what)
            if len(given) not in (1, channels):
                raise ConfigError(f"{what} has {len(given)} numbers, and the images have {channels} channels")
        if 0 in divisors or not finite:
            raise ConfigError(f"numbers must be finite, and divide and std not 0: {numbers}")
        if not 0 <= self.pad <= 255:
            raise ConfigError(f"pad is from 0 to 255, not {self.pad!r}")
        if self.resize not in ("none", "stretch", "letterbox"):
            raise ConfigError(f"unknown resize {self.resize!r}; use none, stretch or letterbox")
        if self.resize != "none" and None in [fixed(dim) for dim in size]:
            raise UnsupportedModelError("the model has no fixed image size to resize to; apply resize-input first")
        if self.bgr and channels is None:
            raise UnsupportedModelError("the number of channels is free, so their order cannot be changed")

    def _normalise(self, build: GraphBuilder, pixels: ir.Value) -> ir.Value:
        """Adds x * scale + offset, as scalars or per channel."""
        std, mean = np.asarray(self.std, np.float64), np.asarray(self.mean, np.float64)
        scale, offset = 1 / (self.divide * std), -mean / std
        for operator, numbers, neutral in (("Mul", scale, 1.0), ("Add", offset, 0.0)):
            if np.any(numbers != neutral):
                shape = (1, -1, 1, 1) if numbers.size > 1 else ()
                pixels = build(operator, pixels, numbers.astype(np.float32).reshape(shape))
        return pixels


_LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def _stretch(build: GraphBuilder, pixels: ir.Value, size: Any, pad: float) -> ir.Value:
    lead = build("Slice", build("Shape", pixels), build.ints(0), build.ints(2))
    return build("Resize", pixels, None, None, build("Concat", lead, size, axis=0), **_LINEAR)


def _letterbox(build: GraphBuilder, pixels: ir.Value, size: Any, pad: float) -> ir.Value:
    """Adds a letterbox resize. The odd pixel of the padding is on the right and at the bottom."""
    shape = build("Shape", pixels)
    old = build("Cast", build("Slice", shape, build.ints(2), build.ints(4)), to=11)  # float64, as precise as the core
    ratio = build("ReduceMin", build("Div", size.astype(np.float64), old), keepdims=1)
    rounded = build("Cast", build("Round", build("Mul", old, ratio)), to=7)
    new = build("Max", rounded, build.ints(1))
    sizes = build("Concat", build("Slice", shape, build.ints(0), build.ints(2)), new, axis=0)
    resized = build("Resize", pixels, None, None, sizes, **_LINEAR)
    border = build("Sub", size, new)
    first = build("Div", border, build.ints(2))
    none = build.ints(0, 0)
    pads = build("Concat", none, first, none, build("Sub", border, first), axis=0)
    return build("Pad", resized, pads, np.float32(pad))
