"""From a detection network's output to boxes: decoding, NMS, and mapping back to the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..core._lib import Handle, check, ffi, lib, returned
from ..errors import DTypeError, InputError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Protocol

    import numpy.typing as npt

    class HasGeometry(Protocol):
        """How an image came to the network, such as an `infersdk.image.Geometry`."""

        _c: Any
        """The `ifs_geometry *`."""


__all__ = ["DETECTION", "DetectStats", "DetectionDecoder", "nms", "nms_groups", "nms_oriented"]

DETECTION = np.dtype([("xyxy", "<f4", (4,)), ("score", "<f4"), ("class_id", "<i4"), ("row", "<i4")])
"""One detection: edges in pixels of the image, score, class, and the index of its anchor in the output. The layout of
`ifs_detection`.
"""

if DETECTION.itemsize != ffi.sizeof("ifs_detection"):  # pragma: no cover
    raise ImportError(f"DETECTION has {DETECTION.itemsize} bytes, ifs_detection {ffi.sizeof('ifs_detection')}")

_HEADS = {
    "yolov5": lib.IFS_DETECT_HEAD_YOLOV5,
    "yolov8": lib.IFS_DETECT_HEAD_YOLOV8,
    "yolox": lib.IFS_DETECT_HEAD_YOLOX,
}
_MATCHES = {"iou": lib.IFS_MATCH_IOU, "smaller": lib.IFS_MATCH_SMALLER}
_DTYPES = {"float32": lib.IFS_FLOAT32, "float16": lib.IFS_FLOAT16}
_INT64S = ffi.typeof("int64_t *")


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


class DetectionDecoder(Handle):
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
        dtype: The element type of the output, "float32" or "float16".

    Raises:
        InputError: A parameter is out of range; the message names it.

    One thread uses a decoder at a time. `close()`, or the end of a `with` block, frees the native memory.
    """

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
        dtype: str = "float32",
    ) -> None:
        params, self._class_mask = detect_params(
            head, num_classes, num_anchors, extra, conf=conf, iou=iou, max_det=max_det, max_candidates=max_candidates,
            multi_label=multi_label, class_agnostic=class_agnostic, strides=strides, classes=classes, dtype=dtype,
        )  # fmt: skip
        self._params = params
        handle = returned("ifs_detection_decoder *", lib.ifs_detection_decoder_create, params)
        self._own(handle, lib.ifs_detection_decoder_destroy)

        self._dtype = np.dtype(dtype)
        numbers = num_classes + extra
        self._shape = (4 + numbers, num_anchors) if head == "yolov8" else (num_anchors, 5 + numbers)
        self._shapes = self._shape, (1, *self._shape)
        limit = num_anchors * num_classes if multi_label else num_anchors
        self._out = ffi.new("ifs_detection[]", min(max_det, limit))
        self._count, self._stats = ffi.new("int32_t *"), ffi.new("ifs_detect_stats *")

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the output of one image."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of the output."""
        return self._dtype

    def __call__(
        self, output: npt.NDArray[Any] | int, geometry: HasGeometry
    ) -> tuple[npt.NDArray[np.void], DetectStats]:
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
        """
        handle = self._c
        if handle is None:
            self._open  # noqa: B018 - raises
        if isinstance(output, np.ndarray):
            if output.dtype != self._dtype:
                raise DTypeError(f"the output is {output.dtype}, but the decoder was made for {self._dtype}")
            if output.shape not in self._shapes:
                raise ShapeError(f"the output has shape {output.shape}, but the decoder was made for {self._shape}")
            try:
                first = ffi.from_buffer(output)
            except ValueError:  # what NumPy raises for any other order
                raise InputError("the output is not in C order; pass np.ascontiguousarray(output)") from None
        else:
            first = ffi.cast("void *", output)
        count, stats = self._count, self._stats
        status = lib.ifs_detection_decoder_run(handle, first, geometry._c, self._out, count, stats)
        if status:
            check(status)
        return decoded(self._out, count, stats)


def detect_params(
    head: str,
    num_classes: int,
    num_anchors: int,
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
    dtype: str = "float32",
) -> tuple[Any, Any]:
    """The arguments of `DetectionDecoder` as an `ifs_detect_params *`, and the class mask that it points to, or None.

    Raises:
        InputError, DTypeError: A number does not fit 32 bits, or the head, the element type or a class is unknown.
    """
    if head not in _HEADS:
        raise InputError(f"head is {head!r}; use one of {', '.join(_HEADS)}")
    if dtype not in _DTYPES:
        raise DTypeError(f"dtype is {dtype!r}; use float32 or float16")
    if len(strides) > lib.IFS_MAX_STRIDES:
        raise InputError(f"strides has {len(strides)} numbers; use at most {lib.IFS_MAX_STRIDES}")
    params = ffi.new("ifs_detect_params *")
    params.head = _HEADS[head]
    params.dtype = _DTYPES[dtype]
    params.num_classes = int32("num_classes", num_classes)
    params.num_anchors = int32("num_anchors", num_anchors)
    params.num_extra = int32("extra", extra)
    params.multi_label = bool(multi_label)
    params.class_agnostic = bool(class_agnostic)
    params.max_candidates = int32("max_candidates", max_candidates)
    params.max_detections = int32("max_detections", max_det)
    params.conf_threshold = conf
    params.iou_threshold = iou
    params.num_strides = len(strides)
    for i, stride in enumerate(strides):
        params.strides[i] = int32(f"strides[{i}]", stride)
    # The C struct points to it; `ifs_cuda_detection_decoder_create` reads it too.
    mask = None if classes is None else _class_mask(classes, num_classes)
    if mask is not None:
        params.class_mask = mask
    return params, mask


def decoded(boxes: Any, count: Any, stats: Any) -> tuple[npt.NDArray[np.void], DetectStats]:
    """A copy of the first boxes, with the statistics.

    Args:
        boxes: `ifs_detection *`.
        count: `int32_t *`: how many boxes there are.
        stats: `ifs_detect_stats *`: four int64, those of `DetectStats`.
    """
    # A slice and its copy, and the four numbers one by one, would take 50 us more where the caches are cold.
    kept = count[0]
    copy = bytearray(ffi.buffer(boxes, kept * DETECTION.itemsize))
    return np.ndarray(kept, DETECTION, copy), tuple.__new__(DetectStats, ffi.unpack(ffi.cast(_INT64S, stats), 4))


def _class_mask(classes: Iterable[int], num_classes: int) -> Any:
    """A byte for each class: 1 if it counts."""
    mask = bytearray(max(num_classes, 0))
    for class_id in classes:
        if not 0 <= class_id < num_classes:
            raise InputError(f"classes has {class_id}, but the head has {num_classes} classes, from 0")
        mask[class_id] = 1
    if not any(mask):
        raise InputError("classes has no class; give one or more, or None for all")
    return ffi.new("uint8_t[]", bytes(mask))


def int32(name: str, value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise InputError(f"{name} is {value}; it must fit 32 bits")
    return value


def nms(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    iou: float = 0.45,
    max_det: int | None = None,
) -> npt.NDArray[np.int64]:
    """Exact greedy NMS: the indices of the boxes that are kept, best first, equal scores by index.

    Args:
        boxes: `[n, 4]` of x1, y1, x2, y2; used as float32. A box without area is kept, and suppresses no other.
        scores: `[n]`; used as float32.
        class_ids: `[n]` integers; only boxes of one class suppress one another. None: all boxes have one class.
        iou: A kept box suppresses another one if `inter > iou * (area_a + area_b - inter)`, in float32.
        max_det: The limit on the number of indices; None is no limit.

    Raises:
        ShapeError: The numbers of boxes, scores and classes differ.
        DTypeError: `class_ids` are not integers that fit 32 bits.
        InputError: A box or score is not finite, or `iou` is not 0 to 1.
    """
    check_max_det(max_det)
    keep, _ = _suppress(boxes, scores, class_ids, lib.IFS_MATCH_IOU, iou, grouped=False)
    return keep if max_det is None else keep[:max_det].copy()


def nms_groups(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    threshold: float = 0.5,
    match: Literal["iou", "smaller"] = "smaller",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Exact greedy NMS that says which kept box suppressed each one, for merging boxes of several views of an image.

    Args:
        boxes, scores, class_ids: as `nms()` takes them.
        threshold: A kept box suppresses another one if their match is above it.
        match: "iou" is the intersection over the union; "smaller" is the intersection over the area of the smaller box,
            which finds a box that was cut in the whole one.

    Returns:
        The indices of the boxes that are kept, best first, equal scores by index; and for each box the index of its
        keeper: the best kept box that suppresses it, or itself.

    Raises:
        ShapeError, DTypeError: As `nms()`.
        InputError: A box or score is not finite, `threshold` is not 0 to 1, or `match` is unknown.
    """
    if match not in _MATCHES:
        raise InputError(f"match is {match!r}; use one of {', '.join(_MATCHES)}")
    return _suppress(boxes, scores, class_ids, _MATCHES[match], threshold, grouped=True)


def suppression_arguments(
    boxes: npt.ArrayLike, scores: npt.ArrayLike, class_ids: npt.ArrayLike | None, numbers: int
) -> tuple[Any, Any, Any, int]:
    """Boxes, scores and classes as the C function takes them, and how many boxes there are. They keep the arrays alive.

    Args:
        numbers: of a box: 4, or 5 of an oriented one.

    Raises:
        ShapeError, DTypeError: As `nms()`.
    """
    boxes = np.ascontiguousarray(boxes, np.float32)
    scores = np.ascontiguousarray(scores, np.float32)
    n = len(scores) if scores.ndim == 1 else -1
    if boxes.shape != (n, numbers) and not (n == 0 and boxes.size == 0):
        raise ShapeError(
            f"boxes have shape {boxes.shape} and scores {scores.shape}; they must be (n, {numbers}) and (n,)"
        )
    classes: Any = ffi.NULL
    if class_ids is not None:
        classes = ffi.from_buffer("int32_t[]", _int32_classes(class_ids, n))
    return ffi.from_buffer("float[]", boxes), ffi.from_buffer("float[]", scores), classes, n


def check_max_det(max_det: int | None) -> None:
    """Raises InputError for a limit below 0."""
    if max_det is not None and max_det < 0:
        raise InputError(f"max_det is {max_det}; it must be 0 or more, or None for no limit")


def _int32_classes(class_ids: npt.ArrayLike, n: int) -> npt.NDArray[np.int32]:
    """The classes of `n` boxes as a contiguous array. Raises ShapeError, DTypeError."""
    ids = np.asarray(class_ids)
    if ids.shape != (n,):
        raise ShapeError(f"class_ids have shape {ids.shape}, but there are {n} boxes")
    if ids.dtype != np.int32:
        if n and (ids.dtype.kind not in "iu" or ids.max() > 2**31 - 1 or ids.min() < -(2**31)):
            raise DTypeError(f"class_ids are {ids.dtype}; they must be integers that fit 32 bits")
        ids = ids.astype(np.int32)
    return np.ascontiguousarray(ids)


def _suppress(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None,
    match: int,
    threshold: float,
    *,
    grouped: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kept boxes, and with `grouped` the keeper of each one."""
    boxes_c, scores_c, classes, n = suppression_arguments(boxes, scores, class_ids, 4)
    keep = np.empty(n, np.int64)
    keepers = np.empty(n if grouped else 0, np.int64)
    count = ffi.new("int64_t *")
    keep_c = ffi.from_buffer("int64_t[]", keep, require_writable=True)
    keepers_c = ffi.from_buffer("int64_t[]", keepers, require_writable=True) if grouped else ffi.NULL
    check(lib.ifs_nms(boxes_c, scores_c, classes, n, match, threshold, keep_c, count, keepers_c))
    return keep[: count[0]].copy(), keepers


def nms_oriented(
    boxes: npt.ArrayLike,
    scores: npt.ArrayLike,
    class_ids: npt.ArrayLike | None = None,
    *,
    iou: float = 0.45,
    max_det: int | None = None,
) -> npt.NDArray[np.int64]:
    """Fast NMS of oriented boxes: the indices of the boxes that are kept, best first, equal scores by index.

    A box is dropped if a better one of its class overlaps it by more than `iou`, also one that is dropped itself (D.
    Bolya et al., "YOLACT", 2019). The overlap is the probabilistic IoU (J. M. Llerena et al., "Gaussian Bounding Boxes
    and Probabilistic Intersection-over-Union for Object Detection", 2021), as Ultralytics takes it for its oriented
    boxes. All in float32, with the same bits on every machine.

    Args:
        boxes: `[n, 5]`: x and y of the centre, width and height, and the angle in radians; used as float32. The angle
            turns the side of the width from the x axis towards the y axis.
        scores: `[n]`; used as float32.
        class_ids: `[n]` integers; only boxes of one class suppress one another. None: all boxes have one class.
        iou: 0 to 1.
        max_det: maximum number of indices; None is no limit.

    Raises:
        ShapeError: the numbers of boxes, scores and classes differ.
        DTypeError: `class_ids` are not integers that fit 32 bits.
        InputError: a number of a box or a score is not finite, or `iou` is not 0 to 1.
    """
    boxes_c, scores_c, classes, n = suppression_arguments(boxes, scores, class_ids, 5)
    check_max_det(max_det)
    keep = np.empty(n, np.int64)
    keep_c = ffi.from_buffer("int64_t[]", keep, require_writable=True)
    count = returned("int64_t", lib.ifs_nms_oriented, boxes_c, scores_c, classes, n, iou, keep_c)
    kept: npt.NDArray[np.int64] = keep[: count if max_det is None else min(count, max_det)].copy()
    return kept
