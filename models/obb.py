"""Detectors of oriented boxes: boxes that are turned by an angle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import UnsupportedModelError
from ..ops import DetectStats, nms_oriented
from ..ops.device import DeviceOrientedBoxes
from .description import ModelDescription, Recognition
from .detector import finite_rows
from .end_to_end import EndToEnd
from .oriented import enclosing
from .output_checks import check_pixels
from .results import Detections
from .yolo import DeviceBoxes, YOLOv8

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ..image import Geometry
    from ..infer import Infer

__all__ = ["EndToEndOBB", "YOLOv8OBB"]

#: Angles of boxes lie in a half turn, -45 to 135 degrees for Ultralytics' networks.
LARGEST_ANGLE = 3.2
#: Minimum median of angles that all lie in 0 to 1: that of an untrained network is 0.79, that of scores is lower.
LEAST_MEDIAN = 0.5


class _DeviceOriented(DeviceBoxes["YOLOv8OBB"]):
    """Decoding and NMS of oriented boxes on the device of a network: the boxes alone are copied to the host."""

    def __init__(self, model: YOLOv8OBB, infer: Infer, capacity: int) -> None:
        super().__init__(model, infer, capacity)
        self._oriented = DeviceOrientedBoxes(self._decoder, capacity, iou=model.iou, max_det=model.max_det)

    def queue(self, geometries: Sequence[Geometry]) -> None:
        self._decode(geometries)
        self._oriented.run(self._output, self._block, len(geometries), stream=self._stream)
        self._oriented.fetch(self._stream)

    def results(self, rows: Sequence[int], geometries: Sequence[Geometry]) -> Iterator[Detections]:
        for i in rows:
            found, stats = self._oriented.unpack(i)
            yield oriented_detections(
                self._model, found["xywhr"], found["score"], found["class_id"], stats, geometries[i]
            )

    def close(self) -> None:
        self._oriented.close()
        super().close()


class YOLOv8OBB(YOLOv8):
    """YOLOv8-obb and YOLO11-obb: output [batch, 4 + classes + 1, boxes], whose last value is the angle in radians.

    The column `oriented` of its `Detections` is float32 (N, 5): x and y of the centre, width and height in pixels of
    the image, and the angle. `Detections.corners` has the four corners, and `xyxy` the enclosing boxes. NMS uses the
    probabilistic IoU of oriented boxes (`infersdk.ops.nms_oriented`), as Ultralytics does.

    Arguments: see `YOLO` and `VisionModel`.
    """

    task: ClassVar[str] = "obb"

    family = "a detector of oriented boxes"
    _device_decoder = _DeviceOriented

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        known = super()._recognises_outputs(model)
        if known.answer == "yes" and model.task is None and (not model.names or model.keypoints is not None):
            return Recognition.nearly("nothing in the file says that the last value of its boxes is an angle")
        return known

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        return 1

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        super().verify(outputs)
        angles = outputs[self._output][:, -1]
        if angles.min() > 0 and angles.max() <= 1 and np.median(angles) < LEAST_MEDIAN:
            raise UnsupportedModelError("its angles may be scores: in its first run, all lie in 0 to 1, most below 0.5")
        if angles.any() and (angles == np.rint(angles)).all():
            raise UnsupportedModelError("its angles are whole numbers in its first run")
        check_angles(angles)

    def suppression(self, candidates: int) -> tuple[float, int]:
        """The decoder keeps all candidates: upright boxes say little about the overlap of turned ones."""
        return 1.0, min(self.max_candidates or candidates, candidates)

    def _of_boxes(
        self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any], stats: DetectStats, geometry: Geometry
    ) -> Detections:
        turned = outputs[self._output][[0, 1, 2, 3, -1]][:, boxes["row"]].T.astype(np.float32)
        finite = finite_rows(turned)
        turned, scores, class_ids = turned[finite], boxes["score"][finite], boxes["class_id"][finite]
        kept = nms_oriented(turned, scores, None if self.class_agnostic else class_ids, iou=self.iou)
        chosen = kept[: self.max_det]
        stats = stats._replace(kept=len(kept), dropped_detections=len(kept) - len(chosen))
        return oriented_detections(self, turned[chosen], scores[chosen], class_ids[chosen], stats, geometry)


class EndToEndOBB(EndToEnd):
    """A detector of oriented boxes that chooses them itself: YOLO26-obb, and exports with NMS. Output [batch, boxes, 7]
    of centre, width and height in pixels of the network's input, score, class and the angle in radians. The result is
    as that of `YOLOv8OBB`.

    Arguments: see `EndToEnd` and `VisionModel`.
    """

    task: ClassVar[str] = "obb"
    family: ClassVar[str] = "an end-to-end detector of oriented boxes"
    further_coordinates: ClassVar[tuple[int, ...]] = (6,)

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        known = super()._recognises_outputs(model)
        if known.answer == "yes" and model.task is None:
            return Recognition.nearly("nothing in the file says that the last value of its boxes is an angle")
        return known

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        return 1

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        _, rows, stats = self._choose(outputs[self._output])
        return oriented_detections(self, rows[:, [0, 1, 2, 3, 6]], rows[:, 4], np.rint(rows[:, 5]), stats, geometry)

    def verify_boxes(self, rows: npt.NDArray[Any]) -> None:
        if len(rows):
            check_pixels(rows[:, :4], self.input_size)
            check_angles(rows[:, 6])


def check_angles(angles: npt.NDArray[Any]) -> None:
    """For angles of the first run."""
    if (np.abs(angles) > LARGEST_ANGLE).any():
        raise UnsupportedModelError(
            f"its angles reach from {np.nanmin(angles):.4g} to {np.nanmax(angles):.4g} radians in its first run"
        )


def oriented_detections(
    model: YOLOv8OBB | EndToEndOBB,
    boxes: npt.NDArray[np.float32],
    scores: npt.NDArray[Any],
    class_ids: npt.NDArray[Any],
    stats: DetectStats,
    geometry: Geometry,
) -> Detections:
    """The result of an image from boxes (N, 5) on the canvas."""
    turned = to_source(boxes, geometry)
    return Detections.of(
        enclosing(turned), scores, class_ids,
        names=model.class_names, size=geometry.source, stats=stats, oriented=turned,
    )  # fmt: skip


def to_source(boxes: npt.NDArray[np.float32], geometry: Geometry) -> npt.NDArray[np.float32]:
    """Oriented boxes (N, 5) of the canvas in pixels of the image. Where the geometry's scales differ, the sides of a
    box change each on its own, and the angle is that of the side of the width.
    """
    matrix = geometry.matrix[:, :2]
    cosine, sine = np.cos(boxes[:, 4].astype(np.float64)), np.sin(boxes[:, 4].astype(np.float64))
    along, across = matrix @ [cosine, sine], matrix @ [-sine, cosine]
    turned = np.empty(boxes.shape, np.float32)
    turned[:, :2] = geometry.to_source(boxes[:, :2].reshape(-1, 2))
    turned[:, 2] = boxes[:, 2] * np.hypot(*along)
    turned[:, 3] = boxes[:, 3] * np.hypot(*across)
    turned[:, 4] = np.arctan2(along[1], along[0])
    return turned
