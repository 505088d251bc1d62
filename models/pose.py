"""Pose models: boxes with keypoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from .description import ModelDescription
from .yolo import YOLOv8

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from ..infer import Infer

__all__ = ["YOLOv8Pose"]

Count = Annotated[int, msgspec.Meta(ge=1)]


class YOLOv8Pose(YOLOv8):
    """YOLOv8-pose and YOLO11-pose: output [batch, 4 + classes + points * values, boxes].

    The column `keypoints` of its `Detections` is float32 (N, points, values): x and y in pixels of the image, and with
    three values the score of the point, 0 to 1.

    Args:
        keypoints: (points, values a point), values being 2 or 3; None takes `kpt_shape` of the model's metadata.

    Further arguments: see `YOLO` and `VisionModel`.
    """

    keypoints: tuple[Count, Annotated[int, msgspec.Meta(ge=2, le=3)]] | None = None

    task: ClassVar[str] = "pose"

    @classmethod
    def recognizes(cls, model: ModelDescription) -> bool:
        return model.task == "pose" or model.keypoints is not None

    @property
    def keypoint_shape(self) -> tuple[int, int]:
        """(points, values a point)."""
        shape = self.keypoints or ModelDescription.of(self.network).keypoints
        if shape is None:
            raise self._unsupported(
                "its metadata has no kpt_shape; give keypoints=(17, 3) for 17 points of x, y and score",
                ModelDescription.of(self.network),
            )
        return shape

    @property
    def extra(self) -> int:
        points, values = self.keypoint_shape
        return points * values

    def columns(self, output: npt.NDArray[Any], boxes: npt.NDArray[Any], geometry: Geometry) -> dict[str, Any]:
        points, values = self.keypoint_shape
        rows = output[-self.extra :, boxes["row"]].T.reshape(-1, points, values).astype(np.float32)
        rows[..., :2] = geometry.to_source(rows[..., :2].reshape(-1, 2)).reshape(-1, points, 2)
        return {"keypoints": rows}

    def device_postprocess(self, infer: Infer, capacity: int) -> None:
        """The keypoints lie in the output: it is fetched, and decoded on the host."""
        return
