"""Inference requests and responses as gRPC carries them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..datatypes import array_of, datatype_of, element_count, numpy_dtype, pack, unpack
from ..errors import RequestError, Status
from ..messages import InferRequest, InferResponse, KnownRows, RequestedOutput, SharedMemory, Tensor
from ..regions import HostRegion, SharedTensor
from .wire import join_message, split_message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ..service import InferenceService

__all__ = ["parameter_values", "read_request", "write_response"]

#: The field of `InferTensorContents` for each datatype. FP16 and BF16 have none: they travel as raw contents.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


#: Encoded messages without their id and raw contents that are remembered with what they say, and the longest of these.
_MOST_HEADS, _LONGEST_HEAD = 64, 4096
#: Those that are remembered with their requests. A client whose tensors lie in shared memory sends the same message
#: again and again.
_MOST_REQUESTS = 512


@dataclass(frozen=True, slots=True)
class _InputHead:
    """An input of a message, apart from its raw contents.

    Attributes:
        part: where it lies in shared memory; None for one that is in the message.
        message: the encoded input's message, which may have contents of its own.
    """

    name: str
    what: str
    datatype: str
    shape: tuple[int, ...]
    part: SharedMemory | None
    message: Any


@dataclass(frozen=True, slots=True)
class _OutputHead:
    name: str
    classes: int
    part: SharedMemory | None


@dataclass(frozen=True, slots=True)
class _Head:
    """What a message says, apart from its id and its raw contents. It is shared by all requests of an equal message.

    Attributes:
        in_message: how many inputs are not in shared memory.
        parameters, own: those of the request, and those whose names begin with `triton_`.
        problem: what is wrong with the message; empty if nothing is.
    """

    model: str
    version: str
    in_message: int
    inputs: tuple[_InputHead, ...] = ()
    outputs: tuple[_OutputHead, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_request(
    message: bytes, service: InferenceService, remaining: float | None
) -> tuple[InferRequest, Mapping[str, Any]]:
    """A request out of an encoded `ModelInferRequest`.

    Args:
        remaining: seconds until the call's own deadline.

    Returns:
        The request, and its parameters whose names begin with `triton_`.

    Raises:
        RequestError: what is wrong with it.
    """
    derived = service.regions.derived
    known: tuple[InferRequest, Mapping[str, Any]] | None = None
    request_id = ""
    if len(message) <= _LONGEST_HEAD:  # no key is longer, and a dict reads all of a longer one
        known = derived.get(message)  # most messages have no id
    if known is None:
        encoded, request_id, contents = split_message(message)
        if request_id and not contents and len(encoded) <= _LONGEST_HEAD:
            known = derived.get(encoded)
        if known is None:
            known = _read_request(encoded, contents, service)
            if len(encoded) <= _LONGEST_HEAD and not contents and _lies_in_shared_memory(known[0]):
                if len(derived) >= _MOST_REQUESTS:
                    derived.clear()
                derived[encoded] = known
    request, own = known
    if request_id:
        request = replace(request, id=request_id)
    if remaining is not None:
        own_deadline = request.deadline
        request = replace(request, deadline=remaining if own_deadline is None else min(own_deadline, remaining))
    return request, own


def _lies_in_shared_memory(request: InferRequest) -> bool:
    """Whether an equal message is the same request, as long as the regions are registered."""
    return all(isinstance(tensor, SharedTensor) for tensor in request.inputs.values())


def _read_request(
    encoded: bytes, contents: Sequence[memoryview], service: InferenceService
) -> tuple[InferRequest, Mapping[str, Any]]:
    """A request out of a message without its id and its raw contents, with the deadline that it has as a parameter."""
    head = _remembered_head(encoded) if len(encoded) <= _LONGEST_HEAD else _read_head(encoded)
    service.repository.find(head.model, head.version)  # an unknown model is said to be that
    if contents and head.in_message != len(contents):
        raise RequestError(
            Status.INVALID,
            f"expected {head.in_message} raw input contents, one for each input that is not in shared memory, and "
            f"{len(contents)} were given",
        )
    if head.problem:
        raise RequestError(Status.INVALID, head.problem)
    raw = iter(contents)
    inputs = {one.name: _read_input(one, raw, bool(contents), service) for one in head.inputs}
    parameters = dict(head.parameters)
    deadline, priority = service.timing(parameters)
    outputs = [
        RequestedOutput(one.name, None, one.classes, None if one.part is None else service.regions.part(one.part))
        for one in head.outputs
    ]
    on_host = all(isinstance(one, SharedTensor) and isinstance(one.region, HostRegion) for one in inputs.values())
    request = InferRequest(
        head.model, head.version, "", inputs, outputs or None, parameters, deadline, priority,
        KnownRows() if on_host else None,
    )  # fmt: skip
    return request, head.own


def _read_head(encoded: bytes) -> _Head:
    """Decodes a message without its id and its raw contents.

    Raises:
        RequestError: it is not an encoded message.
    """
    from google.protobuf.message import DecodeError
    from tritonclient.grpc import service_pb2

    try:
        parsed = service_pb2.ModelInferRequest.FromString(encoded)
    except DecodeError:
        raise RequestError(Status.INVALID, "the message is not an encoded ModelInferRequest") from None
    in_message = sum("shared_memory_region" not in one.parameters for one in parsed.inputs)
    named = parsed.model_name, parsed.model_version, in_message
    try:
        inputs = tuple(_input_head(one) for one in parsed.inputs)
        if len(names := [one.name for one in inputs]) > len(set(names)):
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(Status.INVALID, f"input {twice!r} was given twice")
        parameters = parameter_values(parsed.parameters)
        own = {name: parameters.pop(name) for name in list(parameters) if name.startswith("triton_")}
        return _Head(*named, inputs, tuple(_output_head(one) for one in parsed.outputs), parameters, own)
    except RequestError as error:
        return _Head(*named, problem=error.message)


_remembered_head = lru_cache(_MOST_HEADS)(_read_head)


def _input_head(one: Any) -> _InputHead:
    what = f"input {one.name!r}"
    part = _shared(parameter_values(one.parameters), what) if one.parameters else None
    return _InputHead(one.name, what, one.datatype, tuple(one.shape), part, one)


def _output_head(one: Any) -> _OutputHead:
    parameters, what = parameter_values(one.parameters), f"output {one.name!r}"
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 31:
        raise RequestError(Status.INVALID, f"{what}: classification is a number of classes, not {classes!r}")
    return _OutputHead(one.name, classes, _shared(parameters, what))


def _read_input(one: _InputHead, raw: Iterator[memoryview], has_raw: bool, service: InferenceService) -> Tensor:
    if one.part is not None:
        return service.regions.tensor(one.part, one.datatype, one.shape, one.what)
    if not has_raw:
        return _from_contents(one.message, list(one.shape), one.what)
    if one.message.HasField("contents"):
        raise RequestError(
            Status.INVALID, f"contents field must not be specified when using raw_input_contents for {one.what}"
        )
    return unpack(next(raw), one.datatype, one.shape, one.what)


def _from_contents(one: Any, shape: list[int], what: str) -> npt.NDArray[Any]:
    dtype, count = numpy_dtype(one.datatype), element_count(shape, what)
    name = _CONTENTS.get(one.datatype)
    if name is None:
        raise RequestError(Status.INVALID, f"{what}: {one.datatype} travels as raw_input_contents alone")
    values = getattr(one.contents, name)
    if len(values) != count:
        raise RequestError(
            Status.INVALID, f"{what}: the shape {shape} has {count:,} elements, and {name} has {len(values):,}"
        )
    if name == "bytes_contents":
        return array_of(list(values), shape)
    array = np.array(values, np.int64 if name == "int_contents" else np.uint64 if name == "uint_contents" else dtype)
    if array.dtype != dtype:
        if count and (array.min() < np.iinfo(dtype).min or array.max() > np.iinfo(dtype).max):
            raise RequestError(Status.INVALID, f"{what}: its contents have values that {one.datatype} does not hold")
        array = array.astype(dtype)
    return array.reshape(shape)


def parameter_values(parameters: Any) -> dict[str, Any]:
    """The values of a map of parameters or settings, by name."""
    values = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestError(Status.INVALID, f"parameter {name!r} has no value")
        values[name] = getattr(parameter, kind)
    return values


def _shared(parameters: Mapping[str, Any], what: str) -> SharedMemory | None:
    region = parameters.get("shared_memory_region")
    if region is None:
        return None
    offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if type(region) is not str or type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
        raise RequestError(
            Status.INVALID,
            f"{what}: shared memory has a region's name, an offset and a size, not {region!r}, {offset!r}, {size!r}",
        )
    return SharedMemory(region, offset, size)


# ---- the response ----


def write_response(response: InferResponse, placed: Mapping[str, int], parameters: Mapping[str, bool]) -> bytes:
    """An encoded `ModelInferResponse`.

    Args:
        placed: the outputs that lie in shared memory, with their sizes.
        parameters: of the response.
    """
    outputs = tuple([(name, array.dtype, array.shape) for name, array in response.outputs.items()])
    head = _response_head(response.model, response.version, outputs, tuple(parameters.items()))
    # Clients find contents by the position of their output, so one in shared memory has an empty one.
    contents = [b"" if name in placed else pack(array) for name, array in response.outputs.items()]
    return join_message(head, response.id, contents)


@lru_cache(_MOST_HEADS)
def _response_head(
    model: str,
    version: str,
    outputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...],
    parameters: tuple[tuple[str, bool], ...],
) -> bytes:
    """An encoded response without its id and its contents.

    Args:
        outputs: their names, types and shapes.
        parameters: names and values.
    """
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferResponse(model_name=model, model_version=version)
    for name, value in parameters:
        message.parameters[name].bool_param = value
    for name, dtype, shape in outputs:
        message.outputs.add(name=name, datatype=datatype_of(dtype), shape=shape)
    encoded: bytes = message.SerializeToString()
    return encoded
