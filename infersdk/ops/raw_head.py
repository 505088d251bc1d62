"""From the maps of a network that ends at the convolutions of its head to boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core._lib import Handle, check, ffi, lib, returned
from ..errors import DTypeError, InputError, ShapeError
from .detection import DetectStats, decoded, detect_params, int32

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from .detection import HasGeometry

__all__ = ["GridLevel", "RawHeadDecoder"]

#: How many maps a level of a head has.
_MAPS = {"yolov5": 1, "yolov8": 2}


class GridLevel(NamedTuple):
    """One level of a raw head."""

    width: int
    """Columns of its maps."""
    height: int
    """Rows of its maps."""
    stride: int
    """Pixels of the canvas from cell to cell."""
    anchors: Sequence[tuple[float, float]] = ()
    """Of "yolov5": the width and height of each box of a cell, in pixels of the canvas."""
    weights: npt.NDArray[np.float32] | None = None
    """Of "yolov5": where the features stand in place of the map, the weights `[channels of the map, features]` of the
    convolution of 1 x 1 that would make the map."""
    bias: npt.NDArray[np.float32] | None = None
    """Its biases, `[channels of the map]`; None: zeros."""


class RawHeadDecoder(Handle):
    """Decodes one image's maps, as `DetectionDecoder` decodes the output that the network would make of them.

    Scores are compared as logits, and boxes below the threshold are not computed. Boxes, scores and statistics differ
    from those of the decoded output by the rounding of exponentials alone.

    Args:
        head: "yolov5": one map a level, `[anchors * (5 + num_classes + extra), height, width]`: centre
            `(2 s(xy) - 0.5 + cell) * stride`, size `(2 s(wh))^2 * anchor`, score `s(objectness) * s(class)`, with s for
            the sigmoid. "yolov8" (YOLO11 too): two maps a level,
            `[4 * len(bins), height, width]` and `[num_classes, height, width]`: the distances of the edges from the
            centre of the cell are `sum(softmax(logits) * bins) * stride`, score `s(class)`. A level of "yolov5" with
            weights takes its features in place of its map, `[features, height, width]`: only the values of boxes whose
            objectness is above the threshold are computed of them.
        num_classes: Classes of the head.
        levels: In the order of the rows of the decoded output.
        bins: Of "yolov8": the values of a distance, in cells.
        settings: As `DetectionDecoder` takes them: conf, iou, max_det, max_candidates, multi_label, class_agnostic,
            classes, dtype (of the maps), and extra for "yolov5".

    Raises:
        InputError: A parameter is out of range; the message names it.
        ShapeError, DTypeError: Weights or biases of a level are of another shape or type.

    The field `row` of a detection is its row in the decoded output: levels, then anchors, then positions. One thread
    uses a decoder at a time. `close()`, or the end of a `with` block, frees the native memory.
    """

    def __init__(
        self, head: str, num_classes: int, levels: Sequence[GridLevel], *, bins: Sequence[float] = (), **settings: Any
    ) -> None:
        if head not in _MAPS:
            raise InputError(f"head {head!r} has no raw form; use one of {', '.join(_MAPS)}")
        rows = sum(level.width * level.height * max(len(level.anchors), 1) for level in levels)
        self._params, self._class_mask = detect_params(head, num_classes, rows, **settings)
        values = 5 + num_classes + int(settings.get("extra", 0))
        raw, held = _raw_head(head, levels, bins, values)
        handle = returned("ifs_detection_decoder *", lib.ifs_detection_decoder_create_raw, self._params, raw)
        self._own(handle, lib.ifs_detection_decoder_destroy)
        del held  # the decoder has copied them

        self._dtype = np.dtype(settings.get("dtype", "float32"))
        self._shapes = tuple(
            (channels, level.height, level.width)
            for level in levels
            for channels in ([_channels(level, values)] if head == "yolov5" else [4 * len(bins), num_classes])
        )
        limit = rows * num_classes if self._params.multi_label else rows
        self._maps = ffi.new("void *[]", len(self._shapes))
        self._out = ffi.new("ifs_detection[]", min(self._params.max_detections, limit))
        self._count, self._stats = ffi.new("int32_t *"), ffi.new("ifs_detect_stats *")

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """The shape of each map of one image, or of the features in its place."""
        return self._shapes

    def __call__(
        self, maps: Sequence[npt.NDArray[Any]], geometry: HasGeometry
    ) -> tuple[npt.NDArray[np.void], DetectStats]:
        """Decodes the maps of one image to boxes, best first.

        Args:
            maps: Arrays of `shapes` and of the decoder's element type, in C order: maps, or features in their place.
            geometry: How the image came to the network.

        Returns:
            As `DetectionDecoder` does.

        Raises:
            ClosedError, ShapeError, DTypeError, InputError.
        """
        handle = self._open
        if len(maps) != len(self._shapes):
            raise ShapeError(f"{len(maps)} maps were given, and the decoder was made for {len(self._shapes)}")
        held = [self._address(index, array) for index, array in enumerate(maps)]
        for index, address in enumerate(held):
            self._maps[index] = address
        count, stats = self._count, self._stats
        check(lib.ifs_detection_decoder_run_raw(handle, self._maps, geometry._c, self._out, count, stats))
        return decoded(self._out, count, stats)

    def _address(self, index: int, array: npt.NDArray[Any]) -> Any:
        if array.dtype != self._dtype:
            raise DTypeError(f"map {index} is {array.dtype}, but the decoder was made for {self._dtype}")
        if array.shape != self._shapes[index]:
            raise ShapeError(f"map {index} has shape {array.shape}, but the decoder was made for {self._shapes[index]}")
        try:
            return ffi.from_buffer(array)
        except ValueError:  # what NumPy raises for any other order
            raise InputError(f"map {index} is not in C order; pass np.ascontiguousarray(map)") from None


def _channels(level: GridLevel, values: int) -> int:
    """The channels of a level of YOLOv5: its features, or `values` of each box."""
    return len(level.anchors) * values if level.weights is None else int(level.weights.shape[1])


def _raw_head(head: str, levels: Sequence[GridLevel], bins: Sequence[float], values: int) -> tuple[Any, list[Any]]:
    """The `ifs_raw_head *` of these levels, and what has to live as long.

    Raises:
        InputError: there are too many of something.
        ShapeError, DTypeError: weights are not those of a level.
    """
    raw, held = ffi.new("ifs_raw_head *"), []
    if not 0 < len(levels) <= lib.IFS_MAX_LEVELS:
        raise InputError(f"levels has {len(levels)} of them; give 1 to {lib.IFS_MAX_LEVELS}")
    if len(bins) > lib.IFS_MAX_BINS:
        raise InputError(f"bins has {len(bins)} numbers; give at most {lib.IFS_MAX_BINS}")
    raw.num_levels, raw.num_bins = len(levels), len(bins)
    for index, value in enumerate(bins):
        raw.bins[index] = value
    for index, level in enumerate(levels):
        if len(level.anchors) > lib.IFS_MAX_CELL_ANCHORS or (level.anchors and head != "yolov5"):
            raise InputError(
                f"levels[{index}] has {len(level.anchors)} anchors; give 1 to {lib.IFS_MAX_CELL_ANCHORS} for yolov5, "
                "and none for yolov8"
            )
        one = raw.levels[index]
        for name in ("width", "height", "stride"):
            setattr(one, name, int32(f"levels[{index}].{name}", getattr(level, name)))
        one.num_anchors = len(level.anchors) if head == "yolov5" else 1
        for number, side in enumerate(side for anchor in level.anchors for side in anchor):
            one.anchors[number] = side
        if level.weights is not None and head != "yolov5":
            raise InputError(f"levels[{index}] has weights; {head} takes maps")
        if level.weights is None and level.bias is not None:
            raise InputError(f"levels[{index}] has a bias, and no weights; give both, or neither for a map")
        if level.weights is not None:
            one.num_features, one.weights, one.bias = _weights(index, level, len(level.anchors) * values)
            held.append((one.weights, one.bias))
    return raw, held


def _weights(index: int, level: GridLevel, channels: int) -> tuple[int, Any, Any]:
    """The number of features, and the numbers of the convolution behind them.

    Raises:
        ShapeError, DTypeError: they do not make this many channels, or are no float32.
    """
    weights, bias = level.weights, level.bias
    assert weights is not None
    if weights.ndim != 2 or weights.shape[0] != channels or not weights.shape[1]:
        raise ShapeError(f"levels[{index}].weights has shape {weights.shape}; it must be ({channels}, features)")
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"levels[{index}].bias has shape {bias.shape}; it must be ({channels},)")
    for name, array in (("weights", weights), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise DTypeError(f"levels[{index}].{name} is {array.dtype}; it must be float32")
    first, second = (
        ffi.NULL if array is None else ffi.from_buffer("float[]", np.ascontiguousarray(array))
        for array in (weights, bias)
    )
    return weights.shape[1], first, second
