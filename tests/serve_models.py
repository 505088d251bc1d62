"""Models for the tests of the server: the arithmetic of the models that the clients' examples use, and an identity of
each element type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
from onnx_models import node, typed, value

#: By datatype of the protocol: the type's name in ONNX.
KINDS = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "string",
}  # fmt: skip


def simple(path: Path, dtype: str = "int32", batch: int | str = "batch") -> Path:
    """`simple` of Triton's examples: the sum and the difference of two rows of 16 numbers."""
    sides = [value(name, [batch, 16], dtype) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]
    nodes = [node("Add", "INPUT0 INPUT1", "OUTPUT0"), node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    return onnx_models.save(path, nodes, sides[:2], sides[2:], opset=14)


def simple_string(path: Path) -> Path:
    """`simple_string`: the same of numbers that are written as text."""
    graph = """(string[batch,16] INPUT0, string[batch,16] INPUT1)
        => (string[batch,16] OUTPUT0, string[batch,16] OUTPUT1) {
            a = Cast<to=6>(INPUT0) b = Cast<to=6>(INPUT1)
            sum = Add(a, b) difference = Sub(a, b)
            OUTPUT0 = Cast<to=8>(sum) OUTPUT1 = Cast<to=8>(difference)
        }"""
    return onnx_models.save_text(path, graph)


def identity(path: Path, kind: str, shape: list[int | str], names: tuple[str, str] = ("INPUT0", "OUTPUT0")) -> Path:
    """The input again, of a type by ONNX's name."""
    infos = [typed(n, shape, "BFLOAT16") if kind == "bfloat16" else value(n, shape, kind) for n in names]
    return onnx_models.save(path, [node("Identity", names[0], names[1])], infos[:1], infos[1:], opset=16)


def write_all(folder: Path) -> dict[str, Any]:
    """All of them, as the table `models` of a configuration."""
    tables: dict[str, Any] = {}

    def add(name: str, path: Path, **settings: Any) -> None:
        tables[name] = {"type": "network", "path": str(path), "options": {"threads": 1}, **settings}

    add("simple", simple(folder / "simple.onnx"), max_batch=8)
    add("simple_int8", simple(folder / "simple_int8.onnx", "int8"), max_batch=8)
    add("simple_string", simple_string(folder / "simple_string.onnx"))
    add("simple_identity", identity(folder / "simple_identity.onnx", "string", ["batch", "n"]))
    for datatype, kind in KINDS.items():
        if datatype != "BYTES":
            add(f"identity_{datatype}", identity(folder / f"identity_{datatype}.onnx", kind, ["batch", 4]), max_batch=8)
    add("wide", identity(folder / "wide.onnx", "float32", ["batch", 64]), max_batch=8)
    add("free", identity(folder / "free.onnx", "float32", ["rows", "columns"]))
    add("echo", identity(folder / "echo.onnx", "uint8", ["batch", 640, 640, 3]), max_batch=4)
    return tables


def values(datatype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Random values of a datatype."""
    if datatype == "BYTES":
        flat = [bytes(rng.integers(32, 127, int(n)).astype(np.uint8)) for n in rng.integers(0, 9, int(np.prod(shape)))]
        array = np.empty(len(flat), np.object_)
        array[:] = flat
        return array.reshape(shape)
    dtype = np.dtype(KINDS[datatype])
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
