"""The identity of a model."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

from infersdk.core.files import file_digest
from infersdk.errors import ModelFormatError, ModelNotFoundError
from infersdk.graph.digest import model_digest
from infersdk.graph.files import external_files

onnx = pytest.importorskip("onnx")


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
    with pytest.raises(ModelFormatError, match=r"net\.weights' cannot be read"):
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


ON_A_DRIVE = pytest.param("C:outside.bin", marks=pytest.mark.skipif(sys.platform != "win32", reason="has no drives"))


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.bin", "a/../../outside.bin", ON_A_DRIVE])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    model = net()
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value=name)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFormatError, match=f"keeps weights in '{name}', which is outside of its folder"):
        model_digest(tmp_path / "net.onnx")


def test_paths_that_stay_inside_of_the_folder(tmp_path: Path) -> None:
    """Also when one file has two names. A link in front of `..` leads to another folder."""
    from infersdk import load

    (tmp_path / "sub").mkdir()
    path = tmp_path / "net.onnx"
    onnx.save(net(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(str(path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "sub/../w.bin"
    path.write_bytes(model.SerializeToString())
    before, x = model_digest(path), np.ones((1, 64), np.float32)
    with load(path, "onnxruntime") as infer, load(net().SerializeToString(), "onnxruntime") as whole:
        np.testing.assert_array_equal(infer(x)["y"], whole(x)["y"])
    (tmp_path / "w.bin").write_bytes(bytes((tmp_path / "w.bin").stat().st_size))
    assert model_digest(path) != before
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").symlink_to("/tmp")
    with pytest.raises(ModelFormatError, match="which is outside of its folder"):
        model_digest(path)
