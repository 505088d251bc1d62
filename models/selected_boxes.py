"""Detectors that choose their boxes inside, with an output each for boxes, scores and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UnsupportedModelError
from .description import ModelDescription, Recognition, Shape
from .detector import Detector, best_boxes
from .output_checks import TOLERANCE, check_corners, check_finite, check_fractions, check_scores
from .preprocessor import SIZE_INPUT, ImageInput, Preprocessor
from .ssd import nas_preprocessor

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from .results import Detections

__all__ = ["SelectedBoxes"]


class Layout(NamedTuple):
    """How an exporter has its outputs.

    Attributes:
        names: how the names of the outputs of boxes, scores and classes end, and that of the number of boxes, if any.
        dimensions: of the boxes: 3 with an axis for images.
        y_first: whether boxes are top, left, bottom, right.
        fractions: whether boxes are fractions of the input, or pixels.
        takes_size: whether the network has a second input, of the size that boxes are scaled to.
        bordered: whether images have YOLO-NAS's border.
    """

    family: str
    names: tuple[str, ...]
    dimensions: int = 3
    y_first: bool = False
    fractions: bool = False
    takes_size: bool = False
    bordered: bool = False


LAYOUTS = (
    Layout(
        "a detector of TensorFlow's object detection API",
        ("detection_boxes", "detection_scores", "detection_classes", "num_detections"),
        y_first=True, fractions=True,
    ),
    Layout("a detector of torchvision", ("boxes", "scores", "labels"), dimensions=2),
    Layout("a D-FINE or RT-DETR with its postprocessing", ("boxes", "scores", "labels"), takes_size=True),
    Layout(
        "a YOLO-NAS with NMS", ("pred_boxes", "pred_scores", "pred_classes", "num_predictions"), bordered=True
    ),
)  # fmt: skip


class SelectedBoxes(Detector):
    """A detector that chooses its boxes itself, with an output each for boxes, scores and classes:

    - SSD-MobileNet and others of TensorFlow's object detection API: `detection_boxes`, `detection_scores`,
      `detection_classes` and `num_detections`; images uint8;
    - torchvision (SSD, RetinaNet, Faster R-CNN): `boxes`, `scores` and `labels` of one image, without an axis for
      images;
    - D-FINE, RT-DETR and DEIM by their own exporters: `labels`, `boxes` and `scores`, and the input
      `orig_target_sizes`, which is filled with the size of the network's input;
    - YOLO-NAS with NMS: `num_predictions`, `pred_boxes`, `pred_scores` and `pred_classes`.

    Images are stretched to the input (YOLO-NAS: centred with a border); floats are 0 to 1, RGB. `class_id` is the
    number that the network gives: TensorFlow and torchvision count the background as 0, so that `names` begins with it.

    Arguments: see `Detector` and `VisionModel`.
    """

    _layout: Layout
    _names: tuple[str, ...]

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        if (found := layout_of(model.shapes)) is None:
            return Recognition.no("it has no outputs of boxes, scores and classes that are chosen already")
        layout, _ = found
        if layout.dimensions == 2 and model.inputs[0].fixed_batch != 1:
            return Recognition.no(f"its outputs are those of one image, and its input {model.inputs[0]} takes several")
        if layout.takes_size != any(spec.name == SIZE_INPUT for spec in model.inputs):
            why = f"it has no input {SIZE_INPUT!r}" if layout.takes_size else f"it has an input {SIZE_INPUT!r}"
            return Recognition.nearly(f"{why}, and the file does not give the scale of its boxes", layout.family)
        return Recognition.yes(layout.family)

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        if self._layout.bordered:
            return nas_preprocessor(input)
        return Preprocessor.stretch(input)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        if self._layout.dimensions == 2:  # of one image, without an axis for it
            return [self._of_image(outputs, geometry) for geometry in geometries]
        return super().postprocess(outputs, geometries)

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        boxes, scores, classes, *counts = (outputs[name] for name in self._names)
        limit = int(np.clip(np.nan_to_num(counts[0].reshape(-1)[0]), 0, len(boxes))) if counts else len(boxes)
        boxes, scores = (values[:limit].astype(np.float32, copy=False) for values in (boxes, scores))
        numbers = np.rint(classes[:limit])
        chosen, stats = best_boxes(
            np.column_stack([boxes, numbers]), scores, numbers, self.conf, self._wanted(), self.max_det
        )
        xyxy = boxes[chosen][:, [1, 0, 3, 2]] if self._layout.y_first else boxes[chosen]
        if self._layout.fractions:
            xyxy = xyxy * np.tile(np.array(geometry.canvas, np.float64), 2)
        return self._detections_of(xyxy, scores[chosen], numbers[chosen], geometry, stats)

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        """The outputs name their classes: how many there are stays open."""
        found = layout_of(shapes)
        assert found is not None
        self._layout, self._names = found
        return None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        boxes, scores, classes = (outputs[name] for name in self._names[:3])
        for name in self._names[:2]:
            check_finite(name, outputs[name])
        check_scores(scores)
        found = boxes.reshape(-1, 4)[scores.reshape(-1) > 0]
        if self._layout.fractions:
            check_fractions(found, tolerance=1)
        check_corners(found * max(self.input_size) if self._layout.fractions else found)
        numbers = classes.astype(np.float64)
        if numbers.size and not (np.abs(numbers - np.rint(numbers)).max() <= TOLERANCE and numbers.min() >= -1):
            raise UnsupportedModelError("its classes are not whole numbers in its first run")


def layout_of(shapes: Mapping[str, Shape]) -> tuple[Layout, tuple[str, ...]] | None:
    """The layout of outputs, and their names; None for others."""
    for layout in LAYOUTS:
        names = tuple(_named(ending, shapes) for ending in layout.names)
        if all(names) and len(names) == len(shapes):
            boxes, scores, classes = (len(shapes[name]) for name in names[:3])
            if boxes == layout.dimensions == scores + 1 == classes + 1:
                return layout, names
    return None


def _named(ending: str, shapes: Mapping[str, Shape]) -> str:
    """The output of that name, or `""`: TensorFlow's exporters add `:0`, others a prefix."""
    return next((name for name in shapes if name.removesuffix(":0").endswith(ending)), "")
