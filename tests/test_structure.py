"""The shape of the source: no cycles between modules, no long files, and classes of few public members."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import pytest
from test_imports import MODULES, ROOT, ours

import infersdk
from infersdk import models
from infersdk.data import DETECTOR

#: The maximum number of lines of a source file.
FILE_LINES = 600
#: The maximum number of public members of a class, inherited ones included, settings excluded. `MEMBERS_OF` has higher
#: limits of single classes; lower them when members are removed.
MEMBERS = 25
MEMBERS_OF = {"Infer": 20, "Detections": 33, "VisionModel": 33}
#: Files that may be longer: the header of the core, which documents the interface.
MANUALS = {"native/include/infersdk.h"}
SOURCES = [
    path
    for folder in ("infersdk", "backends", "models", "native", "benchmarks", "examples", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".c", ".h", ".cu", ".cuh") and "build" not in path.parts
]
#: Classes of the public interface.
PUBLIC = [
    infersdk.Infer, infersdk.Pipeline, infersdk.Tensor, models.VisionModel, models.TwoStage, models.Tiled,
    models.Detections, models.Classifications,
]  # fmt: skip
#: Words that have a standard term: image, slot, batch. ENDOFPICTURE is a name in NVDEC.
WORDS = re.compile(r"(?<!ENDOF)picture|turnstile|handover|PictureLane|padded_batch", re.IGNORECASE)


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that depend on one another, in order; none if there is no cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_import_cycles() -> None:
    """Imports inside functions and under TYPE_CHECKING count too."""
    known = {
        name: {other for other in ours(name, typing=True) if other in MODULES and other != name} for name in MODULES
    }
    assert cycle(known) == []


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
    assert cycle(graph) == []


def test_sizes_and_words() -> None:
    wrong = []
    for path in SOURCES:
        text = path.read_text("utf-8")
        name = path.relative_to(ROOT).as_posix()
        lines = text.count("\n")
        if lines > FILE_LINES and name not in MANUALS:
            wrong.append(f"{name} has {lines} lines")
        wrong += [f"{name}: {word}" for word in WORDS.findall(text)]
    assert wrong == []


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_classes_have_few_public_members(kind: type) -> None:
    settings = kind.Settings.__struct_fields__ if hasattr(kind, "Settings") else ()
    members = [name for name in dir(kind) if not name.startswith("_") and name not in settings]
    assert len(members) <= MEMBERS_OF.get(kind.__name__, MEMBERS), f"{kind.__name__} has {', '.join(members)}"


#: The result types that a program can import.
RESULT_TYPES = {
    name
    for name in models.__all__
    if isinstance(kind := getattr(models, name), type) and issubclass(kind, models.Result) and kind is not models.Result
} - {"Rows"}
#: The modules that define result types, and those of the wrappers, which return them.
MAKERS = {
    *(name for name in MODULES if name.startswith(("infersdk.models.results", "infersdk.models.ocr"))),
    *(kind.__module__ for kind in models.TYPES.values()),
}


def names_at_run_time(node: ast.AST) -> Iterator[str]:
    """The names in a module that are neither annotations nor for the type checker alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        children: list[ast.AST] = list(node.orelse)
    else:
        children = [child for field, child in fields(node) if field not in ("annotation", "returns")]
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names)
    for child in children:
        yield from names_at_run_time(child)


def fields(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield field, one


def test_no_module_lists_result_types() -> None:
    """A module that names two result types has a table that lacks new types."""
    wrong = []
    for name in sorted(set(MODULES) - MAKERS):
        text = MODULES[name].read_text("utf-8")
        if sum(kind in text for kind in RESULT_TYPES) < 2:
            continue
        named = RESULT_TYPES & set(names_at_run_time(ast.parse(text)))
        if len(named) > 1:
            wrong.append(f"{name} names {', '.join(sorted(named))}; let models.Result declare what differs")
    assert wrong == []


SETTINGS = models.YOLOv5.Settings.__struct_fields__


def test_a_model_shows_few_members() -> None:
    with models.YOLOv5(DETECTOR, threads=1) as detector:
        for kind in models.TYPES.values():
            model = object.__new__(kind)
            vars(model).update((name, value) for name, value in vars(detector).items() if name not in SETTINGS)
            members = [name for name in dir(model) if not name.startswith("_")]
            assert len(members) <= MEMBERS, f"{kind.__name__} has {', '.join(members)}"
            assert not set(members) & set(model.Settings.__struct_fields__)


def test_a_wrapper_of_your_own_shows_what_it_adds() -> None:
    class Counting(models.YOLOv5):
        def postprocess(self, outputs: Any, geometries: Any) -> list[models.Detections]:
            return super().postprocess(outputs, geometries)

        def count(self) -> int:
            return 0

    with models.YOLOv5(DETECTOR, threads=1) as detector, Counting(DETECTOR, threads=1) as own:
        assert set(dir(own)) - set(dir(detector)) - set(vars(own)) == {"count"}
