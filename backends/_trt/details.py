"""The manifest of an engine."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...core.tensor_spec import TensorSpec
from .profiles import Profile

__all__ = ["EngineDetails"]


class EngineDetails(msgspec.Struct, kw_only=True):
    """An engine.

    Attributes:
        version: of the runtime that built it.
        capabilities: its compute capabilities; none is the runtime's default.
        gpu: the GPU that it was built on, if any.
        precision: the precision of most layers, as the runtime parsed them.
        layers: the number of layers with most of the computation, by precision.
        profiles: the shapes that it takes.
        metadata: of the ONNX file.
        model, model_sha256: the ONNX file.
        options: of the build.
        weights_nbytes, workspace_nbytes: the device memory of its weights, and of each context that runs; None if the
            builder did not report it.
        outputs_nbytes: bytes of the outputs of the largest batch; other free sizes count as 1.
    """

    version: str
    capabilities: list[str]
    gpu: str | None
    precision: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    profiles: list[Profile]
    metadata: dict[str, str]
    model: str
    model_sha256: str
    options: dict[str, Any]
    build_seconds: float
    layers: dict[str, int] = {}
    weights_nbytes: int | None = None
    workspace_nbytes: int | None = None
    outputs_nbytes: int | None = None

    def plain(self) -> dict[str, Any]:
        """As read back from a manifest."""
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))
        return result

    @classmethod
    def of(cls, plain: dict[str, Any]) -> EngineDetails:
        """Those of a manifest. Raises msgspec.ValidationError if they are of another form."""
        return msgspec.convert(plain, cls, dec_hook=lambda _, name: np.dtype(str(name)))
