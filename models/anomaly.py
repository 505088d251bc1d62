"""Anomaly detection: exports of anomalib (PaDiM, PatchCore, EfficientAD and others)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..ops import resize_map
from .description import ModelDescription, Recognition
from .output_checks import check_finite
from .preset_input import PresetInput, plane_rows, single_map
from .results import AnomalyMap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["AnomalyDetection"]

SCORE, LABEL, MAP, MASK = "pred_score", "pred_label", "anomaly_map", "pred_mask"


class AnomalyDetection(PresetInput[AnomalyMap]):
    """Exports of anomalib: `pred_score` [batch], `anomaly_map` [batch, 1, height, width], and where the export has
    thresholds `pred_label` [batch] and `pred_mask` [batch, 1, height, width]. Scores, thresholds and normalisation are
    those inside the graph. The map is resized bilinearly to the image, and so is the mask (above 0.5).

    Args:
        preset: see `PresetInput`; None is `"unit"`: anomalib's exports normalise inside.
        fit: `"stretch"`, as anomalib does it, or `"letterbox"`.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    task: ClassVar[str] = "anomaly"
    fallback_size: ClassVar[int] = 256

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        shapes = model.shapes
        for name in (SCORE, MAP):
            if name not in shapes:
                return Recognition.no(f"it has no output {name!r}")
        for name in (MAP, MASK):
            if name in shapes and single_map(shapes[name], model.input_size) is False:
                return Recognition.no(f"its output {name!r} of shape {shapes[name]} is not one map for each image")
        return Recognition.yes("a model of anomalies (anomalib's outputs)")

    def usual_preset(self, model: ModelDescription) -> str:
        return "unit"

    def usual_fit(self, model: ModelDescription) -> str:
        return "stretch"

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[AnomalyMap]:
        scores, labels = outputs[SCORE], outputs.get(LABEL)
        maps, masks = plane_rows(outputs[MAP]), plane_rows(outputs[MASK]) if MASK in outputs else None
        return [
            AnomalyMap(
                resize_map(maps[row], geometry),
                float(scores[row].reshape(-1)[0]),
                None if labels is None else bool(labels[row].reshape(-1)[0]),
                None if masks is None else resize_map(masks[row].astype(np.float32), geometry) > 0.5,
            )
            for row, geometry in enumerate(geometries)
        ]

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in (SCORE, MAP):
            check_finite(name, outputs[name])
