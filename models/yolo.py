"""The YOLO family: YOLOv5, YOLOv8 (and YOLO11), YOLOX. They differ in their heads and framing, and in nothing else."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from ..errors import ConfigError, UnsupportedModelError
from ..image import Geometry, PixelTransform
from ..infer import Infer
from ..ops import DetectionDecoder, DetectStats
from ..ops.device import DeviceDetectionDecoder
from ..registry import load
from .results import Detections
from .vision import VisionModel, as_size

if TYPE_CHECKING:
    from ..tensor import Tensor
    from .execution.cuda import Stage

__all__ = ["YOLOX", "YOLOv5", "YOLOv8", "detector"]

#: The strides of a head's grids: the usual ones, those of larger models, with one for small objects, and of tiny ones.
_GRIDS = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class DetectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a detector's constructor takes; see there."""

    conf: Fraction = 0.25
    iou: Fraction = 0.45
    max_det: Annotated[int, msgspec.Meta(ge=1)] = 300
    max_candidates: Annotated[int, msgspec.Meta(ge=0)] = 30_000
    multi_label: bool = False
    class_agnostic: bool = False
    size: int | tuple[int, int] | None = None


class YOLO(VisionModel[Detections]):
    """A detector: images in, `Detections` out.

    Args:
        path: the model file, or an `Infer` that is loaded already.
        backend, device, precision, max_batch, options: as `infersdk.load()` takes them.
        names: class names, as a list or the path of a text file; None takes them from the model's metadata.
        channel_order: of NumPy arrays, `"bgr"` (OpenCV's), `"rgb"` or `"nv12"`.
        preprocess: where images are preprocessed for a CUDA device: `"device"`, `"host"` (they shrink on the
            processor's threads first), or `"auto"`, which tries both once for each kind of batch. The tensors are
            the same.
        conf: the score (and objectness) a box must exceed, 0 to 1.
        iou: the overlap above which the worse of two boxes is suppressed, 0 to 1.
        max_det: at most so many boxes an image; what is left out is counted in `Detections.stats`.
        max_candidates: at most so many, the best, go into NMS; 0 is all.
        multi_label: a box may count for several classes.
        class_agnostic: boxes of different classes suppress one another.
        size: the input size, a number or (width, height), for models that leave it open.

    Raises:
        ConfigError, BackendError, ModelError: see `infersdk.errors`.
    """

    Settings = DetectorSettings
    head: ClassVar[str]

    def __init__(
        self,
        path: str | os.PathLike[str] | Infer,
        backend: str = "onnxruntime",
        *,
        device: str | None = None,
        precision: str | None = None,
        max_batch: int | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        channel_order: str = "bgr",
        preprocess: str = "auto",
        conf: float = 0.25,
        iou: float = 0.45,
        max_det: int = 300,
        max_candidates: int = 30_000,
        multi_label: bool = False,
        class_agnostic: bool = False,
        size: int | tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        # A subclass may have settings of its own beyond those named here.
        own = {key: options.pop(key) for key in self.Settings.__struct_fields__ if key in options}
        super().__init__(
            path,
            backend,
            device=device,
            precision=precision,
            max_batch=max_batch,
            names=names,
            channel_order=channel_order,
            preprocess=preprocess,
            settings={
                **own,
                "conf": conf,
                "iou": iou,
                "max_det": max_det,
                "max_candidates": max_candidates,
                "multi_label": multi_label,
                "class_agnostic": class_agnostic,
                "size": size,
            },
            options=options,
        )

    def _prepare(self) -> None:
        super()._prepare()
        self._output = self._find_output()
        shape = next(spec.shape for spec in self.network.output_specs if spec.name == self._output)
        classes = self._dimensions(tuple(d if isinstance(d, int) else 0 for d in shape))[1]
        self._tell_classes(classes if classes > 0 else None)
        self._decoder: DetectionDecoder | None = None

    def _asked_size(self) -> tuple[int, int] | None:
        return as_size(self.settings.size, "size")

    def _pixel_transform(self, dtype: str) -> PixelTransform:
        scale = 1.0 if dtype == "uint8" else 1 / 255
        return PixelTransform(order="rgb", layout=self._layout, dtype=dtype, fill=114, scale=scale)

    def _make_geometry(self, size: tuple[int, int]) -> Geometry:
        return Geometry.letterbox(size, self.input_size)

    def _find_output(self) -> str:
        """The output that holds all boxes: the first of three dimensions. Exporters may add raw feature maps to it."""
        for spec in self.network.output_specs:
            if len(spec.shape) == 3:
                self._check_head(spec, spec.shape)
                return spec.name
        found = "; ".join(map(str, self.network.output_specs))
        raise self._unsupported(f"no output has the three dimensions (batch, boxes, values): {found}")

    def _check_head(self, spec: object, shape: Sequence[int | str | None]) -> None:
        """Raises UnsupportedModelError when the output can be seen to be another head's.

        Args:
            spec: the output, as the message tells it.
            shape: as the model declares it, or as a run has shown it.
        """
        _, rows, columns = shape
        # Six values are also the box, objectness and score of a single class: then the boxes are those of the grids.
        if columns == 6 and isinstance(rows, int) and not _boxes_per_cell(rows, self.input_size):
            raise self._unsupported(f"its output {spec} has NMS built in; export it without")
        if isinstance(rows, int) and isinstance(columns, int) and columns > rows:
            raise self._unsupported(
                f'its output {spec} is channel-first, as YOLOv8 writes it; use models.YOLOv8 (type "yolov8")'
            )

    def _dimensions(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """(anchors, classes) of an output."""
        return shape[1], shape[2] - 5

    def _strides(self, anchors: int) -> tuple[int, ...]:
        """The strides of the grids, where the head is raw."""
        return ()

    def _decoder_of(self, output: Tensor) -> DetectionDecoder:
        """The decoder for an output, made when the first one is there."""
        if self._decoder is None:
            if output.dtype.name not in ("float32", "float16"):
                raise self._unsupported(f"its output {self._output!r} is {output.dtype}, not float32 or float16")
            self._decoder = self._make_decoder(output.shape, output.dtype.name)
        return self._decoder

    def _make_decoder(self, shape: tuple[int, ...], dtype: str) -> DetectionDecoder:
        self._check_head(f"{self._output!r} of shape {shape}", shape)  # which the model may have left open
        anchors, classes = self._dimensions(shape)
        if anchors < 1 or classes < 1:
            raise self._unsupported(f"its output has shape {shape}, which leaves {classes} classes")
        self._tell_classes(classes)
        settings = self.settings
        return DetectionDecoder(
            self.head,
            classes,
            anchors,
            conf=settings.conf,
            iou=settings.iou,
            max_det=settings.max_det,
            max_candidates=settings.max_candidates,
            multi_label=settings.multi_label,
            class_agnostic=settings.class_agnostic,
            strides=self._strides(anchors),
            dtype=dtype,
        )

    def _device_stage(self, infer: Infer, capacity: int) -> Stage:
        return _Boxes(self, infer, capacity)

    def _results(self, geometries: Sequence[Geometry]) -> list[Detections]:
        tensor = self.network.outputs[self._output]
        decoder = self._decoder_of(tensor)
        at = tensor.host_ptr()
        row = tensor.nbytes // tensor.shape[0]
        results = []
        for i, geometry in enumerate(geometries):
            boxes, stats = decoder(at + i * row, geometry)
            results.append(Detections(boxes, self.names, geometry.source, stats))
        return results


class _Boxes:
    """On a device: decoding and NMS run there, and the boxes alone come home."""

    def __init__(self, model: YOLO, infer: Infer, capacity: int) -> None:
        self._model, self._infer, self._capacity = model, infer, capacity
        self._detector: DeviceDetectionDecoder | None = None  # made when the shape of the output is known
        self._block: Tensor | None = None

    def queue(self, geometries: Sequence[Geometry]) -> None:
        output, stream = self._infer.outputs[self._model._output], self._infer.stream
        assert stream is not None
        if self._detector is None or self._block is None:
            decoder = self._model._decoder_of(output)
            self._detector = DeviceDetectionDecoder(decoder, self._capacity, stream.device)
            self._block = self._detector.block(self._capacity)
        self._block.resize((len(geometries), self._detector.row.itemsize))
        self._detector.run(output, geometries, self._block, stream=stream)
        self._block.fetch(stream)

    def collect(self, geometries: Sequence[Geometry]) -> list[Detections]:
        assert self._detector is not None
        assert self._block is not None
        rows = self._block.numpy().view(self._detector.row)[:, 0]
        boxes, heads = rows["boxes"], [rows[name].tolist() for name in (*DetectStats._fields, "count")]
        return [
            Detections(boxes[i, :count].copy(), self._model.names, geometry.source, DetectStats(*stats))
            for i, (geometry, *stats, count) in enumerate(zip(geometries, *heads, strict=True))
        ]

    def close(self) -> None:
        if self._detector is not None and self._block is not None:
            self._detector.close()
            self._block.close()


class YOLOv5(YOLO):
    __doc__ = f"""YOLOv5 (also v6.x, v7 exports of the same layout): output [batch, anchors, 5 + classes].
    {YOLO.__doc__}"""
    head = "yolov5"


class YOLOv8(YOLO):
    __doc__ = f"""YOLOv8 and YOLO11: output [batch, 4 + classes, anchors], without objectness.
    {YOLO.__doc__}"""
    head = "yolov8"

    def _check_head(self, spec: object, shape: Sequence[int | str | None]) -> None:
        _, rows, columns = shape
        if columns == 6 and isinstance(rows, int):
            raise self._unsupported(f"its output {spec} has NMS built in; export it without")
        if isinstance(rows, int) and isinstance(columns, int) and rows > columns:
            raise self._unsupported(
                f'its output {spec} is anchor-first, as YOLOv5 writes it; use models.YOLOv5 (type "yolov5")'
            )

    def _dimensions(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return shape[2], shape[1] - 4


class YOLOXSettings(DetectorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What YOLOX takes beyond the others."""

    legacy: bool = False


class YOLOX(YOLO):
    __doc__ = f"""YOLOX: output [batch, anchors, 5 + classes] with a raw box; images in BGR, 0 to 255, top left.

    `legacy=True` is for weights of the project's first release (0.1.0), which want RGB with ImageNet's mean and
    standard deviation instead; YOLOX's own tools call it so too.
    {YOLO.__doc__}"""
    Settings = YOLOXSettings
    head = "yolox"
    fallback_size = 416

    def _pixel_transform(self, dtype: str) -> PixelTransform:
        if self.settings.legacy:
            mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
            return PixelTransform.normalize(mean, std, order="rgb", layout=self._layout, dtype=dtype, fill=114)
        return PixelTransform(order="bgr", layout=self._layout, dtype=dtype, fill=114, scale=1.0)

    def _make_geometry(self, size: tuple[int, int]) -> Geometry:
        # YOLOX's own preprocessing: one scale for both sides, rounded down, no centring.
        ratio = min(self.input_size[0] / size[0], self.input_size[1] / size[1])
        resized = max(int(size[0] * ratio), 1), max(int(size[1] * ratio), 1)
        return Geometry.resize(size, self.input_size, resized)

    def _strides(self, anchors: int) -> tuple[int, ...]:
        width, height = self.input_size
        for strides in _GRIDS[:2]:
            if _cells(self.input_size, strides) == anchors:
                return strides
        raise UnsupportedModelError(
            f"{self.network.model.name} gives {anchors} boxes, but a YOLOX of {width} x {height} has one in each cell "
            "of its grids of stride 8, 16 and 32"
        )


def detector(path: str | os.PathLike[str] | Infer, type: str = "auto", **arguments: Any) -> YOLO:
    """The wrapper of the YOLO family that fits a model.

    Args:
        path: the model file, or an `Infer` that is loaded already.
        type: `"yolov5"`, `"yolov8"` or `"yolox"`; `"auto"` tells YOLOv5 from YOLOv8 by the output's layout. A YOLOX has
            to be named.
        arguments: what the wrapper's constructor takes.

    Raises:
        ConfigError: `"auto"`, and the number of boxes is that of a YOLOX.
        BackendError, ModelError: see `infersdk.errors`.
    """
    kinds: dict[str, builtins.type[YOLO]] = {kind.head: kind for kind in (YOLOv5, YOLOv8, YOLOX)}
    if type != "auto" and type not in kinds:
        raise ConfigError(f"type {type!r} is none of auto, {', '.join(kinds)}")
    settings = (*YOLOXSettings.__struct_fields__, "names", "channel_order", "preprocess")
    own = {key: arguments.pop(key) for key in settings if key in arguments}
    infer = path if isinstance(path, Infer) else load(path, **arguments)
    try:
        kind = kinds[type] if type != "auto" else _kind_of(infer)
    except ConfigError:
        infer.close()
        raise
    return kind(infer, **own)


def _kind_of(infer: Infer) -> type[YOLO]:
    """YOLOv8 has fewer values than boxes along its second axis, YOLOv5 the other way round."""
    for spec in infer.output_specs:
        if len(spec.shape) != 3:
            continue
        _, rows, columns = spec.shape
        if not isinstance(rows, int):
            return YOLOv5
        sizes = [source.shape[2:] for source in infer.input_specs if len(source.shape) == 4]
        per_cell = max((_boxes_per_cell(rows, size) for size in sizes), default=0)
        if rows < columns if isinstance(columns, int) else not per_cell:  # boxes are many, or left open
            return YOLOv8
        if per_cell == 1:
            raise ConfigError(
                f"{infer.model.name} gives {rows} boxes, one for each cell of its grids: it is no YOLOv5, which gives "
                'three; name its type: "yolox", or "yolov5" for another that is decoded like one'
            )
        return YOLOv5
    return YOLOv5  # whose check says what is wrong


def _boxes_per_cell(boxes: int, size: Sequence[int | str | None]) -> int:
    """How many boxes a head gives for each cell of its grids: 3 or 1; 0 if it is no such number, or the size open."""
    sides = [side for side in size if isinstance(side, int)]
    if len(sides) == len(size) == 2:
        for strides in _GRIDS:
            cells = _cells((sides[0], sides[1]), strides)
            if boxes in (cells, 3 * cells):
                return boxes // cells
    return 0


def _cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """How many cells the grids of these strides have on an image of that size."""
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)
