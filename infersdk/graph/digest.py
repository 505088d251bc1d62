"""A digest of the contents of a model."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO

from ..core.files import file_digest
from ..core.model_source import ModelLike, ModelSource
from ..errors import ModelFormatError
from .files import EXTERNAL_KEY, external_files

__all__ = ["model_digest"]

_CHUNK = 1 << 20


def model_digest(model: ModelLike) -> str:
    """SHA-256 of an ONNX model and its external data files.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model, or external data is missing.
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
    """SHA-256 of a file, and whether it contains `needle`."""
    digest, result, tail = hashlib.sha256(), False, b""
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
        if not result:
            result = needle in tail + chunk
            tail = chunk[-len(needle) :]
    return digest.hexdigest(), result
