"""Inference requests and responses, independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import RequestError

if TYPE_CHECKING:
    import numpy as np

    from .regions import RegionPart
    from .shared_memory import SharedMemoryRegions

#: A tensor of a request: an array, or a `SharedTensor` whose values are still in shared memory.
Tensor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The description of an input or output.

    Attributes:
        datatype: the protocol's name: `"FP32"`, `"BYTES"`, ...
        shape: with the batch axis; -1 for a dynamic dimension.
        optional: whether a request may omit this input.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """The form in the metadata of a model."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def config(self, batched: bool) -> dict[str, Any]:
        """The form in Triton's messages `ModelInput` and `ModelOutput`."""
        return {
            "name": self.name,
            "data_type": f"TYPE_{'STRING' if self.datatype == 'BYTES' else self.datatype}",
            "dims": list((self.shape[1:] if batched else self.shape) or (1,)),
            **({"optional": True} if self.optional else {}),
        }

    @property
    def text(self) -> str:
        """The form in messages: `images: FP32 [-1, 3, 640, 640]`."""
        return f"{self.name}: {self.datatype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output requested by the client.

    Attributes:
        binary: whether it is sent as bytes behind the JSON text; None is the request's default.
        classification: return this number of best classes as text instead of the scores.
        shared_memory: memory to write the output to.
    """

    name: str
    binary: bool | None = None
    classification: int = 0
    shared_memory: RegionPart | None = None

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, Any], regions: SharedMemoryRegions) -> RequestedOutput:
        """The output with these parameters of the protocol. Raises RequestError if one is wrong."""
        what = f"output {name!r}"
        binary, classes = parameters.get("binary_data"), parameters.get("classification", 0)
        if binary is not None and type(binary) is not bool:
            raise RequestError(f"parameter binary_data is true or false, not {binary!r}")
        if type(classes) is not int or not 0 <= classes < 1 << 31:
            raise RequestError(f"{what}: classification is a number of classes, not {classes!r}")
        part = regions.part(parameters, what)
        if classes and part is not None:
            raise RequestError(f"{what}: give either classification or shared_memory_region")
        return cls(name, binary, classes, part)


@dataclass(slots=True)
class InferRequest:
    """A request to one model.

    Attributes:
        version: empty selects the newest.
        id: the client's id, returned with the response.
        outputs: None is all.
        parameters: settings of the model for this request.
        deadline: seconds from now within which the model must start the request.
        priority: lower numbers run first; 0 runs last.
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
class PlacedOutput:
    """An output that was written to shared memory."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The response to an `InferRequest`: arrays or `PlacedOutput`s by name, in the requested order."""

    model: str
    version: str
    id: str
    outputs: dict[str, Any]
