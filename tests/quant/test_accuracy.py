"""Accuracy of real models in INT8, calibrated on other images than they are measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from int8_processors import needs_exact_int8

from accuracy import imagenet_top
from infersdk import quant
from infersdk.accuracy import Contender, DetectTask, gate
from infersdk.models import Classifier, load

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.assets, pytest.mark.slow, needs_exact_int8]


def half(assets: Path, which: int) -> list[Path]:
    return sorted((assets / "coco" / "val").glob("*.jpg"))[which::2]


@pytest.fixture(scope="module")
def annotations(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second half of the images, which nothing is calibrated on."""
    whole = json.loads((assets / "coco" / "instances_val.json").read_text())
    kept = {file.name for file in half(assets, 1)}
    images = [image for image in whole["images"] if image["file_name"] in kept]
    numbers = {image["id"] for image in images}
    boxes = [box for box in whole["annotations"] if box["image_id"] in numbers]
    path = tmp_path_factory.mktemp("coco") / "half.json"
    path.write_text(json.dumps({**whole, "images": images, "annotations": boxes}))
    return path


@pytest.mark.parametrize(
    ("backend", "name", "settings"), [("onnxruntime", "yolov5n", {}), ("openvino", "yolov8n", {"iou": 0.7})]
)
def test_a_detector_by_default(
    assets: Path, annotations: Path, tmp_path: Path, backend: str, name: str, settings: dict[str, Any]
) -> None:
    pytest.importorskip(backend)
    pytest.importorskip("pycocotools")
    path, output = assets / "models" / f"{name}.onnx", tmp_path / "int8.onnx"
    work = quant.Workflow(path, half(assets, 0), lambda file: load(file, backend=backend), target=backend)
    work.run(output)
    assert work.agreement.percent > 85
    task = DetectTask(annotations, assets / "coco" / "val", **settings)
    report = gate([Contender(path, backend), Contender(output, f"{backend}/int8")], task, max_drop=0.012)
    print(name, backend, [score.figures["mAP"] for score in report.scores])
    assert report.passes


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_classifier_by_default(assets: Path, tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = assets / "models" / "squeezenet1.1.onnx"
    work = quant.Workflow(path, half(assets, 0), lambda file: Classifier(file, backend, preset="caffe"), target=backend)
    work.run(tmp_path / "int8.onnx")
    with Classifier(tmp_path / "int8.onnx", backend, preset="caffe", precision="int8") as model:
        first, five = imagenet_top(model, assets / "imagenet")
    assert first >= 63  # 64 in FP32
    assert five >= 84


def test_tensorrt_reads_the_file(assets: Path, tmp_path: Path) -> None:
    """The parser of TensorRT-RTX, which needs no GPU; it is the building that needs INT8 kernels."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    path = assets / "models" / "yolov5n.onnx"
    with load(path) as model:
        table = quant.calibrate(path, quant.ImageInputs(model, half(assets, 0)[:8]), target="tensorrt")
    made = quant.quantize(path, tmp_path / "int8.onnx", table, target="tensorrt")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(made.path)), [parser.get_error(i).desc() for i in range(parser.num_errors)]
