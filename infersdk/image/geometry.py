"""Where the pixels of an image go on a network's canvas, and the map back to the image."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core._lib import check, ffi, lib
from ..core.tensor_spec import as_numbers
from ..errors import InputError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Geometry"]

_INT32_MAX = 2**31 - 1


def size_of(what: str, size: SupportsIndex | Sequence[int]) -> tuple[int, int]:
    """(width, height) of a size, or of the side of a square."""
    with suppress(TypeError):
        size = (index(size),) * 2  # type: ignore[arg-type]
    return _size(what, size)  # type: ignore[arg-type]


def _size(what: str, size: Sequence[int]) -> tuple[int, int]:
    """`size` as (width, height). The core checks the limits; here they only have to fit int32."""
    try:
        width, height = map(index, size)
    except (TypeError, ValueError):
        raise InputError(f"{what} is {size!r}; use (width, height), two whole numbers") from None
    if not (-_INT32_MAX <= width <= _INT32_MAX and -_INT32_MAX <= height <= _INT32_MAX):
        raise InputError(f"{what} is {width} x {height}; a side can be at most 2**20 pixels")
    return width, height


class Geometry:
    """Where the pixels of an image go on the network's canvas, and the map back to the image. Immutable.

    The class methods create geometries. Every size is (width, height), and every side 1 to 2**20 pixels; they raise
    InputError for other sizes.
    """

    __slots__ = ("_c",)

    _c: Any  # ifs_geometry *

    def __init__(self) -> None:
        raise TypeError("create a Geometry by letterbox, letterbox_warp, stretch, resize, resize_crop or affine")

    @classmethod
    def _make(cls, function: Any, *args: Any) -> Geometry:
        geometry = cls.__new__(cls)
        geometry._c = ffi.new("ifs_geometry *")
        check(function(*args, geometry._c))
        return geometry

    @classmethod
    def letterbox(cls, source: Sequence[int], canvas: Sequence[int], *, scale_up: bool = True) -> Geometry:
        """YOLOv5's letterbox: the whole image with its proportions, centred, resized as OpenCV does.

        The scale is r = min(canvas_h / h, canvas_w / w), at most 1 unless `scale_up`, and the size round(w r) x
        round(h r). An odd pixel of padding goes to the right or the bottom.
        """
        args = (*_size("source", source), *_size("canvas", canvas), int(scale_up))
        return cls._make(lib.held_ifs_geometry_letterbox, *args)

    @classmethod
    def letterbox_warp(cls, source: Sequence[int], canvas: Sequence[int], *, scale_up: bool = True) -> Geometry:
        """The letterbox without rounding to whole pixels: one scale for both axes, sampled bilinearly."""
        args = (*_size("source", source), *_size("canvas", canvas), int(scale_up))
        return cls._make(lib.held_ifs_geometry_letterbox_warp, *args)

    @classmethod
    def stretch(cls, source: Sequence[int], canvas: Sequence[int]) -> Geometry:
        """The whole image over the whole canvas; its proportions may change."""
        return cls._make(lib.held_ifs_geometry_stretch, *_size("source", source), *_size("canvas", canvas))

    @classmethod
    def resize(
        cls, source: Sequence[int], canvas: Sequence[int], resized: Sequence[int], offset: Sequence[int] = (0, 0)
    ) -> Geometry:
        """Any size at any offset: the image is resized to `resized`, with its corner at `offset` on the canvas."""
        sizes = (*_size("source", source), *_size("canvas", canvas), *_size("resized", resized))
        return cls._make(lib.held_ifs_geometry_resize, *sizes, *_size("offset", offset))

    @classmethod
    def resize_crop(cls, source: Sequence[int], resize: int, crop: Sequence[int]) -> Geometry:
        """The shorter side to `resize`, then the centre of size `crop`: torchvision's Resize and CenterCrop."""
        size = _size("source", source)
        shorter, _ = _size("resize", (resize, 1))
        return cls._make(lib.held_ifs_geometry_resize_crop, *size, shorter, *_size("crop", crop))

    @classmethod
    def affine(cls, source: Sequence[int], canvas: Sequence[int], to_source: ArrayLike) -> Geometry:
        """Any affine map, sampled bilinearly: `to_source` is 2 x 3 and maps canvas to source in edge coordinates.

        A matrix for pixel centres (as cv2.warpAffine with WARP_INVERSE_MAP takes it) becomes one for edges by
        m[:, 2] += 0.5 - 0.5 * (m[:, 0] + m[:, 1]).

        Raises:
            InputError: `to_source` is no array of numbers, or the map is not finite or cannot be inverted.
            ShapeError: `to_source` is not 2 x 3.
        """
        try:
            matrix = np.ascontiguousarray(to_source, dtype=np.float64)
        except (OverflowError, TypeError, ValueError):
            raise InputError(f"to_source is {to_source!r}; use an array of (2, 3) numbers") from None
        if matrix.shape != (2, 3):
            raise ShapeError(f"to_source has shape {matrix.shape}; an affine map has (2, 3)")
        numbers = ffi.from_buffer("double[]", matrix)
        return cls._make(lib.held_ifs_geometry_affine, *_size("source", source), *_size("canvas", canvas), numbers)

    @property
    def kind(self) -> Literal["resize", "warp"]:
        """How pixels are sampled: by OpenCV's INTER_LINEAR resize, or bilinearly through the affine map."""
        return "resize" if self._c.kind == lib.IFS_GEOMETRY_RESIZE else "warp"

    @property
    def source(self) -> tuple[int, int]:
        """(width, height) of the image."""
        return self._c.source_width, self._c.source_height

    @property
    def canvas(self) -> tuple[int, int]:
        """(width, height) of the network's input."""
        return self._c.canvas_width, self._c.canvas_height

    @property
    def resized(self) -> tuple[int, int] | None:
        """(width, height) of the resized image; None for a warp."""
        return (self._c.resized_width, self._c.resized_height) if self.kind == "resize" else None

    @property
    def offset(self) -> tuple[int, int] | None:
        """(x, y) of the resized image's corner on the canvas, negative where it is cropped; None for a warp."""
        return (self._c.offset_x, self._c.offset_y) if self.kind == "resize" else None

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The (2, 3) affine map from canvas to source, in edge coordinates."""
        return np.array(list(self._c.to_source), dtype=np.float64).reshape(2, 3)

    def to_source(self, points: ArrayLike) -> NDArray[np.float64]:
        """Maps canvas points (N, 2) to points of the image (N, 2), in float64. They are not clipped."""
        xy = as_numbers("points", points, np.float64)
        if xy.ndim != 2 or xy.shape[1] != 2:
            raise ShapeError(f"points have shape {xy.shape}; use (N, 2), a row of x and y for each point")
        matrix = self.matrix
        mapped: NDArray[np.float64] = xy @ matrix[:, :2].T + matrix[:, 2]
        return mapped

    def _key(self) -> tuple[Any, ...]:
        return self._c.kind, self.source, self.canvas, self.resized, self.offset, tuple(self._c.to_source)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Geometry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        if self.kind == "warp":
            return Geometry.affine, (self.source, self.canvas, self.matrix)
        return Geometry.resize, (self.source, self.canvas, self.resized, self.offset)

    def __repr__(self) -> str:
        size = "{} x {}".format(*self.source), "{} x {}".format(*self.canvas)
        if self.resized and self.offset:
            how = "resized to {} x {} at ({}, {})".format(*self.resized, *self.offset)
        else:
            how = f"warped by {self.matrix.tolist()}"
        return f"<Geometry {size[0]} -> {size[1]}, {how}>"
