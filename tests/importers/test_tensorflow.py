"""TensorFlow's formats: OpenVINO runs them directly; tf2onnx converts them where it is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversions import converted

import infersdk
from infersdk.core.formats import FORMATS
from infersdk.core.model_source import ModelSource
from infersdk.errors import BackendUnavailableError, ModelFormatError, UnsupportedModelError
from infersdk.importers import convert
from infersdk.loading.samples import random_inputs

#: A Python that has TensorFlow and tf2onnx, where this one has not.
PYTHON = os.environ.get("INFERSDK_TENSORFLOW_PYTHON")
HAS_TENSORFLOW = PYTHON or all(importlib.util.find_spec(name) for name in ("tensorflow", "tf2onnx"))


def graphs(assets: Path) -> list[Path]:
    found = sorted((assets / "frameworks" / "tensorflow").glob("*.pb"))
    assert len(found) == 20
    return found


def run(infer: Any) -> dict[str, Any]:
    shapes = {
        spec.name: [2 if not isinstance(size, int) else size for size in spec.shape] for spec in infer.input_specs
    }
    return dict(infer(random_inputs(infer.input_specs, shapes=shapes)))


@pytest.mark.assets
def test_openvino_runs_frozen_graphs(assets: Path) -> None:
    pytest.importorskip("openvino")
    for path in graphs(assets):
        with infersdk.load(path, backend="openvino") as infer:
            outputs = run(infer)
        assert outputs, path
        assert all(np.isfinite(array).all() for array in outputs.values()), path


@pytest.mark.assets
def test_openvino_runs_tensorflow_lite(assets: Path) -> None:
    pytest.importorskip("openvino")
    with infersdk.load(assets / "models" / "face_landmark.tflite", backend="openvino") as infer:
        assert sorted(array.size for array in run(infer).values()) == [1, 1404]


@pytest.mark.assets
@pytest.mark.skipif(bool(HAS_TENSORFLOW), reason="TensorFlow is installed")
def test_without_tensorflow_the_message_says_what_helps(assets: Path) -> None:
    with pytest.raises(BackendUnavailableError, match=r"tf2onnx.*infersdk\[tensorflow\].*backend='openvino'"):
        convert(graphs(assets)[0])


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow and tf2onnx are not installed (INFERSDK_TENSORFLOW_PYTHON)")
def test_operators_that_reach_files_are_refused(tmp_path: Path) -> None:
    nodes = [(b"name", b"Const", ()), (b"content", b"ReadFile", (b"name",))]
    graph = b"".join(
        field(1, field(1, name) + field(2, kind) + b"".join(field(3, source) for source in inputs))
        for name, kind, inputs in nodes
    )
    (tmp_path / "m.pb").write_bytes(graph)
    with pytest.raises(UnsupportedModelError, match=r"access external resources: ReadFile"):
        convert(tmp_path / "m.pb", python=PYTHON)


def test_a_saved_model_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x04\x0a\x02\x0a\x00")
    source = ModelSource.of(tmp_path)
    assert source.path == tmp_path / "saved_model.pb"
    assert source.format is FORMATS["tensorflow-saved-model"]


needs_tensorflow = pytest.mark.skipif(
    not HAS_TENSORFLOW, reason="TensorFlow and tf2onnx are not installed (INFERSDK_TENSORFLOW_PYTHON)"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `make_tensorflow_models.py`."""
    folder = tmp_path_factory.mktemp("tensorflow")
    make = Path(__file__).parent / "make_tensorflow_models.py"
    done = subprocess.run([PYTHON or sys.executable, str(make), str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return folder


@pytest.mark.slow
@needs_tensorflow
@pytest.mark.parametrize("name", ["convolutions", "two", "convolutions.pb", "two.pb", "convolutions.tflite"])
def test_each_format_becomes_onnx(name: str, made: Path) -> None:
    conversion = converted(made / name, python=PYTHON)
    assert len(conversion.check.outputs) == 2
    assert conversion.check.runtime.startswith("TensorFlow")
    assert any("inputs" in note for note in conversion.notes)


@pytest.mark.slow
@needs_tensorflow
def test_all_results_of_an_operator_are_outputs(made: Path) -> None:
    """Those of a batch normalisation for training are not."""
    conversion = converted(made / "ends.pb", python=PYTHON)
    assert [one.name for one in conversion.check.outputs] == ["top:0", "top:1", "normal:0"]


@pytest.mark.slow
@needs_tensorflow
def test_loading_converts_and_keeps(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path))
    for _ in range(2):
        with infersdk.load(made / "convolutions", backend="onnxruntime", convert={"python": PYTHON}) as infer:
            outputs = infer(np.ones((3, 8, 8, 3), np.float32))
        assert sorted(array.shape for array in outputs.values()) == [(3, 4, 4), (3, 16, 12, 4)]
        monkeypatch.setattr("infersdk.importers.loading.convert", _fails)


def _fails(*_: Any, **__: Any) -> None:
    raise AssertionError("converted again")


_fails.__kwdefaults__ = {"python": None}


@pytest.mark.slow
@needs_tensorflow
@pytest.mark.parametrize(
    ("name", "kept"), [("convolutions.pb", 0.6), ("convolutions.tflite", 0.5), ("convolutions", 0.5)]
)
def test_files_that_are_cut_off_are_refused(name: str, kept: float, made: Path, tmp_path: Path) -> None:
    source = made / name / "saved_model.pb" if (made / name).is_dir() else made / name
    content = source.read_bytes()
    (tmp_path / source.name).write_bytes(content[: int(len(content) * kept)])
    with pytest.raises((ModelFormatError, UnsupportedModelError)):
        convert(tmp_path / source.name, python=PYTHON)


@pytest.mark.slow
@pytest.mark.assets
@needs_tensorflow
def test_frozen_graphs_become_onnx(assets: Path) -> None:
    for path in graphs(assets):
        conversion = converted(path, python=PYTHON)
        assert any(note.startswith("inputs ") for note in conversion.notes)
