"""The contract of all backends for ncnn. The attributes state the limits of ncnn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import TensorProto, helper

import infersdk
from infersdk.errors import ModelFormatError, ShapeError, UnsupportedModelError
from infersdk.testing import InferContract, contract_model

pytest.importorskip("infersdk_ncnn", reason="pip install examples/infersdk-ncnn")

from infersdk_ncnn import input_shapes
from infersdk_ncnn_convert import convert


class TestNcnn(InferContract):
    backend = "ncnn"
    options: ClassVar[dict[str, Any]] = {"threads": 1}
    dtypes = ("float32",)
    dynamic_shape = False
    data_dependent = False
    batch_atol = 0  # batches run row by row

    def prepare(self, onnx_path: Path) -> Path:
        return convert(onnx_path, onnx_path.with_suffix(".param"))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "two.onnx").write_bytes(contract_model("two"))
    return tmp_path / "two.onnx"


def test_loads_onnx_by_converting_it(two: Path) -> None:
    image, scale = np.ones((2, 3, 4, 6), np.float32), np.full((2, 3, 1, 1), 3, np.float32)
    with infersdk.load(two, "ncnn") as infer:
        got = infer({"image": image, "scale": scale})
        np.testing.assert_array_equal(got["scaled"], image * scale)
        np.testing.assert_allclose(got["mean"], scale)
        with pytest.raises(ShapeError, match=r"\[1, 2\] rows"):
            infer({"image": image, "scale": scale[:1]})
    assert [*two.parent.iterdir()] == [two]  # conversion leaves no other files


def test_param_without_shapes(two: Path) -> None:
    """pnnx itself writes such files."""
    param = convert(two, two.with_suffix(".param"))
    lines = [" ".join(f for f in line.split() if "=" not in f or "Input" not in line) for line in param.open()]
    param.write_text("\n".join(lines))
    with pytest.raises(UnsupportedModelError, match=r"shape of its input 'image'.*shapes=\{'image': \["):
        infersdk.load(param, "ncnn")
    with infersdk.load(param, "ncnn", shapes={"image": [3, 4, 6], "scale": [3, 1, 1]}) as infer:
        assert [spec.text for spec in infer.input_specs] == ["(batch, 3, 4, 6)", "(batch, 3, 1, 1)"]
        assert infer.output_specs[0].text == "(batch, 3, 4, 6)"


@pytest.mark.parametrize("weights", [None, b"1234"])
def test_param_without_its_weights(weights: bytes | None, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(contract_model("net"))
    param = convert(tmp_path / "net.onnx", tmp_path / "net.param")
    param.with_suffix(".bin").unlink()
    if weights:
        param.with_suffix(".bin").write_bytes(weights)
    with pytest.raises(ModelFormatError, match=r"net\.param needs its weights in the same folder.*net\.bin"):
        infersdk.load(param, "ncnn")


@pytest.mark.parametrize(
    ("name", "message"),
    [("any_size", r"'x'.*height"), ("type_int64", r"'x'.*int64"), ("nonzero", r"'y'.*int64")],
)
def test_models_without_support_in_ncnn(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(contract_model(name))
    with pytest.raises(UnsupportedModelError, match=message):
        infersdk.load(tmp_path / "m.onnx", "ncnn")


def number_model(name: str) -> bytes:
    """A chain of three nodes whose output has this name."""
    chain = (("Sigmoid", "x", "p"), ("Exp", "p", "q"), ("Tanh", "q", name))
    nodes = [helper.make_node(operator, [x], [y]) for operator, x, y in chain]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [1, 4]) for end in ("x", name)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_a_name_that_is_a_number(tmp_path: Path) -> None:
    """pnnx names its own values by numbers."""
    (tmp_path / "m.onnx").write_bytes(number_model("1"))
    lines = convert(tmp_path / "m.onnx", tmp_path / "m.param").read_text().splitlines()[2:]
    blobs = [blob for line in lines for blob in line.split()[4 + int(line.split()[2]) :] if "=" not in blob]
    assert len(set(blobs)) == len(blobs) == 4
    assert blobs[-1] == "1"


def test_a_name_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(number_model("the result"))
    with pytest.raises(UnsupportedModelError, match=r"'the result' of m\.onnx is a name with blanks"):
        convert(tmp_path / "m.onnx", tmp_path / "m.param")


@pytest.mark.parametrize("text", ["7767517\n\nInput x 0 1 x 0=4", "7767517\n1 1\nInput x 0 0 0=4", ""])
def test_files_that_are_no_param(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.param").write_text(text)
    with pytest.raises(ModelFormatError, match=r"is not an ncnn \.param file, or is truncated"):
        input_shapes(tmp_path / "m.param")


def test_unknown_layer(tmp_path: Path) -> None:
    (tmp_path / "m.param").write_text("7767517\n2 2\nInput x 0 1 x 0=4\nFrobnicate f 1 1 x y\n")
    (tmp_path / "m.bin").touch()
    with pytest.raises(UnsupportedModelError, match=r"cannot load m\.param"):
        infersdk.load(tmp_path / "m.param", "ncnn")


@pytest.mark.skipif("INFERSDK_ASSETS" not in os.environ, reason="no test data: set INFERSDK_ASSETS to its folder")
def test_a_real_classifier_agrees_with_onnx_runtime() -> None:
    model = Path(os.environ["INFERSDK_ASSETS"]) / "models" / "squeezenet1.1.onnx"
    x = np.random.default_rng(0).uniform(-120, 130, (2, 3, 227, 227)).astype(np.float32)
    with infersdk.load(model, "ncnn") as infer, infersdk.load(model) as other:
        np.testing.assert_allclose(infer(x)["prob"], other(x)["prob"], rtol=1e-3, atol=1e-6)
