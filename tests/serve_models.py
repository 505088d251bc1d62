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
    sides = [(name, value(name, [batch, 16], dtype)) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]
    infos = dict(sides)
    nodes = [node("Add", "INPUT0 INPUT1", "OUTPUT0"), node("Sub", "INPUT0 INPUT1", "OUTPUT1")]
    return onnx_models.save(
        path, nodes, [infos["INPUT0"], infos["INPUT1"]], [infos["OUTPUT0"], infos["OUTPUT1"]], opset=14
    )


def simple_string(path: Path) -> Path:
    """`simple_string`: the same of numbers that are written as text."""
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    infos = {name: value(name, ["batch", 16], "string") for name in names}
    nodes = [
        node("Cast", "INPUT0", "a", to=int(onnx_models.onnx.TensorProto.INT32)),
        node("Cast", "INPUT1", "b", to=int(onnx_models.onnx.TensorProto.INT32)),
        node("Add", "a b", "sum"),
        node("Sub", "a b", "difference"),
        node("Cast", "sum", "OUTPUT0", to=int(onnx_models.onnx.TensorProto.STRING)),
        node("Cast", "difference", "OUTPUT1", to=int(onnx_models.onnx.TensorProto.STRING)),
    ]
    return onnx_models.save(path, nodes, [infos["INPUT0"], infos["INPUT1"]], [infos["OUTPUT0"], infos["OUTPUT1"]])


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
