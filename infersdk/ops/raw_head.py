"""From the maps of a network that ends at the convolutions of its head to boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._lib import check, ffi, lib
from ..errors import DTypeError, InputError, ShapeError
from ..memory import Handle
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
    channels_last: bool = False
    """Of "yolov5": whether its map is `[height, width, channels]`."""


class RawHeadDecoder(Handle):
    """Decodes one image's maps, as `DetectionDecoder` decodes the output that the network would make of them.

    A score is compared as a logit, and what is below the threshold is not computed at all. Boxes, scores and statistics
    are those of the decoded output but for the rounding of its exponentials.

    Args:
        head: "yolov5": one map a level, `[anchors * (5 + num_classes + extra), height, width]`, or with these channels
            last: centre `(2 s(xy) - 0.5 + cell) * stride`, size `(2 s(wh))^2 * anchor`, score
            `s(objectness) * s(class)`, with s for the sigmoid. "yolov8" (YOLO11 too): two maps a level,
            `[4 * len(bins), height, width]` and `[num_classes, height, width]`: the distances of the edges from the
            centre of the cell are `sum(softmax(logits) * bins) * stride`, score `s(class)`.
        num_classes: Classes of the head.
        levels: In the order of the rows of the decoded output.
        bins: Of "yolov8": the values of a distance, in cells.
        settings: As `DetectionDecoder` takes them: conf, iou, max_det, max_candidates, multi_label, class_agnostic,
            classes, dtype (of the maps), and extra for "yolov5".

    Raises:
        InputError: A parameter is out of range; the message names it.

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
        raw = _raw_head(head, levels, bins)
        handle = ffi.new("ifs_detection_decoder **")
        check(lib.ifs_detection_decoder_create_raw(self._params, raw, handle))
        self._own(handle[0], lib.ifs_detection_decoder_destroy)

        self._dtype = np.dtype(settings.get("dtype", "float32"))
        values = 5 + num_classes + int(settings.get("extra", 0))
        self._shapes = tuple(
            (level.height, level.width, channels) if level.channels_last else (channels, level.height, level.width)
            for level in levels
            for channels in ([len(level.anchors) * values] if head == "yolov5" else [4 * len(bins), num_classes])
        )
        limit = rows * num_classes if self._params.multi_label else rows
        self._maps = ffi.new("void *[]", len(self._shapes))
        self._out = ffi.new("ifs_detection[]", min(self._params.max_detections, limit))
        self._count, self._stats = ffi.new("int32_t *"), ffi.new("ifs_detect_stats *")

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """The shape of each map of one image."""
        return self._shapes

    def __call__(
        self, maps: Sequence[npt.NDArray[Any]], geometry: HasGeometry
    ) -> tuple[npt.NDArray[np.void], DetectStats]:
        """Decodes the maps of one image to boxes, best first.

        Args:
            maps: Arrays of `shapes` and of the decoder's element type, in C order.
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


def _raw_head(head: str, levels: Sequence[GridLevel], bins: Sequence[float]) -> Any:
    """The `ifs_raw_head *` of these levels.

    Raises:
        InputError: there are too many of something.
    """
    raw = ffi.new("ifs_raw_head *")
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
        one.channels_last = level.channels_last
        for number, side in enumerate(side for anchor in level.anchors for side in anchor):
            one.anchors[number] = side
    return raw
