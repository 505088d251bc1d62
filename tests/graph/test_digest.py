"""The identity of a model."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_models import node, onnx, save, value

from infersdk.core.files import file_digest
from infersdk.errors import ModelFormatError, ModelNotFoundError
from infersdk.graph.digest import model_digest
from infersdk.graph.files import external_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two products."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((64, 64), np.float32), "v": rng.random((64, 4), np.float32)}
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a v", "y")]
    return save(tmp_path / "net.onnx", nodes, [value("x", ("n", 64))], [value("y", ("n", 4))], weights)


def move_weights(path: Path, location: str) -> None:
    """Writes the weights of a file to another one in its folder."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location=location, size_threshold=0)


def test_digest_of_one_file_is_its_sha256(path: Path) -> None:
    assert model_digest(path) == file_digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert external_files(path) == []
    with pytest.raises(ModelNotFoundError):
        model_digest(path.with_name("none.onnx"))


def test_digest_sees_the_files_of_weights(path: Path, tmp_path: Path) -> None:
    move_weights(path, "net.weights")
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
    (tmp_path / "inner.bin").write_bytes(np.ones(4, np.float32).tobytes())
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4], data_location="EXTERNAL")
    weight.external_data.add(key="location", value="inner.bin")
    branch = onnx.helper.make_graph([node("Identity", "w", "o")], "then", [], [value("o", (4,))], [weight])
    choice = node("If", "c", "y", then_branch=branch, else_branch=branch)
    path = save(tmp_path / "net.onnx", [choice], [value("c", (), "bool")], [value("y", (4,))])
    before = model_digest(path)
    assert external_files(path) == [tmp_path / "inner.bin"]
    (tmp_path / "inner.bin").write_bytes(bytes(16))
    assert model_digest(path) != before


ON_A_DRIVE = pytest.param("C:outside.bin", marks=pytest.mark.skipif(sys.platform != "win32", reason="has no drives"))


@pytest.mark.parametrize("name", ["/etc/hostname", "../outside.bin", "a/../../outside.bin", ON_A_DRIVE])
def test_weights_outside_of_the_folder_are_refused(path: Path, name: str) -> None:
    model = onnx.load(path)
    model.graph.initializer[0].ClearField("raw_data")
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value=name)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFormatError, match=f"keeps weights in '{name}', which is outside of its folder"):
        model_digest(path)


def test_paths_that_stay_inside_of_the_folder(path: Path, tmp_path: Path) -> None:
    """Also when one file has two names. A link in front of `..` leads to another folder."""
    from infersdk import load

    (tmp_path / "sub").mkdir()
    whole_model = path.read_bytes()
    move_weights(path, "w.bin")
    model = onnx.load(str(path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "sub/../w.bin"
    path.write_bytes(model.SerializeToString())
    before, x = model_digest(path), np.ones((1, 64), np.float32)
    with load(path, "onnxruntime") as infer, load(whole_model, "onnxruntime") as whole:
        np.testing.assert_array_equal(infer(x)["y"], whole(x)["y"])
    (tmp_path / "w.bin").write_bytes(bytes((tmp_path / "w.bin").stat().st_size))
    assert model_digest(path) != before
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").symlink_to("/tmp")
    with pytest.raises(ModelFormatError, match="which is outside of its folder"):
        model_digest(path)
