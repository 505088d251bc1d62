"""docs/graph.md: each recipe computes the same as the edit by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs import scenes

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")
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
    scenes.make("recipes.onnx", tmp_path, "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def execute(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/graph.md", "exec"), names)


def run(file: str) -> list[Any]:
    onnx.checker.check_model(file, full_check=True)
    return models.run(file, X)  # type: ignore[no-any-return]


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
    if title not in ("Fuse two nodes", "Change the opset"):
        assert len(got) != len(before) or not np.array_equal(got[0], before[0]), "the edit does something"
    if title != "Change the opset":
        assert len(ours.splitlines()) < len(by_hand.splitlines()) or len(by_hand.splitlines()) < 3
