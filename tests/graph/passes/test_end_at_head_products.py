"""Heads in 8 bits for ONNX Runtime, whose channels come last: they end at their maps where the graph proves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from raw_head_models import ANCHORS, FORMS, STRIDES, quantised_yolov5
from raw_head_reference import decoded_yolov5, ended, run

from infersdk.graph.files import parse_model
from infersdk.graph.passes import EndAtHead, FreeSize, prepared_model
from infersdk.graph.raw_head import RawHead

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
F = np.float32


def check_same(path: Path, content: bytes, head: RawHead, batch: int = 1) -> None:
    """The network that was cut gives what the whole one gives."""
    images = np.random.default_rng(1).random((batch, 3, 64, 96), F)
    for optimized in (True, False):
        maps = run(content, images, optimized=optimized)
        whole = run(str(path), images, optimized=optimized)["output0"]
        np.testing.assert_allclose(decoded_yolov5(head, maps), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [1, 20])
def test_forms_of_the_decoding(tmp_path: Path, form: str, classes: int) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", form=form, classes=classes)
    content, head = ended(path)
    assert (head.layout, head.output, head.values) == ("yolov5", "output0", 5 + classes)
    assert [level.stride for level in head.levels] == list(STRIDES)
    assert [level.anchors for level in head.levels] == [tuple(map(tuple, level)) for level in np.array(ANCHORS, float)]
    assert all(level.channels_last for level in head.levels)
    outputs = parse_model(content).graph.outputs
    channels = 3 * (5 + classes)
    assert [str(output.shape) for output in outputs] == [
        f"[batch,{height},{width},{channels}]" for height, width in ((8, 12), (4, 6), (2, 3))
    ]
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    check_same(path, content, head, batch=2)
    operators = [node.op_type for node in parse_model(content).graph]
    assert "Sigmoid" not in operators
    assert operators.count("Gemm") == len(STRIDES)


@pytest.mark.parametrize("exclude", [None, 0, 2])
def test_levels_of_different_forms(tmp_path: Path, exclude: int | None) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", exclude=exclude)
    content, head = ended(path)
    assert [level.channels_last for level in head.levels] == [index != exclude for index in range(3)]
    check_same(path, content, head)


def test_sizes_are_freed_behind_it(tmp_path: Path) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", size=(128, 128))
    content = prepared_model(path, [EndAtHead(), FreeSize(32)])
    head = RawHead.read(parse_model(content or b"").metadata_props)
    assert head is not None
    images = np.random.default_rng(2).random((2, 3, 64, 96), F)
    maps = run(content, images)
    assert [one.shape for one in maps.values()] == [(2, 8, 12, 24), (2, 4, 6, 24), (2, 2, 3, 24)]
    large = np.zeros((2, 3, 128, 128), F)
    large[:, :, :64, :96] = images
    wanted = run(ended(path)[0], large)  # each cell sees its own pixels alone
    for got, want, (height, width) in zip(maps.values(), wanted.values(), ((8, 12), (4, 6), (2, 3)), strict=True):
        np.testing.assert_allclose(got, want[:, :height, :width], rtol=1e-6)


def test_a_real_model(int8_yolov5n: Path) -> None:
    content, head = ended(int8_yolov5n)
    assert [(level.stride, level.channels_last) for level in head.levels] == [(8, True), (16, True), (32, True)]
    assert head.levels[0].anchors == ((10, 13), (16, 30), (33, 23))
    shapes = [str(output.shape) for output in parse_model(content).graph.outputs]
    assert shapes == ["[batch,80,80,255]", "[batch,40,40,255]", "[batch,20,20,255]"]
    images = np.random.default_rng(1).random((1, 3, 640, 640), F)
    np.testing.assert_allclose(
        decoded_yolov5(head, run(content, images)), run(str(int8_yolov5n), images)["output0"], rtol=1e-4, atol=1e-3
    )
