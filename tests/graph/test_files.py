"""Weights that an ONNX model keeps in other files: links, pipes, damage, and changes while the model is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx_models import node

import infersdk
import infersdk.graph as graphs
from infersdk.core.model_source import ModelSource
from infersdk.errors import ModelFormatError
from infersdk.graph.files import private_copy, size_of
from infersdk.graph.lint import lint

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("onnx_ir")

BACKENDS = ["onnxruntime", "openvino"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = x @ ones + ones, with the ones in `m.data`."""
    import onnx

    weights = {"w": np.ones((64, 64), np.float32), "b": np.ones(64, np.float32)}
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "y")]
    whole = onnx_models.save(tmp_path / "whole.onnx", nodes, "float[batch,64] x", "float[batch,64] y", weights)
    onnx.save(
        onnx.load(str(whole)), str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data",
        size_threshold=0,
    )  # fmt: skip
    return tmp_path / "m.onnx"


X = np.ones((1, 64), np.float32)


def overwrite(file: Path) -> None:
    """Other bytes of the same length, in place."""
    with open(file, "r+b") as content:
        content.write(np.full(file.stat().st_size // 4, 7, np.float32).tobytes())


def test_the_size_of_a_model_includes_its_external_data(path: Path) -> None:
    weights = path.with_suffix(".data")
    assert size_of(ModelSource.of(path)) == path.stat().st_size + weights.stat().st_size
    weights.unlink()
    assert size_of(ModelSource.of(path)) == path.stat().st_size


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loaded_model_does_not_see_changes_of_its_weights(path: Path, backend: str) -> None:
    with infersdk.load(path, backend) as infer:
        overwrite(path.with_suffix(".data"))
        assert (infer(X)["y"] == 65).all()
        os.truncate(path.with_suffix(".data"), 0)
        assert (infer(X)["y"] == 65).all()
        with infer.clone() as clone:
            assert (clone(X.repeat(3, 0))["y"] == 65).all()


def test_a_loaded_openvino_ir_does_not_see_changes_of_its_weights(path: Path, tmp_path: Path) -> None:
    import openvino as ov

    ov.save_model(ov.convert_model(str(path)), str(tmp_path / "ir.xml"), compress_to_fp16=False)
    with infersdk.load(tmp_path / "ir.xml", "openvino") as infer:
        overwrite(tmp_path / "ir.bin")
        assert (infer(X)["y"] == 65).all()
        os.truncate(tmp_path / "ir.bin", 0)
        assert (infer(X)["y"] == 65).all()


def test_a_pipe_beside_an_openvino_ir_does_not_hang(path: Path, tmp_path: Path) -> None:
    import openvino as ov

    ov.save_model(ov.convert_model(str(path)), str(tmp_path / "ir.xml"))
    (tmp_path / "ir.bin").unlink()
    os.mkfifo(tmp_path / "ir.bin")
    with pytest.raises(ModelFormatError, match=r"the weights '.*ir\.bin' are not a regular file"):
        infersdk.load(tmp_path / "ir.xml", "openvino")


def test_weights_behind_a_symbolic_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path.with_suffix(".data").rename(tmp_path / "blobs" / "0")
    path.with_suffix(".data").symlink_to(Path("blobs", "0"))
    assert (graphs.open(path).weights["b"] == 1).all()


@pytest.mark.parametrize("damage", ["pipe", "short", "missing", "folder"])
def test_damaged_weights_are_a_typed_error(path: Path, damage: str) -> None:
    weights = path.with_suffix(".data")
    if damage == "short":
        os.truncate(weights, 100)
    else:
        weights.unlink()
    if damage == "pipe":
        os.mkfifo(weights)
    elif damage == "folder":
        weights.mkdir()
    graph = graphs.open(path)
    with pytest.raises(ModelFormatError, match=r"m\.data"):
        graph.weights["b"]
    with pytest.raises(ModelFormatError, match=r"m\.data"):
        lint(graph)
    with pytest.raises(ModelFormatError, match=r"m\.data"):
        graph.bytes()
    with pytest.raises(ModelFormatError, match=r"m\.data"):
        graph.save(path.with_name("saved.onnx"), external_data="saved.data")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pipe_in_the_place_of_weights_does_not_hang(path: Path, backend: str) -> None:
    path.with_suffix(".data").unlink()
    os.mkfifo(path.with_suffix(".data"))
    with pytest.raises(ModelFormatError, match=r"m\.data' cannot be read: it is not a regular file"):
        infersdk.load(path, backend)


@pytest.mark.posix
def test_the_private_copy_is_complete_and_removed(path: Path) -> None:
    with private_copy(path) as copy:
        folder = Path(copy).parent
        assert folder != path.parent
        assert Path(copy).read_bytes() == path.read_bytes()
        assert (folder / "m.data").read_bytes() == path.with_suffix(".data").read_bytes()
    assert not folder.exists()
    with private_copy(path.with_name("whole.onnx")) as copy:
        assert copy == str(path.with_name("whole.onnx"))


def test_a_model_of_another_format_is_named_with_the_remedy(tmp_path: Path) -> None:
    for name, content, message in (
        ("m.tflite", b"\x1c\0\0\0TFL3" + bytes(50), "is a TensorFlow Lite model, not an ONNX model; convert it"),
        ("m.onnx", b"\xff" * 50, "is not an ONNX model, or is corrupt"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelFormatError, match=f"{name}.*{message}"):
            graphs.open(tmp_path / name)
