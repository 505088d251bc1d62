"""Requests over gRPC whose fields are of any value: a defined status for each, and the next valid call works."""

from __future__ import annotations

import functools
import os
import random
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from serve_targets import DEFINED, channel, server

__all__ = ["grpc_requests"]

_PREFIX = "/inference.GRPCInferenceService/"
_REGION, _REGION_NBYTES = "region", 4096
_DATATYPES = ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "BF16", "FP32",
              "FP64", "BYTES")  # fmt: skip
_CONTENTS = ("bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents",
             "fp64_contents", "bytes_contents")  # fmt: skip
_WHOLE = (0, 1, 2, 3, 4, 16, 64, 255, 4095, 4096, 4097, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -1, -4,
          -(2**31), -(2**63))  # fmt: skip
_REAL = (0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 5e-324, 1e10, 1e15, 1e18, 1e300, 1.7e308, float("inf"), float("-inf"),
         float("nan"))  # fmt: skip
_TEXTS = ("", "a", "0.5", "1e999", "true", "null", "é" * 40, "x" * 5000, "\0", "\x1b[2J", "../..", "{}", "numbers")
_SETTING_NAMES = ("conf", "iou", "max_det", "max_candidates", "multi_label", "class_agnostic", "classes", "top_k",
                  "labels")  # fmt: skip
_TIMING_NAMES = ("deadline", "timeout", "priority")
_OTHER_NAMES = ("sequence_id", "sequence_start", "sequence_end", "triton_enable_empty_final_response", "triton_x",
                "binary_data_output", "", "nonesuch")  # fmt: skip


@functools.cache
def _channel() -> Any:
    """The channel to the server, which has a region of shared memory."""
    if os.path.isdir("/dev/shm"):
        key = f"/infersdk-fuzz-{uuid.uuid4().hex}"
        path = Path(f"/dev/shm{key}")
        path.write_bytes(bytes(_REGION_NBYTES))
        server().service.regions.register(_REGION, key, 0, _REGION_NBYTES)
        path.unlink()
    return channel()


def grpc_requests(rng: random.Random) -> bool:
    """A request of random fields, or one of the other calls; alone or in a stream. Then a valid one."""
    from tritonclient.grpc import service_pb2 as pb

    if rng.random() < 0.15:
        good = _call(*_other_call(rng, pb), rng) == "OK"
    else:
        message = _infer(rng, pb)
        good = _stream(message, pb, rng) if rng.random() < 0.2 else _call("ModelInfer", message, rng) == "OK"
    _check_valid(rng, pb)
    return good


def _check_valid(rng: random.Random, pb: Any) -> None:
    """The next valid call gets its own answer."""
    values = np.array([[rng.random() for _ in range(4)] for _ in range(rng.randint(1, 3))], np.float32)
    message = pb.ModelInferRequest(model_name="numbers", id=str(rng.random()), raw_input_contents=[values.tobytes()])
    message.inputs.add(name="x", datatype="FP32", shape=values.shape)
    answer = pb.ModelInferResponse.FromString(
        _channel().unary_unary(f"{_PREFIX}ModelInfer")(message.SerializeToString(), timeout=30)
    )
    assert answer.id == message.id
    assert answer.raw_output_contents[0] == values.tobytes(), "a valid request got another answer"


def _call(name: str, message: Any, rng: random.Random) -> str:
    """The status of a call."""
    timeout = rng.choice([20, 20, 20, 20, 1e-6, 0.001, 0.05])
    ended = _channel().unary_unary(_PREFIX + name).future(message.SerializeToString(), timeout=timeout)
    code: str = ended.code().name
    assert code in DEFINED, f"{name}: {code}: {ended.details()}"
    assert code != "DEADLINE_EXCEEDED" or timeout < 20 or name == "ModelInfer", f"{name} does not end"
    return code


def _stream(message: Any, pb: Any, rng: random.Random) -> bool:
    """Several requests in a stream: an answer for each, in order."""
    count = rng.randint(1, 4)
    messages = [message] * count
    answers = [
        pb.ModelStreamInferResponse.FromString(one)
        for one in _channel().stream_stream(f"{_PREFIX}ModelStreamInfer")(
            iter([one.SerializeToString() for one in messages]), timeout=20
        )
    ]
    assert len(answers) == count, f"{len(answers)} answers to {count} requests"
    for answer in answers:
        assert "its log has the reason" not in answer.error_message, answer.error_message
    return not any(answer.error_message for answer in answers)


def _other_call(rng: random.Random, pb: Any) -> tuple[str, Any]:
    text, whole = rng.choice(_TEXTS), rng.choice(_WHOLE)
    unsigned = whole % 2**64
    match rng.randrange(8):
        case 0:
            return "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(
                name=text,
                key=rng.choice(["/infersdk-fuzz-x", text]),
                offset=unsigned,
                byte_size=rng.choice(_WHOLE) % 2**64,
            )
        case 1:
            return "CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(
                name=text,
                raw_handle=rng.randbytes(rng.choice([0, 63, 64])),
                device_id=whole & 2**31 - 1,
                byte_size=unsigned,
            )
        case 2:
            return "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=text)
        case 3:
            return "ModelStatistics", pb.ModelStatisticsRequest(name=text, version=rng.choice(_TEXTS))
        case 4:
            return "ModelConfig", pb.ModelConfigRequest(name=text, version=rng.choice(_TEXTS))
        case 5:
            message = pb.TraceSettingRequest(model_name=text)
            message.settings[rng.choice(_TEXTS)].value.extend([text] * rng.randint(0, 3))
            return "TraceSetting", message
        case 6:
            message = pb.LogSettingsRequest()
            message.settings[text].uint32_param = unsigned % 2**32
            return "LogSettings", message
        case _:
            return "ModelMetadata", pb.ModelMetadataRequest(name=text, version=rng.choice(_TEXTS))


#: The input of each model, its datatype, and a shape.
_MODELS: dict[str, tuple[str, str, list[int]]] = {
    "numbers": ("x", "FP32", [1, 4]), "text": ("x", "BYTES", [1, 4]), "free": ("x", "INT64", [2, 3]),
    "flags": ("x", "BOOL", [2, 4]), "detector": ("pixels", "UINT8", [1, 16, 16, 3]),
}  # fmt: skip


def _infer(rng: random.Random, pb: Any) -> Any:
    """A request whose parts are right, but for some of them."""
    odd = rng.choice((0.0, 0.0, 0.03, 0.2))  # how often a part is wrong
    model = rng.choice(list(_MODELS))
    message = pb.ModelInferRequest(model_name=model, id=rng.choice(_TEXTS))
    if rng.random() < odd:
        message.model_name = rng.choice(_TEXTS)
    if rng.random() < 0.2:
        message.model_version = rng.choice(("2", "-1", "9" * 30, *_TEXTS)) if rng.random() < odd else "1"
    for _ in range(rng.choice((0, 1, 2))):
        names = _OTHER_NAMES + _TEXTS if rng.random() < odd else rng.choice((_TIMING_NAMES, _SETTING_NAMES))
        if model == "detector" or names is not _SETTING_NAMES:
            _set_parameter(rng, message.parameters[rng.choice(names)])
    raw = rng.random() < 0.6
    for _ in range(rng.choice((0, 2, 3)) if rng.random() < odd else 1):
        _add_input(rng, message, model, raw, odd)
    outputs = ["num_detections", "detection_boxes", "detection_labels"] if model == "detector" else ["y"]
    for name in rng.sample(outputs, rng.randint(0, len(outputs))):
        output = message.outputs.add(name=rng.choice(_TEXTS) if rng.random() < odd else name)
        if rng.random() < 0.2:
            output.parameters["classification"].int64_param = rng.randint(1, 5)
        if rng.random() < 0.3:
            _place(rng, output.parameters, rng.choice((64, 1024)), odd)
        if rng.random() < odd:
            _set_parameter(rng, output.parameters[rng.choice(("classification", "binary_data", *_TEXTS))])
    return message


def _add_input(rng: random.Random, message: Any, model: str, raw: bool, odd: float) -> None:
    name, datatype, shape = _MODELS[model]
    shape = [rng.randint(1, 3), *shape[1:]]
    if rng.random() < odd:
        name = rng.choice(("image", "pixels", *_TEXTS))
    if rng.random() < odd:
        datatype = rng.choice((*_DATATYPES, *_TEXTS))
    if rng.random() < odd:
        shape = [rng.choice((*_WHOLE, 1, 1, 4, 4)) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 40)))]
    one = message.inputs.add(name=name, datatype=datatype, shape=shape)
    count = min(int(np.prod([side % 64 for side in shape], dtype=np.int64)), 1 << 14)
    if datatype == "BYTES":
        strings = [rng.randbytes(rng.randrange(4)) if rng.random() < odd else b"text" for _ in range(count)]
        data = b"".join(len(text).to_bytes(4, "little") + text for text in strings)
    elif datatype == "BOOL":
        data = bytes(rng.randrange(3 if rng.random() < odd else 2) for _ in range(count))
    else:
        data = rng.randbytes(count * _item_nbytes(datatype))
    if rng.random() < odd:
        data = data[: rng.randint(0, len(data))] + bytes(rng.choice((0, 1, 100)))
    if datatype != "BYTES" and rng.random() < 0.25:
        _place(rng, one.parameters, len(data), odd)
    elif raw:
        message.raw_input_contents.append(data)
    if (not raw and not one.parameters) or rng.random() < odd / 4:
        _add_contents(rng, one, count, odd)
    if rng.random() < odd:
        _set_parameter(rng, one.parameters[rng.choice(_TEXTS)])


def _item_nbytes(datatype: str) -> int:
    return {"8": 1, "L": 1, "16": 2, "32": 4, "64": 8}.get(datatype.lstrip("BOUINTFP"), 1) if datatype != "BF16" else 2


def _add_contents(rng: random.Random, one: Any, count: int, odd: float) -> None:
    fields = {
        "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents", "INT64": "int64_contents",
        "UINT64": "uint64_contents", "BOOL": "bool_contents", "UINT8": "uint_contents",
    }  # fmt: skip
    field = rng.choice(_CONTENTS) if rng.random() < odd else fields.get(one.datatype, "int_contents")
    most = 255 if rng.random() >= odd else 2**31 - 1
    make: dict[str, Any] = {
        "bool": lambda: rng.random() < 0.5,
        "int": lambda: rng.choice(_WHOLE) % 2**31 if most > 255 else rng.randint(-128, 127),
        "int64": lambda: rng.choice(_WHOLE),
        "uint": lambda: rng.randint(0, most),
        "uint64": lambda: rng.choice(_WHOLE) % 2**64,
        "fp32": lambda: rng.choice(_REAL[:8]),
        "fp64": lambda: rng.choice(_REAL),
        "bytes": lambda: rng.choice((b"", b"text", b"\xff")) if most > 255 else b"text",
    }
    value = make[field.removesuffix("_contents")]
    getattr(one.contents, field).extend([value() for _ in range(rng.randint(0, 9) if rng.random() < odd else count)])


def _set_parameter(rng: random.Random, parameter: Any) -> None:
    """Any kind of value, or none."""
    if rng.random() < 0.4:  # a value that most parameters take
        parameter.int64_param = rng.randint(1, 100)
        return
    match rng.randrange(6):
        case 0:
            parameter.bool_param = rng.random() < 0.5
        case 1:
            parameter.int64_param = rng.choice(_WHOLE)
        case 2:
            parameter.double_param = rng.choice(_REAL)
        case 3:
            parameter.uint64_param = rng.choice(_WHOLE) % 2**64
        case 4:
            parameter.string_param = rng.choice(_TEXTS)


def _place(rng: random.Random, parameters: Any, nbytes: int, odd: float) -> None:
    """A place in shared memory."""
    parameters["shared_memory_region"].string_param = rng.choice(_TEXTS) if rng.random() < odd else _REGION
    parameters["shared_memory_byte_size"].int64_param = rng.choice(_WHOLE) if rng.random() < odd else nbytes
    if rng.random() < 0.5:
        offset = rng.choice(_WHOLE) if rng.random() < odd else rng.randrange(64)
        parameters["shared_memory_offset"].int64_param = offset
    if rng.random() < odd:
        _set_parameter(rng, parameters[rng.choice(list(parameters))])
