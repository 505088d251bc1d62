"""A server under load for minutes: 16 clients with valid and hostile requests, over HTTP, gRPC and shared memory.

    pytest -m soak tests/serve/test_soak.py                                   # ten minutes
    INFERSDK_SERVE_SOAK_SECONDS=60 pytest -m soak tests/serve/test_soak.py

The server is a process of its own (`infersdk serve`). Every valid request gets its own right answer, whatever the
others do, and memory, descriptors and threads of the process stay as they were.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import socket
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value
from process_samples import ProcessSample, early_and_late, process_sample
from served_requests import ServerProcess, ask, inputs_of, serving_process

from infersdk.data import DETECTOR, IMAGE

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here"),
]

CLIENTS = 16
SECONDS = float(os.environ.get("INFERSDK_SERVE_SOAK_SECONDS", "600"))
#: Bytes that the median of the last quarter may have more than that of the second one: allocators keep freed memory.
GROWTH = 32 << 20
#: Statuses of requests that the client is at fault for, or that come too late.
REFUSED = {400, 404, 405, 408, 411, 413, 415, 422, 429, 431, 501, 503, 504}
TABLE = np.arange(64 * 4, dtype=np.float32).reshape(64, 4)
PREFIX = "/infersdk-soak-"


def tables(folder: Path) -> dict[str, Any]:
    """Networks with free rows, with an index that can be out of range, and of any shape; and a detector."""
    sides = [value("x", ["batch", 16]), value("y", ["batch", 16])]
    weights = {"three": np.float32(3), "one": np.float32(1)}
    rows = onnx_models.save(
        folder / "rows.onnx", [node("Mul", "x three", "m"), node("Add", "m one", "y")], sides[:1], sides[1:], weights
    )
    nodes = [node("Gather", "table index", "y", axis=0)]
    gather = onnx_models.save(folder / "gather.onnx", nodes, "int64[batch] index", "float[batch,4] y", {"table": TABLE})
    free = [value("x", ["rows", "columns"]), value("y", ["rows", "columns"])]
    whole = onnx_models.save(folder / "whole.onnx", [node("Neg", "x", "y")], free[:1], free[1:])
    one = {"options": {"threads": 1}}
    return {
        "rows": {"type": "network", "path": str(rows), "max_batch": 8, **one},
        "gather": {"type": "network", "path": str(gather), "max_batch": 8, **one},
        "whole": {"type": "network", "path": str(whole), **one},
        "detector": {
            "type": "yolov5",
            "path": str(DETECTOR),
            "conf": 0.5,
            "class_agnostic": True,
            "max_batch": 4,
            **one,
        },
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {
        "model_control": True, "watch": 1.0, "shared_memory_prefix": PREFIX, "max_body": 4 << 20,
        "max_decompressed": 8 << 20, "read_timeout": 3.0, "max_connections": 300, "drain": 5.0,
    }  # fmt: skip
    with (
        open(tmp_path / "log.txt", "wb") as log,
        serving_process(tables(tmp_path), tmp_path, log=log, **settings) as running,
    ):
        yield running


class Client:
    """One client: its connections, its region of shared memory, its random numbers, and what it has done."""

    def __init__(self, number: int, server: ServerProcess, expected: Any) -> None:
        import tritonclient.grpc
        import tritonclient.http
        import tritonclient.utils.shared_memory as shm

        self._rng = random.Random(number)
        self._numbers = np.random.default_rng(number)
        self._server, self._expected, self._shm = server, expected, shm
        self.counts = Counter[str]()
        self.modules: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
        self._clients = {
            "http": tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}", network_timeout=60),
            "grpc": tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}"),
        }
        self._region = uuid.uuid4().hex
        self._memory = shm.create_shared_memory_region(self._region, PREFIX + self._region, 8192)
        self._clients["http"].register_system_shared_memory(self._region, PREFIX + self._region, 8192)
        self._valid = [self.rows, self.shared, self.shared, self.gather, self.whole, self.as_json, self.predict]
        self._hostile = [
            self.out_of_range, self.bad_deadline, self.late, self.cancelled, self.garbage, self.cut_off, self.bomb,
            self.deep, self.no_image, self.shrunk, self.reload, self.half_closed, self.many_rows,
        ]  # fmt: skip

    def step(self) -> None:
        call = self._rng.choice(self._valid if self._rng.random() < 0.7 else self._hostile)
        call()
        self.counts[call.__name__] += 1

    def close(self) -> None:
        for call in (
            lambda: self._clients["http"].unregister_system_shared_memory(self._region),
            lambda: self._shm.destroy_shared_memory_region(self._memory), self._clients["http"].close,
            self._clients["grpc"].close,
        ):  # fmt: skip
            with contextlib.suppress(Exception):
                call()

    # ---- valid requests ----

    def _protocol(self) -> str:
        return self._rng.choice(("http", "grpc"))

    def _infer(self, protocol: str, model: str, inputs: Any, **more: Any) -> Any:
        return self._clients[protocol].infer(model, inputs, **more)

    def rows(self) -> None:
        protocol = self._protocol()
        x = self._numbers.normal(size=(self._rng.randint(1, 5), 16)).astype(np.float32)
        result = self._infer(protocol, "rows", inputs_of(protocol, {"x": x}, "FP32"))
        np.testing.assert_allclose(result.as_numpy("y"), x * 3 + 1, rtol=1e-6)

    def shared(self) -> None:
        protocol, n = self._protocol(), self._rng.randint(1, 8)
        module = self.modules[protocol]
        x = self._numbers.normal(size=(n, 16)).astype(np.float32)
        self._shm.set_shared_memory_region(self._memory, [x])
        given = module.InferInput("x", [n, 16], "FP32")
        given.set_shared_memory(self._region, x.nbytes)
        wanted = module.InferRequestedOutput("y")
        wanted.set_shared_memory(self._region, x.nbytes, offset=4096)
        self._infer(protocol, "rows", [given], outputs=[wanted])
        y = self._shm.get_contents_as_numpy(self._memory, np.float32, [n, 16], offset=4096)
        np.testing.assert_allclose(y, x * 3 + 1, rtol=1e-6)

    def gather(self) -> None:
        protocol = self._protocol()
        index = self._numbers.integers(0, 64, self._rng.randint(1, 3))
        result = self._infer(protocol, "gather", inputs_of(protocol, {"index": index}, "INT64"))
        np.testing.assert_array_equal(result.as_numpy("y"), TABLE[index])

    def whole(self) -> None:
        protocol = self._protocol()
        x = self._numbers.normal(size=(self._rng.randint(1, 20), self._rng.randint(1, 20))).astype(np.float32)
        result = self._infer(protocol, "whole", inputs_of(protocol, {"x": x}, "FP32"))
        np.testing.assert_array_equal(result.as_numpy("y"), -x)

    def as_json(self) -> None:
        data = [self._rng.randint(-1000, 1000) for _ in range(16)]
        entry = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": data}
        answer = ask(self._server.http_port, "/v2/models/rows/infer", {"inputs": [entry], "id": str(data[0])})
        assert answer.status == 200, answer
        assert answer.json()["outputs"][0]["data"] == [3 * number + 1 for number in data]
        assert answer.json()["id"] == str(data[0])

    def predict(self) -> None:
        answer = ask(self._server.http_port, "/predict?model=detector", Path(IMAGE).read_bytes())
        assert answer.status == 200, answer
        assert answer.json()["results"] == self._expected

    # ---- hostile requests ----

    def _refused(self, path: str, body: Any, **more: Any) -> None:
        status = ask(self._server.http_port, path, body, **more).status
        assert status in REFUSED, (path, status)

    def _raw(self, data: bytes, *, half_close: bool = False) -> bytes:
        received = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._server.http_port), 10) as one:
            one.sendall(data)
            if half_close:
                one.shutdown(socket.SHUT_WR)
            while chunk := one.recv(65536):
                received += chunk
        return received

    def out_of_range(self) -> None:
        protocol = self._protocol()
        with pytest.raises(Exception, match=r"(?i)ind(ex|ices)|out of|failed"):
            self._infer(protocol, "gather", inputs_of(protocol, {"index": np.array([1 << 40])}, "INT64"))

    def bad_deadline(self) -> None:
        entry = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}
        for deadline in (1e15, 1e300, -1, "soon", [1], True):
            body = {"inputs": [entry], "parameters": {"deadline": deadline}}
            self._refused("/v2/models/rows/infer", body)

    def late(self) -> None:
        entry = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0] * 16}
        parameters = {"timeout": self._rng.randint(1, 500), "priority": self._rng.randint(0, 5)}
        body = {"inputs": [entry], "parameters": parameters}
        assert ask(self._server.http_port, "/v2/models/rows/infer", body).status in {200, 429, 504}

    def cancelled(self) -> None:
        x = np.zeros((1, 16), np.float32)
        done = threading.Event()
        call = self._clients["grpc"].async_infer(
            "rows", inputs_of("grpc", {"x": x}, "FP32"), lambda result, error: done.set()
        )
        call.cancel()
        assert done.wait(60)

    def garbage(self) -> None:
        self._raw(self._numbers.bytes(self._rng.randint(1, 2000)) + b"\r\n\r\n")

    def cut_off(self) -> None:
        with socket.create_connection(("127.0.0.1", self._server.http_port), 10) as one:
            one.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n{")

    def half_closed(self) -> None:
        body = json.dumps({"inputs": []}).encode()
        head = "POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        self._raw(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, half_close=True)

    def bomb(self) -> None:
        body = gzip.compress(bytes(32 << 20), 1)
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        self._refused("/v2/models/rows/infer", body, headers=headers)

    def deep(self) -> None:
        self._refused("/v2/models/rows/infer", b'{"inputs":' + b"[" * 100_000)

    def no_image(self) -> None:
        for body in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n{} loop\n", b"\xff\xd8\xff\xe0" + b"x" * 100):
            self._refused("/predict?model=detector", body)

    def many_rows(self) -> None:
        entry = {"name": "x", "shape": [1 << 40, 16], "datatype": "FP32", "data": []}
        self._refused("/v2/models/rows/infer", {"inputs": [entry]})

    def shrunk(self) -> None:
        """A region that becomes smaller after it was registered."""
        name = uuid.uuid4().hex
        memory = self._shm.create_shared_memory_region(name, PREFIX + name, 1 << 16)
        client = self._clients["http"]
        try:
            client.register_system_shared_memory(name, PREFIX + name, 1 << 16)
            os.truncate(f"/dev/shm{PREFIX}{name}", 0)
            given = self.modules["http"].InferInput("x", [8, 16], "FP32")
            given.set_shared_memory(name, 512, offset=8192)
            with pytest.raises(Exception, match="."):
                client.infer("rows", [given])
        finally:
            with contextlib.suppress(Exception):
                client.unregister_system_shared_memory(name)
            with contextlib.suppress(Exception):
                self._shm.destroy_shared_memory_region(memory)

    def reload(self) -> None:
        """Another load of a model while all others use it."""
        if self._rng.random() < 0.1:
            model = self._rng.choice(("rows", "gather", "whole"))
            assert ask(self._server.http_port, f"/v2/repository/models/{model}/load", b"{}").status == 200


def work(
    number: int, server: ServerProcess, expected: Any, end: float, failures: list[str], counts: list[Counter[str]]
) -> None:
    """One client in a thread of its own, as its libraries want it."""
    try:
        client = Client(number, server, expected)
    except BaseException:
        failures.append(traceback.format_exc(limit=4))
        return
    counts.append(client.counts)
    while time.monotonic() < end and len(failures) < 5:
        try:
            client.step()
        except BaseException:
            failures.append(traceback.format_exc(limit=4))
    client.close()


def test_valid_requests_among_hostile_ones(server: ServerProcess, tmp_path: Path) -> None:
    first = ask(server.http_port, "/predict?model=detector", Path(IMAGE).read_bytes())
    assert first.status == 200, first
    expected = first.json()["results"]
    assert expected
    end, failures, samples, done = time.monotonic() + SECONDS, list[str](), list[ProcessSample](), list[Counter[str]]()
    threads = [
        threading.Thread(target=work, args=(number, server, expected, end, failures, done)) for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert server.process.poll() is None, (tmp_path / "log.txt").read_text()[-3000:]
        samples.append(process_sample(server.process.pid))
        time.sleep(1)
    counts = sum(done, Counter[str]())
    assert not failures, "\n".join(failures)
    told = io.StringIO()
    print(dict(counts), samples[0], samples[-1], file=told)
    assert min(counts[name] for name in ("rows", "shared", "gather", "whole", "as_json", "predict")) > 0, (
        told.getvalue()
    )
    assert ask(server.http_port, "/v2/health/ready").status == 200
    early, late = early_and_late(samples)
    growth = late.memory - early.memory
    assert growth < GROWTH, f"{growth / 1e6:.0f} MB more: {told.getvalue()}"
    assert late.threads <= early.threads + 8
    time.sleep(5)  # the connections that clients have left end by `read_timeout`
    left = process_sample(server.process.pid).descriptors
    assert left <= early.descriptors + 8, (left, told.getvalue())
    print(told.getvalue())
    server.process.terminate()
    assert server.process.wait(60) == 0
