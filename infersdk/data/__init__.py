"""What is packaged for `infersdk demo`: two small models of our own, and a picture to try them on. See README.md here."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent

#: A YOLOv5-style detector of handwritten digits.
DETECTOR = _HERE / "digits_detector.onnx"
#: A classifier of one handwritten digit.
CLASSIFIER = _HERE / "digits_classifier.onnx"
#: What the classifier's wrapper has to be told.
CLASSIFIER_SETTINGS = {"preset": "unit", "resize": 32}
#: A picture that neither model has seen.
PICTURE = _HERE / "demo.png"
