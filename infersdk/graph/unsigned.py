"""Signed 8-bit activations as unsigned ones, which mean the same and suit x86 processors.

A quantised activation is scale * (q - zero point). With q' = q + 128 and a zero point of 128 in place of 0 it is the
same number, and so are rounding and clipping: QuantizeLinear gives -128..127 in the one form where it gives 0..255 in
the other. The instructions of x86 multiply unsigned activations by signed weights, and runtimes are written for that:
ONNX Runtime keeps most signed graphs in floating point there. TensorRT takes the signed form alone.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import os

__all__ = ["to_unsigned", "unsigned_model"]

_ZERO = "infersdk_zero_point_128"


def unsigned_model(path: str | os.PathLike[str]) -> bytes | None:
    """The ONNX file with unsigned activations; None where it has no signed ones, or keeps weights in other files.

    None as well where the `onnx` package is not installed, or the file is no ONNX model: the runtime shall say so.
    """
    file = Path(path)
    if file.suffix.lower() != ".onnx" or not _mentions(file, b"QuantizeLinear"):
        return None
    try:
        import onnx

        model = onnx.load(str(file), load_external_data=False)
    except Exception:  # protobuf's own exceptions differ between its implementations
        return None
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer) or not to_unsigned(model):
        return None
    return bytes(model.SerializeToString())


def to_unsigned(model: Any) -> int:
    """Rewrites an `onnx.ModelProto` in place; returns how many activations it has changed.

    Changed is each QuantizeLinear to int8 with zero point 0 whose result goes to DequantizeLinear, and there with zero
    point 0, alone.
    """
    import onnx

    graph = model.graph
    zeros = {t.name for t in graph.initializer if _is_zero(t)}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {value.name for value in graph.output}
    changed = 0
    for node in graph.node:
        if node.op_type != "QuantizeLinear" or node.output[0] in outputs:
            continue
        group = [node, *readers.get(node.output[0], ())]
        if len(group) > 1 and all(
            (n is node or n.op_type == "DequantizeLinear") and len(n.input) > 2 and n.input[2] in zeros for n in group
        ):
            for member in group:
                member.input[2] = _ZERO
            changed += 1
    if changed:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(128, np.uint8), _ZERO))
        used = {name for node in graph.node for name in node.input}
        for name in zeros - used:
            graph.initializer.remove(next(t for t in graph.initializer if t.name == name))
    return changed


def _is_zero(tensor: Any) -> bool:
    """An int8 zero for a whole tensor."""
    import onnx

    if tensor.data_type != onnx.TensorProto.INT8 or list(tensor.dims) not in ([], [1]):
        return False
    return not onnx.numpy_helper.to_array(tensor).any()


def _mentions(file: Path, word: bytes) -> bool:
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(word) >= 0
    except (OSError, ValueError):  # an empty file cannot be mapped
        return False
