"""From a detection network's output to boxes: decoding, NMS, and mapping back to the image."""

from __future__ import annotations

import operator
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core._lib import Handle, check, choice, ffi, int32, lib, returned
from ..core.tensor_spec import aligned, float_code
from ..errors import DTypeError, InputError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["DETECTION", "DetectStats", "DetectionDecoder", "GridLevel", "RawHeadDecoder"]

DETECTION = np.dtype([("xyxy", "<f4", (4,)), ("score", "<f4"), ("class_id", "<i4"), ("row", "<i4")])
"""One detection: edges in pixels of the image, score, class, and the index of its anchor in the output. The layout of
`ifs_detection`.
"""

if DETECTION.itemsize != ffi.sizeof("ifs_detection"):  # pragma: no cover
    raise ImportError(f"DETECTION has {DETECTION.itemsize} bytes, ifs_detection {ffi.sizeof('ifs_detection')}")

_HEADS = {name: getattr(lib, f"IFS_DETECT_HEAD_{name.upper()}") for name in ("yolov5", "yolov8", "yolox")}
_RAW_HEADS = ("yolov5", "yolov8")
_INT64S = ffi.typeof("int64_t *")
_BOXES, _COUNT, _STATS = map(ffi.typeof, ("ifs_detection[]", "int32_t *", "ifs_detect_stats *"))
_new = ffi.new_allocator(should_clear_after_alloc=False)  # the core writes all that is read


class DetectStats(NamedTuple):
    """What became of the candidates of one image, so that no limit drops them silently."""

    candidates: int
    """Candidates above the confidence threshold."""
    dropped_candidates: int
    """Candidates dropped by `max_candidates`."""
    kept: int
    """Detections that NMS kept."""
    dropped_detections: int
    """Kept detections dropped by `max_det`."""


class _Decoder(Handle):
    """The parameters of both decoders, and the call of the native one. For the arguments see `DetectionDecoder`."""

    def __init__(
        self,
        head: str = "yolov5",
        num_classes: int = 80,
        num_anchors: int = 25200,
        extra: int = 0,
        *,
        conf: float = 0.25,
        iou: float = 0.45,
        max_det: int = 300,
        max_candidates: int = 30000,
        multi_label: bool = False,
        class_agnostic: bool = False,
        strides: Sequence[int] = (),
        classes: Iterable[int] | None = None,
        dtype: npt.DTypeLike = "float32",
    ) -> None:
        if len(strides) > lib.IFS_MAX_STRIDES:
            raise InputError(f"strides has {len(strides)} numbers; use at most {lib.IFS_MAX_STRIDES}")
        params = self._params = ffi.new("ifs_detect_params *")
        params.head = choice("head", head, _HEADS)
        params.dtype = float_code("dtype is", dtype)
        params.num_classes = int32("num_classes", num_classes)
        params.num_anchors = int32("num_anchors", num_anchors)
        params.num_extra = int32("extra", extra, 0)
        params.multi_label = bool(multi_label)
        params.class_agnostic = bool(class_agnostic)
        params.max_candidates = int32("max_candidates", max_candidates)
        params.max_detections = int32("max_det", max_det, 1)
        params.conf_threshold = fraction("conf", conf)
        params.iou_threshold = fraction("iou", iou)
        params.num_strides = len(strides)
        for i, stride in enumerate(strides):
            params.strides[i] = int32(f"strides[{i}]", stride)
        # The C struct points to it; `ifs_cuda_detection_decoder_create` reads it too.
        self._class_mask = None if classes is None else _class_mask(classes, num_classes)
        if self._class_mask is not None:
            params.class_mask = self._class_mask
        self.dtype = np.dtype(dtype)
        # Of the fields, which are Python's ints: a product of NumPy's would wrap around.
        most = params.num_anchors * (params.num_classes if params.multi_label else 1)
        self._capacity = min(params.max_detections, most)
        self._own(self._create(), lib.ifs_detection_decoder_destroy)

    @abstractmethod
    def _create(self) -> Any:
        """The native decoder."""

    def _address(self, name: str, array: npt.NDArray[Any], *shapes: tuple[int, ...]) -> Any:
        """The first element of an array, checked."""
        if array.dtype != self.dtype:
            raise DTypeError(f"{name} is {array.dtype}, but the decoder was made for {self.dtype}")
        if array.shape not in shapes:
            raise ShapeError(f"{name} has shape {array.shape}, but the decoder was made for {shapes[0]}")
        if not array.flags.aligned:
            raise InputError(f"{name} is not aligned to its elements; pass it through np.array()")
        try:
            return ffi.from_buffer(array)
        except ValueError:  # what NumPy raises for any other order
            raise InputError(f"{name} is not in C order; pass it through np.ascontiguousarray()") from None

    def _decode(
        self, run: Callable[..., int], source: Any, geometry: Geometry
    ) -> tuple[npt.NDArray[np.void], DetectStats]:
        boxes, count, stats = _new(_BOXES, self._capacity), _new(_COUNT), _new(_STATS)
        if status := run(self._c or self._open, source, geometry._c, boxes, count, stats):
            check(status)
        # A slice and its copy, and the four numbers one by one, would take 50 us more where the caches are cold.
        kept = count[0]
        copy = bytearray(ffi.buffer(boxes, kept * DETECTION.itemsize))
        return np.ndarray(kept, DETECTION, copy), tuple.__new__(DetectStats, ffi.unpack(ffi.cast(_INT64S, stats), 4))


class DetectionDecoder(_Decoder):
    """Decodes one image's output of a head, runs NMS, and maps the boxes back to the image.

    Args:
        head: How the output is laid out. "yolov5": `[num_anchors, 5 + num_classes + extra]` of cx, cy, w, h,
            objectness and classes, the score being objectness * class. "yolov8" (YOLO11 too):
            `[4 + num_classes + extra, num_anchors]`. "yolox": as "yolov5", with boxes that are still offsets to the
            cells of the grids of `strides`.
        num_classes: Classes of the head.
        num_anchors: Boxes that the head gives; 25200 for YOLOv5 at 640 x 640.
        extra: Numbers of an anchor behind its classes: mask coefficients, keypoints. They are not decoded; the field
            `row` of a detection says at which anchor they stand.
        conf: The threshold that objectness and score must exceed.
        iou: A better box suppresses another one if their intersection over union exceeds it.
        max_det: The limit on the number of boxes returned.
        max_candidates: The number of best candidates that NMS takes; 0 is all.
        multi_label: Return a box for each class above `conf`, instead of one for the best class.
        class_agnostic: Let boxes of different classes suppress one another too.
        strides: For "yolox" only: the strides in the order of its grids, (8, 16, 32).
        classes: The classes that count, by number; None: all. The others have no scores: their boxes take part in
            nothing, neither in the best class of an anchor, nor in NMS, nor in `max_det`.
        dtype: The element type of the output, float32 or float16.

    Attributes:
        shape: The shape of the output of one image.
        dtype: The element type of the output.

    Raises:
        InputError: A parameter is out of range; the message names it.

    One thread uses a decoder at a time. `close()`, or the end of a `with` block, frees the native memory.
    """

    def _create(self) -> Any:
        params = self._params
        numbers = params.num_classes + params.num_extra
        channel_first = params.head == lib.IFS_DETECT_HEAD_YOLOV8
        self.shape = (4 + numbers, params.num_anchors) if channel_first else (params.num_anchors, 5 + numbers)
        self._shapes = self.shape, (1, *self.shape)
        return returned("ifs_detection_decoder *", lib.ifs_detection_decoder_create, params)

    def __call__(self, output: npt.NDArray[Any] | int, geometry: Geometry) -> tuple[npt.NDArray[np.void], DetectStats]:
        """Decodes the output of one image to boxes, best first.

        Args:
            output: An array of `shape` (or `(1, *shape)`) and `dtype`, in C order; or the address of its first element.
            geometry: How the image came to the network.

        Returns:
            A fresh array of `DETECTION` in pixels of the image, clipped to it, and what became of the candidates. The
            extra numbers of the detections `found` are `output[found["row"], 5 + num_classes:]`, of "yolov8"
            `output[4 + num_classes:, found["row"]]`.

        Raises:
            ClosedError, ShapeError, DTypeError, InputError.
            InUseError: another thread uses the decoder.
        """
        if isinstance(output, np.ndarray):
            first = self._address("the output", output, *self._shapes)
        else:
            try:
                first = ffi.cast("void *", operator.index(output))
            except TypeError:
                kind = type(output).__name__
                raise InputError(
                    f"the output is a {kind}; pass an array, or the address of its first element"
                ) from None
        return self._decode(lib.ifs_detection_decoder_run, first, geometry)


def _class_mask(classes: Iterable[int], num_classes: int) -> Any:
    """A byte for each class: 1 if it counts."""
    mask = bytearray(max(num_classes, 0))
    for class_id in classes:
        if not 0 <= int32("a class", class_id) < num_classes:
            raise InputError(f"classes has {class_id}, but the head has {num_classes} classes, from 0")
        mask[class_id] = 1
    if not any(mask):
        raise InputError("classes has no class; give one or more, or None for all")
    return ffi.new("uint8_t[]", bytes(mask))


def fraction(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise InputError(f"{name} is {value:g}; it must be 0 to 1")
    return value


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


class RawHeadDecoder(_Decoder):
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

    Attributes:
        shapes: The shape of each map of one image, or of the features in its place.
        dtype: The element type of the maps.

    Raises:
        InputError: A parameter is out of range; the message names it.
        ShapeError, DTypeError: Weights or biases of a level are of another shape or type.

    The field `row` of a detection is its row in the decoded output: levels, then anchors, then positions. One thread
    uses a decoder at a time. `close()`, or the end of a `with` block, frees the native memory.
    """

    def __init__(
        self, head: str, num_classes: int, levels: Sequence[GridLevel], *, bins: Sequence[float] = (), **settings: Any
    ) -> None:
        if head not in _RAW_HEADS:
            raise InputError(f"head {head!r} has no raw form; use one of {', '.join(_RAW_HEADS)}")
        self._form = head, levels, bins
        rows = sum(level.width * level.height * max(len(level.anchors), 1) for level in levels)
        super().__init__(head, num_classes, rows, **settings)

    def _create(self) -> Any:
        head, levels, bins = self._form
        num_classes = self._params.num_classes
        values = 5 + num_classes + self._params.num_extra
        raw, held = _raw_head(head, levels, bins, values)
        handle = returned("ifs_detection_decoder *", lib.ifs_detection_decoder_create_raw, self._params, raw)
        del self._form, held  # the decoder has copied the weights
        self.shapes = tuple(
            (channels, level.height, level.width)
            for level in levels
            for channels in ([_channels(level, values)] if head == "yolov5" else [4 * len(bins), num_classes])
        )
        return handle

    def __call__(
        self, maps: Sequence[npt.NDArray[Any]], geometry: Geometry
    ) -> tuple[npt.NDArray[np.void], DetectStats]:
        """Decodes the maps of one image to boxes, best first.

        Args:
            maps: Arrays of `shapes` and of the decoder's element type, in C order: maps, or features in their place.
            geometry: How the image came to the network.

        Returns:
            As `DetectionDecoder` does.

        Raises:
            ClosedError, ShapeError, DTypeError, InputError.
            InUseError: another thread uses the decoder.
        """
        if len(maps) != len(self.shapes):
            raise ShapeError(f"{len(maps)} maps were given, and the decoder was made for {len(self.shapes)}")
        held = [self._address(f"map {i}", array, self.shapes[i]) for i, array in enumerate(maps)]
        return self._decode(lib.ifs_detection_decoder_run_raw, held, geometry)


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
        if len(level.anchors) > (lib.IFS_MAX_CELL_ANCHORS if head == "yolov5" else 0):
            raise InputError(
                f"levels[{index}] has {len(level.anchors)} anchors; give 1 to {lib.IFS_MAX_CELL_ANCHORS} for yolov5, "
                "and none for yolov8"
            )
        if any(len(anchor) != 2 for anchor in level.anchors):
            raise InputError(f"levels[{index}].anchors is {level.anchors!r}; an anchor is (width, height)")
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
            features, *pointers = _weights(index, level, len(level.anchors) * values)
            one.num_features, (one.weights, one.bias) = features, pointers
            held += pointers  # a pointer in a struct does not keep its memory alive
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
        ffi.NULL if array is None else ffi.from_buffer("float[]", aligned(np.ascontiguousarray(array)))
        for array in (weights, bias)
    )
    return weights.shape[1], first, second
