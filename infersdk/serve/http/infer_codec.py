"""Inference requests and responses as HTTP carries them: JSON, and the bytes of tensors behind it if wanted."""

from __future__ import annotations

import base64
import binascii
import functools
import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from ..datatypes import array_of, bytes_of, datatype_of, element_count, numpy_dtype, pack, unpack
from ..errors import RequestError, Status
from ..messages import InferRequest, InferResponse, RequestedOutput, SharedMemory, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..messages import TensorInfo
    from ..service import InferenceService

__all__ = ["InferBody", "read_request", "write_response"]

_NO_DATA = msgspec.Raw()
_MAX_DEPTH = 32


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class InferBody(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


_decode = msgspec.json.Decoder(InferBody).decode


def read_request(
    body: bytes | bytearray, header_length: int | None, model: str, version: str, service: InferenceService
) -> tuple[InferRequest, bool]:
    """A request out of its body.

    Args:
        header_length: bytes of JSON in front of the tensors' bytes; None where all is JSON. With 0 the body is the
            model's first input.

    Returns:
        The request, and whether outputs go back as bytes unless the client says otherwise.

    Raises:
        RequestError: what is wrong with it.
    """
    if header_length == 0:
        return _raw_request(body, model, version, service), True
    view = memoryview(body)
    if header_length is not None and not 0 < header_length <= len(view):
        raise RequestError(
            Status.INVALID, f"Inference-Header-Content-Length is {header_length}, and the body has {len(view):,} bytes"
        )
    head = body if header_length is None else view[:header_length]
    try:
        parsed = _decode(head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RequestError(Status.INVALID, f"failed to parse the request JSON: {error}") from None
    rest = view[len(head) :] if header_length is not None else view[:0]
    inputs: dict[str, Tensor] = {}
    for one in parsed.inputs:
        if one.name in inputs:
            raise RequestError(Status.INVALID, f"input {one.name!r} was given twice")
        inputs[one.name], rest = _read_input(one, rest, service)
    if rest.nbytes:
        raise RequestError(Status.INVALID, f"unexpected additional input data: {rest.nbytes:,} bytes at the end")
    parameters = dict(parsed.parameters)
    binary = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    deadline, priority = service.timing(parameters)
    request = InferRequest(model, version, parsed.id, inputs, None, parameters, deadline, priority)
    request.outputs = [_read_output(one, service) for one in parsed.outputs] or None
    return request, binary


def _raw_request(body: bytes | bytearray, model: str, version: str, service: InferenceService) -> InferRequest:
    """The body is the first input: for BYTES one element, else a tensor, whose one open side follows from its size."""
    info = service.repository.find(model, version).inputs[0]
    if info.datatype == "BYTES":
        array = array_of([bytes(body)], (1,) * len(info.shape))
    else:
        array = unpack(memoryview(body), info.datatype, _shape_for(info, len(body)), f"input {info.name!r}")
    return InferRequest(model, version, "", {info.name: array}, None, {}, service.settings.default_deadline)


def _shape_for(info: TensorInfo, nbytes: int) -> list[int]:
    shape = [1 if axis == 0 and side == -1 else side for axis, side in enumerate(info.shape)]
    if shape.count(-1) > 1:
        raise RequestError(
            Status.INVALID, f"the shape of {info.text} does not follow from {nbytes:,} bytes; send a request with JSON"
        )
    if -1 in shape:
        known = math.prod(side for side in shape if side != -1) * numpy_dtype(info.datatype).itemsize
        shape[shape.index(-1)] = nbytes // known if known else 0
    return shape


def _read_input(one: _Input, rest: memoryview, service: InferenceService) -> tuple[Tensor, memoryview]:
    """A tensor, and the bytes that follow it."""
    what = f"input {one.name!r}"
    if (region := one.parameters.get("shared_memory_region")) is not None:
        if one.data != _NO_DATA or "binary_data_size" in one.parameters:
            raise RequestError(Status.INVALID, f"{what} has both shared memory and data of its own")
        part = _shared(region, one.parameters, what)
        return service.regions.tensor(part, one.datatype, one.shape, what), rest
    if (size := one.parameters.get("binary_data_size")) is not None:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= rest.nbytes:
            raise RequestError(
                Status.INVALID,
                f"{what}: binary_data_size is {size!r}, and {rest.nbytes:,} bytes of data are left in the body",
            )
        return unpack(rest[:size], one.datatype, one.shape, what), rest[size:]
    if one.data == _NO_DATA:
        raise RequestError(Status.INVALID, f"{what} has no data: give data, binary_data_size or shared_memory_region")
    encoded = one.parameters.get("encoding")
    if encoded not in (None, "base64") or (encoded and one.datatype != "BYTES"):
        raise RequestError(Status.INVALID, f"{what}: the encoding is base64, for BYTES alone, not {encoded!r}")
    return _from_json(one, what, decode_base64=bool(encoded)), rest


def _from_json(one: _Input, what: str, *, decode_base64: bool) -> npt.NDArray[Any]:
    count = element_count(one.shape, what)
    dtype = numpy_dtype(one.datatype)
    raw = memoryview(one.data)
    try:
        values = _nested(one.datatype, _depth(raw)).decode(raw)
        if one.datatype == "BYTES":
            array = _strings(values, decode_base64, what)
        else:
            with np.errstate(over="ignore"):
                array = np.asarray(values, dtype)
    except RequestError:
        raise
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, TypeError) as error:
        raise RequestError(Status.INVALID, f"{what}: its data is not {one.datatype} {one.shape}: {error}") from None
    if array.size != count:
        raise RequestError(
            Status.INVALID, f"{what}: the shape {one.shape} has {count:,} elements, and data has {array.size:,}"
        )
    return array.reshape(one.shape)


def _strings(values: Any, decode_base64: bool, what: str) -> npt.NDArray[Any]:
    while values and isinstance(values[0], list):
        values = [inner for value in values for inner in value]
    try:
        elements = [base64.b64decode(v, validate=True) if decode_base64 else v.encode() for v in values]
    except binascii.Error as error:
        raise RequestError(Status.INVALID, f"{what}: its data is not base64: {error}") from None
    return array_of(elements, (len(elements),))


def _depth(raw: memoryview) -> int:
    """How deep the lists are nested that a JSON text begins with."""
    depth = 0
    for byte in raw[: _MAX_DEPTH * 8]:
        if byte == 0x5B:
            depth += 1
        elif byte not in b" \t\r\n":
            break
    if not 1 <= depth <= _MAX_DEPTH:
        raise RequestError(Status.INVALID, f"the data of an input is a list, nested up to {_MAX_DEPTH} deep")
    return depth


@functools.cache
def _nested(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    """A decoder of lists of a datatype that checks each value."""
    kind: Any
    if datatype == "BYTES":
        kind = str
    elif datatype == "BOOL":
        kind = bool
    elif datatype.startswith(("INT", "UINT")):
        bounds = np.iinfo(numpy_dtype(datatype))
        limits: dict[str, Any] = {"ge": int(bounds.min)}
        if bounds.max < 1 << 63:  # beyond, NumPy checks
            limits["le"] = int(bounds.max)
        kind = Annotated[int, msgspec.Meta(**limits)]
    else:
        kind = float
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _shared(region: Any, parameters: Mapping[str, Any], what: str) -> SharedMemory:
    offset, size = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    numbers = all(isinstance(value, int) and not isinstance(value, bool) for value in (offset, size))
    if not isinstance(region, str) or not numbers or not isinstance(size, int) or offset < 0 or size < 0:
        raise RequestError(
            Status.INVALID,
            f"{what}: shared memory has a region's name, an offset and a size, not {region!r}, {offset!r}, {size!r}",
        )
    return SharedMemory(region, offset, size)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(Status.INVALID, f"parameter {name} is true or false, not {value!r}")
    return value


def _read_output(one: _Output, service: InferenceService) -> RequestedOutput:
    parameters, what = one.parameters, f"output {one.name!r}"
    binary = parameters.get("binary_data")
    if binary is not None:
        binary = _flag(binary, "binary_data")
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or not 0 <= classes < 1 << 31:
        raise RequestError(Status.INVALID, f"{what}: classification is a number of classes, not {classes!r}")
    region = parameters.get("shared_memory_region")
    part = None if region is None else service.regions.part(_shared(region, parameters, what))
    return RequestedOutput(one.name, binary, classes, part)


# ---- the response ----


def write_response(
    request: InferRequest, response: InferResponse, placed: Mapping[str, int], binary: bool
) -> tuple[list[bytes | memoryview], int | None]:
    """The parts of a body, and the length of the JSON in front where bytes follow it.

    Args:
        placed: the outputs that lie in shared memory, with their sizes.
        binary: whether outputs go as bytes where the client does not say.
    """
    import orjson

    wanted = {output.name: output for output in request.outputs or ()}
    outputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
        asked = wanted.get(name)
        if name in placed:
            pass  # the client knows where it asked for it
        elif binary if asked is None or asked.binary is None else asked.binary:
            data = pack(array)
            entry["parameters"] = {"binary_data_size": data.nbytes}
            parts.append(data)
        else:
            entry["data"] = _json_data(name, array)
        outputs.append(entry)
    head = {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    if response.id:
        head = {"id": response.id, **head}
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    return [text, *parts], len(text) if parts else None


def _json_data(name: str, array: npt.NDArray[Any]) -> Any:
    """The elements of an output, flat, as JSON has them."""
    if array.dtype.kind in "OSU":
        try:
            return [element.decode() for element in bytes_of(array)]
        except UnicodeDecodeError:
            raise RequestError(
                Status.INVALID, f"output {name!r} holds bytes that are not text; ask for it with binary_data"
            ) from None
    if array.dtype.name in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            Status.INVALID, f"output {name!r} has NaN or infinite values, which JSON lacks; ask for it with binary_data"
        )
    return np.ascontiguousarray(array.reshape(-1))
