"""A real Triton, and the models of `serve_models` for its python backend: the same names, shapes and arithmetic.

`INFERSDK_TRITON` names a command that serves a model repository with Triton: it is called with the repository,
`--http PORT` and `--grpc PORT`.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import serve_models
from served_requests import ask
from waiting import free_port, until

COMMAND = os.environ.get("INFERSDK_TRITON", "")
REASON = "no Triton: INFERSDK_TRITON names the command that serves a repository"


class Ports(NamedTuple):
    """The ports of a server."""

    http_port: int
    grpc_port: int


@contextlib.contextmanager
def running(repository: Path, log: Path) -> Iterator[Ports]:
    """A Triton that serves a repository, and writes to a log."""
    ports = Ports(free_port(), free_port())
    command = [*shlex.split(COMMAND), str(repository), "--http", str(ports.http_port), "--grpc", str(ports.grpc_port)]
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=repository)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with contextlib.suppress(OSError):
            return ask(ports.http_port, "/v2/health/ready").status == 200
        return False

    try:
        until(is_ready, 120)
        yield ports
    finally:
        process.terminate()
        process.wait(60)


_ARITHMETIC = """
import numpy as np
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (pb.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
            text = a.dtype == object
            if text:
                a, b = a.astype(np.bytes_).astype(np.int32), b.astype(np.bytes_).astype(np.int32)
            outputs = [a + b, a - b]
            if text:
                outputs = [np.array([str(v).encode() for v in x.reshape(-1)], object).reshape(x.shape) for x in outputs]
            tensors = [pb.Tensor(f"OUTPUT{i}", x) for i, x in enumerate(outputs)]
            answers.append(pb.InferenceResponse(tensors))
        return answers
"""
_IDENTITY = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(r, "INPUT0").as_numpy())])
                for r in requests]
"""


def write(folder: Path) -> Path:
    """Writes the repository; returns its folder."""
    for name, kind in (("simple", "INT32"), ("simple_int8", "INT8"), ("simple_string", "STRING")):
        _model(folder, name, _ARITHMETIC, kind, [16], 8, ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"])
    _model(folder, "simple_identity", _IDENTITY, "STRING", [-1], 8)
    for datatype in serve_models.KINDS:
        if datatype != "BYTES":
            _model(folder, f"identity_{datatype}", _IDENTITY, datatype, [4], 8)
    _model(folder, "free", _IDENTITY, "FP32", [-1, -1], 0)
    _model(folder, "echo", _IDENTITY, "UINT8", [640, 640, 3], 4)
    return folder


def _model(
    folder: Path, name: str, code: str, kind: str, dims: list[int], batch: int,
    inputs: list[str] | None = None, outputs: list[str] | None = None,
) -> None:  # fmt: skip
    def tensors(side: str, names: list[str]) -> str:
        each = ", ".join(f'{{ name: "{one}" data_type: TYPE_{kind} dims: {dims} }}' for one in names)
        return f"{side} [ {each} ]\n"

    path = folder / name
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.py").write_text(code)
    (path / "config.pbtxt").write_text(
        f'backend: "python"\nmax_batch_size: {batch}\n'
        + tensors("input", inputs or ["INPUT0"])
        + tensors("output", outputs or ["OUTPUT0"])
    )
