"""Which packages a process imports until it has the boxes of a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from raw_head_models import yolov8_model

_PROGRAM = """
import json, sys
from infersdk.models import YOLOv8
with YOLOv8(sys.argv[1], sys.argv[2]) as detector:
    assert detector.decode_head_used == "native"
    detector(sys.argv[3])
print(json.dumps([name for name in ("asyncio", "onnx", "onnx_ir", "sympy.core") if name in sys.modules]))
print(json.dumps(sum(name.startswith("infersdk") for name in sys.modules)))
"""


def drawn(folder: Path) -> Path:
    Image.effect_noise((96, 96), 50).convert("RGB").save(folder / "image.png")
    return folder / "image.png"


def started(*arguments: str | Path, cache: Path) -> tuple[list[str], int]:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        env=os.environ | {"INFERSDK_CACHE": str(cache)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported, count = map(json.loads, run.stdout.splitlines())
    return imported, count


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_second_start_reads_no_graph(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = yolov8_model(tmp_path / "m.onnx", size=(96, 96))
    image = drawn(tmp_path)
    first, _ = started(path, backend, image, cache=tmp_path / "cache")
    assert first == ["onnx"]
    assert started(path, backend, image, cache=tmp_path / "cache")[0] == []
    other = yolov8_model(tmp_path / "m.onnx", size=(96, 96), seed=1)
    assert started(other, backend, image, cache=tmp_path / "cache")[0] == ["onnx"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    path = yolov8_model(tmp_path / "m.onnx", size=(96, 96))
    image = drawn(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert started(path, "onnxruntime", image, cache=tmp_path / "file")[0] == ["onnx"]
