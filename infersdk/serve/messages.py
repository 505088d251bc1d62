"""What goes into the models and comes out of them, apart from how it travels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from .regions import RegionPart

__all__ = ["InferRequest", "InferResponse", "RequestedOutput", "SharedMemory", "Tensor", "TensorInfo"]

#: A tensor of a request: an array, or a `SharedTensor`, which has its values in shared memory still.
Tensor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a model says of one of its inputs or outputs.

    Attributes:
        datatype: as the protocol names it: `"FP32"`, `"BYTES"`, ...
        shape: with the batch axis; -1 where the model leaves a side open.
        optional: whether a request may leave this input out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def text(self) -> str:
        """As messages show it: `images: FP32 [-1, 3, 640, 640]`."""
        return f"{self.name}: {self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A part of a shared memory region, in bytes from the region's start."""

    region: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the client asks for.

    Attributes:
        binary: as bytes behind the JSON text; None is the request's default.
        classification: instead of the scores, the best so many classes as text.
        shared_memory: write it there.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    shared_memory: RegionPart | None = None


@dataclass(slots=True)
class InferRequest:
    """A request to one model.

    Attributes:
        version: empty for the model's newest.
        id: the client's own, returned with the response.
        inputs: by name.
        outputs: those that the client asks for; None is all.
        parameters: settings for this request alone.
        deadline: seconds from now within which the request has to leave for the model.
        priority: requests of a lower number go first; 0 goes last.
    """

    model: str
    version: str
    id: str
    inputs: dict[str, Tensor]
    outputs: list[RequestedOutput] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The answer to an `InferRequest`: arrays by name, in the order in which the client asked for them."""

    model: str
    version: str
    id: str
    outputs: dict[str, npt.NDArray[Any]]
