"""The identity of a model: what it contains, whatever its path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelFormatError
from ..infer import model_file
from .files import load_proto, require_onnx

if TYPE_CHECKING:
    import os

__all__ = ["external_files", "file_digest", "model_digest"]

_CHUNK = 1 << 20
# A tensor in another file has the name of that file under the key "location": this is how protobuf writes that key.
_EXTERNAL = b"\x0a\x08location"


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, read piece by piece."""
    return _digest(Path(path), b"")[0]


def model_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 over an ONNX file and the files of weights that it refers to. Each is read once, piece by piece.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is not a model; a file of weights is missing.
    """
    file = model_file(path)
    digest, has_others = _digest(file, _EXTERNAL)
    if not has_others:
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
    """The files that hold weights of an ONNX file, by name.

    They are read from the file itself, not from its graph: a graph would leave out weights that are sparse.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, it is not a model, or it keeps weights outside of
            its folder.
    """
    file = model_file(path)
    require_onnx("reading the names of a model's files of weights")
    import onnx

    names: set[str] = set()
    for tensor in _tensors(load_proto(file).graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelFormatError(f"{str(file)!r} keeps weights in {name!r}, which is outside of its folder")
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
