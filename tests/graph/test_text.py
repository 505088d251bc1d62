"""Text in a model that is not UTF-8."""

from __future__ import annotations

from pathlib import Path

import pytest

from infersdk.errors import ModelFormatError
from infersdk.graph import onnx_info
from infersdk.testing import contract_model

pytest.importorskip("onnx")


def changed(folder: Path, find: bytes, replace: bytes) -> Path:
    import onnx

    model = onnx.load_model_from_string(contract_model("net"))
    model.producer_name = "producer"
    onnx.helper.set_model_props(model, {"author": "someone"})
    data = model.SerializeToString()
    assert find in data
    assert len(find) == len(replace)
    path = folder / "model.onnx"
    path.write_bytes(data.replace(find, replace))
    return path


def test_descriptions_and_metadata_are_decoded_with_replacement(tmp_path: Path) -> None:
    info = onnx_info(changed(tmp_path, b"producer", b"produ\xffer"))
    assert info.producer.startswith("produ\ufffder")
    info = onnx_info(changed(tmp_path, b"someone", b"some\xe9ne"))
    assert info.metadata["author"] == "some\ufffdne"
    info = onnx_info(changed(tmp_path, b"author", b"auth\xffr"))
    assert info.metadata["auth\ufffdr"] == "someone"


def test_a_name_in_the_graph_is_an_error(tmp_path: Path) -> None:
    import onnx

    operator = onnx.load_model_from_string(contract_model("net")).graph.node[0].op_type.encode()
    with pytest.raises(ModelFormatError, match=r"model\.onnx.*op_type is not UTF-8"):
        onnx_info(changed(tmp_path, operator, operator[:-1] + b"\xff"))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_runtime_reads_it_too(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    import infersdk

    with infersdk.load(changed(tmp_path, b"someone", b"some\xe9ne"), backend) as infer:
        assert infer.metadata["author"] == "some\ufffdne"
    with infersdk.load(changed(tmp_path, b"author", b"auth\xffr"), backend) as infer:
        assert infer.metadata["auth\ufffdr"] == "someone"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", [b"images", b"logits"])
def test_names_of_tensors(backend: str, name: bytes, tmp_path: Path) -> None:
    """Of an input and an output, in the runtime and in `info`."""
    pytest.importorskip(backend)
    import infersdk
    from infersdk import cli
    from infersdk.data import CLASSIFIER

    path = tmp_path / "model.onnx"
    path.write_bytes(CLASSIFIER.read_bytes().replace(name, name[:-1] + b"\xff"))
    with pytest.raises(ModelFormatError, match="UTF-8"):
        infersdk.load(path, backend)
    assert cli.main(["info", str(path)]) == 2
