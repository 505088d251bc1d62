"""Pose models: boxes with keypoints."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..errors import UnsupportedModelError
from .description import ModelDescription, Recognition
from .detector import RowDetector
from .end_to_end import EndToEnd
from .output_checks import check_scores, lies_in_unit
from .yolo import DeviceBoxesWithRows, YOLOv8

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["EndToEndPose", "YOLOv8Pose"]

#: (points, values a point), values being 2 (x, y) or 3 (x, y, score).
KeypointShape = tuple[Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=2, le=3)]]


class _Pose(RowDetector):
    """Base class of pose models."""

    keypoints: KeypointShape | None = None

    task: ClassVar[str] = "pose"

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        known = super()._recognises_outputs(model)
        if known.answer == "yes" and model.task is None and model.keypoints is None:
            return Recognition.nearly("its metadata has no kpt_shape")
        return known

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        return None if model.keypoints is None else model.keypoints[0] * model.keypoints[1]

    @cached_property
    def keypoint_shape(self) -> tuple[int, int]:
        """(points, values a point)."""
        own = self._description.keypoints
        shape = self.keypoints or own
        if own not in (None, shape):
            raise UnsupportedModelError(
                f"its metadata has kpt_shape {own}, but keypoints is {shape}; leave keypoints out"
            )
        if shape is None:
            raise UnsupportedModelError(
                "its metadata has no kpt_shape; give keypoints=(17, 3) for 17 points of x, y and score"
            )
        return shape

    @property
    def extra(self) -> int:
        points, values = self.keypoint_shape
        return points * values

    def _verify_points(self, values: npt.NDArray[Any]) -> None:
        """Checks the keypoints of the first run, (..., points * values)."""
        points, each = self.keypoint_shape
        if each == 3:
            check_scores(values[..., 2::3], "scores of keypoints")
        places = values.reshape(*values.shape[:-1], points, each)[..., :2]
        if places.any() and lies_in_unit(places):
            raise UnsupportedModelError(
                "its keypoints lie in 0 to 1 in its first run; they may be fractions or scores, not pixels"
            )

    def columns(
        self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any], geometry: Geometry
    ) -> dict[str, Any]:
        points, each = self.keypoint_shape
        rows = self.extra_values(outputs, boxes).reshape(-1, points, each)
        rows[..., :2] = geometry.to_source(rows[..., :2].reshape(-1, 2)).reshape(-1, points, 2)
        return {"keypoints": rows}


class YOLOv8Pose(_Pose, YOLOv8):
    """YOLOv8-pose and YOLO11-pose: output [batch, 4 + classes + points * values, boxes].

    The `keypoints` of its `Detections` are float32 (N, points, values): x and y in pixels of the image, and with three
    values the score of the point, 0 to 1.

    Args:
        keypoints: (points, values a point), values being 2 or 3; None takes `kpt_shape` of the model's
            metadata, which other values must equal.

    Further arguments: see `YOLO` and `VisionModel`.
    """

    family = "a pose model"
    _device_decoder = DeviceBoxesWithRows

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        super().verify(outputs)
        self._verify_points(np.swapaxes(outputs[self._output][:, -self.extra :], 1, 2))


class EndToEndPose(_Pose, EndToEnd):
    """A pose model that chooses its boxes itself: output [batch, boxes, 6 + points * values]. The keypoints are as
    those of `YOLOv8Pose`.

    Args:
        keypoints: (points, values a point), values being 2 or 3; None takes `kpt_shape` of the model's
            metadata, which other values must equal.

    Further arguments: see `EndToEnd` and `VisionModel`.
    """

    family = "an end-to-end pose model"

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        super().verify(outputs)
        self._verify_points(outputs[self._output][..., 6:])
