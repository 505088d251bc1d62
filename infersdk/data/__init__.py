"""What is packaged for `infersdk demo`: two small models of our own, and an image to try them on (see README.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent

#: A YOLOv5-style detector of handwritten digits.
DETECTOR = _HERE / "digits_detector.onnx"
#: A classifier of one handwritten digit.
CLASSIFIER = _HERE / "digits_classifier.onnx"
#: What the classifier's wrapper has to be told.
CLASSIFIER_SETTINGS: dict[str, Any] = {"preset": "unit", "resize": 32}
#: An image that neither model has seen.
IMAGE = _HERE / "demo.jpg"
