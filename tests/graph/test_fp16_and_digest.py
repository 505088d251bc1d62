"""FP16 graphs against the FP32 ones that they came from, and the identity of a model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from infersdk.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError
from infersdk.graph.digest import _CHUNK, _EXTERNAL, external_files, file_digest, model_digest
from infersdk.graph.fp16 import to_fp16
from infersdk.graph.info import precision_of

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def net(weights: int = 64) -> object:
    rng = np.random.default_rng(0)
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    given = {"w": rng.normal(size=(weights, weights)) / 8, "v": rng.normal(size=(weights, 4)) / 8}
    graph = onnx.helper.make_graph(
        [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "v"], ["y"])], "g",
        [value("x", onnx.TensorProto.FLOAT, ("n", weights))], [value("y", onnx.TensorProto.FLOAT, ("n", 4))],
        [onnx.numpy_helper.from_array(v.astype(np.float32), name) for name, v in given.items()],
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(net(), str(tmp_path / "net.onnx"))
    return tmp_path / "net.onnx"


def run(model: bytes | str, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def test_fp16_computes_the_same(path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    want = run(str(path), x)
    half = to_fp16(path)
    assert precision_of(half) == "fp16"
    got = run(half.SerializeToString(), x)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < 1e-2 * np.abs(want).max()


def test_fp16_inputs_and_outputs(path: Path) -> None:
    half = to_fp16(path, keep_io=False)
    assert run(half.SerializeToString(), np.ones((1, 64), np.float16)).dtype == np.float16


def test_fp16_leaves_what_it_is_told(path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="stays fp32"):
        to_fp16(path, keep_ops=["MatMul"])


def test_fp16_of_what_is_not_fp32(path: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    onnx.save(to_fp16(path), str(half))
    with pytest.raises(UnsupportedModelError, match="is fp16 already"):
        to_fp16(half)
    half.write_bytes(b"no model")
    with pytest.raises(ModelFormatError):
        to_fp16(half)


@pytest.mark.slow
@pytest.mark.assets
def test_fp16_of_a_real_model(assets: Path) -> None:
    x = np.random.default_rng(0).random((1, 3, 640, 640), dtype=np.float32)
    file = assets / "models" / "yolov5n.onnx"
    want, got = run(str(file), x), run(to_fp16(file).SerializeToString(), x)
    assert np.abs(got[..., 4:] - want[..., 4:]).max() < 0.02  # scores
    assert np.abs(got[..., :4] - want[..., :4]).max() < 4  # pixels


def test_digest_of_one_file_is_its_sha256(path: Path) -> None:
    assert model_digest(path) == file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert external_files(path) == []
    with pytest.raises(ModelNotFoundError):
        model_digest(path.with_name("none.onnx"))


def test_digest_sees_the_files_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), str(path), save_as_external_data=True, location="net.weights", size_threshold=0)
    assert external_files(path) == [tmp_path / "net.weights"]
    before, main = model_digest(path), file_digest(path)
    assert before != main
    weights = bytearray((tmp_path / "net.weights").read_bytes())
    weights[100] ^= 1
    (tmp_path / "net.weights").write_bytes(weights)
    assert file_digest(path) == main
    assert model_digest(path) != before
    (tmp_path / "net.weights").unlink()
    with pytest.raises(ModelFormatError, match=r"keeps weights in 'net\.weights', which cannot be read"):
        model_digest(path)


def test_digest_sees_weights_of_inner_graphs(tmp_path: Path) -> None:
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    (tmp_path / "inner.bin").write_bytes(np.ones(4, np.float32).tobytes())
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4], data_location="EXTERNAL")
    weight.external_data.add(key="location", value="inner.bin")
    out = value("o", onnx.TensorProto.FLOAT, (4,))
    branch = onnx.helper.make_graph([node("Identity", ["w"], ["o"])], "then", [], [out], [weight])
    graph = onnx.helper.make_graph(
        [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], "g",
        [value("c", onnx.TensorProto.BOOL, ())], [value("y", onnx.TensorProto.FLOAT, (4,))],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    before = model_digest(path)
    assert external_files(path) == [tmp_path / "inner.bin"]
    (tmp_path / "inner.bin").write_bytes(bytes(16))
    assert model_digest(path) != before


def test_the_sign_of_outer_weights_is_found_across_the_pieces_that_are_read(tmp_path: Path) -> None:
    from infersdk.graph.digest import _digest

    for cut in range(len(_EXTERNAL) + 1):
        data = bytes(_CHUNK - cut) + _EXTERNAL + bytes(10)
        (tmp_path / "file").write_bytes(data)
        assert _digest(tmp_path / "file", _EXTERNAL) == (hashlib.sha256(data).hexdigest(), True)
    (tmp_path / "file").write_bytes(bytes(_CHUNK - 3) + _EXTERNAL[:-1] + bytes(10))
    assert _digest(tmp_path / "file", _EXTERNAL)[1] is False
