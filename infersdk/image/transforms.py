"""The conversion of pixels for a network: channel order, layout, scale and type."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from ..core._lib import choice, ffi, lib
from ..errors import DTypeError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from .geometry import Geometry

__all__ = ["PixelTransform"]

_ORDERS = {"rgb": lib.IFS_ORDER_RGB, "bgr": lib.IFS_ORDER_BGR, "gray": lib.IFS_ORDER_GRAY}
LAYOUTS = {"chw": lib.IFS_LAYOUT_CHW, "hwc": lib.IFS_LAYOUT_HWC}
_DTYPES = {np.dtype(name): getattr(lib, f"IFS_{name.upper()}") for name in ("float32", "float16", "uint8")}


class PixelTransform:
    """The input that a network expects: y = x * scale + bias in float32, and the order, layout and type. Immutable.

    Args:
        order: "rgb", "bgr" or "gray": the channels of the output, for any format of the image.
        layout: "chw" or "hwc".
        dtype: float32, float16, or uint8 (rounded to the nearest, ties to even, and saturated).
        fill: The padding before scaling, in the order of the output's channels: one number, or one for each channel.
        scale, bias: One number, or one for each channel of the output.

    Raises:
        InputError: A number is out of range, or the number of channels is wrong.
        DTypeError: `dtype` is another type.
    """

    __slots__ = ("_c", "_dtype")

    def __init__(
        self,
        order: Literal["rgb", "bgr", "gray"] = "rgb",
        layout: Literal["chw", "hwc"] = "chw",
        dtype: DTypeLike = "float32",
        *,
        fill: int | Sequence[int] = 114,
        scale: float | Sequence[float] = 1 / 255,
        bias: float | Sequence[float] = 0.0,
    ) -> None:
        c = ffi.new("ifs_pixel_transform *")
        c.order = choice("order", order, _ORDERS)
        c.layout = choice("layout", layout, LAYOUTS)
        try:
            self._dtype = np.dtype(dtype)
            c.dtype = _DTYPES[self._dtype]
        except (KeyError, TypeError, ValueError):
            raise DTypeError(f"dtype is {dtype!r}; use float32, float16 or uint8") from None
        channels = 1 if order == "gray" else 3
        colour = _per_channel("fill", fill, channels)
        if not all(value == int(value) and 0 <= value <= 255 for value in colour):
            raise InputError(f"fill is {fill!r}; use whole numbers from 0 to 255")
        scales = _per_channel("scale", scale, channels)
        biases = _per_channel("bias", bias, channels)
        for i in range(3):
            c.fill[i] = int(colour[i % channels])
            c.scale[i] = scales[i % channels]
            c.bias[i] = biases[i % channels]
        self._c = c

    @classmethod
    def normalize(
        cls,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        max_value: float = 255.0,
        order: Literal["rgb", "bgr", "gray"] = "rgb",
        layout: Literal["chw", "hwc"] = "chw",
        dtype: DTypeLike = "float32",
        fill: int | Sequence[int] = 114,
    ) -> PixelTransform:
        """y = (x / max_value - mean) / std, as scale = 1 / (max_value std) and bias = -mean / std.

        Both are computed in float64 and rounded to float32 once, so the result differs in the last bits from libraries
        that compute three float32 operations. For ImageNet: mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225).
        """
        channels = 1 if order == "gray" else 3
        means, stds = _per_channel("mean", mean, channels), _per_channel("std", std, channels)
        if not all(s > 0 for s in stds):
            raise InputError(f"std is {std!r}; each must be above 0")
        (largest,) = _per_channel("max_value", max_value, 1)
        if not largest > 0:
            raise InputError(f"max_value is {max_value!r}; it must be above 0")
        scale = [1.0 / (largest * s) for s in stds]
        bias = [0.0 - m / s for m, s in zip(means, stds, strict=True)]
        return cls(order, layout, dtype, fill=fill, scale=scale, bias=bias)

    @property
    def order(self) -> str:
        return next(name for name, code in _ORDERS.items() if code == self._c.order)

    @property
    def layout(self) -> str:
        return next(name for name, code in LAYOUTS.items() if code == self._c.layout)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def channels(self) -> int:
        """1 for gray, else 3."""
        return 1 if self._c.order == lib.IFS_ORDER_GRAY else 3

    @property
    def fill(self) -> tuple[int, ...]:
        return tuple(self._c.fill)[: self.channels]

    @property
    def scale(self) -> tuple[float, ...]:
        return tuple(self._c.scale)[: self.channels]

    @property
    def bias(self) -> tuple[float, ...]:
        return tuple(self._c.bias)[: self.channels]

    def shape(self, geometry: Geometry) -> tuple[int, int, int]:
        """The shape of the output of one image."""
        width, height = geometry.canvas
        if self._c.layout == lib.IFS_LAYOUT_CHW:
            return self.channels, height, width
        return height, width, self.channels

    def _key(self) -> bytes:
        return bytes(ffi.buffer(self._c))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, PixelTransform) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        kind: tuple[Any, ...] = self.order, self.layout, self.dtype
        numbers: dict[str, Any] = {"fill": self.fill, "scale": self.scale, "bias": self.bias}
        return partial(PixelTransform, *kind, **numbers), ()

    def __repr__(self) -> str:
        numbers = f"fill={self.fill}, scale={self.scale}, bias={self.bias}"
        return f"PixelTransform({self.order!r}, {self.layout!r}, {str(self.dtype)!r}, {numbers})"


def _per_channel(what: str, value: float | Sequence[float], channels: int) -> list[float]:
    """`value` as one finite float for each channel."""
    try:
        each = [value] * channels if np.ndim(value) == 0 else value
        numbers = [float(number) for number in cast("Sequence[float]", each)]
    except (OverflowError, TypeError, ValueError):
        raise InputError(f"{what} is {value!r}; use one number, or {channels}") from None
    if len(numbers) != channels:
        raise InputError(f"{what} has {len(numbers)} numbers, but the output has {channels} channels")
    if not all(abs(number) < 3.4e38 for number in numbers):
        raise InputError(f"{what} is {value!r}; numbers must be finite in float32")
    return numbers
