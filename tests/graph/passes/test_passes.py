"""The keys of passes, and the list of what happens between a file and a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from infersdk.errors import ConfigError
from infersdk.graph import passes
from infersdk.graph.files import read_model
from infersdk.graph.passes import (
    NameNodes,
    ToFloat16,
    UnsignedActivations,
    cached_model,
    loading_passes,
    pass_keys,
    prepared_model,
)  # fmt: skip
from infersdk.graph.passes.name_nodes import node_names

models = pytest.importorskip("onnx_models")


def test_keys_of_caches_tell_passes_apart() -> None:
    names = [one.name for each in passes.__all__ if hasattr(one := getattr(passes, each), "version")]
    assert len(set(names)) == len(names) > 15


@pytest.mark.parametrize(
    ("backend", "device", "precision", "names"),
    [
        ("onnxruntime", "cpu", None, ["hard-swish", "unsigned-activations"]),
        ("onnxruntime", "cuda", None, []),
        ("onnxruntime", "cuda", "fp16", ["to-float16"]),
        ("openvino", "cpu", "fp16", ["quantized-operators", "saturated-quantizers", "unfused", "unsigned-activations"]),
        ("openvino", "gpu", None, []),
        ("tensorrt-rtx", "cuda", "fp16", ["to-float16"]),
        ("tensorrt", "cuda", "fp32", []),
    ],
)
def test_between_file_and_runtime(backend: str, device: str, precision: str | None, names: list[str]) -> None:
    assert [one.name for one in loading_passes(backend, device, precision)] == names


def test_on_an_arm_processor_signed_activations_stay() -> None:
    names = [one.name for one in loading_passes("onnxruntime", "cpu", None, x86=False)]
    assert names == ["hard-swish"]


def test_a_key_tells_settings_and_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pass_keys([ToFloat16(keep_nodes=("a",)), UnsignedActivations()])
    assert keys == [
        {"pass": "to-float16", "version": 4, "keep_io": True, "keep_nodes": ("a",), "keep_ops": ()},
        {"pass": "unsigned-activations", "version": 4},
    ]
    assert pass_keys([ToFloat16(keep_io=False)]) != pass_keys([ToFloat16()])
    monkeypatch.setattr(ToFloat16, "version", ToFloat16.version + 1)
    assert pass_keys([ToFloat16(keep_nodes=("a",)), UnsignedActivations()]) != keys


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = models.double(tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match=r"m\.onnx: the model has no node 'x' to keep"):
        prepared_model(path, [ToFloat16(keep_nodes=("x",))])


def test_each_node_gets_a_name_of_its_own(tmp_path: Path) -> None:
    nodes = [models.node("Relu", "x", "a"), models.node("Relu", "a", "b", name="Relu_0"),
             models.node("Relu", "b", "c", name="r"), models.node("Relu", "c", "y", name="r")]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, [models.value("x", (1,))], [models.value("y", (1,))])
    model = read_model(path)
    want = ["Relu_0_2", "Relu_0", "r", "r_2"]
    assert node_names(model.graph) == want
    assert NameNodes().apply(model)
    assert [node.name for node in model.graph] == want
    assert not NameNodes().apply(model)


def test_a_file_that_is_replaced_while_it_is_prepared(tmp_path: Path) -> None:
    """The new model is not kept under the key of the old one."""

    class Replacing(NameNodes):
        def concerns(self, source: object) -> bool:  # called between the digest and the reading of the file
            path.write_bytes(new)
            return True

    path = models.double(tmp_path / "m.onnx")
    old, new = path.read_bytes(), models.double(tmp_path / "other.onnx", (4, 4)).read_bytes()
    made = cached_model(path, [Replacing()])
    assert isinstance(made, bytes)
    path.write_bytes(old)
    again = cached_model(path, [NameNodes()])
    assert again is None or str(read_model(again).graph.inputs[0].shape) == str(read_model(old).graph.inputs[0].shape)
