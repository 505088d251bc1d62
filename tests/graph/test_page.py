"""docs/graph.md: its code runs, and each recipe computes what the edit by hand does."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "graph.md").read_text("utf-8")
X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def section(title: str) -> str:
    """What is under a heading of the second level."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


RECIPES = {part.split("\n")[0]: blocks(part) for part in section("Recipes").split("\n### ")[1:]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(1)
    nodes = [
        models.node("MatMul", "x w0", "p0", name="/stem/product"), models.node("Add", "p0 b0", "s0", name="/stem/bias"),
        models.node("LeakyRelu", "s0", "a0", name="/stem/act", alpha=0.1),
        models.node("Dropout", "a0", "h", name="drop"),
        models.node("MatMul", "h w1", "p1", name="/head/product"), models.node("Add", "p1 b1", "y", name="/head/bias"),
    ]  # fmt: skip
    weights = {"w0": rng.normal(size=(4, 4)), "w1": rng.normal(size=(4, 4)), "b0": rng.normal(size=4), "b1": np.ones(4)}
    models.save(
        tmp_path / "model.onnx", nodes, [models.value("x", ("n", 4))], [models.value("y", ("n", 4))],
        {name: array.astype(np.float32) for name, array in weights.items()},
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return tmp_path


def execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/graph.md", "exec"), names)


def run(file: str) -> list[Any]:
    onnx.checker.check_model(file, full_check=True)
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})  # type: ignore[no-any-return]


def names() -> dict[str, Any]:
    found: dict[str, Any] = {}
    execute(
        "import infersdk.graph\nimport onnx\nimport onnx.compose\nimport onnx.utils\nimport onnx.version_converter",
        found,
    )
    return found


def test_all_recipes_are_found() -> None:
    assert len(RECIPES) == 10
    assert all(len(pair) == 2 for pair in RECIPES.values())


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_is_what_the_edit_by_hand_is(folder: Path, title: str) -> None:
    ours, by_hand = RECIPES[title]
    known = names()
    execute(ours, known)
    execute(by_hand, known)
    got, want, before = run("out.onnx"), run("raw.onnx"), run("model.onnx")
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    if title not in ("One node for two", "Another version of the standard"):
        assert len(got) != len(before) or not np.array_equal(got[0], before[0]), "the edit does something"
    if title != "Another version of the standard":
        assert len(ours.splitlines()) < len(by_hand.splitlines()) or len(by_hand.splitlines()) < 3


def test_the_first_lines_of_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    execute(blocks(PAGE)[0], {})
    assert capsys.readouterr().out == "<Graph x [n,4] -> y [n,4], 6 nodes>\n/head/product w1 (4, 4)\n"
    np.testing.assert_array_equal(run("copy.onnx")[0], run("model.onnx")[0])


def test_a_pass_of_ones_own(folder: Path) -> None:
    known = names()
    (code,) = blocks(section("A pass of your own"))
    execute(code, known)
    assert [node.op_type for node in onnx.load("out.onnx").graph.node].count("Dropout") == 0
    np.testing.assert_array_equal(run("out.onnx")[0], run("model.onnx")[0])


@pytest.mark.assets
def test_the_ready_edits(folder: Path, assets: Path) -> None:
    shutil.copy(assets / "models" / "yolox_nano.onnx", folder)
    known = names()
    (code,) = blocks(section("Ready edits"))
    execute(code, known)
    session = ort.InferenceSession("yolox_nano_end_to_end.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: np.zeros((2, 480, 720, 3), np.uint8)})
    assert [array.ndim for array in found] == [2, 1, 1, 1]
