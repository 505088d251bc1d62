"""The entries of a server as targets: bytes over HTTP, messages over gRPC.

A request is accepted or refused with a status of the client's; a status of 500 is a finding, and so is a server that
does not answer the next proper request.
"""

from __future__ import annotations

import functools
import gzip
import json
import random
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

from mutation import mutate, mutate_text

__all__ = ["DEFINED", "channel", "grpc_messages", "http_requests", "server"]

_LIMITS = {
    "http_port": 0, "grpc_port": 0, "access_log": False, "read_timeout": 0.3, "keep_alive": 0.3, "max_body": 1 << 20,
    "max_decompressed": 1 << 20, "model_control": False, "max_images": 4, "shared_memory_prefix": "/infersdk-fuzz-",
}  # fmt: skip


#: Statuses that say what is wrong with a call. INTERNAL, UNKNOWN and UNAVAILABLE are findings.
DEFINED = {
    "OK", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED", "ALREADY_EXISTS",
}  # fmt: skip
_TOKENS = [
    *("{", "}", "[", "]", ",", ":", "null", "true", "-1", "1e400", "9" * 30, '""', '"inputs"', '"outputs"', '"data"'),
    *('"shape"', '"datatype"', '"BYTES"', '"BF16"', '"FP32"', '"parameters"', '"binary_data_size"', '"deadline"'),
    *('"shared_memory_region"', '"encoding"', '"base64"', '"classification"', '"\\ud800"', "[[[[[[[["),
]


@functools.cache
def server() -> Any:
    """A server of small networks and of a detector, for as long as the process lives."""
    import onnx_models

    from infersdk.data import DETECTOR
    from infersdk.serve import Server

    folder = Path(tempfile.mkdtemp(prefix="infersdk-fuzz-"))
    tables: dict[str, Any] = {"detector": {"type": "yolov5", "path": str(DETECTOR)}}
    for name, kind, shape in (
        ("numbers", "float32", ["batch", 4]), ("text", "string", ["batch", 4]),
        ("free", "int64", ["rows", "columns"]), ("flags", "bool", ["batch", 4]),
    ):  # fmt: skip
        path = onnx_models.identity(folder / f"{name}.onnx", shape, kind)
        tables[name] = {"type": "network", "path": str(path), "options": {"threads": 1}}
    return Server({"models": tables, "server": _LIMITS}).start()


def _bodies() -> list[tuple[str, bytes, dict[str, str]]]:
    numbers = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
    text = {"name": "x", "shape": [1, 4], "datatype": "BYTES", "data": ["a", "b", "", "d"]}
    head = json.dumps({"inputs": [{**numbers, "parameters": {"binary_data_size": 16}}]}).encode()
    plain = json.dumps(
        {"id": "1", "inputs": [{**numbers, "data": [1, 2.5, -3, 1e9]}], "outputs": [{"name": "y"}]}
    ).encode()
    shared = {**numbers, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}
    infer = "/v2/models/numbers/infer"
    return [
        (infer, plain, {}),
        (infer, head + struct.pack("<4f", 1, 2, 3, 4), {"Inference-Header-Content-Length": str(len(head))}),
        (infer, gzip.compress(plain), {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}),
        (infer, bytes(16), {"Inference-Header-Content-Length": "0"}),
        (infer, json.dumps({"inputs": [shared], "parameters": {"deadline": 1, "priority": 2}}).encode(), {}),
        ("/v2/models/text/versions/1/infer", json.dumps({"inputs": [text]}).encode(), {}),
        ("/v2/systemsharedmemory/region/r/register", b'{"key": "/infersdk-fuzz-x", "offset": 0, "byte_size": 16}', {}),
        ("/v2/repository/models/numbers/load", b'{"parameters": {"config": "{}"}}', {}),
        ("/v2/repository/index", b'{"ready": true}', {}),
        ("/v2/logging", b'{"log_verbose_level": 1}', {}),
        ("/predict?model=numbers&conf=0.5", b"\xff\xd8\xff\xe0", {"Content-Type": "image/jpeg"}),
    ]


def http_requests(rng: random.Random) -> bool:
    """A request to one of the paths, short or long, whose body, head or both are damaged."""
    path, body, headers = rng.choice(_bodies())
    kind = rng.random()
    if kind < 0.4:
        body = mutate_text(rng, body, _TOKENS) if body[:1] == b"{" and rng.random() < 0.7 else mutate(rng, body)
    if rng.random() < 0.15:  # read past the parser
        body += b" " * rng.choice([1 << 16, 200_000, (1 << 20) - len(body), 1 << 20])
    length = len(body) if rng.random() < 0.95 else rng.choice([0, len(body) + 5, -1, 1 << 70])
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {length}", "Connection: close"]
    head = "\r\n".join([*lines, *(f"{key}: {value}" for key, value in headers.items())]).encode() + b"\r\n\r\n"
    if 0.4 <= kind < 0.7:
        head = mutate(rng, head)
    status = _send(head + body)
    assert status is None or status < 500 or status in (501, 503, 504), f"status {status}"
    if rng.random() < 0.1:
        assert _send(_proper()) == 200, "the server does not answer a proper request"
    return status is not None and status < 400


@functools.cache
def _proper() -> bytes:
    path, body, _ = _bodies()[0]
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _send(data: bytes) -> int | None:
    """The status of the last answer; None if the connection ended without one."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server().http_port), timeout=10) as one:
        try:
            one.sendall(data)
            while chunk := one.recv(65536):
                answer += chunk
        except ConnectionError:
            pass
    if not answer.startswith(b"HTTP/1.1 "):
        assert not answer, answer[:100]
        return None
    return int(answer[9:12])


@functools.cache
def channel() -> Any:
    """A channel of gRPC to the server."""
    import grpc

    return grpc.insecure_channel(f"127.0.0.1:{server().grpc_port}")


@functools.cache
def _messages() -> list[tuple[str, bytes]]:
    from tritonclient.grpc import service_pb2 as pb

    def infer(name: str, datatype: str, **fields: Any) -> bytes:
        message = pb.ModelInferRequest(model_name=name, id="1", **fields)
        message.inputs.add(name="x", datatype=datatype, shape=[1, 4])
        message.outputs.add(name="y").parameters["classification"].int64_param = 0
        message.parameters["priority"].int64_param = 1
        encoded: bytes = message.SerializeToString()
        return encoded

    typed = pb.ModelInferRequest(model_name="numbers")
    typed.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1, 2, 3, 4])
    register = pb.SystemSharedMemoryRegisterRequest(name="r", key="/infersdk-fuzz-x", byte_size=16)
    return [
        ("ModelInfer", infer("numbers", "FP32", raw_input_contents=[bytes(16)])),
        ("ModelInfer", infer("text", "BYTES", raw_input_contents=[b"\1\0\0\0a" * 4])),
        ("ModelInfer", typed.SerializeToString()),
        ("ModelMetadata", pb.ModelMetadataRequest(name="numbers").SerializeToString()),
        ("ModelConfig", pb.ModelConfigRequest(name="numbers").SerializeToString()),
        ("ModelStatistics", pb.ModelStatisticsRequest().SerializeToString()),
        ("RepositoryIndex", pb.RepositoryIndexRequest(ready=True).SerializeToString()),
        ("SystemSharedMemoryRegister", register.SerializeToString()),
    ]


def grpc_messages(rng: random.Random) -> bool:
    """A message of one of the calls, damaged."""
    import grpc

    call, message = rng.choice(_messages())
    if rng.random() < 0.9:
        message = mutate(rng, message)
    ended = channel().unary_unary(f"/inference.GRPCInferenceService/{call}").future(message, timeout=10)
    code = ended.code()  # waits for the end
    assert code.name in DEFINED, f"{code}: {ended.details()}"
    return bool(code is grpc.StatusCode.OK)
