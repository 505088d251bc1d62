"""The device memory of an engine, known before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ...core.memory_limit import tensor_nbytes

if TYPE_CHECKING:
    from ...core.memory_limit import MemoryBudget
    from .details import EngineDetails

__all__ = ["EngineMemory"]

_REMEDY = "use a smaller max_batch, precision='fp16' with half_io=True, or fewer exact_batches"


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
