"""Model wrappers: from images to results, on any backend.

::

    detector = YOLOv5("yolov5s.onnx", backend="openvino", conf=0.4)
    for box in detector("bus.jpg"):
        print(box.label, box.score, box.xyxy)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

if __name__ != "infersdk.models":
    raise ImportError("this folder is the package infersdk.models; import it by that name")

from ..config import read
from ..errors import ConfigError
from .classifier import PRESETS, Classifier
from .results import Classification, Classifications, Detection, Detections
from .vision import Timings, VisionModel
from .yolo import YOLOX, YOLOv5, YOLOv8, detector

__all__ = [
    "PRESETS",
    "TYPES",
    "YOLOX",
    "Classification",
    "Classifications",
    "Classifier",
    "Detection",
    "Detections",
    "Timings",
    "VisionModel",
    "YOLOv5",
    "YOLOv8",
    "create",
    "detector",
]

#: What `type` may be in a configuration.
TYPES: dict[str, type[VisionModel[Any]]] = {
    "yolov5": YOLOv5,
    "yolov8": YOLOv8,
    "yolox": YOLOX,
    "classifier": Classifier,
}


def create(config: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, VisionModel[Any]]:
    """The wrappers that a configuration describes, by name: `create("app.toml")["detector"]`.

    Args:
        config: a TOML, YAML or JSON file, or a mapping, with a table `models` (see `infersdk.config`).

    Raises:
        ConfigError: names the table and the field at fault.
        BackendError, ModelError: what loading raises. Models that were loaded before are closed.
    """
    tables = read(config).get("models")
    if not isinstance(tables, Mapping) or not tables:
        raise ConfigError("a configuration has a table for each model: [models.detector], say; there is none")
    made: dict[str, VisionModel[Any]] = {}
    try:
        for name, table in tables.items():
            made[name] = _create_one(name, table)
    except BaseException:
        for model in made.values():
            model.close()
        raise
    return made


def _create_one(name: str, table: Any) -> VisionModel[Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"models.{name} is a table, not {table!r}")
    fields = dict(table)
    kind = fields.pop("type", None)
    if kind not in TYPES:
        raise ConfigError(f"models.{name}: type {kind!r} is none of {', '.join(TYPES)}")
    try:
        return TYPES[kind].from_config(fields)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"models.{name}: {error}") from None
