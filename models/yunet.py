"""YuNet: faces with five landmarks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..ops import DetectStats, nms
from .declaration import Fraction
from .description import ModelDescription, Recognition, Shape, cells_of
from .detector import Detector, finite_rows
from .output_checks import check_offsets, check_scores
from .preprocessor import ImageInput, Preprocessor

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from .results import Detections

__all__ = ["YuNet"]

STRIDES = (8, 16, 32)
#: The outputs of each stride, and the values a cell of each.
OUTPUTS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
POINTS = 5


class YuNet(Detector):
    """Faces, each with five landmarks: the eye that is left in the image, the other eye, the tip of the nose, the left
    and the right corner of the mouth.

    Outputs for each stride s of 8, 16 and 32: `cls_s` and `obj_s` [batch, cells, 1], `bbox_s` [batch, cells, 4] and
    `kps_s` [batch, cells, 10]. The score is sqrt(cls * obj). The column `keypoints` of the `Detections` is float32 (N,
    5, 2): x and y in pixels of the image. `infersdk.ops.aligned_crops(image, found.columns["keypoints"])` brings the
    faces upright, as recognition networks take them.

    Args:
        iou: the overlap above which the worse of two boxes is suppressed, 0 to 1.
        size: the input size, a number or (width, height), multiples of 32, for models that leave it open.

    Further arguments: see `Detector` and `VisionModel`.
    """

    conf: Fraction = 0.6
    iou: Fraction = 0.3

    per_call: ClassVar[frozenset[str]] = Detector.per_call | {"iou"}
    _usual_names = ("face",)

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        shapes = model.shapes
        several = len(shapes) > len(STRIDES) and all(len(shape) == 3 for shape in shapes.values())
        family = "a detector with an output for each kind of value and stride" if several else ""
        for stride in STRIDES:
            for kind, values in OUTPUTS.items():
                shape = shapes.get(f"{kind}_{stride}")
                if shape is None:
                    return Recognition.no(f"it has no output '{kind}_{stride}'", family)
                if len(shape) != 3 or (isinstance(shape[2], int) and shape[2] != values):
                    return Recognition.no(
                        f"its output '{kind}_{stride}' has shape {shape}, not (batch, cells, {values})", family
                    )
        return Recognition.yes("a YuNet")

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        if any(side % STRIDES[-1] for side in input.size):
            raise ConfigError(f"size is {input.size[0]} x {input.size[1]}; use multiples of {STRIDES[-1]}")
        return Preprocessor.letterbox(input, centred=False, order="bgr", fill=0, scale=1.0)

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        classes, objects, boxes, points = (  # with a row for each cell
            np.concatenate([outputs[f"{kind}_{stride}"] for stride in STRIDES]).astype(np.float32) for kind in OUTPUTS
        )
        scores = np.sqrt(np.clip(classes, 0, 1) * np.clip(objects, 0, 1))[:, 0]
        result = np.flatnonzero(scores > self.conf)
        cells, strides = (array[result] for array in _grid(self.input_size))
        box = boxes[result]
        centre, half = (cells + box[:, :2]) * strides, np.exp(box[:, 2:]) * strides * np.float32(0.5)
        xyxy = np.hstack([centre - half, centre + half])
        finite = finite_rows(xyxy)
        result, cells, strides, xyxy = result[finite], cells[finite], strides[finite], xyxy[finite]
        scores = scores[result]
        kept = nms(xyxy, scores, iou=self.iou)
        chosen = kept[: self.max_det]
        landmarks = (cells[chosen, None] + points[result[chosen]].reshape(-1, POINTS, 2)) * strides[chosen, None]
        keypoints = geometry.to_source(landmarks.reshape(-1, 2)).reshape(-1, POINTS, 2).astype(np.float32)
        stats = DetectStats(len(result), 0, len(kept), len(kept) - len(chosen))
        return self._detections_of(xyxy[chosen], scores[chosen], None, geometry, stats, keypoints=keypoints)

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        return 1

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        cells, expected = sum(outputs[f"cls_{stride}"].shape[1] for stride in STRIDES), len(_grid(self.input_size)[0])
        if cells != expected:
            width, height = self.input_size
            raise UnsupportedModelError(
                f"its outputs have {cells} cells, and the grids of {width} x {height} have {expected}"
            )
        for kind in ("cls", "obj"):
            for stride in STRIDES:
                check_scores(outputs[f"{kind}_{stride}"], f"scores in '{kind}_{stride}'")
        for stride in STRIDES:
            check_offsets(outputs[f"bbox_{stride}"])


@lru_cache(maxsize=16)
def _grid(size: tuple[int, int]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(column, row) of each cell, (cells, 2), and its stride, (cells, 1)."""
    centres, strides = cells_of(size, STRIDES)
    return (centres / strides - 0.5).astype(np.float32), strides.astype(np.float32)
