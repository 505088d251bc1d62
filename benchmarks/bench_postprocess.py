"""Post-processing side by side with what users write instead, on one thread.

Run: `pytest benchmarks/bench_postprocess.py` (pytest-benchmark; the test data of INFERSDK_ASSETS). Outputs are real:
those of YOLOv5n and YOLOv8n for bus.jpg. Each contender is checked to give the same boxes before it is timed.

The baselines stop at boxes on the canvas; ours goes on to the image and returns structured arrays. They are
  - torch: YOLOv5's non_max_suppression, written out here, with a greedy NMS of torch operations in place of
    torchvision's, as where torchvision is not installed;
  - numpy_cv2: the same with NumPy and cv2.dnn.NMSBoxesBatched, as in countless deployment scripts;
  - ultralytics: its own non_max_suppression, where that package can be imported.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.image import Geometry
from infersdk.ops import DetectionDecoder, nms, topk

cv2 = pytest.importorskip("cv2")
pytest.importorskip("pytest_benchmark")

ASSETS = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    yield
    torch.set_num_threads(before[0])
    cv2.setNumThreads(before[1])


def run_model(name: str) -> np.ndarray:
    """The output of a model of the test data for bus.jpg, letterboxed."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if not (ASSETS / "models" / name).is_file():
        pytest.skip("no test data: set INFERSDK_ASSETS to its folder")
    image = cv2.imread(str(ASSETS / "images" / "bus.jpg"))
    height, width = image.shape[:2]
    r = min(640 / width, 640 / height)
    w, h = round(width * r), round(height * r)
    left, top = (640 - w) // 2, (640 - h) // 2
    canvas = np.full((640, 640, 3), 114, np.uint8)
    canvas[top : top + h, left : left + w] = cv2.resize(image, (w, h))
    blob = np.ascontiguousarray(canvas[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
    session = onnxruntime.InferenceSession(str(ASSETS / "models" / name), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: blob})[0][0])


@pytest.fixture(scope="module", name="yolov5")
def _yolov5() -> np.ndarray:
    return run_model("yolov5n.onnx")


@pytest.fixture(scope="module", name="yolov8")
def _yolov8() -> np.ndarray:
    return run_model("yolov8n.onnx")


CANVAS = Geometry.stretch((640, 640), (640, 640))


def ours(output: np.ndarray, **params: Any) -> Any:
    head = "yolov8" if output.shape[0] == 84 else "yolov5"
    detector = DetectionDecoder(head, 80, max(output.shape), dtype=str(output.dtype), **params)
    return lambda: detector(output, CANVAS)[0]


# ---- the baselines ----


def torch_nms(boxes: Any, scores: Any, iou: float) -> Any:
    """Greedy NMS of torch operations."""
    import torch

    order = scores.argsort(descending=True)
    x1, y1, x2, y2 = boxes[order].T
    areas = (x2 - x1) * (y2 - y1)
    left = torch.arange(len(order))
    keep = []
    while len(left):
        i, left = left[0], left[1:]
        keep.append(int(order[i]))
        w = (torch.minimum(x2[left], x2[i]) - torch.maximum(x1[left], x1[i])).clamp_(min=0)
        h = (torch.minimum(y2[left], y2[i]) - torch.maximum(y1[left], y1[i])).clamp_(min=0)
        inter = w * h
        left = left[inter / (areas[left] + areas[i] - inter) <= iou]
    return torch.tensor(keep, dtype=torch.int64)


def torch_detect(output: np.ndarray, conf: float, iou: float, multi_label: bool, max_det: int = 300) -> Any:
    """The steps of YOLOv5's non_max_suppression for one image."""
    import torch

    x = torch.from_numpy(output)
    if output.shape[0] == 84:
        x = x.T
        x = x[x[:, 4:].amax(1) > conf]
        scores = x[:, 4:]
    else:
        x = x[x[:, 4] > conf]
        scores = x[:, 5:] * x[:, 4:5]
    half = x[:, 2:4] / 2
    boxes = torch.cat((x[:, :2] - half, x[:, :2] + half), 1)
    if multi_label:
        i, j = (scores > conf).nonzero(as_tuple=False).T
        x = torch.cat((boxes[i], scores[i, j, None], j[:, None].float()), 1)
    else:
        best, j = scores.max(1, keepdim=True)
        x = torch.cat((boxes, best, j.float()), 1)[best.view(-1) > conf]
    x = x[x[:, 4].argsort(descending=True)[:30000]]
    return x[torch_nms(x[:, :4] + x[:, 5:6] * 7680, x[:, 4], iou)[:max_det]]


def numpy_cv2_detect(output: np.ndarray, conf: float, iou: float, multi_label: bool, max_det: int = 300) -> Any:
    """The same with NumPy and OpenCV."""
    if output.shape[0] == 84:
        keep = output[4:].max(axis=0) > conf
        x = output[:, keep].T
        scores = x[:, 4:]
    else:
        x = output[output[:, 4] > conf]
        scores = x[:, 5:] * x[:, 4:5]
    boxes = x[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    if multi_label:
        rows, classes = np.nonzero(scores > conf)
        boxes, best = boxes[rows], scores[rows, classes]
    else:
        classes = scores.argmax(axis=1)
        best = scores[np.arange(len(x)), classes]
    keep = cv2.dnn.NMSBoxesBatched(boxes, best, classes.astype(np.int32), conf, iou)
    keep = np.asarray(keep, np.int64).ravel()[:max_det]
    boxes = boxes[keep]
    boxes[:, 2:] += boxes[:, :2]
    return np.concatenate([boxes, best[keep, None], classes[keep, None]], axis=1)


def ultralytics_detect(output: np.ndarray, conf: float, iou: float, multi_label: bool) -> Any:
    import torch

    try:
        from ultralytics.utils.nms import non_max_suppression
    except Exception as error:  # it looks for torchvision as it is imported
        pytest.skip(f"ultralytics cannot be imported: {error}")
    x = torch.from_numpy(output)[None]
    return lambda: non_max_suppression(x, conf, iou, multi_label=multi_label, max_det=300)[0]


CONTENDERS = ["ours", "torch", "numpy_cv2", "ultralytics"]


def detection_of(contender: str, output: np.ndarray, conf: float, iou: float, multi_label: bool) -> Any:
    if contender == "ours":
        return ours(output, conf=conf, iou=iou, multi_label=multi_label)
    if contender == "ultralytics":
        return ultralytics_detect(output, conf, iou, multi_label)
    function = {"torch": torch_detect, "numpy_cv2": numpy_cv2_detect}[contender]
    return lambda: function(output, conf, iou, multi_label)


def check_same(function: Any, output: np.ndarray, conf: float, iou: float, multi_label: bool) -> None:
    """The best boxes agree. (Further down the class offsets of YOLOv5 and the IoU of OpenCV round differently.)"""
    expected = ours(output, conf=conf, iou=iou, multi_label=multi_label)()
    result = function()
    assert len(result) == len(expected)
    if not (isinstance(result, np.ndarray) and result.dtype == expected.dtype):
        result, best = np.asarray(result), min(len(expected), 5)
        np.testing.assert_allclose(result[:best, 4], expected["score"][:best], rtol=1e-5)
        np.testing.assert_allclose(result[:best, :4].clip(0, 640), expected["xyxy"][:best], atol=1e-2)


# ---- detection ----


@pytest.mark.benchmark(group="YOLOv5 25200 x 85, conf 0.25")
@pytest.mark.parametrize("contender", CONTENDERS[:3])
def test_yolov5_deployed(benchmark: Any, yolov5: np.ndarray, contender: str) -> None:
    function = detection_of(contender, yolov5, 0.25, 0.45, False)
    check_same(function, yolov5, 0.25, 0.45, False)
    benchmark(function)


@pytest.mark.benchmark(group="YOLOv5 25200 x 85, conf 0.001, multi-label")
@pytest.mark.parametrize("contender", CONTENDERS[:3])
def test_yolov5_evaluated(benchmark: Any, yolov5: np.ndarray, contender: str) -> None:
    function = detection_of(contender, yolov5, 0.001, 0.6, True)
    check_same(function, yolov5, 0.001, 0.6, True)
    benchmark(function)


@pytest.mark.benchmark(group="YOLOv8 84 x 8400, conf 0.25")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_yolov8_deployed(benchmark: Any, yolov8: np.ndarray, contender: str) -> None:
    function = detection_of(contender, yolov8, 0.25, 0.45, False)
    check_same(function, yolov8, 0.25, 0.45, False)
    benchmark(function)


@pytest.mark.benchmark(group="YOLOv8 84 x 8400, conf 0.001, multi-label")
@pytest.mark.parametrize("contender", CONTENDERS)
def test_yolov8_evaluated(benchmark: Any, yolov8: np.ndarray, contender: str) -> None:
    function = detection_of(contender, yolov8, 0.001, 0.7, True)
    check_same(function, yolov8, 0.001, 0.7, True)
    benchmark(function)


@pytest.mark.benchmark(group="float16 outputs, conf 0.25 (ours alone)")
@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
def test_half(benchmark: Any, request: pytest.FixtureRequest, head: str) -> None:
    output = request.getfixturevalue(head).astype(np.float16)
    benchmark(ours(output))


# ---- NMS ----


@pytest.mark.benchmark(group="NMS of 10000 boxes of one class")
@pytest.mark.parametrize("contender", CONTENDERS[:3])
def test_nms_of_many(benchmark: Any, contender: str) -> None:
    import torch

    rng = np.random.default_rng(0)
    center, half = rng.random((10000, 2)) * 640, rng.random((10000, 2)) * 50 + 2
    boxes = np.concatenate([center - half, center + half], axis=1).astype(np.float32)
    scores = rng.permutation(10000).astype(np.float32) / np.float32(10000) + np.float32(0.01)
    if contender == "ours":
        keep = benchmark(nms, boxes, scores, iou=0.45)
    elif contender == "torch":
        b, s = torch.from_numpy(boxes), torch.from_numpy(scores)
        keep = benchmark.pedantic(torch_nms, (b, s, 0.45), rounds=3)
    else:
        xywh = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
        keep = benchmark.pedantic(cv2.dnn.NMSBoxes, (xywh, scores, 0.0, 0.45), rounds=3)
    assert abs(len(keep) - len(nms(boxes, scores, iou=0.45))) <= 5


# ---- classification ----


def numpy_topk(x: np.ndarray, k: int) -> Any:
    e = np.exp(x - x.max())
    e /= e.sum()
    best = np.argpartition(-e, k)[:k]
    best = best[np.argsort(-e[best])]
    return best, e[best]


@pytest.mark.benchmark(group="softmax and the 5 best of 1000")
@pytest.mark.parametrize("contender", CONTENDERS[:3])
def test_topk(benchmark: Any, contender: str) -> None:
    import torch

    x = np.random.default_rng(0).normal(0, 3, 1000).astype(np.float32)
    if contender == "ours":
        best = benchmark(topk, x)[0]
    elif contender == "torch":
        t = torch.from_numpy(x)
        best = benchmark(lambda: torch.softmax(t, 0).topk(5)).indices.numpy()
    else:
        best = benchmark(numpy_topk, x, 5)[0]
    assert best.tolist() == topk(x)[0].tolist()
