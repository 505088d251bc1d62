"""Accuracy of real models in INT8, calibrated on other images than they are measured on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accuracy import coco_map, imagenet_top
from infersdk import quant
from infersdk.models import Classifier, YOLOv5

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.assets, pytest.mark.slow]


@pytest.fixture(scope="module")
def squeezenet(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = assets / "models" / "squeezenet1.1.onnx"
    with Classifier(path, preset="caffe") as model:
        table = quant.calibrate(path, quant.ImageInputs(model, sorted((assets / "coco" / "val").glob("*.jpg"))))
    return quant.quantize(path, tmp_path_factory.mktemp("quant") / "squeezenet.onnx", table).path


@pytest.fixture(scope="module")
def yolov5n(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = assets / "models" / "yolov5n.onnx"
    images = [*sorted((assets / "driving").glob("frame_*.jpg")), *sorted((assets / "imagenet").glob("*.JPEG"))[::3]]
    with YOLOv5(path) as model:
        table = quant.calibrate(path, quant.ImageInputs(model, images), method="percentile")
    # The two costliest layers, as `infersdk quantize --max-drop` finds them.
    exclude = ["/model.2/cv1/conv/Conv", "/model.2/cv2/conv/Conv"]
    return quant.quantize(path, tmp_path_factory.mktemp("quant") / "yolo.onnx", table, exclude=exclude).path


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_squeezenet(squeezenet: Path, assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    with Classifier(squeezenet, backend, preset="caffe", precision="int8") as model:
        first, five = imagenet_top(model, assets / "imagenet")
    assert first >= 62  # 64 in FP32
    assert five >= 84


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_yolov5n(yolov5n: Path, assets: Path, backend: str) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("pycocotools")
    settings: dict[str, Any] = {"conf": 0.001, "iou": 0.6, "multi_label": True}
    with YOLOv5(yolov5n, backend, precision="int8", **settings) as model:
        found, _ = coco_map(model, assets / "coco")
    print(f"{found:.4f}")
    assert found >= 0.292  # 0.307 in FP32; what images it is calibrated on is worth some thousandths


def test_tensorrt_reads_the_file(squeezenet: Path, yolov5n: Path) -> None:
    """The parser of TensorRT-RTX, which needs no GPU; it is the building that needs INT8 kernels."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    for path in (squeezenet, yolov5n):
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, logger)
        assert parser.parse_from_file(str(path)), [parser.get_error(i).desc() for i in range(parser.num_errors)]
