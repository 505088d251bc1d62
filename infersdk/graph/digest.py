"""A digest of the contents of a model."""

from __future__ import annotations

import hashlib
import os

from ..core.files import file_digest
from ..core.model_source import ModelLike, ModelSource
from ..errors import ModelFormatError
from .files import EXTERNAL_KEY, external_files

__all__ = ["model_digest"]


def model_digest(model: ModelLike) -> str:
    """SHA-256 of an ONNX model and its external data files.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model, or external data is missing.
    """
    source = ModelSource.of(model)
    digest = source.digest()
    if not source.mentions(EXTERNAL_KEY):
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
