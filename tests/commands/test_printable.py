"""Escape sequences of a model, a file name or a message do not reach the terminal."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
from rich.text import Text

from infersdk import cli
from infersdk.commands.common import console
from infersdk.commands.progress import show_progress
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

EVIL = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e"
SHOWN = r"\u001b]0;title\u0007\u001b[31m\u009b2J\u202e"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A detector whose metadata and class names have escape sequences."""
    made = onnx.load(DETECTOR)
    for entry in made.metadata_props:
        if entry.key == "names":
            entry.value = repr({key: f"{EVIL}{value}" for key, value in enumerate("abcdefghij")})
    made.metadata_props.add(key=f"note{EVIL}", value=EVIL)
    path = tmp_path / f"model{EVIL}.onnx"
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("command", ["predict", "info"])
def test_names_of_a_model(command: str, form: list[str], model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    image = model.with_name(f"{EVIL}.png")
    shutil.copy(IMAGE, image)
    given = [command, str(image), "--model", str(model)] if command == "predict" else [command, str(model)]
    assert cli.main([*given, *form]) == 0
    captured = capfd.readouterr()
    assert not CONTROLS.findall(captured.out + captured.err)
    assert r"\u001b]" in captured.out
    if form:
        data = json.loads(captured.out)
        assert data[0]["image"] == str(image) if command == "predict" else data["metadata"][f"note{EVIL}"] == EVIL


def test_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / f"{EVIL}.onnx"
    broken.write_bytes(b"none")
    assert cli.main(["predict", str(IMAGE), "--model", str(broken)]) == 2
    assert cli.main(["predict", f"--{EVIL}", str(IMAGE)]) == 2
    assert cli.main(["predict", f"{EVIL}.png", "--model", str(CLASSIFIER)]) == 2
    captured = capfd.readouterr()
    assert not CONTROLS.findall(captured.out + captured.err)


def test_a_fault_is_printable_too(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        shown.append(warnings.formatwarning(EVIL, RuntimeWarning, EVIL, 1, EVIL))
        raise RuntimeError(EVIL)

    shown: list[str] = []
    before = warnings.formatwarning
    monkeypatch.setattr(cli, "parser", fail)
    assert cli.main([]) == 4
    told = capfd.readouterr().err
    assert SHOWN in told
    assert SHOWN in shown[0]
    assert not CONTROLS.findall(told + shown[0])
    assert warnings.formatwarning is before


def test_a_console_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    out.print(Text(EVIL))
    out.print(EVIL, markup=False)
    with show_progress() as progress, progress.stage(EVIL) as advance:
        advance(1.0)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [SHOWN.replace(r"\u0007", ""), SHOWN]  # a Text has no bell
    assert not CONTROLS.findall(captured.err)
