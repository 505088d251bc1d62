"""Networks without a wrapper: tensors in, tensors out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModelError
from ..pipeline import OneBucket, Pipeline
from .datatypes import datatype_of
from .endpoint import Endpoint
from .errors import RequestError, Status
from .messages import InferRequest, Tensor, TensorInfo
from .rows import RowRequests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..infer import Infer
    from ..tensor_spec import TensorSpec
    from .regions import SharedTensor

__all__ = ["NetworkEndpoint", "WholeRequests", "tensor_info"]


class NetworkEndpoint(Endpoint):
    """A network as `infersdk.load()` gives it.

    Rows of different requests share a run where all tensors have a free batch axis, and nothing else is free. Any other
    model runs one request at a time, in whatever shapes it comes.

    Args:
        network: belongs to the endpoint, which closes it.
        pipeline: the settings of its pipeline.
        queue: how many requests may wait; see `Admission`.
    """

    def __init__(
        self,
        name: str,
        version: str,
        network: Infer,
        pipeline: Mapping[str, Any],
        queue: int | None,
    ) -> None:
        self._network = network
        specs = (*network.input_specs, *network.output_specs)
        self.batched = all(spec.kind == "tensor" and spec.has_free_batch for spec in specs) and not any(
            side is None or isinstance(side, str) for spec in network.input_specs for side in spec.shape[1:]
        )
        served = RowRequests(network) if self.batched else WholeRequests(network)
        super().__init__(name, version, (Pipeline(served, **pipeline),), queue)
        self.platform = network.backend
        self.inputs = tuple(tensor_info(spec) for spec in network.input_specs)
        self.outputs = tuple(tensor_info(spec) for spec in network.output_specs)

    def takes_shared(self, tensor: SharedTensor) -> bool:
        return self.batched and tensor.datatype not in ("BOOL", "BYTES")  # whose values `load()` checks

    def rows(self, request: InferRequest) -> list[Any]:
        inputs = {info.name: self._checked(info, request.inputs.get(info.name)) for info in self.inputs}
        if unknown := sorted(set(request.inputs) - set(inputs)):
            raise RequestError(
                Status.INVALID,
                f"unexpected inference input {unknown[0]!r} for model {self.name!r}; its inputs are "
                f"{', '.join(inputs)}",
            )
        if not self.batched:
            return [inputs]
        sizes = {name: len(array) for name, array in inputs.items()}
        (size, *others) = set(sizes.values())
        if others:
            raise RequestError(Status.INVALID, f"the inputs of one request have the same batch, and these have {sizes}")
        if not 1 <= size <= self.pipeline.max_batch:
            raise RequestError(
                Status.INVALID,
                f"inference request batch-size must be between 1 and {self.pipeline.max_batch} for model "
                f"{self.name!r}, not {size}",
            )
        return [{name: array[row] for name, array in inputs.items()} for row in range(size)]

    def _checked(self, info: TensorInfo, array: Tensor | None) -> Tensor:
        if array is None:
            raise RequestError(
                Status.INVALID,
                f"input {info.name!r} of model {self.name!r} was not given; its inputs are "
                f"{'; '.join(one.text for one in self.inputs)}",
            )
        if (given := datatype_of(array.dtype)) != info.datatype:
            raise RequestError(
                Status.INVALID,
                f"inference input {info.name!r} data-type is {given!r}, but model {self.name!r} expects "
                f"{info.datatype!r}",
            )
        fits = len(array.shape) == len(info.shape) and all(
            side in (-1, given) for side, given in zip(info.shape, array.shape, strict=True)
        )
        if not fits:
            raise RequestError(
                Status.INVALID,
                f"unexpected shape for input {info.name!r} of model {self.name!r}: expected {list(info.shape)}, got "
                f"{list(array.shape)}",
            )
        return array

    def gather(
        self, request: InferRequest, results: Sequence[Any], names: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        if not self.batched:
            return {name: results[0][name] for name in names}
        if len(results) == 1:
            return {name: results[0][name][None] for name in names}
        return {name: np.stack([result[name] for result in results]) for name in names}

    def release(self) -> None:
        self._network.close()


def tensor_info(spec: TensorSpec) -> TensorInfo:
    """A spec in the protocol's terms.

    Raises:
        UnsupportedModelError: no tensor of the protocol holds it.
    """
    shape = tuple(side if isinstance(side, int) else -1 for side in spec.shape)
    if spec.kind == "tensor":
        return TensorInfo(spec.name, datatype_of(spec.dtype), shape)
    datatype = {"tensor(string)": "BYTES", "tensor(bfloat16)": "BF16"}.get(spec.kind)
    if datatype is None:
        raise UnsupportedModelError(f"{spec} cannot be served: the protocol has tensors of numbers and of bytes alone")
    return TensorInfo(spec.name, datatype, shape)


class WholeRequests:
    """A network for a `Pipeline` whose batches are one request each, with its own shapes."""

    def __init__(self, network: Infer) -> None:
        self.network = network
        self.concurrency, self.serializes_runs = network.concurrency, network.serializes_runs

    def batch_buffer(self, capacity: int | None) -> _WholeRequestBuffer:
        """One row, whatever the capacity."""
        return _WholeRequestBuffer(self.network.clone())


class _WholeRequestBuffer(OneBucket):
    """A `BatchBuffer` of one row that holds all inputs of a request."""

    capacity = 1

    def __init__(self, infer: Infer) -> None:
        self._infer, self._serving = infer, infer.current()
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}

    def prepares_quickly(self, item: Any) -> bool:
        return True  # it is only remembered

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        if parameters:
            raise InputError(f"{self._infer.model.name} takes no parameters, not {', '.join(sorted(parameters))}")
        self._inputs = {
            spec.name: _as_text(item[spec.name]) if spec.kind == "tensor(string)" else item[spec.name]
            for spec in self._infer.input_specs
        }

    def move(self, source: int, target: int) -> None:
        raise AssertionError("a buffer of one row has none to move")

    def run(self, count: int) -> None:
        inputs, self._inputs = self._inputs, {}
        self._outputs = self._infer(inputs)

    def results(self, count: int) -> Sequence[Any]:
        return [{name: np.asarray(value) for name, value in self._outputs.items()}]

    def refresh(self) -> bool:
        before, self._serving = self._serving, self._infer.current()
        return self._serving is not before

    def batch_sizes(self) -> Sequence[int]:
        return [1]

    def warm_up(self, count: int, example: Any = None) -> None:
        """A model of open shapes has none that could be run before its first request."""
        if any(spec.is_dynamic or spec.kind != "tensor" for spec in self._infer.input_specs):
            return
        self._infer({spec.name: np.zeros(spec.shape, spec.dtype) for spec in self._infer.input_specs})

    def close(self) -> None:
        self._infer.close()


def _as_text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Strings of a runtime are text: UTF-8."""
    text = np.empty(array.shape, np.object_)
    try:
        text.reshape(-1)[:] = [value.decode("utf-8") for value in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"an element of BYTES is not UTF-8, and the model takes text: {error.reason}") from None
    return text
