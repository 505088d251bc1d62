"""Adds box decoding and NMS to a detector."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import ConfigError, UnsupportedModelError
from ..builder import GraphBuilder
from ..weights import graph_values
from ._sizes import fixed
from .base import Pass
from .resize_input import image_input
from .set_opset import at_least_opset

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["AddNms", "check_numbers", "head_output", "input_size", "require_detector"]

#: Heads. A box is x, y, width, height, objectness (except yolov8), and the scores of the classes.
HEADS = ("yolov5", "yolov8", "yolox")
#: The opset of the new nodes.
OPSET = 13
_OUTPUTS = ("boxes", "scores", "classes", "batch_indices")


@dataclass(frozen=True)
class AddNms(Pass):
    """Appends box decoding and ONNX's NonMaxSuppression to a detector.

    The outputs for n boxes are `boxes` [n, 4] (x1, y1, x2, y2 in input pixels), `scores` [n], and int64 `classes` [n]
    and `batch_indices` [n]. They are sorted by image, by class, and by descending score.

    A model with an opset below 13 is converted to opset 13.

    Attributes:
        head: `"yolov5"`: [b, n, 5 + classes]; `"yolov8"` (YOLO11): [b, 4 + classes, n]; `"yolox"`: [b, n, 5 + classes],
            with strides 8, 16 and 32.
        conf: the minimum score.
        iou: the IoU threshold of NMS within a class.
        limit: the maximum number of boxes per class and image.
        multi_label: whether a box may be returned for several classes; otherwise only for the best one.

    Raises (`apply`):
        ConfigError: the head is unknown, or a number is outside of its range.
        UnsupportedModelError: the model has several outputs, or its output does not fit the head.
    """

    name: ClassVar[str] = "add-nms"
    version: ClassVar[int] = 1

    head: str
    conf: float = 0.25
    iou: float = 0.45
    limit: int = 300
    multi_label: bool = False

    def apply(self, model: ir.Model) -> bool:
        import onnx_ir as ir

        check_numbers(self, "limit")
        at_least_opset(model, OPSET)
        output = head_output(model, self.head, _OUTPUTS)
        self._check_shape(output)
        require_detector(model)
        build = GraphBuilder(model.graph, "nms/")
        rows = build("Cast", output, to=1) if output.dtype != ir.DataType.FLOAT else output
        if self.head == "yolov8":
            rows = build("Transpose", rows, perm=[0, 2, 1])
        if self.head == "yolox":
            rows = _decode_yolox(build, model, rows)
        first = 4 if self.head == "yolov8" else 5
        corners = _corners(build, rows)
        scores = _columns(build, rows, first, None)
        if first == 5:
            scores = build("Mul", scores, _columns(build, rows, 4, 5))
        if not self.multi_label:
            scores = _best_only(build, scores)
        by_class = build("Transpose", scores, perm=[0, 2, 1])
        chosen = build(
            "NonMaxSuppression", corners, by_class, build.ints(self.limit), np.asarray([self.iou], np.float32),
            np.asarray([self.conf], np.float32), name="NonMaxSuppression",
        )  # fmt: skip
        image, kind, box = (build("Gather", chosen, build.ints(column), axis=1) for column in range(3))
        result = (
            build("GatherND", corners, build("Concat", image, box, axis=1)),
            build("GatherND", by_class, chosen),
            *(build("Squeeze", column, build.ints(1)) for column in (kind, image)),
        )
        _give(model.graph, result)
        return True

    def _check_shape(self, output: ir.Value) -> None:
        dims = [fixed(dim) for dim in output.shape or ()]
        rows, columns = (dims[2], dims[1]) if self.head == "yolov8" else (dims[1], dims[2])
        least = 5 if self.head == "yolov8" else 6
        if (columns is not None and columns < least) or (None not in (rows, columns) and rows < columns):  # type: ignore[operator]
            raise UnsupportedModelError(
                f"the output {output.name} {output.shape} does not have the shape of a {self.head} head"
            )


def check_numbers(settings: Any, *limits: str) -> None:
    """Raises ConfigError if conf or iou is no number from 0 to 1, or a limit of boxes is no whole number from 1."""
    for what in ("conf", "iou"):
        value = getattr(settings, what)
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise ConfigError(f"{what} must be from 0 to 1, not {value!r}")
    for what in limits:
        value = getattr(settings, what)
        if not isinstance(value, Integral) or value < 1:
            raise ConfigError(f"{what} must be a whole number from 1, not {value!r}")


def _give(graph: ir.Graph, found: tuple[ir.Value, ...]) -> None:
    import onnx_ir as ir

    graph.outputs.clear()
    for name, value in zip(_OUTPUTS, found, strict=True):
        kind = ir.DataType.FLOAT if name in ("boxes", "scores") else ir.DataType.INT64
        value.name, value.type = name, ir.TensorType(kind)
        value.shape = ir.Shape(["detections", 4] if name == "boxes" else ["detections"])
        graph.outputs.append(value)


def head_output(model: ir.Model, head: str, results: Collection[str]) -> ir.Value:
    """The output of a detector to which an NMS with the outputs `results` is appended."""
    if head not in HEADS:
        raise ConfigError(f"unknown head {head!r}; use one of {', '.join(HEADS)}")
    outputs = list(model.graph.outputs)
    if len(outputs) != 1 or outputs[0].shape is None or len(outputs[0].shape) != 3:
        shapes = ", ".join(f"{value.name} {value.shape}" for value in outputs)
        raise UnsupportedModelError(f"the model must have one output with three axes; it has {shapes}")
    for name, _ in graph_values(model.graph):
        if name in results:
            raise UnsupportedModelError(f"the model has a value {name!r}, which is the name of a new output; rename it")
    return outputs[0]


def require_detector(model: ir.Model) -> None:
    """Raises UnsupportedModelError if the metadata of a model gives another task than detection."""
    task = model.metadata_props.get("task", "detect")
    if task != "detect":
        raise UnsupportedModelError(
            f"the metadata of the model gives the task {task!r}, whose outputs are not only boxes and scores of "
            "classes; use a detector"
        )


def input_size(model: ir.Model) -> tuple[int, int]:
    """The (width, height) of the image input."""
    value, axis = image_input(model)
    height, width = (fixed(dim) for dim in list(value.shape or ())[axis : axis + 2])
    if height is None or width is None:
        raise UnsupportedModelError(
            f"boxes of input {value.name!r} {value.shape} need a fixed input size; apply resize-input"
        )
    return width, height


def _columns(build: GraphBuilder, rows: ir.Value, start: int, end: int | None) -> ir.Value:
    limit = np.iinfo(np.int64).max if end is None else end
    return build("Slice", rows, build.ints(start), build.ints(int(limit)), build.ints(2))


def _corners(build: GraphBuilder, rows: ir.Value) -> ir.Value:
    """Converts centre and size to x1, y1, x2, y2."""
    centre, size = _columns(build, rows, 0, 2), _columns(build, rows, 2, 4)
    half = build("Mul", size, np.float32(0.5))
    return build("Concat", build("Sub", centre, half), build("Add", centre, half), axis=2)


def _best_only(build: GraphBuilder, scores: ir.Value) -> ir.Value:
    """Sets all scores of a row to 0 except for the first maximum."""
    best = build("ArgMax", scores, axis=2, keepdims=1)
    count = build("Gather", build("Shape", scores), build.ints(2)[0])
    classes = build("Range", np.asarray(0), count, np.asarray(1))
    return build("Where", build("Equal", classes, best), scores, np.float32(0))


def _decode_yolox(build: GraphBuilder, model: ir.Model, rows: ir.Value) -> ir.Value:
    """Decodes centre (x + column) * stride and size exp(w) * stride for strides 8, 16 and 32."""
    width, height = input_size(model)
    cells, strides = [], []
    for stride in (8, 16, 32):
        y, x = np.mgrid[: height // stride, : width // stride]
        cells.append(np.stack([x, y], axis=-1).reshape(-1, 2))
        strides.append(np.full((cells[-1].shape[0], 1), stride))
    grid, scale = (np.concatenate(parts)[None].astype(np.float32) for parts in (cells, strides))
    count = fixed(list(rows.shape)[1]) if rows.shape is not None else None
    if count is not None and count != grid.shape[1]:
        raise UnsupportedModelError(
            f"a yolox of {width}x{height} has {grid.shape[1]} cells of strides 8, 16 and 32, and this output {count}"
        )
    centre = build("Mul", build("Add", _columns(build, rows, 0, 2), grid), scale)
    size = build("Mul", build("Exp", _columns(build, rows, 2, 4)), scale)
    return build("Concat", centre, size, _columns(build, rows, 4, None), axis=2)
