"""Detectors whose boxes are chosen inside the model: YOLOv10, YOLO26, exports with NMS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import UnsupportedModelError
from .description import ModelDescription, Recognition, Shape, is_open
from .detector import RowDetector, best_boxes
from .output_checks import TOLERANCE, check_corners, check_floats, check_scores

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from ..ops import DetectStats
    from .results import Detections

__all__ = ["EndToEnd"]


class EndToEnd(RowDetector):
    """A detector that chooses its boxes itself: output [batch, boxes, 6] of left, top, right, bottom in pixels of the
    network's input, score and class.

    Arguments: see `Detector` and `VisionModel`.
    """

    family: ClassVar[str] = "an end-to-end detector"
    #: Columns of coordinates behind those of an upright box: an angle.
    further_coordinates: ClassVar[tuple[int, ...]] = ()

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        if (known := super()._recognises_outputs(model)).answer == "no":
            return known
        assert model.head is not None
        if not model.has_chosen_rows and not is_open(model.head.shape):
            return Recognition.no("its rows are not boxes that are chosen already")
        columns, extra = model.head.shape[2], cls.count_extra(model)
        family = f"{cls.family} (its rows are boxes that are chosen already)"
        if isinstance(columns, int) and extra is not None and columns != 6 + extra:
            return Recognition.no(f"its rows have {columns} values, not {cls._values(extra)}", family)
        if not model.has_chosen_rows:
            return Recognition.nearly("its file does not say whether its rows are boxes that are chosen already")
        return Recognition.yes(family)

    @staticmethod
    def _values(extra: int) -> str:
        return f"the 6 of a box, a score and a class{f' and {extra} more' if extra else ''}"

    def extra_values(self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return outputs[self._output][boxes["row"], 6:].astype(np.float32)

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        chosen, rows, stats = self._choose(outputs[self._output])
        result = self._detections_of(rows[:, :4], rows[:, 4], np.rint(rows[:, 5]), geometry, stats)
        result.data["row"] = chosen
        columns = self.columns(outputs, result.data, geometry)
        return result.with_columns(**columns) if columns else result

    def _choose(self, output: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32], DetectStats]:
        """The indices and the rows of the boxes of an image that count, best first."""
        rows = output.astype(np.float32, copy=False)
        values = rows[:, [0, 1, 2, 3, 5, *self.further_coordinates]]
        chosen, stats = best_boxes(values, rows[:, 4], np.rint(rows[:, 5]), self.conf, self._wanted(), self.max_det)
        return chosen, rows[chosen], stats

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        """The rows name their class: how many there are stays open."""
        self._output = next(name for name, shape in shapes.items() if len(shape) == 3)
        columns = shapes[self._output][2]
        if isinstance(columns, int) and columns != 6 + self.extra:
            raise UnsupportedModelError(f"its rows have {columns} values, not {self._values(self.extra)}")
        return None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name = self._output
        output = outputs[name]
        check_floats(name, output)
        scores, classes = output[..., 4], output[..., 5].astype(np.float64)
        check_scores(scores)
        self.verify_boxes(output[scores > 0])
        negative = classes[scores > 0] < -TOLERANCE  # rows of padding may have class -1
        if not (np.abs(classes - np.rint(classes)) <= TOLERANCE).all() or negative.any():
            raise UnsupportedModelError("its classes are not whole numbers from 0 in its first run")
        if self.class_names and (highest := classes.max(initial=0)) > len(self.class_names) - 1 + TOLERANCE:
            raise UnsupportedModelError(
                f"it found class {highest:.0f} in its first run, and there are {len(self.class_names)} names; give one "
                "for each class, in order"
            )

    def verify_boxes(self, rows: npt.NDArray[Any]) -> None:
        """Checks the rows of the first run that have a score, (N, 6 + extra)."""
        check_corners(rows[:, :4])
