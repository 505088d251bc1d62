"""Trees of a configuration as a target: tables for an application and for a server with random fields and values.

A tree is accepted or refused with an error of the package. Each is given as a file or as a mapping; models that it
describes are loaded from small files, and a server is made of it, but not started.
"""

from __future__ import annotations

import functools
import json
import random
import string
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["configuration_trees"]

_WORDS = (
    *("", "a", "auto", "cpu", "cuda:0", "cpu:1", "gpu", "fp16", "fp32", "int8", "onnxruntime", "openvino", "tensorrt"),
    *(
        "onnxruntime@cpu",
        "yolov5",
        "network",
        "classifier",
        "module:Class",
        "json:JSONDecoder",
        "tiled",
        "ocr",
        "raise",
    ),
    *(
        ".", "..", "/", "/dev/zero", "/dev/null", "/dev/stdin", "~", "~nosuch/x", "a\0b", "a\x1b[31m", "\udcff",
        "ü" * 200,
    ),
    *("x" * 300, "/" + "x/" * 3000, "1", "-1", "1e400", "64MB", "0.5", "null", "[]", "{}", "%s", "{0}", "2", "٣"),
)  # fmt: skip
#: None is between the numbers that are refused at once and those that would take all memory.
_NUMBERS = (
    *(0, 1, 2, 3, -1, 5, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63), True, False),
    *(0.0, 0.5, 1.0, 1.5, -0.5, 1e-300, 1e15, 1e300, float("inf"), -float("inf"), float("nan")),
)
_ODD = (None, b"bytes", (1, 2), {1, 2}, Path("a.onnx"), np.float32(3), np.arange(3), object(), 1j, range(3))


@functools.cache
def files() -> dict[str, str]:
    """A network, a detector, a classifier, class names, and what is none of these, by name."""
    import onnx_models

    from infersdk.data import CLASSIFIER, DETECTOR

    folder = Path(tempfile.mkdtemp(prefix="infersdk-fuzz-"))
    onnx_models.identity(folder / "network.onnx", ["batch", 4])
    (folder / "names.txt").write_text("\n".join("0123456789"))
    (folder / "damaged.onnx").write_bytes(Path(DETECTOR).read_bytes()[:1000])
    (folder / "folder.onnx").mkdir()
    made = {path.stem: str(path) for path in folder.iterdir()}
    return {**made, "detector": str(DETECTOR), "classifier": str(CLASSIFIER), "missing": str(folder / "missing.onnx")}


@functools.cache
def fields() -> list[str]:
    """Names of settings: of the server, of pipelines, of backends and of models."""
    import msgspec

    from infersdk.loading.registry import backend_class
    from infersdk.models.registry import TYPES
    from infersdk.pipeline import PipelineSettings
    from infersdk.serve.settings import ServerSettings

    structs: list[Any] = [ServerSettings, PipelineSettings, *(kind.Settings for kind in TYPES.values())]
    structs += [backend_class(name).declaration.options for name in ("onnxruntime", "openvino")]
    own = {field.name for kind in structs for field in msgspec.structs.fields(kind)}
    more = (
        *(
            "models", "server", "type", "path", "backend", "device", "precision", "max_batch", "while_building",
            "options",
        ),
        *("pipeline", "versions", "model", "detector", "second", "detection", "recognition", "orientation", "tile"),
        *("overlap", "merge", "column", "margin", "external_data", "convert", "custom_ops", "cut_custom_ops", "names"),
    )  # fmt: skip
    return [*sorted(own | set(more)), "", "a.b", "self", "kind", "\0", "x" * 300]


def base(rng: random.Random) -> dict[str, Any]:
    """A tree that is accepted."""
    paths, options = files(), {"threads": 1}
    network = {"type": "network", "path": paths["network"], "options": options, "max_batch": 2}
    detector = {"type": "yolov5", "path": paths["detector"], "options": options, "conf": 0.5, "max_batch": 1}
    classifier = {"type": "classifier", "path": paths["classifier"], "options": options, "names": paths["names"]}
    choices: list[dict[str, Any]] = [
        network, network, detector, classifier,
        {"type": "tiled", "tile": 320, "model": detector},
        {"type": "two-stage", "column": "digit", "detector": detector, "second": classifier},
        {**network, "versions": {"1": {}, "2": {"max_batch": 1}}},
        {"type": "ocr", "detection": paths["detector"], "recognition": paths["classifier"]},
    ]  # fmt: skip
    models = {f"m{number}": rng.choice(choices) for number in range(rng.choice((1, 1, 2)))}
    tree = {"models": models, "server": {"http_port": 0, "grpc_port": 0, "max_queue": 4}}
    return json.loads(json.dumps(tree))


def value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(_NUMBERS)
    if kind < 0.65:
        return rng.choice((*_WORDS, *files().values()))
    if kind < 0.7:
        return rng.choice(_ODD)
    if kind < 0.75:
        return "".join(rng.choice(string.printable) for _ in range(rng.randint(0, 30)))
    if depth > 3:
        return []
    if kind < 0.87:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if kind < 0.88:
        deep: Any = 1
        for _ in range(rng.choice((10, 63, 64, 65, 3000))):
            deep = [deep] if rng.random() < 0.5 else {"a": deep}
        return deep
    return {rng.choice(fields()): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def containers(tree: Any) -> Iterator[Any]:
    """All tables and lists of a tree that have an entry."""
    level = [tree]
    for _ in range(12):
        below: list[Any] = []
        for one in level:
            if one:
                yield one
            below += [
                inner for inner in (one.values() if isinstance(one, dict) else one) if isinstance(inner, (dict, list))
            ]
        level = below


def changed(rng: random.Random, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree after some changes: another value, one more, one less, two that change places."""
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        places = list(containers(tree))
        if not places:
            break
        place = rng.choice(places)
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        action = rng.random()
        if action < 0.45:
            place[key] = value(rng)
        elif action < 0.85:
            if isinstance(place, dict):
                name: Any = rng.choice(fields()) if rng.random() < 0.97 else rng.choice((1, None, 0.5, ("a",)))
                place[name] = value(rng)
            else:
                place.append(value(rng))
        elif action < 0.95:
            del place[key]
        else:
            place[key] = rng.choice(places[:1] if rng.random() < 0.02 else [list(place)])
    return tree


def as_file(rng: random.Random, tree: dict[str, Any]) -> Path:
    """The tree in a file, where a file can have it: otherwise what it cannot have is text."""
    kind = rng.choice(("json", "toml", "yaml"))
    path = Path(files()["network"]).parent / f"app.{kind}"
    text = _toml(tree) if kind == "toml" else json.dumps(tree, default=repr, skipkeys=True)
    path.write_text(text, "utf-8", errors="replace")
    return path


def _toml(tree: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(str(key))} = {_toml_value(inner)}" for key, inner in tree.items())


def _toml_value(one: Any) -> str:
    if isinstance(one, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_toml_value(inner)}" for key, inner in one.items()) + "}"
    if isinstance(one, list):
        return "[" + ", ".join(map(_toml_value, one)) + "]"
    if isinstance(one, bool):
        return str(one).lower()
    return repr(one) if isinstance(one, (int, float)) else json.dumps(one if isinstance(one, str) else repr(one))


def configuration_trees(rng: random.Random) -> bool:
    """One tree: read, made into a server, watched, and loaded as that server and as an application load it."""
    from infersdk.models import create
    from infersdk.serve import Server
    from infersdk.serve.repository import load_endpoint, newest_table, served_tables
    from infersdk.serve.watcher import signatures

    tree: Any = changed(rng, base(rng))
    try:
        config = as_file(rng, tree) if rng.random() < 0.6 else tree
    except (RecursionError, ValueError):  # no file can have it
        config = tree
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = Server(config)
        signatures(config)
        for name, table in served_tables(config).items():
            load_endpoint(name, *newest_table(name, table), server.settings).close(0)
        if all(isinstance(table, dict) and table.get("type") != "network" for table in tree["models"].values()):
            for model in create(config).values():
                model.close()
    return True
