"""Instance masks: from mask coefficients and prototypes to masks of the image, one bit for each pixel.

::

    found, stats = decoder(output, geometry)                    # a DetectionDecoder with extra=32
    coefficients = output[4 + num_classes :, found["row"]].T    # YOLOv8's layout
    masks = assemble_masks(prototypes, coefficients, found, geometry)
    masks[0]                                                    # (height, width) of bool
    masks.runs(0)                                               # COCO's run lengths
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core._lib import check, ffi, lib
from ..errors import DTypeError, InputError, ShapeError
from .detection import DETECTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ..image import Geometry
    from .batch import Workers

__all__ = ["MASK", "PackedMasks", "assemble_masks"]

MASK = np.dtype(
    [
        ("x", "<i4"), ("y", "<i4"), ("width", "<i4"), ("height", "<i4"),
        ("stride", "<i4"), ("reserved", "<i4"), ("offset", "<i8"),
    ]
)  # fmt: skip
"""The layout of one mask: its crop in pixels of the image, and where its bits are. The layout of `ifs_mask`."""

_DTYPES = {np.dtype(np.float32).str: lib.IFS_FLOAT32, np.dtype(np.float16).str: lib.IFS_FLOAT16}


class PackedMasks:
    """The masks of one image. Each holds the pixels of its crop, one bit for each.

    Args:
        size: (width, height) of the image.
        layout: An array of `MASK`.
        bits: The bytes that the layout refers to, uint8.
    """

    def __init__(self, size: tuple[int, int], layout: npt.NDArray[np.void], bits: npt.NDArray[np.uint8]) -> None:
        self.size, self.layout, self.bits = size, layout, bits

    def __len__(self) -> int:
        return len(self.layout)

    def __getitem__(self, index: int) -> npt.NDArray[np.bool_]:
        """A mask as an array of bool, (height, width) of the image.

        Raises:
            IndexError: There is no such mask.
        """
        mask = self.layout[operator.index(index)]
        whole = np.zeros(self.size[::-1], np.bool_)
        x, y = int(mask["x"]), int(mask["y"])
        whole[y : y + int(mask["height"]), x : x + int(mask["width"])] = self.crop(index)
        return whole

    def __iter__(self) -> Iterator[npt.NDArray[np.bool_]]:
        return (self[index] for index in range(len(self)))

    def rows(self, index: int) -> npt.NDArray[np.uint8]:
        """The bytes of a mask: (height, stride) of `layout[index]`."""
        mask = self.layout[operator.index(index)]
        start, height, stride = int(mask["offset"]), int(mask["height"]), int(mask["stride"])
        return self.bits[start : start + height * stride].reshape(height, stride)

    def crop(self, index: int) -> npt.NDArray[np.bool_]:
        """The pixels of a mask within its crop: an array of bool, (height, width) of `layout[index]`."""
        mask = self.layout[operator.index(index)]
        width = int(mask["width"])
        if not width:
            return np.zeros((int(mask["height"]), 0), np.bool_)
        return np.unpackbits(self.rows(index), axis=1, count=width, bitorder="little").view(np.bool_)

    def area(self, index: int) -> int:
        """The number of pixels of a mask."""
        return int(np.unpackbits(self.rows(index)).sum())

    def runs(self, index: int) -> npt.NDArray[np.uint32]:
        """The run lengths of a mask in the image, as COCO defines them: down the columns, first a run of zeros."""
        layout = np.ascontiguousarray(self.layout[operator.index(index)].reshape(1))
        rows = np.ascontiguousarray(self.rows(index))
        mask = ffi.cast("ifs_mask *", ffi.from_buffer(layout))
        count = ffi.new("int64_t *")
        runs = np.empty(2 * int(layout["width"][0]) * (int(layout["height"][0]) + 1) + 2, np.uint32)
        check(
            lib.ifs_mask_runs(
                mask,
                ffi.from_buffer("uint8_t[]", rows),
                *self.size,
                ffi.from_buffer("uint32_t[]", runs, require_writable=True),
                len(runs),
                count,
            )
        )
        lengths: npt.NDArray[np.uint32] = runs[: count[0]].copy()
        return lengths


def assemble_masks(
    prototypes: npt.NDArray[Any],
    coefficients: npt.ArrayLike,
    detections: npt.NDArray[Any],
    geometry: Geometry,
    *,
    threshold: float = 0.5,
    workers: Workers | None = None,
) -> PackedMasks:
    """The masks of the detections of one image.

    A mask is `sigmoid(coefficients @ prototypes)`, resized bilinearly to the network's canvas and, without the padding,
    to the image; cropped to its box; and above the threshold. Both bilinear steps are computed as one, so that values
    differ from theirs by rounding alone.

    Args:
        prototypes: `[coefficients, height, width]`, float32 or float16, in C order.
        coefficients: `[n, coefficients]`; used as float32.
        detections: `[n]` of `DETECTION`, or `[n, 4]` of boxes in pixels of the image.
        geometry: How the image came to the network.
        threshold: The value that a pixel of a mask exceeds; at least 0, below 1.
        workers: Threads that divide the masks among them; None is the calling thread.

    Raises:
        ShapeError, DTypeError: An array has another shape or type.
        InputError: The threshold is out of range.
        NativeError: The geometry rotates or shears the image.
    """
    prototypes = np.asarray(prototypes)
    if prototypes.dtype.str not in _DTYPES:
        raise DTypeError(f"prototypes are {prototypes.dtype}; use float32 or float16")
    if prototypes.ndim != 3:
        raise ShapeError(f"prototypes have shape {prototypes.shape}; use (coefficients, height, width)")
    if not prototypes.flags.c_contiguous:
        raise InputError("prototypes are not in C order; pass np.ascontiguousarray(prototypes)")
    boxes = _as_detections(detections)
    n, num = len(boxes), prototypes.shape[0]
    factors = np.ascontiguousarray(coefficients, np.float32)
    if factors.shape != (n, num):
        raise ShapeError(f"coefficients have shape {factors.shape}; {n} masks of {num} prototypes need {n, num}")
    params = ffi.new("ifs_mask_params *")
    params.dtype = _DTYPES[prototypes.dtype.str]
    params.num_coefficients, params.height, params.width = prototypes.shape
    params.threshold = threshold
    layout, nbytes = np.zeros(n, MASK), ffi.new("size_t *")
    layout_c = ffi.cast("ifs_mask *", ffi.from_buffer(layout))
    boxes_c = ffi.cast("ifs_detection *", ffi.from_buffer(boxes))
    check(lib.ifs_masks_layout(params, geometry._c, boxes_c, n, layout_c, nbytes))
    bits = np.empty(nbytes[0], np.uint8)
    check(
        lib.ifs_masks_assemble(
            ffi.NULL if workers is None else workers._open,
            params,
            ffi.from_buffer(prototypes),
            ffi.from_buffer("float[]", factors),
            geometry._c,
            layout_c,
            n,
            ffi.from_buffer("uint8_t[]", bits, require_writable=True),
            bits.nbytes,
        )
    )
    return PackedMasks(geometry.source, layout, bits)


def _as_detections(detections: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    """`detections` as a dense array of `DETECTION`."""
    result = np.asarray(detections)
    if result.dtype == DETECTION:
        if result.ndim != 1:
            raise ShapeError(f"detections have shape {result.shape}; use (n,)")
        return np.ascontiguousarray(result)
    if result.dtype.kind not in "fiu" or result.ndim != 2 or result.shape[1] != 4:
        raise ShapeError(
            f"detections are {result.dtype} of shape {result.shape}; use (n,) of DETECTION or (n, 4) of boxes"
        )
    boxes = np.zeros(len(result), DETECTION)
    boxes["xyxy"] = result
    return boxes
