"""`infersdk serve` against Triton, and against `submit()` in the process.

INFERSDK_TRITON is a command that serves a model repository with Triton; see tests/triton_repository.py.
INFERSDK_BENCH_BACKEND and INFERSDK_BENCH_DEVICE choose the runtime of the detector (default: onnxruntime, and its own
device).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import triton_repository
from onnx_models import node, save, value
from rounds import SECONDS, Turns, submitted
from served_requests import ServerProcess, client_of, serving_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from triton_repository import Ports

BACKEND, DEVICE = os.environ.get("INFERSDK_BENCH_BACKEND", "onnxruntime"), os.environ.get("INFERSDK_BENCH_DEVICE")
CLIENTS, FRAME = 64, (1, 640, 640, 3)
#: As long as those of clients: a server searches the whole file for it.
BOUNDARY = "5d1f0c8e7a3b4926b0e4c17f92a6d835"


# ---- an echo of a frame, against Triton ----

ECHO = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("OUTPUT0", pb.get_input_tensor_by_name(r, "INPUT0").as_numpy())])
                for r in requests]
"""
CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_UINT8 dims: [640, 640, 3] } ]
output [ { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [640, 640, 3] } ]
"""


def echo_repository(folder: Path) -> Path:
    (folder / "echo" / "1").mkdir(parents=True)
    (folder / "echo" / "1" / "model.py").write_text(ECHO)
    (folder / "echo" / "config.pbtxt").write_text(CONFIG)
    return folder


def echo_model(path: Path) -> dict[str, Any]:
    tensors = [value(name, ("batch", *FRAME[1:]), "uint8") for name in ("INPUT0", "OUTPUT0")]
    save(path, [node("Identity", "INPUT0", "OUTPUT0")], tensors[:1], tensors[1:])
    settings = {"max_batch": 4, "options": {"threads": 1}, "pipeline": {"instances": 1}}
    return {"type": "network", "path": str(path), **settings}


class Echo:
    """A client that sends a frame to a server and gets it back."""

    def __init__(self, ports: Ports | ServerProcess, protocol: str, *, shared: bool) -> None:
        import tritonclient.utils.shared_memory as shm

        module = importlib.import_module(f"tritonclient.{protocol}")
        self.client = client_of(ports, protocol)
        self.frame = np.random.default_rng(0).integers(0, 256, FRAME, np.uint8)
        self.input = module.InferInput("INPUT0", list(FRAME), "UINT8")
        self.output = module.InferRequestedOutput("OUTPUT0")
        self.shm, self.region = shm, None
        if not shared:
            self.input.set_data_from_numpy(self.frame)
            return
        name, size = f"bench-{uuid.uuid4().hex}", self.frame.nbytes
        self.region = shm.create_shared_memory_region(name, f"/{name}", 2 * size)
        shm.set_shared_memory_region(self.region, [self.frame])
        self.client.register_system_shared_memory(name, f"/{name}", 2 * size)
        self.input.set_shared_memory(name, size)
        self.output.set_shared_memory(name, size, offset=size)

    def ask(self) -> Any:
        result = self.client.infer("echo", [self.input], outputs=[self.output])
        return result.as_numpy("OUTPUT0") if self.region is None else None

    def check(self) -> None:
        answer = self.ask()
        if self.region is not None:
            answer = self.shm.get_contents_as_numpy(self.region, np.uint8, FRAME, offset=self.frame.nbytes)
        np.testing.assert_array_equal(answer, self.frame)

    def close(self) -> None:
        self.client.close()
        if self.region is not None:
            self.shm.destroy_shared_memory_region(self.region)


@pytest.mark.parametrize(("protocol", "shared"), [("grpc", True), ("http", False), ("grpc", False)])
def test_echo_against_triton(tmp_path: Path, protocol: str, shared: bool, turns: Turns) -> None:
    """A frame of 640 x 640 x 3 bytes: in shared memory, or in the request."""
    pytest.importorskip("tritonclient.grpc")
    if not triton_repository.COMMAND:
        pytest.skip(triton_repository.REASON)
    models, repository = {"echo": echo_model(tmp_path / "echo.onnx")}, echo_repository(tmp_path / "repository")
    with (
        serving_process(models, tmp_path, shared_memory_prefix="/") as ours,
        triton_repository.running(repository, tmp_path / "triton.log") as theirs,
        ExitStack() as stack,
    ):
        ports = {"infersdk serve": ours, "Triton": theirs}
        clients = {name: Echo(own, protocol, shared=shared) for name, own in ports.items()}
        for client in clients.values():
            stack.callback(client.close)
            client.check()
        turns.times({name: client.ask for name, client in clients.items()}, calls=100)


# ---- images to boxes, against submit() ----


@contextmanager
def detector(assets: Path, folder: Path, max_batch: int) -> Iterator[tuple[ServerProcess, Any]]:
    """A server of yolov5n, and the model in this process."""
    from infersdk.models import YOLOv5

    path = assets / "models" / "yolov5n.onnx"
    settings: dict[str, Any] = {"backend": BACKEND, "max_batch": max_batch, **({"device": DEVICE} if DEVICE else {})}
    models = {"detector": {"type": "yolov5", "path": str(path), **settings}}
    with (
        serving_process(models, folder, shared_memory_prefix="/") as server,
        YOLOv5(path, **settings) as model,
    ):
        model.warm_up()
        yield server, model


def test_jpeg_to_boxes(assets: Path, tmp_path: Path, turns: Turns) -> None:
    """64 clients that send a form with a JPEG file and wait for its boxes."""
    image, body, delimiter = (assets / "images" / "bus.jpg").read_bytes(), tmp_path / "form", f"--{BOUNDARY}".encode()
    disposition = b'Content-Disposition: form-data; name="file"; filename="a.jpg"'
    parts = [delimiter, disposition, b"Content-Type: image/jpeg", b"", image, delimiter + b"--", b""]
    body.write_bytes(b"\r\n".join(parts))
    with detector(assets, tmp_path, 8) as (server, model):
        command = [
            sys.executable, str(Path(__file__).with_name("http_load.py")), f"http://127.0.0.1:{server.http_port}/predict",
            str(body), "--clients", str(CLIENTS), "--seconds", str(SECONDS),
            "--header", f"Content-Type: multipart/form-data; boundary={BOUNDARY}",
        ]  # fmt: skip

        def clients() -> float:
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            assert (set(result["statuses"]), result["failures"]) == ({"200"}, 0), result
            return float(result["statuses"]["200"]["count"] / result["seconds"])

        turns.rates({"infersdk serve": clients, "submit()": lambda: submitted(model.submit, [image])})


#: 16 clients in an event loop; prints frames a second.
SHARED_CLIENTS = """
import asyncio, sys, time, uuid
import numpy as np
import tritonclient.grpc.aio as triton
import tritonclient.utils.shared_memory as shm

async def main(port, path, seconds):
    frame, name = np.load(path)[None], uuid.uuid4().hex
    handle = shm.create_shared_memory_region(name, "/" + name, frame.nbytes)
    shm.set_shared_memory_region(handle, [frame])
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    await client.register_system_shared_memory(name, "/" + name, frame.nbytes)
    one = triton.InferInput("pixels", list(frame.shape), "UINT8")
    one.set_shared_memory(name, frame.nbytes)
    start, count = time.perf_counter(), 0
    async def ask():
        nonlocal count
        while time.perf_counter() < start + seconds:
            await client.infer("detector", [one])
            count += 1
    await asyncio.gather(*(ask() for _ in range(16)))
    print(count / (time.perf_counter() - start))
    await client.unregister_system_shared_memory(name)
    shm.destroy_shared_memory_region(handle)

asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
"""


def test_frames_in_shared_memory(assets: Path, tmp_path: Path, photograph: Any, turns: Turns) -> None:
    """64 clients by gRPC, for a GPU."""
    pytest.importorskip("tritonclient.grpc")
    np.save(tmp_path / "frame.npy", photograph)
    with detector(assets, tmp_path, 32) as (server, model):
        arguments = (server.grpc_port, tmp_path / "frame.npy", SECONDS)
        command = [sys.executable, "-c", SHARED_CLIENTS, *map(str, arguments)]

        def clients() -> float:
            processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS // 16)]
            return sum(float(process.communicate()[0]) for process in processes)

        turns.rates({"infersdk serve": clients, "submit()": lambda: submitted(model.submit, [photograph])})
