"""Postprocessing of further heads on a CUDA device: the results of the host from the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model

from infersdk.models import DETR, RTDETR, Embedder, SemanticSegmentation, TwinLiteNet, VisionModel, YOLOv8OBB, YuNet

pytestmark = pytest.mark.gpu
pytest.importorskip("tensorrt_rtx_bindings")
#: All kernels are compiled before the first run, and each batch size runs the same ones: later runs give the same bits.
STEADY: dict[str, Any] = {
    "backend": "tensorrt-rtx", "kernel_specialization": "eager", "tf32": False, "exact_batches": [], "max_batch": 4,
}  # fmt: skip


def on_host(kind: type[VisionModel[Any]]) -> type[VisionModel[Any]]:
    """The same wrapper, whose outputs are copied to the host and decoded there."""

    def device_postprocess(self: Any, infer: Any, capacity: int) -> None:
        return None

    return type(f"Host{kind.__name__}", (kind,), {"device_postprocess": device_postprocess, "__module__": __name__})


def frames(rng: np.random.Generator) -> list[np.ndarray]:
    """Images of several sizes: coarse blobs."""
    sizes = rng.integers(40, 300, (6, 2))
    coarse = [rng.integers(0, 256, (5, 7, 3), np.uint8) for _ in sizes]
    return [
        np.ascontiguousarray(np.kron(c, np.ones((h // 5, w // 7, 1), np.uint8)))
        for c, (h, w) in zip(coarse, sizes, strict=True)
    ]


def both(kind: Any, path: Path, images: list[np.ndarray], calls: list[dict[str, Any]], **settings: Any) -> Any:
    """Pairs of results, on the device and on the host: calls, requests, and requests with settings of their own."""
    given = STEADY | settings
    with kind(path, **given) as device, on_host(kind)(path, **given) as host:
        for call in calls:
            yield from zip(device(images, **call), host(images, **call), strict=True)
        mixed = [device.submit(image, **calls[i % len(calls)]) for i, image in enumerate(images)]
        for i, (image, future) in enumerate(zip(images, mixed, strict=True)):
            yield future.result(120), host(image, **calls[i % len(calls)])
        yield from zip(device.map(images), host.map(images), strict=True)


def test_class_maps(tmp_path: Path, rng: np.random.Generator) -> None:
    coarse = rng.normal(0, 1, (5, 4, 4)).astype(np.float32)
    path = head_model(tmp_path / "m.onnx", [np.kron(coarse, np.ones((1, 8, 8), np.float32))], {})
    for fit in ("stretch", "letterbox"):
        for ours, expected in both(SemanticSegmentation, path, frames(rng), [{}], preset="unit", fit=fit):
            np.testing.assert_array_equal(ours.class_ids, expected.class_ids)


def test_a_single_class(tmp_path: Path, rng: np.random.Generator) -> None:
    path = head_model(tmp_path / "m.onnx", [rng.random((1, 16, 16)).astype(np.float32)], {})
    calls: list[dict[str, Any]] = [{}, {"threshold": 0.2}, {"threshold": 0.8}]
    for ours, expected in both(SemanticSegmentation, path, frames(rng), calls, preset="unit"):
        np.testing.assert_array_equal(ours.class_ids, expected.class_ids)
        assert 0 < ours.area(1) < 1


@pytest.mark.assets
def test_twinlitenet(assets: Path) -> None:
    from infersdk.image import read_image

    files = sorted((assets / "driving").glob("frame_*.jpg"))
    images = [np.ascontiguousarray(read_image(file).pixels[..., ::-1]) for file in files]
    path = assets / "models" / "twinlitenet.onnx"
    for ours, expected in both(TwinLiteNet, path, images, [{}], area="lanes", lanes="segmentation", max_batch=None):
        assert list(ours) == list(expected) == ["area", "lanes"]
        for name in ours:
            np.testing.assert_array_equal(ours[name].class_ids, expected[name].class_ids)


def test_oriented_boxes(tmp_path: Path, rng: np.random.Generator) -> None:
    output = np.zeros((8, 84), np.float32)
    output[:2], output[2:4] = rng.uniform(0, 64, (2, 84)), rng.uniform(4, 30, (2, 84))
    output[4:7], output[7] = rng.random((3, 84)), rng.uniform(-0.7, 2.3, 84)
    path = head_model(tmp_path / "m.onnx", [output], {"task": "obb", "names": "{0: 'a', 1: 'b', 2: 'c'}"})
    calls: list[dict[str, Any]] = [{}, {"iou": 0.2}, {"max_det": 3}, {"class_agnostic": True}, {"classes": "b"}]
    for ours, expected in both(YOLOv8OBB, path, frames(rng), calls, conf=0.4):
        np.testing.assert_array_equal(ours.oriented, expected.oriented)
        np.testing.assert_array_equal(ours.data, expected.data)
        assert ours.stats == expected.stats
        assert len(ours)


def test_heads_that_the_host_decodes(tmp_path: Path, rng: np.random.Generator) -> None:
    logits, boxes = rng.normal(0, 2, (60, 5)), rng.uniform(0.2, 0.6, (60, 4))
    with_none = logits.copy()
    with_none[:30, 4] = 9  # "no object", the last class of DETR; RT-DETR has low scores there
    for kind, scores in ((DETR, with_none), (RTDETR, logits - 3)):
        path = tmp_path / f"{kind.__name__}.onnx"
        queries = head_model(path, [scores, boxes], {}, names=("logits", "pred_boxes"))
        for ours, expected in both(kind, queries, frames(rng), [{}, {"conf": 0.8}]):
            np.testing.assert_array_equal(ours.data, expected.data)
    vector = head_model(tmp_path / "v.onnx", [rng.normal(0, 1, 64)], {})
    for ours, expected in both(Embedder, vector, frames(rng), [{}]):
        np.testing.assert_array_equal(ours.vector, expected.vector)


@pytest.mark.assets
def test_faces(assets: Path) -> None:
    from infersdk.image import read_image

    images = [
        np.ascontiguousarray(read_image(assets / "images" / name).pixels[..., ::-1])
        for name in ("bus.jpg", "zidane.jpg")
    ]
    for ours, expected in both(YuNet, assets / "face" / "yunet_n_dynamic.onnx", images, [{}, {"conf": 0.8}]):
        np.testing.assert_allclose(ours.xyxy, expected.xyxy, atol=0.1)
        np.testing.assert_allclose(ours.keypoints, expected.keypoints, atol=0.1)
        assert len(ours) >= 2
