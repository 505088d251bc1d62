"""The identity of a model: what it contains, wherever it lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelFormatError
from ..infer import model_file

if TYPE_CHECKING:
    import os

__all__ = ["external_files", "file_digest", "model_digest"]

_CHUNK = 1 << 20
# A tensor that lies in another file names it under the key "location": this is how protobuf writes that key.
_EXTERNAL = b"\x0a\x08location"


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, read piece by piece."""
    return _digest(Path(path), b"")[0]


def model_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 over an ONNX file and the files of weights that it refers to. Each is read once, piece by piece.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is no model; a file of weights is missing.
    """
    file = model_file(path)
    digest, refers = _digest(file, _EXTERNAL)
    if not refers:
        return digest
    whole = hashlib.sha256(digest.encode())
    for weights in external_files(file):
        name = weights.relative_to(file.parent).as_posix()
        try:
            whole.update(f"\n{name} {file_digest(weights)}".encode())
        except OSError as error:
            raise ModelFormatError(f"{str(file)!r} keeps weights in {name!r}, which cannot be read: {error}") from None
    return whole.hexdigest()


def external_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files beside an ONNX file that hold weights of it, by name."""
    import onnx

    from .info import load_onnx

    file = model_file(path)
    names: set[str] = set()
    for tensor in _tensors(load_onnx(file, external_data=False).graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return [file.parent / name for name in sorted(names)]


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors of a graph: weights, constants, and those of the graphs within it."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for inner in (attribute.g, *attribute.graphs):
                if inner.ByteSize():
                    yield from _tensors(inner)


def _digest(path: Path, needle: bytes) -> tuple[str, bool]:
    """SHA-256 of a file, and whether `needle` is in it."""
    digest, found, tail = hashlib.sha256(), False, b""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if needle and not found:
                found = needle in tail + chunk
                tail = chunk[-len(needle) :]
    return digest.hexdigest(), found
