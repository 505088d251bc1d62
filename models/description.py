"""What a model file looks like, by its metadata and the shapes of its inputs and outputs.

Wrappers ask a `ModelDescription` whether they fit; refusals quote it. Nothing here decodes anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .literals import python_literal
from .names import class_names
from .raw_head import decoded_shape, decoded_spec, raw_head_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..graph.raw_head import RawHead
    from ..infer import Infer
    from ..tensor_spec import TensorSpec

__all__ = ["GRIDS", "ModelDescription", "boxes_per_cell", "count_cells", "query_outputs"]

#: Strides of the grids that a raw head may have.
GRIDS = ((8, 16, 32), (8, 16, 32, 64), (16, 32))
#: A head of so many rows, but not one for each cell of its grids, has its boxes chosen already (NMS or queries).
QUERIES = (50, 1000)
#: Logits and boxes of detectors with queries, as exporters call them: transformers, DETR's authors, RF-DETR.
QUERY_NAMES = (("logits", "pred_boxes"), ("pred_logits", "pred_boxes"), ("labels", "dets"))
#: Mask coefficients of YOLO's segmentation heads.
MASK_COEFFICIENTS = 32

Shape = tuple[int | str | None, ...]

#: How a task of the metadata reads in a sentence.
_TASKS = {
    "detect": "a detector",
    "segment": "an instance segmentation model",
    "pose": "a pose model",
    "obb": "a detector of oriented boxes",
    "classify": "a classifier",
    "semantic": "a semantic segmentation model",
}


@dataclass(frozen=True)
class ModelDescription:
    """Inputs, outputs and metadata of a model.

    Attributes:
        name: of the file.
        inputs, outputs: the specs, in order. Of a network that ends at the maps of its head, the output is that of
            the file, with decoded boxes.
        task: the metadata's `task` (Ultralytics: detect, segment, pose, obb, classify); None if it says nothing.
        names: the metadata's class names; `()` if there are none.
        keypoints: the metadata's `kpt_shape` as (points, values a point); None if it says nothing.
        model_type: the metadata's `model_type`, the family as transformers calls it; None if it says nothing.
        end_to_end: whether the metadata says that the boxes are chosen inside (`end2end`).
        raw_head: the head whose maps the network gives in place of decoded boxes; None where it gives its outputs.
    """

    name: str
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    task: str | None
    names: tuple[str, ...]
    keypoints: tuple[int, int] | None
    model_type: str | None
    end_to_end: bool
    raw_head: RawHead | None = None

    @classmethod
    def of(cls, infer: Infer) -> ModelDescription:
        return cls.of_specs(infer.model.name, infer.input_specs, infer.output_specs, infer.metadata)

    @classmethod
    def of_specs(
        cls, name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], metadata: Mapping[str, str]
    ) -> ModelDescription:
        """From what a file declares."""
        task = metadata.get("task", "").strip().lower() or None
        head = raw_head_of(metadata, outputs)
        return cls(
            name,
            inputs,
            outputs if head is None else [decoded_spec(head, outputs)],
            task,
            class_names(None, metadata),
            _pair(metadata),
            metadata.get("model_type", "").strip().lower() or None,
            metadata.get("end2end", "").strip().lower() == "true",
            head,
        )

    def with_shapes(self, shapes: Mapping[str, Shape]) -> ModelDescription:
        """The same model, with the shapes that the network's outputs had in a run."""
        if self.raw_head is not None:
            shapes = {self.raw_head.output: decoded_shape(self.raw_head, shapes)}
        outputs = [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in self.outputs]
        return replace(self, outputs=outputs)

    @property
    def has_open_outputs(self) -> bool:
        """Whether an output leaves more than its batch open."""
        return any(not isinstance(d, int) for spec in self.outputs for d in spec.shape[1:])

    @property
    def shapes(self) -> list[Shape]:
        return [spec.shape for spec in self.outputs]

    @property
    def input_size(self) -> tuple[int, int] | None:
        """(width, height) of the one input, where it is fixed."""
        for spec in self.inputs:
            if len(spec.shape) == 4:
                sides = spec.shape[2:] if spec.shape[1] == 3 else spec.shape[1:3]
                height, width = sides
                if isinstance(height, int) and isinstance(width, int):
                    return width, height
        return None

    @property
    def head(self) -> TensorSpec | None:
        """The first output of three dimensions: (batch, rows, columns). Exporters may add feature maps behind it."""
        return next((spec for spec in self.outputs if len(spec.shape) == 3), None)

    @property
    def prototypes(self) -> TensorSpec | None:
        """The output of mask prototypes, (batch, coefficients, height, width), beside a head."""
        maps = [spec for spec in self.outputs if len(spec.shape) == 4]
        return maps[0] if self.head is not None and len(maps) == len(self.outputs) - 1 == 1 else None

    @property
    def has_angle(self) -> bool:
        """Whether the head has one value more than a box and its classes: the angle of an oriented box."""
        if self.task == "obb":
            return True
        if self.task is not None or not self.names or self.head is None or self.keypoints is not None:
            return False
        _, rows, columns = self.head.shape
        channel_first = isinstance(rows, int) and not (isinstance(columns, int) and columns < rows)
        return channel_first and rows == 4 + len(self.names) + 1

    @property
    def queries(self) -> tuple[TensorSpec, TensorSpec] | None:
        """The outputs of a detector with queries (DETR): logits, and boxes of four values."""
        names = query_outputs({spec.name: spec.shape for spec in self.outputs})
        specs = {spec.name: spec for spec in self.outputs}
        return (specs[names[0]], specs[names[1]]) if names else None

    @property
    def has_chosen_rows(self) -> bool:
        """Whether the head gives few rows of box, score, class and more: end to end, with NMS or without."""
        if self.head is None or self.raw_head is not None or (self.prototypes is None and len(self.outputs) > 1):
            return False
        _, rows, columns = self.head.shape
        if self.end_to_end:
            return True
        if not isinstance(rows, int) or not isinstance(columns, int) or columns < 6:
            return False
        few = QUERIES[0] <= rows <= QUERIES[1] and columns < rows
        return (few or columns == 6) and not boxes_per_cell(rows, self.input_size)

    @property
    def looks_like(self) -> str:
        """What the file looks like, as a noun phrase for a sentence."""
        if self.task == "detect":
            return f"{self._by_shapes} (its metadata says task 'detect'): {self._outputs}"
        if self.task is not None:
            said = _TASKS.get(self.task, f"a model of task {self.task!r}")
            return f"{said} (its metadata says task {self.task!r}): {self._outputs}"
        return f"{self._by_shapes}: {self._outputs}"

    @property
    def _outputs(self) -> str:
        return "; ".join(map(str, self.outputs))

    @property
    def _by_shapes(self) -> str:
        if self.queries is not None:
            return "a detector with queries (DETR: logits and boxes)"
        if self.has_chosen_rows:
            return "an end-to-end detector (its rows are boxes that are chosen already)"
        if self.head is not None and self.prototypes is not None:
            return "an instance segmentation model (mask coefficients, and prototypes)"
        if self.head is not None and len(self.outputs) == 1:
            return self._raw_head(self.head.shape)
        rows = {shape[1] for shape in self.shapes if len(shape) == 3}
        if len(self.outputs) == 2 == sum(len(shape) == 3 for shape in self.shapes) and len(rows) == 1:
            return f"a detector with two outputs for each of {rows.pop()} anchors"
        if len(self.outputs) > 3 and all(len(shape) == 3 for shape in self.shapes):
            return "a detector with an output for each kind of value and stride"
        if any(len(shape) == 4 for shape in self.shapes):
            return "a model that gives maps (segmentation or depth)"
        if all(_is_row(shape) for shape in self.shapes):
            return "a classifier, or a model that gives vectors"
        return "no model that a wrapper here knows"

    def _raw_head(self, shape: Shape) -> str:
        _, rows, columns = shape
        if isinstance(rows, int) and isinstance(columns, int):
            values, boxes = (rows, columns) if rows < columns else (columns, rows)
            if self.keypoints is not None:
                return f"a pose model ({self.keypoints[0]} keypoints in its metadata)"
            extra = values - 4 - len(self.names)
            if rows < columns and self.names and extra > 0:
                if extra == 1:
                    return f"a detector of oriented boxes ({len(self.names)} classes and an angle)"
                if extra == MASK_COEFFICIENTS:
                    return f"an instance segmentation model ({len(self.names)} classes and {extra} mask coefficients)"
                return f"a head of {len(self.names)} classes and {extra} more values a box"
            cells = boxes_per_cell(boxes, self.input_size)
            if rows > columns and cells == 1:
                return f"a YOLOX ({boxes} boxes, one for each cell of its grids)"
            if rows > columns:
                return f"a YOLOv5 ({boxes} boxes of {values} values)"
            return f"a YOLOv8 ({boxes} boxes of {values} values)"
        return "a detector whose head leaves its size open"


def query_outputs(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    """The names of the outputs of logits and boxes of a detector with queries, by the names that exporters give them,
    else by their shapes: two outputs of three dimensions with one number of rows, not above 1000, one of them of four
    values.
    """
    threes = {name: shape for name, shape in shapes.items() if len(shape) == 3}
    for logits, boxes in QUERY_NAMES:
        if logits in threes and boxes in threes:
            return logits, boxes
    if len(threes) != 2 or len({shape[1] for shape in threes.values()}) != 1:
        return None
    fours = [name for name, shape in threes.items() if shape[2] == 4]
    rows = next(iter(threes.values()))[1]
    if len(fours) != 1 or (isinstance(rows, int) and rows > QUERIES[1]):
        return None
    return next(name for name in threes if name != fours[0]), fours[0]


def count_cells(size: tuple[int, int], strides: Sequence[int]) -> int:
    """How many cells the grids of these strides have on an image of that size."""
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def boxes_per_cell(boxes: int, size: tuple[int, int] | None) -> int:
    """How many boxes a head gives for each cell of its grids: 3 or 1; 0 for other numbers, or an open size."""
    if size is not None:
        for strides in GRIDS:
            cells = count_cells(size, strides)
            if boxes in (cells, 3 * cells):
                return boxes // cells
    return 0


def _is_row(shape: Shape) -> bool:
    """(batch, n), or with further axes of 1."""
    return len(shape) >= 2 and sum(d != 1 for d in shape[1:]) <= 1


def _pair(metadata: Mapping[str, str]) -> tuple[int, int] | None:
    try:
        points, values = python_literal(metadata.get("kpt_shape", ""))
        return int(points), int(values)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
