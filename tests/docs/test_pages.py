"""The code of the pages: Python blocks run in order, and commands have only arguments that exist.

A page runs in a folder with the files of `scenes`. A block with the title of another program is compiled only: that
program is not a dependency.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from docs.page_code import DOCS, FOREIGN, ROOT, blocks, commands, compiled, missing_package, run, run_python

from docs import scenes
from infersdk import Infer
from infersdk.errors import ConfigError, DeviceUnavailableError, ModelNotFoundError, PrecisionUnavailableError
from infersdk.models import TYPES

#: Pages that another test runs.
ELSEWHERE = {"custom-operators.md", "serving.md"}
#: Files that are others than in `scenes.FILES` on some pages.
OTHERWISE = {
    "tasks/faces.md": {"zidane.jpg": "faces.jpg"},
    "tasks/pose.md": {"val/": "streets/"},
    "tasks/segment.md": {"val/": "streets/", "instances_val.json": "streets.json"},
    "bench.md": {"yolov5n.int8.onnx": "yolov5n.onnx"},
    "compare.md": {"yolov5n.int8.onnx": "yolov5n.onnx", "model.int8.onnx": "model.onnx"},
    "graph.md": {"model.onnx": "recipes.onnx"},
    "backends/writing-a-backend.md": {"model.onnx": "recipes.onnx"},
}


#: Pages whose blocks take more than five seconds on one core.
SLOW = ("bench.md", "conformance.md", "howto/make-it-faster.md", "own-model.md", "quantization.md")


def pages() -> list[str]:
    found = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    return [name for name in found if not name.startswith(("api/", "benchmarks/")) and blocks(name)]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


def test_the_lists_name_pages_that_exist() -> None:
    assert sorted((ELSEWHERE | set(OTHERWISE)) - set(pages())) == []


@pytest.mark.parametrize("page", pages())
def test_blocks_compile_and_commands_are_known(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            compiled(block.code, page)
        elif block.language == "sh":
            joined = block.code.replace("\\\n", " ")
            lines = [line.split() for line in joined.splitlines() if line and not line.startswith("#")]
            first = [next(word for word in line if "=" not in word) for line in lines]
            assert [word for word in first if word not in (*FOREIGN, "infersdk", "python")] == []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow, pytest.mark.timeout(900)] if page in SLOW else [])
        for page in sorted(set(pages()) - ELSEWHERE)
    ],
)
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnxruntime", "onnx", "onnx_ir"):
        pytest.importorskip(module)
    text = (DOCS / page).read_text("utf-8")
    for name in scenes.FILES:
        if name in text and missing_package(name) is None:
            scenes.make(OTHERWISE.get(page, {}).get(name, name), tmp_path, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    run(page, tmp_path, vars(module))


def test_moving_changes_at_most_five_lines() -> None:
    text = (DOCS / "moving-from.md").read_text("utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert len(sections) == 5
    for section in sections:
        before, after = (
            code.strip().splitlines() for code in re.findall(r"```python[^\n]*\n(.*?)```", section, re.DOTALL)[:2]
        )
        kept = sum(
            block.size for block in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
        )
        assert len(after) - kept <= 5, section.partition("\n")[0]


def test_the_smallest_backend_refuses_what_it_does_not_have() -> None:
    block = next(block for block in blocks("backends/writing-a-backend.md") if block.title == "infersdk_mine.py")
    namespace: dict[str, Any] = {}
    run_python(block.code, "writing-a-backend.md", namespace)
    with pytest.raises(DeviceUnavailableError, match="device 'cpu:1'"):
        namespace["MyInfer"](b"model", device="cpu:1")
    with pytest.raises(PrecisionUnavailableError, match="precision 'fp16'"):
        namespace["MyInfer"](b"model", precision="fp16")


def test_the_page_about_backends_has_each_method_that_one_overrides() -> None:
    backend = pytest.importorskip("infersdk.backends.onnxruntime").OnnxRuntimeInfer
    text = (DOCS / "backends" / "writing-a-backend.md").read_text("utf-8")
    methods = [name for name, value in vars(backend).items() if callable(value) and name in vars(Infer)]
    assert [name for name in methods if f"| `{name}(" not in text] == []


def test_the_table_of_tasks_names_every_wrapper() -> None:
    text = (DOCS / "tasks" / "README.md").read_text("utf-8")
    named = re.findall(r"^\|[^|\n]*\|[^|\n]*\| `([\w-]+)` \|", text, re.MULTILINE)
    named.remove("type")  # the head of the column
    assert sorted(named) == sorted(TYPES)


def test_each_application_is_drawn() -> None:
    text = (DOCS / "applications.md").read_text("utf-8")
    drawings = re.findall(r"^!\[[^]]+\]\((applications-[\w-]+\.svg)\)$", text, re.MULTILINE)
    assert len(drawings) == 4
    for name in drawings:
        assert ElementTree.parse(DOCS / name).getroot().tag.endswith("svg")


@pytest.mark.parametrize("page", ["../README.md", *(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))])
def test_commands_have_arguments_that_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    from infersdk.cli import parser

    for command in (command for block in blocks(page) for command in commands(block)):
        words = [word for word in shlex.split(command, comments=True) if not re.match("[A-Z_]+=", word)]
        if words[0] != "infersdk" or "&&" in words:
            continue
        try:
            parser().parse_args(words[1:])
        except SystemExit as stop:
            if stop.code != 0:
                pytest.fail(f"{command}\n{capsys.readouterr().err}")
        except (ConfigError, ModelNotFoundError):
            pass  # the file or the module of the example does not exist
