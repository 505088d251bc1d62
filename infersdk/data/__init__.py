"""Packaged data (see README.md): class names of data sets; for `infersdk demo`, two small models and an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent

#: A YOLOv5-style detector of handwritten digits.
DETECTOR = _HERE / "digits_detector.onnx"
#: A classifier of one handwritten digit.
CLASSIFIER = _HERE / "digits_classifier.onnx"
#: Settings of the classifier's wrapper.
CLASSIFIER_SETTINGS: dict[str, Any] = {"preset": "unit", "resize": 32}
#: The class names of data sets in text files, one a line, by the name that the setting `names` takes.
CLASS_NAMES = {"coco": _HERE / "coco.txt", "imagenet": _HERE / "imagenet.txt"}
#: An image that neither model has seen.
IMAGE = _HERE / "demo.jpg"
