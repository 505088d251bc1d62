"""The shape of the source: no cycles between modules, no long files, and classes of few public members."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_imports import MODULES, ROOT, ours

import infersdk
from infersdk import models

#: The most lines of a source file.
FILE_LINES = 600
#: The most public members of a class, inherited ones included; and of the classes that have more, which only shrink.
MEMBERS = 25
MORE_MEMBERS = {"Infer": 33, "Detections": 28, "VisionModel": 57}
#: The header of the core is a manual, and is read as one.
MANUALS = {"native/include/infersdk.h"}
SOURCES = [
    path
    for folder in ("infersdk", "backends", "models", "native", "benchmarks", "examples", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h", ".cu", ".cuh") and "build" not in path.parts
]
#: The classes that users hold in their hands.
PUBLIC = [
    infersdk.Infer, infersdk.Pipeline, infersdk.Tensor, models.VisionModel, models.TwoStage, models.Tiled,
    models.Detections, models.Classifications,
]  # fmt: skip
#: Words that have a better one here, which the field uses too; ENDOFPICTURE is a name of NVDEC's.
WORDS = re.compile(r"(?<!ENDOF)picture|turnstile|handover|PictureLane|padded_batch", re.IGNORECASE)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that depend on one another (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in graph[name]:
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in number:
            visit(name)
    return found


def test_the_search_finds_cycles() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_import_cycles() -> None:
    """Not inside functions and not under TYPE_CHECKING either: who names another's type depends on it."""
    known = {
        name: {other for other in ours(name, typing=True) if other in MODULES and other != name} for name in MODULES
    }
    assert cycles(known) == []


def test_no_cycles_between_c_files() -> None:
    """A file depends on another that defines what it calls."""
    sources = {path: path.read_text("utf-8") for path in sorted((ROOT / "native" / "src").glob("*.c"))}
    function = re.compile(r"^(?:[\w*]+ )+\*?(ifs_\w+)\(", re.MULTILINE)
    home = {
        name: path.name
        for path, text in sources.items()
        for name in function.findall(text)
        if re.search(rf"^(?!static)[^;{{}}#]*\b{name}\([^;{{}}]*\)\s*\{{", text, re.MULTILINE)
    }
    assert len(home) > 50, "the search finds the definitions"
    calls = re.compile(r"\b(ifs_\w+)\s*\(")
    graph = {
        path.name: {home[name] for name in calls.findall(text) if home.get(name, path.name) != path.name}
        for path, text in sources.items()
    }
    assert cycles(graph) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_words(path: Path) -> None:
    text = path.read_text("utf-8")
    name = path.relative_to(ROOT).as_posix()
    lines = text.count("\n")
    assert lines <= FILE_LINES or name in MANUALS, f"{name} has {lines} lines"
    assert not (found := WORDS.findall(text)), f"{name}: {found}"


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_classes_have_few_public_members(kind: type) -> None:
    members = [name for name in dir(kind) if not name.startswith("_")]
    assert len(members) <= MORE_MEMBERS.get(kind.__name__, MEMBERS), f"{kind.__name__} has {', '.join(members)}"
