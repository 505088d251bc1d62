"""The manifest of an engine, and the device memory of the engine by it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...core.memory_limit import tensor_nbytes
from ...core.tensor_spec import TensorSpec
from .profiles import Profile

if TYPE_CHECKING:
    from ...core.memory_limit import MemoryBudget

__all__ = ["EngineDetails", "EngineMemory"]

_REMEDY = "use a smaller max_batch, precision='fp16' with half_io=True, or fewer exact_batches"


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


@dataclass
class EngineMemory:
    """The memory of an engine and of the first instance that runs it.

    Attributes:
        budget: the limit.
        weights: bytes of the weights, or of the whole engine if the builder did not report them.
        workspace: bytes of a running context; None if unknown.
        tensors: bytes of the inputs and outputs; 0 if unknown.
    """

    budget: MemoryBudget
    weights: int
    workspace: int | None
    tensors: int

    @classmethod
    def of(cls, budget: MemoryBudget, data: bytes, details: EngineDetails | None) -> EngineMemory:
        """The memory according to the manifest of a serialised engine, if it has one."""
        if details is None:
            return cls(budget, len(data), None, 0)
        weights = len(data) if details.weights_nbytes is None else details.weights_nbytes
        return cls(budget, weights, details.workspace_nbytes, _tensors_nbytes(details))

    @property
    def workspace_left(self) -> int:
        """Bytes that the limit leaves for the workspace."""
        return self.budget.limit - self.budget.used - self.weights - self.tensors

    def check(self, *, loaded: bool = False) -> None:
        """Raises MemoryLimitError if it does not fit. `loaded`: the weights are already counted."""
        needs = {"weights": 0 if loaded else self.weights, "workspace": self.workspace or 0}
        self.budget.require({**needs, "inputs and outputs": self.tensors}, _REMEDY)


def _tensors_nbytes(details: EngineDetails) -> int:
    """The bytes of inputs and outputs at the largest shapes of the profiles."""
    largest = [profile[name][2] for profile in details.profiles for name in profile]
    batch = max((shape[0] for shape in largest if shape), default=None)
    total = 0
    for spec in details.inputs:
        shapes = [profile[spec.name][2] for profile in details.profiles if spec.name in profile]
        total += max((prod(shape) * spec.dtype.itemsize for shape in shapes), default=tensor_nbytes(spec, batch))
    if details.outputs_nbytes is not None:
        return total + details.outputs_nbytes
    return total + sum(tensor_nbytes(spec, batch) for spec in details.outputs)
