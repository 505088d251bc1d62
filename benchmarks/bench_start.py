"""From the start of a process to the boxes of one file, and its memory, against a script around the runtime itself.

A first start has no cache of ours, a later one has it. Files are in the system's page cache. Bundles are loaded in one
process, and are compared with the models that they have.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk import models
from infersdk.bundles import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rounds import Turns

OURS = """
import sys
from infersdk.models import load
print(len(load(sys.argv[1], {backend!r})(sys.argv[2])))
"""
PLAIN = """
import sys
import numpy as np
from PIL import Image
{run}
image = Image.open(sys.argv[2]).convert("RGB")
scale = min(640 / image.width, 640 / image.height)
width, height = round(image.width * scale), round(image.height * scale)
canvas = Image.new("RGB", (640, 640), (114, 114, 114))
canvas.paste(image.resize((width, height)), ((640 - width) // 2, (640 - height) // 2))
rows = run(np.asarray(canvas, np.float32).transpose(2, 0, 1)[None] / 255)[0].T
rows = rows[rows[:, 4:].max(1) > 0.25]
boxes = np.concatenate([rows[:, :2] - rows[:, 2:4] / 2, rows[:, :2] + rows[:, 2:4] / 2], 1)
kinds, areas, kept = rows[:, 4:].argmax(1), (boxes[:, 2:] - boxes[:, :2]).prod(1), []
order = np.argsort(-rows[:, 4:].max(1))
while len(order):
    i, order = order[0], order[1:]
    kept.append(i)
    low, high = np.maximum(boxes[i, :2], boxes[order, :2]), np.minimum(boxes[i, 2:], boxes[order, 2:])
    inner = np.clip(high - low, 0, None).prod(1)
    order = order[(inner / (areas[i] + areas[order] - inner) <= 0.45) | (kinds[order] != kinds[i])]
print(len(kept))
"""
RUNS = {
    "onnxruntime": """
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
run = lambda x: session.run(None, {session.get_inputs()[0].name: x})[0]
""",
    "openvino": """
import openvino
core = openvino.Core()
core.set_property({"CACHE_DIR": sys.argv[3]})
hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
compiled = core.compile_model(sys.argv[1], "CPU", hints)
run = lambda x: compiled(x)[0]
""",
}
PEAK = """
from pathlib import Path
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")))
"""


class Program:
    """A program that prints its number of boxes, and its peak of memory in kB.

    Args:
        caches: a folder for each start; an empty one makes it a first start.
    """

    def __init__(self, source: str, arguments: list[object], caches: Callable[[], Path]) -> None:
        self._command = [sys.executable, "-c", source + PEAK, *map(str, arguments)]
        self._caches = caches
        self.boxes = self.peak = 0

    def __call__(self) -> None:
        cache = str(self._caches())
        # The byte code of modules is stored, as in an installed package.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "INFERSDK_CACHE": cache
        }
        done = subprocess.run(
            [*self._command, cache], check=True, capture_output=True, text=True, env=environment, cwd="/"
        )
        self.boxes, self.peak = map(int, done.stdout.split()[-2:])


@pytest.fixture
def programs(
    assets: Path, tmp_path_factory: pytest.TempPathFactory, backend: str, start: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Program]:
    """infersdk and the plain script, which keeps OpenVINO's compiled model, too: yolov8n on bus.jpg."""
    pytest.importorskip(backend)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
    arguments: list[object] = [assets / "models" / "yolov8n.onnx", assets / "images" / "bus.jpg"]
    kept = tmp_path_factory.mktemp("kept")
    caches = partial(tmp_path_factory.mktemp, "empty") if start == "first" else lambda: kept
    return {
        "infersdk": Program(OURS.format(backend=backend), arguments, caches),
        "plain script": Program(PLAIN.replace("{run}", RUNS[backend]), arguments, caches),
    }


@pytest.mark.parametrize("start", ["second", "first"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_start(programs: dict[str, Program], turns: Turns) -> None:
    turns.times(programs, warm_up=2)
    assert {program.boxes for program in programs.values()} == {5}


@pytest.mark.parametrize("start", ["second", "first"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_memory(programs: dict[str, Program], turns: Turns) -> None:
    """The peak of each process."""

    def peaks() -> dict[str, float]:
        for program in [*programs.values()] * 2:
            program()
        return {name: program.peak * 1024 / 1e6 for name, program in programs.items()}

    turns.once(peaks, " MB")


def test_import(turns: Turns) -> None:
    def imports(name: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True, cwd="/")

    turns.times({"import infersdk": imports("infersdk"), "import numpy": imports("numpy"), "nothing": imports("sys")})


def large_classifier(path: Path) -> Path:
    """A model of 105 MB in two layers."""
    generator = np.random.default_rng(1)
    shapes = {"a": (3 * 64 * 64, 2048), "b": (2048, 512)}
    weights = {name: generator.normal(0, 0.01, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [node("Flatten", "x", "f"), node("MatMul", "f a", "m"), node("Relu", "m", "r"), node("MatMul", "r b", "y")]
    return save(path, nodes, [value("x", (1, 3, 64, 64))], [value("y", (1, 512))], weights)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("model", ["yolov8n", "classifier of 105 MB"])
def test_bundles(
    model: str, backend: str, assets: Path, tmp_path: Path, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a model, its bundle and its encrypted bundle, whose golden samples have passed before."""
    pytest.importorskip(backend)
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    path = assets / "models" / "yolov8n.onnx" if model == "yolov8n" else large_classifier(tmp_path / "large.onnx")
    images, key = assets / "images" / "bus.jpg", bytes(range(32))
    settings: dict[str, Any] = {} if model == "yolov8n" else {"type": "classifier"}
    pack(path, tmp_path / "plain.infer", images=images, **settings)
    pack(path, tmp_path / "encrypted.infer", images=images, encrypt=key, **settings)

    def loads(*arguments: Any, **settings: Any) -> Callable[[], None]:
        return lambda: models.load(*arguments, backend=backend, **settings).close()

    turns.times({
        "the model": loads(path, **settings), "bundle": loads(tmp_path / "plain.infer"),
        "encrypted bundle": loads(tmp_path / "encrypted.infer", key=key),
    }, warm_up=2)  # fmt: skip
