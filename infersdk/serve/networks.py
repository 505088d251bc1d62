"""Endpoints of networks without a wrapper: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, UnsupportedModelError
from ..pipeline import OneBucket, Pipeline, TensorBatchBuffer
from ..pipeline.batch_buffer import TensorRequests, has_rows
from .datatypes import datatype_of
from .endpoint import Endpoint
from .errors import RequestError
from .messages import InferRequest, Tensor, TensorInfo

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.tensor_spec import TensorSpec
    from ..infer import Infer
    from .regions import SharedTensor

__all__ = ["NetworkEndpoint", "WholeRequests", "tensor_info"]

#: Rows up to this size are copied in the thread of the event loop (0.3 ms); waking another thread would take longer.
_QUICK_NBYTES = 2 << 20


class NetworkEndpoint(Endpoint):
    """A network loaded by `infersdk.load()`.

    Rows of different requests share a batch if the batch is all that the inputs leave free, and each output has as
    many rows. Any other model runs one request at a time, with the shapes of that request.

    Args:
        network: the endpoint owns and closes it.
        queue: the maximum number of waiting requests; see `Admission`.
    """

    def __init__(self, name: str, version: str, network: Infer, pipeline: Mapping[str, Any], queue: int | None) -> None:
        self._network = network
        self.batched = has_rows(network)
        if self.batched:
            try:
                requests: Pipeline[Any] = Pipeline(TensorRequests(network, _RowBuffer), **pipeline)
            except UnsupportedModelError:  # as many rows as objects, for example
                self.batched = False
        if not self.batched:
            requests = Pipeline(WholeRequests(network), **pipeline)
        super().__init__(name, version, (requests,), queue)
        self.platform = network.backend
        self.inputs = tuple(tensor_info(spec) for spec in network.input_specs)
        self.outputs = tuple(tensor_info(spec) for spec in network.output_specs)

    def takes_shared(self, tensor: SharedTensor) -> bool:
        return self.batched and tensor.dtype.kind not in "bO"  # BOOL and BYTES, whose values `load()` checks

    def rows(self, request: InferRequest) -> list[Any]:
        inputs = {info.name: self._checked(info, request.inputs.get(info.name)) for info in self.inputs}
        if unknown := sorted(set(request.inputs) - set(inputs)):
            raise RequestError(
                f"unexpected inference input {unknown[0]!r} for model {self.name!r}; its inputs are {', '.join(inputs)}"
            )
        if not self.batched:
            return [inputs]
        sizes = {name: len(array) for name, array in inputs.items()}
        (size, *others) = set(sizes.values())
        if others:
            raise RequestError(f"the inputs of one request have the same batch, and these have {sizes}")
        if not 1 <= size <= self.pipeline.max_batch:
            raise RequestError(
                f"inference request batch-size must be between 1 and {self.pipeline.max_batch} for model "
                f"{self.name!r}, not {size}"
            )
        return [{name: array[row] for name, array in inputs.items()} for row in range(size)]

    def _checked(self, info: TensorInfo, array: Tensor | None) -> Tensor:
        if array is None:
            raise RequestError(
                f"input {info.name!r} of model {self.name!r} was not given; its inputs are "
                f"{'; '.join(one.text for one in self.inputs)}"
            )
        if (given := datatype_of(array.dtype)) != info.datatype:
            raise RequestError(
                f"inference input {info.name!r} data-type is {given!r}, but model {self.name!r} expects "
                f"{info.datatype!r}"
            )
        # The model's shape, with the dimensions of this tensor in place of dynamic ones.
        expected = [size if side == -1 else side for side, size in zip(info.shape, array.shape, strict=False)]
        if len(array.shape) != len(info.shape) or list(array.shape) != expected:
            raise RequestError(
                f"unexpected shape for input {info.name!r} of model {self.name!r}: expected {list(info.shape)}, got "
                f"{list(array.shape)}"
            )
        return array

    def gather(self, results: Sequence[Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        if not self.batched:
            return {name: results[0][name] for name in names}
        if len(results) == 1:
            return {name: results[0][name][None] for name in names}
        return {name: np.stack([result[name] for result in results]) for name in names}

    def release(self) -> None:
        self._network.close()


class _RowBuffer(TensorBatchBuffer):
    """A buffer for rows of requests. Small ones are copied in the thread of the event loop."""

    def prepares_quickly(self, item: Mapping[str, Tensor]) -> bool:
        return bool(sum([value.nbytes for value in item.values()]) <= _QUICK_NBYTES)


def tensor_info(spec: TensorSpec) -> TensorInfo:
    """Converts a `TensorSpec`. Raises UnsupportedModelError for a type that the protocol does not have."""
    shape = tuple(side if isinstance(side, int) else -1 for side in spec.shape)
    if spec.kind == "tensor":
        return TensorInfo(spec.name, datatype_of(spec.dtype), shape)
    datatype = {"tensor(string)": "BYTES", "tensor(bfloat16)": "BF16"}.get(spec.kind)
    if datatype is None:
        raise UnsupportedModelError(f"{spec} cannot be served: the protocol has tensors of numbers and of bytes alone")
    return TensorInfo(spec.name, datatype, shape)


class WholeRequests:
    """A network for a `Pipeline` whose batches are single requests with their own shapes."""

    def __init__(self, network: Infer) -> None:
        self.network = network
        self.concurrency, self.serializes_runs = network.scheduling.concurrency, network.scheduling.serializes_runs

    def batch_buffer(self, capacity: int | None) -> _WholeRequestBuffer:
        """A buffer of one request; the capacity is ignored."""
        return _WholeRequestBuffer(self.network.clone())


class _WholeRequestBuffer(OneBucket):
    """A `BatchBuffer` of one row that holds all inputs of a request."""

    capacity = 1

    def __init__(self, infer: Infer) -> None:
        self._infer, self._serving = infer, infer.current()
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}

    def prepares_quickly(self, item: Any) -> bool:
        return True  # it only stores a reference

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
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
        """Runs zeros. Models with dynamic shapes are not warmed up."""
        if any(spec.is_dynamic or spec.kind != "tensor" for spec in self._infer.input_specs):
            return
        self._infer({spec.name: np.zeros(spec.shape, spec.dtype) for spec in self._infer.input_specs})

    def close(self) -> None:
        self._infer.close()


def _as_text(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Decodes UTF-8 for runtimes, whose strings are text."""
    text = np.empty(array.shape, np.object_)
    try:
        text.reshape(-1)[:] = [value.decode("utf-8") for value in array.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InputError(f"an element of BYTES is not UTF-8, and the model takes text: {error.reason}") from None
    return text
