"""Which levels of a head end at the features of their last convolution, and what is kept of that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from raw_head_models import yolov5_model
from raw_head_reference import decoded_yolov5, ended, run

if TYPE_CHECKING:
    from infersdk.graph.raw_head import RawHead

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
F = np.float32
IMAGES = np.random.default_rng(1).random((2, 3, 64, 96), F)


def checked(content: bytes) -> tuple[bytes, RawHead]:
    """The model cut at its head, whose boxes were compared with those of the whole one."""
    cut, head = ended(content)
    np.testing.assert_allclose(
        decoded_yolov5(head, run(cut, IMAGES)), run(content, IMAGES)["output0"], rtol=1e-4, atol=1e-3
    )
    return cut, head


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return onnx.load(str(yolov5_model(tmp_path / "m.onnx", pointwise=True)))


def last_convolutions(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "Conv"][1::2]


def weight(model: Any, name: str) -> Any:
    return next(one for one in model.graph.initializer if one.name == name)


def test_it_ends_in_front_of_the_last_convolutions(model: Any) -> None:
    content = model.SerializeToString()
    cut, head = checked(content)
    assert head.names == ("head_0", "head_1", "head_2")
    assert [one.shape for one in run(cut, IMAGES).values()] == [(2, 64, 8, 12), (2, 64, 4, 6), (2, 64, 2, 3)]
    left = onnx.load_from_string(cut)
    onnx.checker.check_model(left, full_check=True)
    assert [node.op_type for node in left.graph.node] == ["Conv", "Relu"] * 3
    assert len(left.graph.initializer) == 6
    for level, node in zip(head.levels, last_convolutions(model), strict=True):
        convolution = level.convolution()
        assert convolution is not None
        for array, name in zip(convolution, node.input[1:], strict=True):
            wanted = onnx.numpy_helper.to_array(weight(model, name))
            np.testing.assert_array_equal(array, wanted.reshape(array.shape))


def test_without_a_bias(model: Any) -> None:
    for node in last_convolutions(model):
        del node.input[2]
    _, head = checked(model.SerializeToString())
    for level in head.levels:
        convolution = level.convolution()
        assert convolution[1].shape == (24,)
        assert not convolution[1].any()


def _input_of_the_graph(model: Any, node: Any) -> None:
    shape = list(weight(model, node.input[1]).dims)
    model.graph.input.append(onnx.helper.make_tensor_value_info(node.input[1], onnx.TensorProto.FLOAT, shape))


def _computed(model: Any, node: Any) -> None:
    model.graph.node.insert(0, onnx.helper.make_node("Neg", [node.input[1]], ["negative"]))
    node.input[1] = "negative"


def _not_finite(model: Any, node: Any) -> None:
    tensor = weight(model, node.input[2])
    array = np.array(onnx.numpy_helper.to_array(tensor))
    array[3] = np.inf
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _larger_kernel(model: Any, node: Any) -> None:
    tensor = weight(model, node.input[1])
    array = np.pad(onnx.numpy_helper.to_array(tensor), ((0, 0), (0, 0), (1, 1), (1, 1)))
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for one in node.attribute:
        if one.name in ("kernel_shape", "pads"):
            one.ints[:] = [3, 3] if one.name == "kernel_shape" else [1, 1, 1, 1]


@pytest.mark.parametrize("change", [_computed, _not_finite, _larger_kernel, _input_of_the_graph])
def test_another_convolution_keeps_its_map(model: Any, change: Callable[[Any, Any], None]) -> None:
    """It alone, as long as the rest of the head is proven."""
    node = last_convolutions(model)[0]
    change(model, node)
    content = model.SerializeToString()
    _, head = ended(content)
    assert [bool(level.weights) for level in head.levels] == [False, True, True]
    if change is not _not_finite:
        checked(content)


def test_half_precision_keeps_its_maps(tmp_path: Path) -> None:
    _, head = ended(yolov5_model(tmp_path / "m.onnx", pointwise=True, dtype=np.float16))
    assert not any(level.weights for level in head.levels)
