"""The models of the test data under every type: a wrapper reads what a model gives, or refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import infersdk
from infersdk.errors import ConfigError, InferenceError, UnsupportedModelError
from infersdk.models import TYPES, load

pytest.importorskip("onnxruntime")

#: The types that read each model, and the one that `load()` takes; None where the file leaves it open.
READ_BY: dict[str, tuple[str | None, set[str]]] = {
    "models/yolov5n.onnx": ("yolov5", {"yolov5"}),
    "models/yolov8n.onnx": ("yolov8", {"yolov8"}),
    "models/yolov8n-pose.onnx": ("yolov8-pose", {"yolov8-pose"}),
    "models/yolov8n-seg.onnx": ("yolov8-seg", {"yolov8-seg"}),
    "models/yolov10n.onnx": ("end-to-end", {"end-to-end"}),
    "models/yolox_nano.onnx": ("yolox", {"yolox"}),
    "models/twinlitenet.onnx": (None, {"twinlitenet"}),
    "models/selfie_segmentation.onnx": (None, {"segmentation"}),
    # Nothing in a file tells a vector from the scores of classes.
    "models/squeezenet1.1.onnx": ("classifier", {"classifier", "embedding"}),
    "models/osnet_x0_25_msmt17.onnx": (None, {"classifier", "embedding"}),
    "face/yunet_n_dynamic.onnx": ("yunet", {"yunet"}),
    "ocr/ch_PP-OCRv4_det_infer.onnx": (None, {"segmentation"}),
    "ocr/ch_PP-OCRv4_rec_infer.onnx": (None, set()),
    "ocr/ch_ppocr_mobile_v2.0_cls_infer.onnx": ("classifier", {"classifier", "embedding"}),
}
#: What a wrapper needs to read a file that says nothing of itself.
SETTINGS: dict[str, dict[str, Any]] = {
    "yolov8-pose": {"keypoints": (17, 3)},
    "end-to-end-pose": {"keypoints": (17, 3)},
    "segmentation": {"preset": "unit"},
    "twinlitenet": {"area": "lanes", "lanes": "segmentation"},
    "yolox": {"legacy": True},
}


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("file", READ_BY)
def test_every_type(assets: Path, file: str) -> None:
    image = assets / "images" / "bus.jpg"
    one, expected = READ_BY[file]
    read: set[str] = set()
    with infersdk.load(assets / file) as network:
        for name in TYPES:
            try:
                with load(network.clone(), type=name, **SETTINGS.get(name, {})) as model:
                    model(image)
                    read.add(name)
            except (UnsupportedModelError, ConfigError, InferenceError):
                continue
        assert read == expected
        try:
            with load(network.clone()) as model:
                model(image)
                assert one is not None
                assert type(model) is TYPES[one]
        except (UnsupportedModelError, InferenceError):
            assert one is None
