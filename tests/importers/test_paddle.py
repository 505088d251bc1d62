"""PaddlePaddle's models: recognised by their content, checked before they are read, converted by paddle2onnx."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conversions import converted

import infersdk
from infersdk.core.formats import FORMATS, format_of
from infersdk.core.model_source import ModelSource
from infersdk.errors import BackendUnavailableError, ConfigError, ModelFormatError, UnsupportedModelError
from infersdk.importers import convert
from infersdk.importers.loading import source_files
from infersdk.importers.paddle import check_weights

MODELS = Path(__file__).parent / "paddle_models"
MAKE = Path(__file__).parent / "make_paddle_models.py"
#: A Python that has PaddlePaddle and paddle2onnx, where this one has not.
PYTHON = os.environ.get("INFERSDK_PADDLE_PYTHON")
HERE = all(importlib.util.find_spec(name) for name in ("paddle", "paddle2onnx"))
needs_paddle = pytest.mark.skipif(
    not (PYTHON or HERE), reason="PaddlePaddle and paddle2onnx are not installed (INFERSDK_PADDLE_PYTHON)"
)


# ---- without PaddlePaddle ----


@pytest.mark.parametrize(("name", "key"), [("small.json", "paddle-pir"), ("small.pdmodel", "paddle")])
def test_models_are_recognised_by_their_content(name: str, key: str) -> None:
    content = (MODELS / name).read_bytes()
    assert format_of(content) is FORMATS[key]
    assert format_of(content, "model.onnx") is FORMATS[key]


def test_other_json_is_not_a_model() -> None:
    assert format_of(b'{"base_code": {"magic": "other"}}', "m.json") is None
    assert format_of(b'{"model": {"base_code": 1}}', "m.json") is None


@pytest.mark.skipif(HERE, reason="PaddlePaddle is installed")
@pytest.mark.parametrize("name", ["small.json", "small.pdmodel"])
def test_without_paddle_the_message_says_what_helps(name: str) -> None:
    with pytest.raises(BackendUnavailableError, match=r'paddle2onnx.*pip install "infersdk\[paddle\]"') as caught:
        convert(MODELS / name)
    assert ("backend='openvino'" in str(caught.value)) == name.endswith(".pdmodel")


def test_openvino_runs_pdmodel() -> None:
    pytest.importorskip("openvino")
    with infersdk.load(MODELS / "small.pdmodel", backend="openvino") as infer:
        (scores,) = infer(np.ones((2, 3, 8, 8), np.float32)).values()
    assert scores.shape == (2, 5)
    assert np.allclose(scores.sum(1), 1, atol=1e-5)


def test_weights_belong_to_the_model(tmp_path: Path) -> None:
    assert [path.name for path in source_files(ModelSource.of(MODELS / "small.json"))] == [
        "small.json", "small.pdiparams",
    ]  # fmt: skip
    shutil.copy(MODELS / "small.pdmodel", tmp_path / "__model__")
    shutil.copy(MODELS / "small.pdiparams", tmp_path / "__params__")
    assert [path.name for path in source_files(ModelSource.of(tmp_path / "__model__"))] == ["__model__", "__params__"]


def walk(content: bytes) -> int:
    return check_weights(io.BytesIO(content), len(content), "w.pdiparams")


def tensor(axes: list[int], data: bytes, kind: int = 5, levels: int = 0) -> bytes:
    description = b"\x08" + bytes([kind]) + b"".join(b"\x10" + varint(size) for size in axes)
    head = struct.pack("<IQ", 0, levels)
    return head + struct.pack("<II", 0, len(description)) + description + data


def varint(value: int) -> bytes:
    result = b""
    while value >= 0x80:
        result, value = result + bytes([value & 0x7F | 0x80]), value >> 7
    return result + bytes([value])


def test_weights_are_walked() -> None:
    assert walk((MODELS / "small.pdiparams").read_bytes()) == 8
    assert walk(tensor([2, 3], bytes(24)) + tensor([], bytes(8), kind=3)) == 2
    assert walk(b"") == 0


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (tensor([1 << 40, 1 << 20], bytes(24)), r"truncated: tensor 0 needs \d{19} bytes"),
        (tensor([(1 << 64) - 1], bytes(24)), "truncated"),
        (tensor([2, 3], bytes(23)), "tensor 0 needs 24 bytes"),
        (tensor([2], bytes(8)) + b"\0\0", "tensor 1 needs 4 bytes"),
        (tensor([2], bytes(8), levels=1 << 60), "levels of detail"),
        (struct.pack("<IQII", 0, 0, 0, 1 << 31), "bytes of a description"),
        (struct.pack("<IQII", 0, 0, 7, 2), "does not have version 0"),
        (struct.pack("<IQII", 0, 0, 0, 2) + b"\x0d\x00", "not a type and axes"),
        (struct.pack("<IQII", 0, 0, 0, 0), "not a type and axes"),
        (bytes(range(256)), "damaged|not a PaddlePaddle"),
    ],
)
def test_damaged_weights_are_refused(content: bytes, match: str) -> None:
    with pytest.raises(ModelFormatError, match=match):
        walk(content)


def test_elements_of_an_unknown_type_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="unknown type 99"):
        walk(tensor([2], bytes(8), kind=99))


def test_weights_of_a_model_in_memory_are_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be its \.pdiparams"):
        convert((MODELS / "small.json").read_bytes(), external_data=tmp_path, python=sys.executable)


def test_only_frozen_graphs_have_names_to_choose() -> None:
    with pytest.raises(ConfigError, match="which defines them"):
        convert(MODELS / "small.json", outputs=["x"])


# ---- with PaddlePaddle ----


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of `make_paddle_models.py`."""
    folder = tmp_path_factory.mktemp("paddle")
    done = subprocess.run([PYTHON or sys.executable, str(MAKE), str(folder)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return folder


@pytest.mark.slow
@needs_paddle
@pytest.mark.parametrize("name", ["small.json", "small.pdmodel"])
def test_both_formats_become_the_same_model(name: str, made: Path) -> None:
    for folder in (MODELS, made):
        conversion = converted(folder / name, python=PYTHON)
        assert conversion.check.runtime.startswith("PaddlePaddle 3")
    with infersdk.load(conversion.content, backend="onnxruntime") as infer:
        assert [(spec.name, spec.shape) for spec in infer.input_specs] == [("x", ("batch", 3, 8, 8))]
        assert infer(np.ones((5, 3, 8, 8), np.float32))["fetch_name_0"].shape == (5, 5)


@pytest.mark.slow
@needs_paddle
def test_free_sizes_are_given_for_the_check(made: Path) -> None:
    conversion = convert(made / "enlarged.json", python=PYTHON)
    assert conversion.check is None
    assert "--shape x=1,3,64,64" in conversion.unchecked
    conversion = converted(made / "enlarged.json", python=PYTHON, shapes={"x": (1, 3, 10, 12)})
    with pytest.raises(ConfigError, match="no input 'y'.*are x"):
        convert(made / "enlarged.json", python=PYTHON, shapes={"y": (1, 3, 10, 12)})


@pytest.mark.slow
@needs_paddle
def test_recurrent_models_are_converted(made: Path) -> None:
    converted(made / "recurrent.json", python=PYTHON)


@pytest.mark.slow
@needs_paddle
def test_a_wrong_translation_does_not_pass(made: Path) -> None:
    """paddle2onnx 2.1 joins the last states of recurrent layers wrongly; a later one may not."""
    conversion = convert(made / "states.json", python=PYTHON)
    if not conversion.check.passed:
        assert "fetch_name_0 has shape (1, 2, 6), not (2, 2, 6)" in conversion.verdict
        with pytest.raises(UnsupportedModelError, match="the result differs"):
            infersdk.load(made / "states.json", backend="onnxruntime", convert={"python": PYTHON})


@pytest.mark.slow
@needs_paddle
def test_missing_operators_are_listed_at_once(made: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"2 kinds of operators.*: digamma \(1\), lgamma \(2\)"):
        convert(made / "missing.json", python=PYTHON)


@pytest.mark.slow
@needs_paddle
def test_operators_that_reach_files_are_refused(made: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="access external resources: save"):
        convert(made / "reaching.pdmodel", python=PYTHON)
    assert not (made / "written").exists()


@pytest.mark.slow
@needs_paddle
@pytest.mark.parametrize("name", ["small.json", "small.pdmodel"])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_models_that_are_cut_off_are_refused(name: str, kept: float, tmp_path: Path) -> None:
    content = (MODELS / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * kept)])
    shutil.copy(MODELS / "small.pdiparams", tmp_path)
    with pytest.raises((ModelFormatError, UnsupportedModelError)):
        convert(tmp_path / name, python=PYTHON)


@pytest.mark.slow
@needs_paddle
@pytest.mark.parametrize("name", ["small.json", "small.pdmodel"])
def test_a_model_without_its_weights_is_refused(name: str, tmp_path: Path) -> None:
    shutil.copy(MODELS / name, tmp_path)
    with pytest.raises((ModelFormatError, UnsupportedModelError)):
        convert(tmp_path / name, python=PYTHON)
