"""The identity of a model: what it contains, whatever its path."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

from .._files import open_regular
from ..errors import ModelFormatError
from ..model_source import ModelLike, ModelSource
from .files import EXTERNAL_KEY, external_files

__all__ = ["file_digest", "model_digest"]

_CHUNK = 1 << 20


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, read piece by piece."""
    with open_regular(path) as content:
        return _digest(content, b"")[0]


def model_digest(model: ModelLike) -> str:
    """SHA-256 over an ONNX model and the files of weights that it refers to. Each is read once, piece by piece.

    Raises:
        ModelNotFoundError, ModelFormatError: there is no such file, or it is not a model; a file of weights is missing.
    """
    source = ModelSource.of(model)
    with source.open() as content:
        digest, has_others = _digest(content, EXTERNAL_KEY)
    if not has_others:
        return digest
    whole = hashlib.sha256(digest.encode())
    for weights in external_files(source):
        name = os.path.relpath(weights, source.external_data)
        try:
            whole.update(f"\n{name} {file_digest(weights)}".encode())
        except OSError as error:
            raise ModelFormatError(
                f"{str(source)!r} keeps weights in {name!r}, which cannot be read: {error.strerror or error}"
            ) from None
    return whole.hexdigest()


def _digest(content: BinaryIO, needle: bytes) -> tuple[str, bool]:
    """SHA-256 of a file, and whether `needle` is in it."""
    digest, result, tail = hashlib.sha256(), False, b""
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        if needle and not result:
            result = needle in tail + chunk
            tail = chunk[-len(needle) :]
    return digest.hexdigest(), result
