"""A digest of the contents of a model."""

from __future__ import annotations

import hashlib
import os

from ..core.files import digest_of
from ..core.formats import FORMATS
from ..core.model_source import ModelLike, ModelSource
from .files import EXTERNAL_KEY, external_files, open_weights

__all__ = ["model_digest"]


def model_digest(model: ModelLike) -> str:
    """SHA-256 of a model and the files of its weights: external data of ONNX, the .bin file of an OpenVINO IR.

    Raises:
        ModelNotFoundError, ModelFormatError: the file does not exist or is not a model, or external data is missing.
    """
    source = ModelSource.of(model)
    digest = source.digest()
    if source.format is FORMATS["openvino"]:
        weights = source.external_data if source.path is None else source.path.with_suffix(".bin")
        files = [weights] if weights is not None and weights.is_file() else []
    else:
        files = external_files(source) if source.mentions(EXTERNAL_KEY) else []
    if not files:
        return digest
    whole = hashlib.sha256(digest.encode())
    for weights in files:
        name = os.path.relpath(weights, source.external_data)
        with open_weights(weights, f"{source.name}: weights") as content:
            whole.update(f"\n{name} {digest_of(content)}".encode())
    return whole.hexdigest()
