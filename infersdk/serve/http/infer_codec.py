"""Inference requests and responses over HTTP: JSON, optionally followed by the bytes of tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np

from ..datatypes import array_of, bytes_of, datatype_of, element_count, numpy_dtype, pack, unpack
from ..errors import RequestError, Status
from ..messages import InferRequest, InferResponse, PlacedOutput, RequestedOutput, Tensor
from ..service import request_timing
from ..workers import in_worker, within
from .messages import LONG, check_json_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..messages import TensorInfo
    from ..service import InferenceService

__all__ = ["InferBody", "read_request", "write_response"]

_NO_DATA = msgspec.Raw()
_MAX_DEPTH = 32
#: Requests and responses with more elements of JSON and BYTES are converted in a worker thread.
_MANY = 4096
#: Maximum inputs and outputs of a request, and maximum bytes of JSON of parameters, a shape or an output.
_MOST_TENSORS, _MOST_TEXT = 1024, 1 << 16
#: Nested data may have max_elements / _LISTS_SHARE lists.
_LISTS_SHARE = 4


_Scalar: TypeAlias = bool | int | float | str | None
#: The protocol defines numbers, text and booleans; models also take lists of them.
_Parameters: TypeAlias = dict[str, _Scalar | list[_Scalar]]


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _Parameters | None = None
    data: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Output(msgspec.Struct):
    name: str
    parameters: _Parameters | None = None


class InferBody(msgspec.Struct):
    """The JSON of an inference request."""

    inputs: list[_Input]
    id: str = ""
    parameters: _Parameters = {}
    outputs: list[_Output] = []


class _Parts(msgspec.Struct):
    """The undecoded parts of an `InferBody` or of an input, to check their sizes first."""

    inputs: list[msgspec.Raw] = []
    outputs: list[msgspec.Raw] = []
    parameters: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    shape: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_decode = msgspec.json.Decoder(InferBody).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode


async def read_request(
    body: bytes, header_length: int | None, model: str, version: str, service: InferenceService
) -> tuple[InferRequest, bool]:
    """Parses a request. Long bodies are parsed in a worker thread.

    Args:
        header_length: bytes of JSON before the bytes of tensors; None for JSON only. 0: the body is the first input.

    Returns:
        The request, and whether outputs are returned as bytes by default.
    """
    if header_length == 0:
        return _raw_request(body, model, version, service), True
    if header_length is not None and not 0 < header_length <= len(body):
        raise RequestError(f"Inference-Header-Content-Length is {header_length}, and the body has {len(body):,} bytes")
    head = body if header_length is None else body[:header_length]
    parsed = await in_worker(_parse, head, service, when=len(head) > LONG)
    elements = sum(element_count(one.shape, f"input {one.name!r}") for one in parsed.inputs if one.datatype == "BYTES")
    if elements > (limit := service.settings.max_elements):
        raise _too_many(elements, limit)
    rest = memoryview(body)[len(head) :]
    inputs = await in_worker(_read_inputs, parsed, rest, service, when=len(head) > LONG or elements > _MANY)
    parameters = dict(parsed.parameters)
    if type(binary := parameters.pop("binary_data_output", False)) is not bool:
        raise RequestError(f"parameter binary_data_output is true or false, not {binary!r}")
    deadline, priority = request_timing(parameters, service.settings.default_deadline)
    outputs = [RequestedOutput.of(one.name, one.parameters or {}, service.regions) for one in parsed.outputs] or None
    request = InferRequest(model, version, parsed.id, inputs, outputs, parameters, deadline, priority)
    return request, binary


def _parse(head: bytes, service: InferenceService) -> InferBody:
    check_json_size(len(head), service.settings.max_json, "max_json")
    if (commas := head.count(b",")) > (limit := service.settings.max_elements):  # before memory is allocated
        raise _too_many(commas + 1, limit)
    try:
        if len(head) > LONG:
            _check_parts(head)
        return _decode(head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RequestError(f"failed to parse the request JSON: {error}") from None


def _check_parts(head: bytes) -> None:
    """Raises RequestError if parts of the JSON other than the data of inputs are too long to decode quickly."""
    whole = _decode_parts(head)
    if len(whole.inputs) > _MOST_TENSORS or len(whole.outputs) > _MOST_TENSORS:
        raise RequestError(
            f"a request has at most {_MOST_TENSORS:,} inputs and outputs each, not {len(whole.inputs):,} and "
            f"{len(whole.outputs):,}",
            Status.TOO_LARGE,
        )
    inputs = [_decode_parts(one) for one in whole.inputs]
    small = [*(part for one in (whole, *inputs) for part in (one.parameters, one.shape)), *whole.outputs]
    if (longest := max(len(memoryview(part)) for part in small)) > _MOST_TEXT:
        raise RequestError(
            f"parameters, a shape and an output have at most {_MOST_TEXT:,} bytes of JSON, not {longest:,}",
            Status.TOO_LARGE,
        )


def _read_inputs(parsed: InferBody, rest: memoryview, service: InferenceService) -> dict[str, Tensor]:
    inputs: dict[str, Tensor] = {}
    for one in parsed.inputs:
        if one.name in inputs:
            raise RequestError(f"input {one.name[:200]!r} was given twice")
        inputs[one.name], rest = _read_input(one, rest, service)
    if rest.nbytes:
        raise RequestError(f"unexpected additional input data: {rest.nbytes:,} bytes at the end")
    return inputs


def _too_many(count: int, limit: int) -> RequestError:
    return RequestError(
        f"the request has {count:,} elements of JSON and BYTES, and the limit (max_elements) is {limit:,}; send "
        "numbers as bytes behind the JSON (binary_data_size), and BYTES in several requests",
        Status.TOO_LARGE,
    )


def _raw_request(body: bytes, model: str, version: str, service: InferenceService) -> InferRequest:
    """Takes the body as the first input: one element of BYTES, or a tensor with at most one dynamic dimension behind
    the first one, which is 1.
    """
    infos = service.repository.find(model, version).inputs
    if not infos:
        raise RequestError(f"model {model!r} has no inputs, so the body cannot be its first; send a request with JSON")
    info = infos[0]
    if info.datatype == "BYTES":
        array = array_of([body], (1,) * len(info.shape))
    else:
        array = unpack(memoryview(body), info.datatype, _shape_for(info, len(body)), f"input {info.name!r}")
    return InferRequest(model, version, "", {info.name: array}, None, {}, service.settings.default_deadline)


def _shape_for(info: TensorInfo, nbytes: int) -> list[int]:
    shape = [1 if axis == 0 and side == -1 else side for axis, side in enumerate(info.shape)]
    if shape.count(-1) > 1:
        raise RequestError(f"the shape of {info.text} does not follow from {nbytes:,} bytes; send a request with JSON")
    if -1 in shape:
        known = math.prod(side for side in shape if side != -1) * numpy_dtype(info.datatype).itemsize
        shape[shape.index(-1)] = nbytes // known if known else 0
    return shape


def _read_input(one: _Input, rest: memoryview, service: InferenceService) -> tuple[Tensor, memoryview]:
    """A tensor, and the remaining bytes."""
    what, parameters = f"input {one.name!r}", one.parameters or {}
    size, region = parameters.get("binary_data_size"), parameters.get("shared_memory_region")
    if (given := (one.data != _NO_DATA) + (size is not None) + (region is not None)) != 1:
        raise RequestError(
            f"{what} has {given} of data, binary_data_size and shared_memory_region; give exactly one of them"
        )
    if (part := service.regions.part(parameters, what)) is not None:
        return part.tensor(one.datatype, one.shape, what), rest
    if size is not None:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= rest.nbytes:
            raise RequestError(
                f"{what}: binary_data_size is {size!r}, and {rest.nbytes:,} bytes of data are left in the body"
            )
        return unpack(rest[:size], one.datatype, one.shape, what), rest[size:]
    encoded = parameters.get("encoding")
    if encoded not in (None, "base64") or (encoded and one.datatype != "BYTES"):
        raise RequestError(f"{what}: the encoding is base64, for BYTES alone, not {encoded!r}")
    return _from_json(one, what, service.settings.max_elements, decode_base64=bool(encoded)), rest


def _from_json(one: _Input, what: str, max_elements: int, *, decode_base64: bool) -> npt.NDArray[Any]:
    count = element_count(one.shape, what)
    dtype = numpy_dtype(one.datatype)
    raw = memoryview(one.data)
    depth = _depth(raw)
    if depth > 1 and len(raw) > LONG and (lists := bytes(raw).count(b"[")) > (limit := max_elements // _LISTS_SHARE):
        raise RequestError(
            f"{what}: its data has {lists:,} lists, and the limit is {limit:,} (max_elements / {_LISTS_SHARE}); send "
            "it flat, or as bytes",
            Status.TOO_LARGE,
        )
    try:
        values = _nested(one.datatype, depth, decode_base64).decode(raw)
        if one.datatype == "BYTES":
            array = _strings(values)
        else:
            with np.errstate(over="ignore"):  # a warning for some types, and nothing for BF16
                array = np.asarray(values, dtype)
            _check_range(array, values, one.datatype)
    except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError, TypeError) as error:
        raise RequestError(f"{what}: its data is not {one.datatype} {one.shape}: {error}") from None
    if array.size != count:
        raise RequestError(f"{what}: the shape {one.shape} has {count:,} elements, and data has {array.size:,}")
    return array.reshape(one.shape)


def _check_range(array: npt.NDArray[Any], values: Any, datatype: str) -> None:
    """Raises ValueError if a number of JSON, which is finite, has become infinite."""
    if array.dtype.kind in "biu" or (finite := np.isfinite(array)).all():
        return
    value = np.asarray(values, np.float64).reshape(-1)[int(finite.argmin())]
    raise ValueError(f"{value:g} is out of the range of {datatype}")


def _strings(values: Any) -> npt.NDArray[Any]:
    while values and isinstance(values[0], list):
        if len({len(value) for value in values}) > 1:
            raise ValueError("its lists have unequal lengths")
        values = [inner for value in values for inner in value]
    return array_of([one.encode() if isinstance(one, str) else one for one in values], (len(values),))


def _depth(raw: memoryview) -> int:
    """The nesting depth of the lists at the start of a JSON text."""
    depth = 0
    for byte in raw[: _MAX_DEPTH * 8]:
        if byte == 0x5B:
            depth += 1
        elif byte not in b" \t\r\n":
            break
    if not 1 <= depth <= _MAX_DEPTH:
        raise RequestError(f"the data of an input is a list, nested up to {_MAX_DEPTH} deep")
    return depth


@functools.cache
def _nested(datatype: str, depth: int, decode_base64: bool) -> msgspec.json.Decoder[Any]:
    """A decoder for nested lists of a datatype, which checks each value."""
    kind: Any
    if datatype == "BYTES":
        kind = bytes if decode_base64 else str  # msgspec decodes the base64 of bytes
    elif datatype == "BOOL":
        kind = bool
    elif datatype.startswith(("INT", "UINT")):
        bounds = np.iinfo(numpy_dtype(datatype))
        limits: dict[str, Any] = {"ge": int(bounds.min)}
        if bounds.max < 1 << 63:  # NumPy checks larger bounds
            limits["le"] = int(bounds.max)
        kind = Annotated[int, msgspec.Meta(**limits)]
    else:
        kind = float
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


# ---- the response ----


async def write_response(
    request: InferRequest, response: InferResponse, binary: bool, max_elements: int
) -> tuple[list[bytes | memoryview], int | None]:
    """The parts of a body, and the length of the JSON if bytes follow it. Long JSON is encoded in a worker thread.

    Args:
        binary: whether outputs are sent as bytes by default.
    """
    wanted = {output.name: output.binary for output in request.outputs or ()}
    as_bytes = {name for name in response.outputs if (binary if (own := wanted.get(name)) is None else own)}
    arrays = {name: array for name, array in response.outputs.items() if not isinstance(array, PlacedOutput)}
    texts = sum(array.size for name, array in arrays.items() if name not in as_bytes)
    if texts > max_elements:
        raise RequestError(
            f"the outputs have {texts:,} elements as JSON, and the limit (max_elements) is {max_elements:,}; ask for "
            "them with binary_data",
            Status.TOO_LARGE,
        )
    objects = sum(array.size for array in arrays.values() if array.dtype.kind in "OSU")
    writing = in_worker(_write, response, as_bytes, when=texts > _MANY or objects > _MANY)
    return await within(request.deadline, writing)


def _write(response: InferResponse, as_bytes: Collection[str]) -> tuple[list[bytes | memoryview], int | None]:
    import orjson

    outputs: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, array in response.outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
        if isinstance(array, PlacedOutput):
            pass  # the client chose its place
        elif name in as_bytes:
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
    """The flat elements of an output for JSON."""
    if array.dtype.kind in "OSU":
        try:
            return [element.decode() for element in bytes_of(array)]
        except UnicodeDecodeError:
            raise RequestError(f"output {name!r} holds bytes that are not text; ask for it with binary_data") from None
    if array.dtype.name in ("float16", "bfloat16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"output {name!r} has NaN or infinite values, which JSON lacks; ask for it with binary_data")
    return np.ascontiguousarray(array.reshape(-1))
