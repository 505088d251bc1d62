"""Inference requests and responses over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from ...core.formats import varint
from ..datatypes import array_of, datatype_of, element_count, numpy_dtype, pack, unpack
from ..errors import RequestError, Status
from ..messages import InferRequest, InferResponse, PlacedOutput, RequestedOutput, Tensor
from ..service import MOST_SECONDS, request_timing

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..service import InferenceService
    from ..shared_memory import SharedMemoryRegions

__all__ = ["read_request", "response_message"]

#: The field of `InferTensorContents` for each datatype. FP16 and BF16 use raw contents.
_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
#: Maximum inputs or outputs of a request, and parameters of a request or tensor.
_MOST_TENSORS, _MOST_PARAMETERS = 1024, 1024
#: Maximum bytes of a message without its raw contents, and the minimum that counts for each of its fields.
_LONGEST_HEAD, _LEAST_NBYTES = 4 << 20, 64
#: From https://protobuf.dev/programming-guides/encoding and the protocol's `ModelInferRequest`.
_LENGTH_DELIMITED, _RAW_INPUT_CONTENTS = 2, 7


def read_request(
    message: bytes, service: InferenceService, remaining: float | None, notes: dict[str, Any]
) -> InferRequest:
    """Parses an encoded `ModelInferRequest`, `remaining` seconds before the deadline of the call. It is thread-safe.
    `notes` gets `model` and `id`, of refused requests too.
    """
    if len(message) > _LONGEST_HEAD:
        _check_head(message)
    try:
        parsed = service_pb2.ModelInferRequest.FromString(message)
    except DecodeError:
        raise _damaged() from None
    notes |= {"model": parsed.model_name, "id": parsed.id}
    if len(parsed.outputs) > _MOST_TENSORS:
        raise RequestError(f"a request has at most {_MOST_TENSORS:,} outputs, not {len(parsed.outputs):,}")
    parameters = _parameter_values(parsed.parameters)
    parameters.pop("triton_enable_empty_final_response", None)  # the final response is never empty
    deadline, priority = request_timing(parameters, service.settings.default_deadline)
    if remaining is not None:
        deadline = min(remaining, MOST_SECONDS if deadline is None else deadline)
    inputs = _read_inputs(parsed, service.regions, service.settings.max_elements)
    outputs = [
        RequestedOutput.of(one.name, _parameter_values(one.parameters), service.regions) for one in parsed.outputs
    ] or None
    return InferRequest(
        parsed.model_name, parsed.model_version, parsed.id, inputs, outputs, parameters, deadline, priority
    )


def _check_head(message: bytes) -> None:
    """Raises RequestError if a message is too long without its raw contents.

    Protobuf would block all threads while it creates objects of fifty times that size. Some damaged messages pass.
    """
    at = head = 0
    while at < len(message):
        start = at
        try:
            tag, at = varint(message, at, len(message))
            length, at = varint(message, at, len(message))
        except ValueError:
            raise _damaged() from None
        if tag & 7 != _LENGTH_DELIMITED:  # a request has no other fields
            raise _damaged()
        at += length
        # Reading millions of empty fields would take seconds.
        head += _LEAST_NBYTES if tag >> 3 == _RAW_INPUT_CONTENTS else max(at - start, _LEAST_NBYTES)
        if head > _LONGEST_HEAD:
            raise RequestError(
                f"a request has at most {_LONGEST_HEAD:,} bytes besides raw_input_contents, and each of its fields "
                f"counts as {_LEAST_NBYTES} or more; send tensors as raw_input_contents",
                Status.TOO_LARGE,
            )


def _damaged() -> RequestError:
    return RequestError("the message is not an encoded ModelInferRequest")


def _read_inputs(parsed: Any, regions: SharedMemoryRegions, max_elements: int) -> dict[str, Tensor]:
    if len(parsed.inputs) > _MOST_TENSORS:
        raise RequestError(f"a request has at most {_MOST_TENSORS:,} inputs, not {len(parsed.inputs):,}")
    elements = 0
    names = set[str]()
    for one in parsed.inputs:
        if one.name in names:
            raise RequestError(f"input {one.name!r} was given twice")
        names.add(one.name)
        if one.datatype == "BYTES" or one.HasField("contents"):
            elements += element_count(one.shape, f"input {one.name!r}")
    if elements > max_elements:
        raise RequestError(
            f"the request has {elements:,} elements of BYTES and typed contents, and the limit (max_elements) is "
            f"{max_elements:,}; send numbers as raw_input_contents, and BYTES in several requests",
            Status.TOO_LARGE,
        )
    contents = None
    if raw := parsed.raw_input_contents:
        in_message = sum("shared_memory_region" not in one.parameters for one in parsed.inputs)
        if len(raw) != in_message:
            raise RequestError(
                f"expected {in_message} raw input contents, one for each input that is not in shared memory, and "
                f"{len(raw)} were given"
            )
        contents = iter(raw)
    return {one.name: _read_input(one, contents, regions) for one in parsed.inputs}


def _read_input(one: Any, contents: Iterator[bytes] | None, regions: SharedMemoryRegions) -> Tensor:
    what, shape = f"input {one.name!r}", list(one.shape)
    if (part := regions.part(_parameter_values(one.parameters), what)) is not None:
        return part.tensor(one.datatype, shape, what)
    if contents is None:
        return _from_contents(one, shape, what)
    if one.HasField("contents"):
        raise RequestError(f"contents field must not be specified when using raw_input_contents for {what}")
    return unpack(memoryview(next(contents)), one.datatype, shape, what)


def _from_contents(one: Any, shape: list[int], what: str) -> npt.NDArray[Any]:
    dtype, count = numpy_dtype(one.datatype), element_count(shape, what)
    name = _CONTENTS.get(one.datatype)
    if name is None:
        raise RequestError(f"{what}: {one.datatype} travels as raw_input_contents alone")
    if others := [field.name for field, _ in one.contents.ListFields() if field.name != name]:
        raise RequestError(f"{what}: {one.datatype} travels as {name}, and {others[0]} was given")
    values = getattr(one.contents, name)
    if len(values) != count:
        raise RequestError(f"{what}: the shape {shape} has {count:,} elements, and {name} has {len(values):,}")
    if name == "bytes_contents":
        return array_of(list(values), shape)
    array = np.array(values, np.int64 if name == "int_contents" else np.uint64 if name == "uint_contents" else dtype)
    if array.dtype != dtype:
        if count and (array.min() < np.iinfo(dtype).min or array.max() > np.iinfo(dtype).max):
            raise RequestError(f"{what}: its contents have values that {one.datatype} does not hold")
        array = array.astype(dtype)
    return array.reshape(shape)


def _parameter_values(parameters: Any) -> dict[str, Any]:
    """The values of a protobuf map of parameters."""
    if len(parameters) > _MOST_PARAMETERS:
        raise RequestError(f"there are at most {_MOST_PARAMETERS} parameters, not {len(parameters):,}")
    values = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestError(f"parameter {name!r} has no value")
        values[name] = getattr(parameter, kind)
    return values


def response_message(response: InferResponse) -> Any:
    """A response as `ModelInferResponse`."""
    message = service_pb2.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    for name, array in response.outputs.items():
        message.outputs.add(name=name, datatype=datatype_of(array.dtype), shape=array.shape)
        # Clients find contents by position, so an output in shared memory has empty contents.
        message.raw_output_contents.append(b"" if isinstance(array, PlacedOutput) else bytes(pack(array)))
    return message
