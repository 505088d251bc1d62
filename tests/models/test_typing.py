"""What a type checker sees of the wrappers' constructors: each setting, with its type."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import infersdk

CONFIGURATION = Path(__file__).resolve().parents[2] / "pyproject.toml"
PROGRAM = """
from typing import Annotated

import msgspec
from infersdk import models

model = models.YOLOv5("m.onnx", "openvino", conf=0.5, iou=0.4, max_det=10, names=["a"], options={"threads": 2})
reveal_type(model("bus.jpg"))
reveal_type(model(["bus.jpg"]))
reveal_type(model.conf)
models.YOLOv5("m.onnx", conf="high")
models.YOLOv5("m.onnx", confidence=0.5)
models.YOLOX("m.onnx", legacy=True)
models.Classifier("m.onnx", preset="other")


class Mine(models.YOLOv8):
    margin: Annotated[float, msgspec.Meta(ge=0)] = 0.0


Mine("m.onnx", margin=1.0, conf=0.1)
Mine("m.onnx", margin="wide")
reveal_type(models.OCR("det.onnx", "rec.onnx")("page.jpg"))
reveal_type(models.Tiled(model)(["bus.jpg"]))
"""


def test_settings_are_seen_by_a_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    names = f"from infersdk.models import {', '.join(infersdk.models.__all__)}\n"  # all of them are there
    (tmp_path / "program.py").write_text(PROGRAM + names)
    # mypy does not read the import hook of an editable install.
    package = tmp_path / "path" / "infersdk"
    package.mkdir(parents=True)
    parts = {part.name: part for part in Path(infersdk.__path__[0]).iterdir()}
    for name in ("models", "backends"):
        parts[name] = Path(importlib.import_module(f"infersdk.{name}").__path__[0])
    for name, part in parts.items():
        (package / name).symlink_to(part)
    done = subprocess.run(
        # The project's configuration leaves the runtimes out: their stubs take most of the time, and settings no part.
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", str(CONFIGURATION),
            "--cache-dir", str(tmp_path), "program.py",
        ],
        check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(package.parent)},
    )  # fmt: skip
    lines = [line.partition("program.py:")[2] for line in done.stdout.splitlines() if "program.py:" in line]
    assert lines, done.stdout + done.stderr
    assert [line for line in lines if "note: Revealed" in line] == [
        '8: note: Revealed type is "infersdk.models.results.detections.Detections"',
        '9: note: Revealed type is "list[infersdk.models.results.detections.Detections]"',
        '10: note: Revealed type is "float"',
        '23: note: Revealed type is "infersdk.models.ocr.lines.TextLines"',
        '24: note: Revealed type is "list[infersdk.models.results.detections.Detections]"',
    ]
    errors = {int(line.split(":")[0]): line for line in lines if ": error:" in line}
    assert set(errors) == {11, 12, 14, 22}
    assert 'Argument "conf" to "YOLOv5" has incompatible type "str"; expected "float"' in errors[11]
    assert 'Unexpected keyword argument "confidence"' in errors[12]
    assert 'Argument "preset"' in errors[14]
    assert 'Argument "margin" to "Mine"' in errors[22]


def test_settings_can_be_pickled() -> None:
    from infersdk.models import YOLOv8

    settings = YOLOv8.Settings(conf=0.3)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_constructors_and_structs_agree() -> None:
    from infersdk.models import TYPES

    for kind in TYPES.values():
        for name in kind.Settings.__struct_fields__:
            if name != "options":  # its default is made anew for each
                assert getattr(kind, name) == getattr(kind.Settings(), name)
