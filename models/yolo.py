"""The YOLO family: YOLOv5, YOLOv8 (and YOLO11), YOLOX. They differ in their heads and their preprocessing."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..graph.files import load_proto, tensor_array
from ..image import Geometry, PixelTransform
from ..infer import Infer
from ..ops import DetectionDecoder, DetectStats, RawHeadDecoder
from ..ops.device import DeviceDetectionDecoder
from .declaration import Fraction
from .description import GRIDS, ModelDescription, Recognition, Shape, boxes_per_cell, cells_of, count_cells
from .detector import RowDetector
from .device_variants import DeviceDecoder, DeviceVariants
from .output_checks import (
    check_exclusive,
    check_floats,
    check_no_numbers,
    check_no_objectness,
    check_objectness,
    check_offsets,
    check_pixels,
    check_scores,
    check_undecoded,
)
from .preprocessor import ImageInput, Preprocessor
from .raw_head import check_raw_head, grid_levels, without_decoding
from .results import Detections

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ..core.model_source import ModelSource
    from ..core.tensor import Tensor
    from .execution import DevicePostprocess

__all__ = ["YOLO", "YOLOX", "YOLOv5", "YOLOv8"]

Model = TypeVar("Model", bound="YOLO")

#: Minimum of `conf`. Runtimes compute a sigmoid to about 1e-7, and some give 0 for logits below -18: with a lower
#: threshold, the number of boxes would depend on the runtime.
LOWEST_CONF = 1e-6
#: YOLOX: limits of the median over the output channels of the norm of a channel's weights. It is 1.1 in YOLOX-nano of
#: the first release, so about 0.02 for pixels of 0 to 255.
NORMALIZED_FROM, RAW_BELOW = 0.25, 0.08
#: Wrappers that override one of these read decoded boxes: their networks keep the decoding.
_READ_DECODED = ("columns", "extra", "extra_values", "postprocess", "verify", "decoder", "suppression")


class DeviceBoxes(DeviceDecoder[Model]):
    """Decoding and NMS on the device of a network: the boxes alone are copied to the host."""

    def __init__(self, model: Model, infer: Infer, capacity: int) -> None:
        super().__init__(model, infer, capacity)
        output = self._output
        host = model.decoder(output.shape, output.dtype)
        self._decoder = DeviceDetectionDecoder(host, capacity, self._stream.device)
        self._block = self._decoder.block(capacity)

    @property
    def _output(self) -> Tensor:
        return self._infer.outputs[self._model._output]

    def _decode(self, geometries: Sequence[Geometry]) -> None:
        """Queues the decoding."""
        self._block.resize((len(geometries), self._decoder.row.itemsize))
        self._decoder.run(self._output, geometries, self._block, stream=self._stream)

    def queue(self, geometries: Sequence[Geometry]) -> None:
        self._decode(geometries)
        self._block.fetch(self._stream)

    def results(self, rows: Sequence[int], geometries: Sequence[Geometry]) -> Iterator[Detections]:
        found = self._block.numpy().view(self._decoder.row)[:, 0]
        boxes, heads = found["boxes"], [found[name].tolist() for name in (*DetectStats._fields, "count")]
        for i in rows:
            *stats, count = (head[i] for head in heads)
            result = boxes[i, :count].copy()
            columns = self._columns(i, result, geometries[i])
            yield Detections(result, self._model.class_names, geometries[i].source, DetectStats(*stats), columns)

    def _columns(self, image: int, boxes: npt.NDArray[Any], geometry: Geometry) -> dict[str, Any]:
        """The columns of the results of an image of the batch."""
        return {}

    def close(self) -> None:
        self._decoder.close()
        self._block.close()


class DeviceBoxesWithRows(DeviceBoxes[Model]):
    """Decoding and NMS on the device; the head is copied to the host, where the columns are taken from it."""

    def queue(self, geometries: Sequence[Geometry]) -> None:
        super().queue(geometries)
        self._output.fetch(self._stream)

    def _columns(self, image: int, boxes: npt.NDArray[Any], geometry: Geometry) -> dict[str, Any]:
        return self._model.columns({self._model._output: self._output.numpy()[image]}, boxes, geometry)


class YOLO(RowDetector):
    """A detector with a raw head: images in, `Detections` out.

    Args:
        conf: the score (and objectness) that a box must exceed, 0 to 1. Values below 1e-6 count as 1e-6: runtimes round
            such scores differently.
        iou: the overlap above which the worse of two boxes is suppressed, 0 to 1.
        max_candidates: maximum number of boxes, the best ones, for NMS; 0 is all.
        multi_label: a box may count for several classes.
        class_agnostic: boxes of different classes suppress one another.
        classes: the classes that count, by name or number; None: all. Boxes of others take part in nothing, neither in
            NMS nor in `max_det`.
        decode_head: where boxes and scores are computed from the maps of the head. `"graph"`: in the network.
            `"native"`: in the decoder, which computes only boxes above `conf`; the network is loaded without its
            decoding. `"auto"`: in the decoder where an ONNX file runs on a processor and its decoding is a known one.
            The results differ by rounding alone.

    Attributes:
        decode_head_used: `"graph"` or `"native"`.

    Further arguments: see `Detector` and `VisionModel`.
    """

    iou: Fraction = 0.45
    max_candidates: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 30_000
    multi_label: bool = False
    class_agnostic: bool = False
    decode_head: Literal["auto", "graph", "native"] = "auto"

    per_call: ClassVar[frozenset[str]] = frozenset(
        {"conf", "iou", "max_det", "max_candidates", "multi_label", "class_agnostic", "classes"}
    )
    #: The layout of the head, as `DetectionDecoder` takes it.
    head: ClassVar[str]
    #: The decoder on a device.
    _device_decoder: ClassVar[type[DeviceBoxes[Any]]] = DeviceBoxes

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if any(getattr(cls, name) is not getattr(YOLO, name) for name in _READ_DECODED):
            cls.raw_layout = None

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        if (known := super()._recognises_outputs(model)).answer == "no":
            return known
        assert model.head is not None
        if model.has_chosen_rows:
            return Recognition.no("its boxes are chosen inside the model, and need no NMS; export it without NMS")
        if (several := sum(len(shape) == 3 for shape in model.shapes.values())) > 1:
            return Recognition.no(f"it has {several} outputs of three dimensions, and its boxes may be in any of them")
        boxes, values = cls.split(model.head.shape)
        if isinstance(boxes, int) and (not isinstance(values, int) or values > boxes):
            other = "anchor-first, as YOLOv5" if cls.channel_first else "channel-first, as YOLOv8"
            return Recognition.no(f"its head is {other} writes it")
        return cls._recognises_values(model, boxes, values)

    @classmethod
    def _recognises_values(
        cls, model: ModelDescription, boxes: int | str | None, values: int | str | None
    ) -> Recognition:
        """The answer by the values of a box: as many as the names and `count_extra()` need."""
        extra = cls.count_extra(model)
        if not isinstance(values, int) or extra is None:
            return Recognition.yes(f"{cls.family} (its file leaves the values of a box open)")
        classes, names = values - cls.leading - extra, len(model.names)
        if classes < 1:
            return Recognition.no(f"its boxes have {values} values, which leaves no classes")
        family = f"{cls.family} ({boxes} boxes of {values} values)"
        if classes == names:
            return Recognition.yes(family)
        if not names:
            size = model.input_size
            if isinstance(boxes, int) and size is not None and boxes_per_cell(boxes, size) not in cls.anchors:
                each = " or ".join(map(str, cls.anchors))
                return Recognition.nearly(f"it has {boxes} boxes, and not {each} for each cell of its grids")
            return Recognition.yes(family)
        more = f"a head of {names} classes and {classes - names} more values a box"
        return Recognition.nearly(
            f"its boxes have scores of {classes} classes, and its metadata has {names} names",
            more if classes > names and cls.task == "detect" else "",
        )

    @classmethod
    def split(cls, shape: Shape) -> tuple[int | str | None, int | str | None]:
        """(boxes, values a box) of a head of (batch, rows, columns)."""
        return (shape[2], shape[1]) if cls.channel_first else (shape[1], shape[2])

    #: How many boxes a cell of its grids may have.
    anchors: ClassVar[tuple[int, ...]] = (1,)
    #: Values of a box in front of those of the classes.
    leading: ClassVar[int] = 5
    #: Whether the head is (batch, values a box, boxes).
    channel_first: ClassVar[bool] = False

    def extra_values(self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        output = outputs[self._output]
        values = output[-self.extra :, boxes["row"]].T if self.channel_first else output[boxes["row"], -self.extra :]
        return values.astype(np.float32)

    def strides(self, anchors: int) -> tuple[int, ...]:
        """The strides of the grids, where the boxes are offsets to cells."""
        return ()

    def suppression(self, candidates: int) -> tuple[float, int]:
        """`iou` and `max_det` of the decoder for this number of candidates."""
        return self.iou, self.max_det

    # ---- loading ----

    def _model_to_load(self, model: ModelSource | Infer) -> ModelSource | Infer:
        if isinstance(model, Infer) or self.decode_head == "graph":
            return model
        required = self.decode_head == "native"
        if self.raw_layout is not None:
            own = self.settings
            return without_decoding(model, self.backend, own.device, own.while_building, required=required)
        if required:
            raise ConfigError(f"decode_head='native' is not for {type(self).__name__}; use decode_head='auto'")
        return model

    def _check(self, model: ModelDescription) -> None:
        self._raw_head = model.raw_head
        check_raw_head(self.decode_head, self._raw_head, self.network)
        super()._check(model)

    @property
    def decode_head_used(self) -> str:
        return "graph" if self._raw_head is None else "native"

    def __repr__(self) -> str:
        return super().__repr__() if self._raw_head is None else f"{super().__repr__()[:-1]}, native head>"

    # ---- postprocessing ----

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        arrays = self._head_of(outputs)
        key = tuple(array.shape for array in arrays), arrays[0].dtype
        idle = self._idle_decoders.setdefault(key, [])
        try:
            decode: Any = idle.pop()  # one thread at a time uses it
        except IndexError:  # as many are in use as threads decode
            decode = self._new_decoder(arrays)
        try:
            boxes, stats = decode(arrays[0] if self._raw_head is None else arrays, geometry)
        finally:
            idle.append(decode)
        return self._of_boxes(outputs, boxes, stats, geometry)

    def _of_boxes(
        self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any], stats: DetectStats, geometry: Geometry
    ) -> Detections:
        """The result of an image from the boxes of its decoder."""
        columns = self.columns(outputs, boxes, geometry)
        return Detections(boxes, self.class_names, geometry.source, stats, columns)

    # ---- the head ----

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        self._output = next(name for name, shape in shapes.items() if len(shape) == 3)
        shape = shapes[self._output]
        boxes, values = self.split(shape)
        if not isinstance(values, int):
            return None
        classes = values - self.leading - self.extra
        if classes < 1 or boxes == 0:
            raise UnsupportedModelError(
                f"its output {self._output!r} has shape {shape}, which leaves {max(classes, 0)} classes"
            )
        return classes

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        output, *_ = self._head_of(outputs)
        check_floats(self._output, output)
        if self._raw_head is not None:
            return  # they are logits; the graph has shown that scores are their sigmoids
        rows = np.swapaxes(output, 1, 2) if self.channel_first else output
        scores = rows[..., 4 : self.leading + (self._learned.class_count or 0)]
        check_scores(scores)
        for values in (scores, rows[..., 4:]):
            check_exclusive(values)
        check_no_numbers(scores)
        self.verify_scores(scores)
        self.verify_boxes(rows[..., :4])

    def verify_scores(self, scores: npt.NDArray[Any]) -> None:
        """Checks the scores of the first run, (batch, boxes, values), objectness first where there is one."""

    def verify_boxes(self, boxes: npt.NDArray[Any]) -> None:
        """Checks the boxes of the first run, (batch, boxes, 4)."""
        check_pixels(boxes, self.input_size)

    def device_postprocess(self, infer: Infer, capacity: int) -> DevicePostprocess | None:
        if self._raw_head is not None:
            return None  # maps are copied to the host: the decoder on the device takes decoded boxes
        return DeviceVariants(self._device_decoder, self, infer, capacity, self._output)

    def _varied(self) -> None:
        super()._varied()
        self._idle_decoders: dict[tuple[Any, ...], list[DetectionDecoder | RawHeadDecoder]] = {}

    def _head_of(self, outputs: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """The decoded boxes of an image or a batch as the only array, or the maps in their place."""
        names = (self._output,) if self._raw_head is None else self._raw_head.names
        return [outputs[name] for name in names]

    def _new_decoder(self, arrays: Sequence[npt.NDArray[Any]]) -> DetectionDecoder | RawHeadDecoder:
        dtype = arrays[0].dtype
        if (head := self._raw_head) is None:
            return self.decoder((1, *arrays[0].shape), dtype)
        classes, levels = head.values - self.leading, grid_levels(head, arrays)
        boxes = sum(level.width * level.height * max(len(level.anchors), 1) for level in levels)
        settings = self._decoding(boxes, classes)
        return RawHeadDecoder(head.layout, classes, levels, bins=head.bins, dtype=dtype.name, **settings)

    def decoder(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DetectionDecoder:
        """A new decoder for outputs of this shape and type."""
        boxes, values = self.split(shape)
        assert isinstance(boxes, int)
        assert isinstance(values, int)
        classes, strides = values - self.leading - self.extra, self.strides(boxes)
        settings = self._decoding(boxes, classes)
        return DetectionDecoder(
            self.head, classes, boxes, extra=self.extra, strides=strides, dtype=dtype.name, **settings
        )

    def _decoding(self, boxes: int, classes: int) -> dict[str, Any]:
        """The settings of a decoder for this number of boxes."""
        iou, max_det = self.suppression(boxes * classes if self.multi_label else boxes)
        return {
            "conf": max(self.conf, LOWEST_CONF),
            "iou": iou,
            "max_det": max_det,
            "max_candidates": self.max_candidates,
            "multi_label": self.multi_label,
            "class_agnostic": self.class_agnostic,
            "classes": self._wanted(),
        }


class YOLOv5(YOLO):
    """YOLOv5 (also v6.x, v7 exports of the same layout): output [batch, boxes, 5 + classes]."""

    family = "a YOLOv5"
    head = "yolov5"
    raw_layout = "yolov5"
    anchors = (1, 3)
    #: Half a stride, as YOLOv5's own validation adds; without it yolov5n loses 0.009 mAP where images are 4:3.
    usual_border: ClassVar[int] = 16

    def verify_scores(self, scores: npt.NDArray[Any]) -> None:
        super().verify_scores(scores)
        if scores[..., 0].any() and not scores[..., 1:].any():
            raise UnsupportedModelError("the scores of its classes are all 0 in its first run")
        check_objectness(scores, needs_object=boxes_per_cell(scores.shape[1], self.input_size) != 1)


class YOLOv8(YOLO):
    """YOLOv8 and YOLO11: output [batch, 4 + classes, boxes], without objectness."""

    family = "a YOLOv8"
    head = "yolov8"
    raw_layout = "yolov8"
    leading: ClassVar[int] = 4
    channel_first: ClassVar[bool] = True

    def verify_scores(self, scores: npt.NDArray[Any]) -> None:
        check_no_objectness(scores)


class YOLOX(YOLO):
    """YOLOX: output [batch, boxes, 5 + classes] with boxes as offsets; images in BGR, 0 to 255, top left.

    Args:
        legacy: the weights are of the project's first release (0.1.0), which want RGB with ImageNet's mean and
            standard deviation; YOLOX's own tools call it so too. None looks at the weights of the first convolution,
            and refuses the model where they leave it open.
    """

    legacy: bool | None = None

    family = "a YOLOX"
    head = "yolox"
    fallback_size = 416

    @classmethod
    def _recognises_values(
        cls, model: ModelDescription, boxes: int | str | None, values: int | str | None
    ) -> Recognition:
        size = model.input_size
        if isinstance(boxes, int) and size is not None and not any(count_cells(size, s) == boxes for s in GRIDS[:2]):
            return Recognition.no(
                f"it gives {boxes} boxes, but a YOLOX of {size[0]} x {size[1]} has one in each cell of its grids of "
                "stride 8, 16 and 32"
            )
        return super()._recognises_values(model, boxes, values)

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        legacy = _wants_normalized_input(self.network.model) if self.legacy is None else self.legacy
        if legacy is None:
            raise UnsupportedModelError(
                "its weights do not show whether it is of YOLOX's first release, which needs normalised RGB, or of a "
                "later one; give legacy=True or legacy=False"
            )
        if legacy:
            pixels = PixelTransform.normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
            transform = input.transform(order="rgb", fill=114, scale=pixels.scale, bias=pixels.bias)
        else:
            transform = input.transform(order="bgr", fill=114, scale=1.0)
        return Preprocessor(input, transform, lambda size: _top_left(size, input.size))

    def verify_scores(self, scores: npt.NDArray[Any]) -> None:
        check_objectness(scores, needs_object=True)

    def verify_boxes(self, boxes: npt.NDArray[Any]) -> None:
        check_offsets(boxes)
        strides = self.strides(boxes.shape[1])
        if count_cells(self.input_size, strides) == boxes.shape[1]:  # of the whole input
            check_undecoded(boxes, *cells_of(self.input_size, strides), self.input_size)

    def strides(self, anchors: int) -> tuple[int, ...]:
        width, height = self.input_size
        for strides in GRIDS[:2]:
            if any(count_cells(size, strides) == anchors for size in self.canvas_sizes_used):
                return strides
        raise UnsupportedModelError(
            f"{self.network.model.name} gives {anchors} boxes, but a YOLOX of {width} x {height} has one in each cell "
            "of its grids of stride 8, 16 and 32"
        )


def _top_left(size: tuple[int, int], canvas: tuple[int, int]) -> Geometry:
    """YOLOX's own preprocessing: one scale for both sides, rounded down, no centring."""
    ratio = min(canvas[0] / size[0], canvas[1] / size[1])
    resized = max(int(size[0] * ratio), 1), max(int(size[1] * ratio), 1)
    return Geometry.resize(size, canvas, resized)


def _wants_normalized_input(source: ModelSource) -> bool | None:
    """Whether the weights of a YOLOX need normalised pixels; None if that is unknown.

    Its first release (0.1.0) was trained on pixels normalised by ImageNet's mean and standard deviation, later ones on
    0 to 255. Both have a batch normalisation behind the first convolution, folded into it by the exporter, so that its
    outputs have about unit scale. Its weights are therefore about 60 times smaller for pixels of 0 to 255 (whose
    standard deviation is about 60) than for normalised ones.
    """
    if not source.is_onnx:
        return None
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnx_ir") is None:
        return None
    model = load_proto(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[1] in weights:
            kernel = tensor_array(weights[node.input[1]], source).astype(np.float64)
            norm = float(np.median(np.sqrt(np.square(kernel).reshape(len(kernel), -1).sum(1))))
            if norm >= NORMALIZED_FROM:
                return True
            return False if norm < RAW_BELOW else None
        if node.op_type in ("BatchNormalization", "QuantizeLinear", "DequantizeLinear"):
            return None  # the normalisation is not folded, or the weights are quantised
    return None
