"""YuNet: faces with five landmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..ops import DetectStats, nms
from .description import ModelDescription, Recognition
from .output_checks import check_offsets, check_scores
from .preprocessor import ImageInput, Preprocessor
from .results import Detections
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["YuNet"]

STRIDES = (8, 16, 32)
#: The outputs of each stride, and the values a cell of each.
OUTPUTS = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
POINTS = 5


class YuNet(VisionModel[Detections]):
    """Faces, each with five landmarks: the eye that is left in the image, the other eye, the tip of the nose, the left
    and the right corner of the mouth.

    Outputs for each stride s of 8, 16 and 32: `cls_s` and `obj_s` [batch, cells, 1], `bbox_s` [batch, cells, 4] and
    `kps_s` [batch, cells, 10]. The score is sqrt(cls * obj). The column `keypoints` of the `Detections` is float32 (N,
    5, 2): x and y in pixels of the image. `infersdk.ops.aligned_crops(image, found.columns["keypoints"])` brings the
    faces upright, as recognition networks take them.

    Args:
        conf: the score that a face must exceed, 0 to 1.
        iou: the overlap above which the worse of two boxes is suppressed, 0 to 1.
        max_det: maximum number of faces of an image, the best ones; others are counted in `Detections.stats`.
        size: the input size, a number or (width, height), multiples of 32, for models that leave it open.

    `path`, `backend`, `names` and the other arguments: see `VisionModel`.
    """

    conf: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.6
    iou: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3
    max_det: Annotated[int, msgspec.Meta(ge=1)] = 300
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "detect"
    per_call: ClassVar[frozenset[str]] = frozenset({"conf", "iou", "max_det"})

    @classmethod
    def recognises(cls, model: ModelDescription) -> Recognition:
        if (known := super().recognises(model)).answer == "no":
            return known
        shapes = {spec.name: spec.shape for spec in model.outputs}
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

    # ---- preprocessing and postprocessing ----

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        if any(side % STRIDES[-1] for side in input.size):
            raise ConfigError(f"size is {input.size[0]} x {input.size[1]}; use multiples of {STRIDES[-1]}")
        return Preprocessor.letterbox(
            input, channel_order=self.channel_order, centred=False, order="bgr", fill=0, scale=1.0
        )

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        whole = {
            kind: np.concatenate([outputs[f"{kind}_{stride}"] for stride in STRIDES], axis=1).astype(np.float32)
            for kind in OUTPUTS
        }
        scores = np.sqrt(np.clip(whole["cls"], 0, 1) * np.clip(whole["obj"], 0, 1))[..., 0]
        return [
            self._faces(scores[row], whole["bbox"][row], whole["kps"][row], geometry)
            for row, geometry in enumerate(geometries)
        ]

    def _faces(
        self,
        scores: npt.NDArray[np.float32],
        boxes: npt.NDArray[np.float32],
        points: npt.NDArray[np.float32],
        geometry: Geometry,
    ) -> Detections:
        """Of one image; an array has a row for each cell."""
        result = np.flatnonzero(scores > self.conf)
        cells, strides = (array[result] for array in _grid(self.input_size))
        box, scores = boxes[result], scores[result]
        centre, half = (cells + box[:, :2]) * strides, np.exp(box[:, 2:]) * strides * np.float32(0.5)
        xyxy = np.hstack([centre - half, centre + half])
        kept = nms(xyxy, scores, iou=self.iou)
        chosen = kept[: self.max_det]
        landmarks = (cells[chosen, None] + points[result[chosen]].reshape(-1, POINTS, 2)) * strides[chosen, None]
        return Detections.of(
            geometry.to_source(xyxy[chosen].reshape(-1, 2)).reshape(-1, 4),
            scores[chosen],
            names=self.class_names or ("face",),
            size=geometry.source,
            stats=DetectStats(len(result), 0, len(kept), len(kept) - len(chosen)),
            keypoints=geometry.to_source(landmarks.reshape(-1, 2)).reshape(-1, POINTS, 2).astype(np.float32),
        )

    # ---- the outputs ----

    def count_classes(self, shapes: Mapping[str, tuple[int | str | None, ...]]) -> int | None:
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
    cells, strides = [], []
    for stride in STRIDES:
        width, height = size[0] // stride, size[1] // stride
        cells.append(np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1).reshape(-1, 2))
        strides.append(np.full((width * height, 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(strides).astype(np.float32)
