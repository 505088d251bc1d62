"""DetectionNMS: the boxes of the native decoder, from one file on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boxes_in_models import SIZE, check_rows, decoded, detector, head_output
from custom_operators import run_node
from PIL import Image

import infersdk
from infersdk.core.device import Device
from infersdk.custom_ops.detection_nms import AddDetectionNms
from infersdk.custom_ops.native import Node, native_op
from infersdk.custom_ops.packaged import DetectionNMS
from infersdk.errors import ConfigError, CustomOpError, UnsupportedModelError
from infersdk.graph.files import read_model, write_model
from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder, letterbox

onnx_ir = pytest.importorskip("onnx_ir")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("head", ["yolov5", "yolov8", "yolox"])
def test_the_boxes_are_those_of_the_decoder(head: str, dtype: str, rng: np.random.Generator) -> None:
    strides = (32,) if head == "yolox" else ()
    anchors = (SIZE[0] // 32) * (SIZE[1] // 32) if head == "yolox" else 1000
    settings: dict[str, Any] = {"conf": 0.3, "iou": 0.5, "multi_label": True, "max_candidates": 500}
    op = DetectionNMS(
        head=head, num_classes=4, width=SIZE[0], height=SIZE[1], strides=strides, max_detections=50, **settings
    )
    node = Node(op, native_op(DetectionNMS, DetectionNMS.signature_for([dtype]), Device.parse("cpu")), "nms")
    for batch in (1, 5, 2):  # the state grows once and is used again
        output = head_output(rng, head, batch, anchors).astype(dtype)
        check_rows(tuple(run_node(node, output)), decoded(output, head, strides=strides, max_det=50, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        ({"conf": 3.0}, 9, "infersdk::DetectionNMS, node nms: its CPU kernel failed: conf_threshold is 3"),
        ({"head": "yolox", "strides": (8 + 2**32, 16, 32)}, 9, "a stride is 2147483647"),
        ({}, 8, "a box has 5 . num_classes . extra numbers: it is 8, not 9"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], values: int, message: str) -> None:
    node = Node(
        DetectionNMS(**{"head": "yolov5", "num_classes": 4, "width": 64, "height": 64} | settings),
        native_op(DetectionNMS, DetectionNMS.signatures()[0], Device.parse("cpu")),
        "nms",
    )
    with pytest.raises(Exception, match=message):
        run_node(node, np.zeros((1, 10, values), "float32"))


def test_an_unknown_head_is_named() -> None:
    op = DetectionNMS(head="yolov9", num_classes=4, width=64, height=64)
    node = Node(op, native_op(DetectionNMS, DetectionNMS.signatures()[0], Device.parse("cpu")), "nms")
    with pytest.raises(Exception, match="head is 'yolov9'; use 'yolov5', 'yolov8' or 'yolox'"):
        run_node(node, np.zeros((1, 10, 9), "float32"))


# ---- models ----


@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
def test_one_file_gives_the_same_boxes_everywhere(tmp_path: Path, head: str, rng: np.random.Generator) -> None:
    model = read_model(detector(tmp_path / "m.onnx", head))
    AddDetectionNms(head, {"conf": 0.3}).apply(model)
    path = write_model(model, tmp_path / "boxes.onnx")
    output = head_output(rng, head, 3, 300)
    images = output.reshape(3, 1, -1, 300)
    with DetectionDecoder(head, 4, 300, conf=0.3) as decoder:
        geometry = Geometry.stretch((300, images.shape[2]), (300, images.shape[2]))
        want = [(boxes.copy(), stats) for boxes, stats in (decoder(image, geometry) for image in output)]
    for backend in ("onnxruntime", "openvino"):
        pytest.importorskip(backend)
        for cut in (False, True):
            with infersdk.load(path, backend, cut_custom_ops=cut) as infer:  # nothing to declare: it comes along
                got = infer(images)
                check_rows((got["detections"], got["count"], got["stats"]), want)


def test_models_without_a_suitable_head(tmp_path: Path) -> None:
    def model() -> Any:
        return read_model(detector(tmp_path / "m.onnx"))

    with pytest.raises(ConfigError, match="unknown head 'yolo'; use one of yolov5, yolov8, yolox"):
        AddDetectionNms("yolo").apply(model())
    with pytest.raises(CustomOpError, match="it has no attribute 'confidence'"):
        AddDetectionNms("yolov5", {"confidence": 0.3}).apply(model())
    with pytest.raises(ConfigError, match="max_detections must be a whole number from 1, not -3"):
        AddDetectionNms("yolov5", {"max_detections": -3}).apply(model())
    with pytest.raises(ConfigError, match="conf must be from 0 to 1, not 2"):
        AddDetectionNms("yolov5", {"conf": 2}).apply(model())
    with pytest.raises(UnsupportedModelError, match="has 9 numbers for each box; a head of 'yolov5' has 5"):
        AddDetectionNms("yolov5", {"extra": 4}).apply(model())
    open_size = model()
    open_size.graph.inputs[0].shape = onnx_ir.Shape([1, 3, "height", 64])
    with pytest.raises(UnsupportedModelError, match="need a fixed input size; apply resize-input"):
        AddDetectionNms("yolov5").apply(open_size)
    twice = model()
    AddDetectionNms("yolov5").apply(twice)
    with pytest.raises(UnsupportedModelError, match="the model must have one output with three axes"):
        AddDetectionNms("yolov5").apply(twice)


@pytest.mark.assets
@pytest.mark.slow
def test_a_real_detector(assets: Path, tmp_path: Path) -> None:
    """Behind the network's own output on each backend; across backends as far as the network agrees."""
    original = assets / "models" / "yolov5n.onnx"
    model = read_model(original)
    AddDetectionNms("yolov5", {"num_classes": 80}).apply(model)
    path = write_model(model, tmp_path / "boxes.onnx")
    files = [assets / "images" / name for name in ("bus.jpg", "zidane.jpg")]
    images = np.stack([letterbox(np.asarray(Image.open(file).convert("RGB"))[..., ::-1], 640)[0] for file in files])
    found = {}
    for backend in ("onnxruntime", "openvino"):
        pytest.importorskip(backend)
        with infersdk.load(path, backend) as infer:
            found[backend] = infer(images)
        with infersdk.load(path, backend, cut_custom_ops=True) as infer:
            (segment,) = infer.plan.segments  # type: ignore[attr-defined]
            assert segment.outputs == ("output0",)
            cut = infer(images)
        with infersdk.load(original, backend) as infer:
            output = infer(images)["output0"]
        geometry = Geometry.stretch((640, 640), (640, 640))
        with DetectionDecoder("yolov5", 80, output.shape[1]) as decoder:
            want = [(boxes.copy(), stats) for boxes, stats in (decoder(image, geometry) for image in output)]
        check_rows((cut["detections"], cut["count"], cut["stats"]), want)
    one, other = found.values()
    np.testing.assert_array_equal(one["count"], other["count"])
    assert one["count"].min() >= 2
    np.testing.assert_allclose(one["detections"], other["detections"], atol=0.05)
