"""What the manifest of an engine says."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ...tensor_spec import TensorSpec
from .profiles import Profile

__all__ = ["EngineDetails", "TensorDetails"]


class TensorDetails(msgspec.Struct, frozen=True):
    """An input or output."""

    name: str
    dtype: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, spec: TensorSpec) -> TensorDetails:
        return cls(spec.name, str(spec.dtype), list(spec.shape))

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, np.dtype(self.dtype), tuple(self.shape))


class EngineDetails(msgspec.Struct, kw_only=True):
    """An engine.

    Attributes:
        version: of the runtime that built it.
        capabilities: the compute capabilities that it was built for; none is for those that the runtime says.
        gpu: the GPU that it was built on, if on one.
        precision: the arithmetic of most of the layers, as the runtime parsed them.
        layers: how many layers that carry the work have which.
        profiles: the shapes that it takes.
        metadata: what the ONNX file said of itself.
        model, model_sha256: that file.
        options: how it was built.
        custom_ops: the operators that it has as plugins, `domain::name@version`.
        weights_nbytes, workspace_nbytes: the device memory that it takes, once for its weights and once for each
            context that runs; None where the builder did not say.
        outputs_nbytes: bytes of the outputs of the largest batch; free sizes other than the batch count as 1.
    """

    version: str
    capabilities: list[str]
    gpu: str | None
    precision: str
    inputs: list[TensorDetails]
    outputs: list[TensorDetails]
    profiles: list[Profile]
    metadata: dict[str, str]
    model: str
    model_sha256: str
    options: dict[str, Any]
    build_seconds: float
    layers: dict[str, int] = {}
    custom_ops: list[str] = []
    weights_nbytes: int | None = None
    workspace_nbytes: int | None = None
    outputs_nbytes: int | None = None

    def plain(self) -> dict[str, Any]:
        """As it will be read back from a manifest."""
        result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return result
