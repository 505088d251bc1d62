"""infersdk convert: the file, what it prints, and its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from infersdk.cli import main
from infersdk.data import DETECTOR
from infersdk.errors import ConfigError
from infersdk.importers.conversion import samples_by_name

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")
TEXT = """7767517
3 2
pnnx.Input      in0  0 1 0 #0=(1,3)f32
pnnx.Expression e    1 1 0 1 expr=mul(@0,2.0) #0=(1,3)f32 #1=(1,3)f32
pnnx.Output     out0 1 0 1 #1=(1,3)f32
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "m.pnnx.param").write_text(TEXT)
    return tmp_path / "m.pnnx.param"


def test_it_writes_and_says_how_it_was_checked(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(graph), "-o", str(tmp_path / "m.onnx")]) == 0
    out = capsys.readouterr().out
    assert "a PNNX graph" in out
    assert "in0 [batch,3]" in out
    assert "largest difference 0," in out
    assert (tmp_path / "m.onnx").is_file()
    assert main(["convert", str(graph), "-o", str(tmp_path / "f.onnx"), "--fixed-batch", "--no-check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "pnnx"
    assert found["check"] is None
    assert found["unchecked"] == "not requested"


def test_a_difference_beyond_the_tolerance_is_exit_code_1(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter that is wrong: the check finds it."""
    torch = pytest.importorskip("torch")
    from infersdk.importers.workers import torch_export

    export = torch_export.export_dynamo
    monkeypatch.setattr(
        torch_export, "export_dynamo", lambda module, *rest: export(torch.nn.Sequential(module, Negated()), *rest)
    )

    class Negated(torch.nn.Module):
        def forward(self, values):
            return tuple(-value for value in values)

    assert main(["convert", str(graph), "-o", str(tmp_path / "m.onnx")]) == 1
    assert "BEYOND the tolerance" in capsys.readouterr().out


def test_errors(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "m.onnx")
    assert main(["convert", str(DETECTOR), "-o", target]) == 2
    assert "is already an ONNX model" in capsys.readouterr().err
    (tmp_path / "x.bin").write_bytes(b"nothing that is known")
    assert main(["convert", str(tmp_path / "x.bin"), "-o", target]) == 2
    assert "not a model of a known format" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none.param"), "-o", target]) == 2
    assert main(["convert", str(graph), "-o", target, "--shape", "1,b"]) == 2
    assert "[NAME=]1,3,640,640[:float32]" in capsys.readouterr().err
    weights = graph.with_suffix(".bin")
    weights.write_bytes(b"weights")
    assert main(["convert", str(graph), "-o", str(weights)]) == 2
    assert "is an input, too; write to another file" in capsys.readouterr().err
    assert weights.read_bytes() == b"weights"
    weights.unlink()
    assert main(["convert", str(graph), "-o", str(graph / "below.onnx")]) == 2
    assert f"{str(graph)!r} is not a folder [IFS504]" in capsys.readouterr().err
    assert not Path(target).exists()


def test_a_python_that_cannot_be_started(tmp_path: Path) -> None:
    from infersdk.errors import ConfigError, ModelFormatError
    from infersdk.importers.processes import worker

    with (
        worker("torch_export", str(tmp_path / "no-python")) as work,
        pytest.raises(ConfigError, match="cannot be started"),
    ):
        work.run({})
    with worker("no_such_worker", sys.executable) as work, pytest.raises(ModelFormatError, match="exit code 1"):
        work.run({})


@pytest.mark.posix
def test_another_program_than_python(tmp_path: Path) -> None:
    from infersdk.importers.processes import worker

    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho other program\n")
    other.chmod(0o755)
    with (
        worker("torch_export", str(other)) as work,
        pytest.raises(ConfigError, match=r"python' ended with exit code 0 and ran no code; give .*\. other program"),
    ):
        work.run({})


@pytest.mark.parametrize(
    ("text", "values", "dtype"),
    [("x=0,3,5", [0, 3, 5], "int64"), ("x=0.5,-1", [0.5, -1], "float32"), ("x=1,2:int32", [1, 2], "int32")],
)
def test_samples_as_texts(text: str, values: list[float], dtype: str) -> None:
    (array,) = samples_by_name([text]).values()
    assert (array.tolist(), array.dtype.name) == (values, dtype)


@pytest.mark.parametrize("text", ["x", "=1", "x=a", "x=", "x=nowhere.npy", "x=1:float99", "x=1:str"])
def test_samples_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="input"):
        samples_by_name([text])


def test_samples_in_files(tmp_path: Path, graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    (array,) = samples_by_name([f"x={tmp_path / 'x.npy'}"]).values()
    assert array.shape == (1, 3)
    code = main(["convert", str(graph), "-o", str(tmp_path / "m.onnx"), "--input", "nonesuch=1,2"])
    assert code == 2
    assert "there is no input 'nonesuch'; the inputs are " in capsys.readouterr().err
