"""Instance masks and their outlines: from coefficients and prototypes to masks of the image, a bit for each pixel.

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

from ..core._lib import check, ffi, lib, returned
from ..core.tensor_spec import as_array, as_numbers, float_code
from ..errors import InputError, ShapeError
from .detection import DETECTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ..image import Geometry
    from ..image.batch import Workers

__all__ = ["MASK", "PackedMasks", "assemble_masks", "mask_polygons"]

MASK = np.dtype(
    [
        ("x", "<i4"), ("y", "<i4"), ("width", "<i4"), ("height", "<i4"),
        ("stride", "<i4"), ("reserved", "<i4"), ("offset", "<i8"),
    ]
)  # fmt: skip
"""The layout of one mask: its crop in pixels of the image, and where its bits are. The layout of `ifs_mask`."""


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
        width = int(self.layout[operator.index(index)]["width"])
        return np.unpackbits(self.rows(index), axis=1, count=width, bitorder="little").view(np.bool_)

    def area(self, index: int) -> int:
        """The number of pixels of a mask."""
        return int(np.unpackbits(self.rows(index)).sum())

    def runs(self, index: int) -> npt.NDArray[np.uint32]:
        """The run lengths of a mask in the image, as COCO defines them: down the columns, first a run of zeros."""
        layout = np.ascontiguousarray(self.layout[operator.index(index)].reshape(1))
        rows = np.ascontiguousarray(self.rows(index))
        mask = ffi.cast("ifs_mask *", ffi.from_buffer(layout))
        runs = np.empty(2 * int(layout["width"][0]) * (int(layout["height"][0]) + 1) + 2, np.uint32)
        rows_c = ffi.from_buffer("uint8_t[]", rows)
        runs_c = ffi.from_buffer("uint32_t[]", runs, require_writable=True)
        count = returned("int64_t", lib.ifs_mask_runs, mask, rows_c, *self.size, runs_c, len(runs))
        lengths: npt.NDArray[np.uint32] = runs[:count].copy()
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
        InputError: The threshold is out of range, or `coefficients` are no numbers.
        NativeError: The geometry rotates or shears the image.
    """
    prototypes = as_array(prototypes)
    if prototypes.ndim != 3:
        raise ShapeError(f"prototypes have shape {prototypes.shape}; use (coefficients, height, width)")
    if not (prototypes.flags.c_contiguous and prototypes.flags.aligned):
        raise InputError('prototypes are not in C order, or not aligned; pass np.array(prototypes, order="C")')
    boxes = _as_detections(detections)
    n, num = len(boxes), prototypes.shape[0]
    factors = np.ascontiguousarray(as_numbers("coefficients", coefficients, np.float32))
    if factors.shape != (n, num):
        raise ShapeError(f"coefficients have shape {factors.shape}; {n} masks of {num} prototypes need {n, num}")
    params = ffi.new("ifs_mask_params *")
    params.dtype = float_code("prototypes are", prototypes.dtype)
    params.num_coefficients, params.height, params.width = prototypes.shape
    params.threshold = threshold
    layout = np.zeros(n, MASK)
    layout_c = ffi.cast("ifs_mask *", ffi.from_buffer(layout))
    boxes_c = ffi.cast("ifs_detection *", ffi.from_buffer(boxes))
    bits = np.empty(returned("size_t", lib.ifs_masks_layout, params, geometry._c, boxes_c, n, layout_c), np.uint8)
    pool = ffi.NULL if workers is None else workers._open
    numbers = ffi.from_buffer(prototypes), ffi.from_buffer("float[]", factors)
    bits_c = ffi.from_buffer("uint8_t[]", bits, require_writable=True)
    check(lib.ifs_masks_assemble(pool, params, *numbers, geometry._c, layout_c, n, bits_c, bits.nbytes))
    return PackedMasks(geometry.source, layout, bits)


def _as_detections(detections: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    """`detections` as a dense array of `DETECTION`."""
    result = as_array(detections)
    if result.dtype == DETECTION:
        if result.ndim != 1:
            raise ShapeError(f"detections have shape {result.shape}; use (n,)")
        return np.array(result, order="C")  # to NumPy, structures are always aligned
    if result.dtype.kind not in "fiu" or result.ndim != 2 or result.shape[1] != 4:
        raise ShapeError(
            f"detections are {result.dtype} of shape {result.shape}; use (n,) of DETECTION or (n, 4) of boxes"
        )
    boxes = np.zeros(len(result), DETECTION)
    boxes["xyxy"] = result
    return boxes


def mask_polygons(
    mask: npt.ArrayLike, *, offset: tuple[int, int] = (0, 0), tolerance: float = 0.0
) -> list[npt.NDArray[np.float32]]:
    """The outlines of a mask, along the edges of its pixels: filled by the even-odd rule they give the mask exactly.

    An outline runs clockwise around pixels of the mask, the outline of a hole counterclockwise. Pixels that touch by a
    corner alone have outlines of their own.

    Args:
        mask: `[height, width]`; values other than 0 belong to it.
        offset: (x, y) of its first pixel, which is added to all points.
        tolerance: The distance in pixels by which an outline may be off, by the algorithm of Douglas and Peucker; 0
            keeps every corner. An outline of which fewer than three points would be left keeps every corner, too.

    Returns:
        An array of points `[k, 2]` (x, y) for each outline, the one with the largest area first. The last point is
        joined to the first one. An empty mask has no outlines.

    Raises:
        ShapeError: The mask has not two dimensions.
        InputError: The tolerance is negative or not finite.
    """
    pixels = as_array(mask)
    if pixels.ndim != 2:
        raise ShapeError(f"the mask has shape {pixels.shape}; use (height, width)")
    if not 0 <= tolerance < np.inf:
        raise InputError(f"tolerance is {tolerance}; it must be 0 or more, in pixels")
    outlines = [points + offset for points in _outlines(np.pad(pixels != 0, 1))]
    outlines.sort(key=_area, reverse=True)
    if tolerance:
        outlines = [points if len(points := _simplify(one, tolerance)) > 2 else one for one in outlines]
    return [points.astype(np.float32) for points in outlines]


def _outlines(padded: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """The closed chains of corners. `padded` has a border of zeros, whose width is taken off the points.

    Edges have the mask on their right. A corner where two pixels touch diagonally ends two edges and begins two; each
    chain turns right there, so that it stays with its pixel.
    """
    across, down = _edges(padded), _edges(padded.T)
    if not len(across):
        return []
    size = padded.shape[1] + 1
    # Corners by number: y * size + x. The edges of the transposed mask come as (x, y), and run the other way round.
    begin_a, end_a = (across[:, 0] * size + across[:, 1 + i] for i in (0, 1))
    begin_d, end_d = (down[:, 1 + i] * size + down[:, 0] for i in (1, 0))
    right, descends = across[:, 2] > across[:, 1], down[:, 1] > down[:, 2]
    to_down = _followers(end_a, right, begin_d, descends)
    to_across = _followers(end_d, ~descends, begin_a, right)
    following = to_across[to_down].tolist()
    corners = np.stack([begin_a, end_a], 1)
    chains, seen = [], [False] * len(following)
    for first in range(len(following)):
        if seen[first]:
            continue
        chain, edge = [], first
        while not seen[edge]:
            seen[edge] = True
            chain.append(edge)
            edge = following[edge]
        numbers = corners[chain].reshape(-1)
        chains.append(np.stack([numbers % size, numbers // size], 1))
    return chains


def _edges(padded: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The straight edges between rows of pixels: rows of (y, x of the begin, x of the end), the mask on the right."""
    above, below = padded[:-1], padded[1:]
    edge = (below.astype(np.int8) - above).astype(np.int8)  # 1: the mask is below; -1: it is above
    change = np.diff(edge, axis=1)
    y, x = np.nonzero(change)
    before, after = edge[y, x], edge[y, x + 1]
    begins, ends = after != 0, before != 0
    begin, end = np.stack([y, x], 1)[begins], np.stack([y, x], 1)[ends]  # in rows, both go from left to right
    rightward = after[begins] > 0
    first, last = np.where(rightward, begin[:, 1], end[:, 1]), np.where(rightward, end[:, 1], begin[:, 1])
    return np.stack([begin[:, 0], first, last], 1)


def _followers(
    ends: npt.NDArray[np.int64],
    prefers: npt.NDArray[np.bool_],
    begins: npt.NDArray[np.int64],
    forward: npt.NDArray[np.bool_],
) -> npt.NDArray[np.intp]:
    """The edge that begins where each edge ends; of two, the one whose direction is the preferred one."""
    keys = begins * 2 + forward
    order = np.argsort(keys)
    wanted = ends * 2 + prefers
    at = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    missing = keys[order[at]] != wanted
    at[missing] = np.searchsorted(keys, wanted[missing] ^ 1, sorter=order)
    return order[at]


def _area(points: npt.NDArray[np.int64]) -> float:
    x, y = points[:, 0], points[:, 1]
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2


def _simplify(points: npt.NDArray[np.int64], tolerance: float) -> npt.NDArray[np.int64]:
    """A closed outline by Douglas and Peucker's algorithm, divided at its first point and the one farthest from it."""
    far = int(np.argmax(np.square(points - points[0]).sum(1)))
    closed = np.concatenate([points, points[:1]])
    keep = np.zeros(len(closed), bool)
    keep[[0, far, len(points)]] = True
    parts = [(0, far), (far, len(points))]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        start, along = closed[first], (closed[last] - closed[first]).astype(np.float64)
        offsets = closed[first + 1 : last] - start
        length = float(np.hypot(*along))
        if length:
            part = np.clip(offsets @ along / length**2, 0, 1)
            offsets = offsets - part[:, None] * along
        distances = np.hypot(offsets[:, 0], offsets[:, 1])
        worst = int(np.argmax(distances))
        if distances[worst] > tolerance:
            middle = first + 1 + worst
            keep[middle] = True
            parts += [(first, middle), (middle, last)]
    return points[keep[:-1]]
