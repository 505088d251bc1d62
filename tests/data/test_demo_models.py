"""The packaged demo models: their interface, and that they read digits which they have never seen."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.models import YOLOv5
from infersdk.models.results.agreement import overlaps

DATA = Path(str(resources.files("infersdk"))) / "data"
TOOLS = Path(__file__).resolve().parents[2] / "tools"
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
IMAGES = 24

# name, side of the input, output, shape of an output, task, stride
DETECTOR = ("digits_detector.onnx", 320, "output0", [6300, 15], "detect", "32")
CLASSIFIER = ("digits_classifier.onnx", 32, "logits", [10], "classify", "1")
both = pytest.mark.parametrize("model", [DETECTOR, CLASSIFIER], ids=["detector", "classifier"])


def session(name: str) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(DATA / name, options, providers=["CPUExecutionProvider"])


def run(name: str, images: np.ndarray) -> np.ndarray:
    return session(name).run(None, {"images": images})[0]


@pytest.fixture(scope="module")
def demo_data() -> Any:
    """The module that composed the training images."""
    pytest.importorskip("cv2")
    spec = importlib.util.spec_from_file_location("demo_data", TOOLS / "demo_data.py")
    module = sys.modules.setdefault("demo_data", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def image(demo_data: Any) -> Any:
    """The packaged image with its truth."""
    truth = json.loads((DATA / "demo.json").read_text("utf-8"))
    image = np.asarray(Image.open(DATA / truth["image"]).convert("RGB"))
    assert image.shape == (truth["height"], truth["width"], 3)
    assert [NAMES[entry["class_id"]] for entry in truth["objects"]] == [entry["label"] for entry in truth["objects"]]
    boxes = np.array([entry["box"] for entry in truth["objects"]], np.float32)
    return demo_data.Canvas(image, boxes, np.array([entry["class_id"] for entry in truth["objects"]]))


@pytest.fixture(scope="module")
def held_back(demo_data: Any) -> list[Any]:
    """Images that show only digits which were kept from training, composed by seeds that training never used."""
    pytest.importorskip("sklearn")
    _, digits = demo_data.load_digits()
    return [demo_data.detector_canvas(digits, (5, i)) for i in range(IMAGES)]


def test_the_package_stays_small() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.onnx")) <= 2_000_000
    assert sum(path.stat().st_size for path in DATA.iterdir()) <= 2_100_000


@both
def test_interface(model: tuple[Any, ...]) -> None:
    name, side, output, shape, task, stride = model
    loaded = session(name)
    (given,), (got,) = loaded.get_inputs(), loaded.get_outputs()
    assert (given.name, given.type, given.shape) == ("images", "tensor(float)", ["batch", 3, side, side])
    assert (got.name, got.type, got.shape) == (output, "tensor(float)", ["batch", *shape])
    metadata = loaded.get_modelmeta().custom_metadata_map
    assert ast.literal_eval(metadata["names"]) == dict(enumerate(NAMES))
    assert ast.literal_eval(metadata["imgsz"]) == [side, side]
    assert (metadata["task"], metadata["stride"]) == (task, stride)


@both
def test_graph_is_plain(model: tuple[Any, ...]) -> None:
    """Operators that all parsers and quantisers know, and nothing of the machine that made the file."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(DATA / model[0])
    assert 13 <= graph.opset_import[0].version <= 17
    plain = "Conv Relu Add Mul Concat Resize Sigmoid Slice Reshape Transpose Constant GlobalAveragePool Flatten Gemm"
    assert {node.op_type for node in graph.graph.node} <= set(plain.split())
    assert not any(node.doc_string or node.metadata_props for node in graph.graph.node)


@both
@pytest.mark.parametrize("batch", [1, 3])
def test_batch_is_dynamic(model: tuple[Any, ...], batch: int, rng: np.random.Generator) -> None:
    name, side, _, shape, _, _ = model
    images = rng.random((batch, 3, side, side), np.float32)
    together = run(name, images)
    assert together.shape == (batch, *shape)
    alone = np.concatenate([run(name, images[i : i + 1]) for i in range(batch)])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)


@both
def test_openvino_agrees(model: tuple[Any, ...], rng: np.random.Generator) -> None:
    openvino = pytest.importorskip("openvino")
    images = rng.random((2, 3, model[1], model[1]), np.float32)
    compiled = openvino.Core().compile_model(DATA / model[0], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled(images)[0], run(model[0], images), rtol=1e-3, atol=1e-2)


def test_detector_speaks_yolov5(rng: np.random.Generator) -> None:
    """Rows by stride, anchor, row, column; centres in reach of their cell; sides positive; probabilities."""
    (output,) = run(DETECTOR[0], rng.random((1, 3, 320, 320), np.float32))
    start = 0
    for stride in (8, 16, 32):
        cells = 320 // stride
        rows = output[start : start + 3 * cells * cells].reshape(3, cells, cells, 15)
        cell = np.stack(np.meshgrid(np.arange(cells), np.arange(cells)), axis=-1) * stride
        offset = (rows[..., :2] - cell) / stride
        assert (offset >= -0.5).all()
        assert (offset <= 1.5).all()
        start += 3 * cells * cells
    assert start == len(output)
    assert (output[:, 2:4] > 0).all()
    assert (output[:, 4:] >= 0).all()
    assert (output[:, 4:] <= 1).all()


def test_finds_what_is_on_the_image(image: Any) -> None:
    """Every digit once, in its class, and nothing else."""
    with YOLOv5(DATA / DETECTOR[0], conf=0.25, iou=0.45) as model:
        found = model(Image.fromarray(image.image))
    iou = overlaps(image.boxes, found.xyxy)
    best = iou.argmax(1)
    assert iou.max(1).min() >= 0.6
    np.testing.assert_array_equal(found.class_ids[best], image.labels)
    assert sorted(best) == list(range(len(image.labels))), f"also found: {found}"


def test_classifier_reads_the_image(demo_data: Any, image: Any) -> None:
    crops = [demo_data.crop(image.image, box) for box in image.boxes]
    np.testing.assert_array_equal(run(CLASSIFIER[0], demo_data.tensor(crops)).argmax(1), image.labels)


def test_the_image_is_of_held_back_digits(demo_data: Any, image: Any) -> None:
    """It composes anew from held-back digits alone, but for what JPEG and another OpenCV's rounding change."""
    pytest.importorskip("sklearn")
    train, held = demo_data.load_digits()
    assert (len(train), len(held)) == (1437, 360)
    assert not {glyph.tobytes() for glyph in train.glyphs} & {glyph.tobytes() for glyph in held.glyphs}
    again = demo_data.demo_canvas(held)
    np.testing.assert_array_equal(again.labels, image.labels)
    np.testing.assert_allclose(again.boxes, image.boxes, atol=1)
    assert np.abs(again.image.astype(float) - image.image).mean() < 4


def test_detector_on_held_back_digits(demo_data: Any, held_back: list[Any]) -> None:
    pytest.importorskip("pycocotools")
    assert sum(len(canvas.labels) for canvas in held_back) > 3 * IMAGES
    map50, map_all = demo_data.mean_ap(DATA / DETECTOR[0], held_back)
    assert map50 >= 0.9, f"mAP@0.5 {map50:.3f}, mAP@0.5:0.95 {map_all:.3f}"
    assert map_all >= 0.65, f"mAP@0.5 {map50:.3f}, mAP@0.5:0.95 {map_all:.3f}"
    pairs = zip(held_back, [*held_back[1:], held_back[0]], strict=True)
    wrong = [dataclasses.replace(canvas, image=other.image) for canvas, other in pairs]
    assert demo_data.mean_ap(DATA / DETECTOR[0], wrong)[0] < 0.1  # the measure can tell


def test_classifier_on_held_back_digits(demo_data: Any, held_back: list[Any]) -> None:
    labels = np.concatenate([canvas.labels for canvas in held_back])
    for square in (True, False):
        crops = [demo_data.crop(canvas.image, box, square=square) for canvas in held_back for box in canvas.boxes]
        accuracy = (run(CLASSIFIER[0], demo_data.tensor(crops)).argmax(1) == labels).mean()
        assert accuracy >= 0.93, f"accuracy {accuracy:.3f}, square={square}"
