"""Depth estimation: Depth Anything, MiDaS and DPT, Ultralytics' depth models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..errors import UnsupportedModelError
from ..ops import resize_map
from .description import ModelDescription, Recognition
from .output_checks import check_finite
from .preset_input import PresetInput, plane_rows, single_map
from .results import DepthMap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["DepthEstimation"]

#: The output, as transformers' exporters call it.
OUTPUT = "predicted_depth"


class DepthEstimation(PresetInput[DepthMap]):
    """One number for each point, [batch, height, width] or [batch, 1, height, width], resized to the image.

    Args:
        kind: `"disparity"`: values grow towards the camera (Depth Anything, MiDaS, DPT); `"distance"`: they grow away
            from it (metric models). None is `"distance"` for files with the task "depth" or the `model_type` "glpn" or
            "zoedepth", else `"disparity"`.
        filter: how the map is resized to the image: `"bicubic"`, as transformers and MiDaS do it, or `"bilinear"`.
        preset: see `PresetInput`. Depth Anything has `"imagenet"`, MiDaS v2.1 too, DPT of MiDaS v3 `"inception"`.
        fit: `"stretch"` or `"letterbox"`; None stretches, and letterboxes for the task "depth".
        size: the input size, a number or (width, height), for models that leave it open; Depth Anything needs multiples
            of 14.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    kind: Literal["disparity", "distance"] | None = None
    filter: Literal["bicubic", "bilinear"] = "bicubic"

    task: ClassVar[str] = "depth"
    fallback_size: ClassVar[int] = 518
    _outputs: ClassVar[int] = 1
    presets_by_family: ClassVar[dict[str, str]] = {"depth_anything": "imagenet"}
    #: The values of `model_type` in the metadata, as transformers calls them: of metric models, and of all.
    metric_types: ClassVar[frozenset[str]] = frozenset({"zoedepth", "glpn"})
    model_types: ClassVar[frozenset[str]] = frozenset({"depth_anything", "dpt"}) | metric_types

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        spec = model.outputs[0]
        is_map = single_map(spec.shape, model.input_size)
        if is_map is False:
            return Recognition.no(f"its output {spec} is not one number for each point of its input")
        if model.task == cls.task or model.model_type in cls.model_types or spec.name == OUTPUT:
            return Recognition.yes("a model of depth (one map of numbers)")
        if is_map is None:
            return Recognition.nearly("its file does not describe its output")
        return Recognition.nearly(
            "nothing in the file says that its map of numbers is depth", "a model that gives one map"
        )

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[DepthMap]:
        model = self._description
        is_metric = model.task == self.task or model.model_type in self.metric_types
        kind = self.kind or ("distance" if is_metric else "disparity")
        maps = plane_rows(next(iter(outputs.values())))
        return [
            DepthMap(resize_map(maps[row], geometry, filter=self.filter), kind)
            for row, geometry in enumerate(geometries)
        ]

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name, values = next(iter(outputs.items()))
        check_finite(name, values)
        if values.size > 1 and (values == values.reshape(-1)[0]).all():
            raise UnsupportedModelError(f"its output {name!r} is {np.ravel(values)[0]:.4g} everywhere in its first run")
