"""Ten times as many requests as the model can do: those that are taken are in time, the others are refused at once."""

from __future__ import annotations

import itertools
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value
from process_samples import process_sample
from served_requests import ServerProcess, serving_process

TESTS = Path(__file__).resolve().parents[1]
LOAD = TESTS.parent / "benchmarks" / "http_load.py"
pytestmark = pytest.mark.skipif(not LOAD.is_file(), reason="the clients are a program of the checkout")
DEADLINE = 1.0
#: Of the inputs of the models.
WIDTH, SIDE = 1024, 18


def computing_model(folder: Path) -> dict[str, Any]:
    """A model that computes for some 10 ms a row on one core, whatever the batch."""
    weights = {"w": (np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) / 32).astype(np.float32)}
    names = ["x", *(f"h{i}" for i in range(1, 60)), "y"]
    nodes = [node("MatMul", f"{a} w", b) for a, b in itertools.pairwise(names)]
    path = folder / "slow.onnx"
    onnx_models.save(path, nodes, [value("x", ["batch", WIDTH])], [value("y", ["batch", WIDTH])], weights)
    return {"path": str(path), "options": {"threads": 1}}


def waiting_model(folder: Path) -> dict[str, Any]:
    """A model that sleeps for 10 ms a batch: what it can do does not depend on what else runs on the machine."""
    package = folder / "idle_backend-0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: idle-backend\nVersion: 0\n")
    (package / "entry_points.txt").write_text("[infersdk.backends]\nidle = idle_backend:IdleInfer\n")
    (folder / "idle.model").write_bytes(b"idle")
    return {"path": str(folder / "idle.model"), "backend": "idle", "options": {"seconds": 0.01, "side": SIDE}}


MODELS = {"computing": (computing_model, [1, WIDTH]), "waiting": (waiting_model, [1, 3, SIDE, SIDE])}


class Overloaded(NamedTuple):
    """A server, and the folder of a request to its model."""

    server: ServerProcess
    folder: Path


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overloaded]:
    """A server of one of `MODELS`."""
    folder = tmp_path_factory.mktemp("slow")
    make, shape = MODELS[request.param]
    table = {**make(folder), "type": "network", "max_batch": 1, "pipeline": {"instances": 1, "slots": 3}}
    data = bytes(4 * math.prod(shape))
    head = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32",
                        "parameters": {"binary_data_size": len(data)}}]}  # fmt: skip
    text = json.dumps(head).encode()
    (folder / "body").write_bytes(text + data)
    path = os.pathsep.join(filter(None, [str(folder), str(TESTS), os.environ.get("PYTHONPATH")]))
    (folder / "header").write_text(f"Inference-Header-Content-Length: {len(text)}")
    settings = {"grpc_port": None, "max_queue": 20, "default_deadline": DEADLINE}
    with serving_process({"slow": table}, folder, environment={"PYTHONPATH": path}, **settings) as server:
        yield Overloaded(server, folder)


def load(port: int, folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(LOAD), f"http://127.0.0.1:{port}/v2/models/slow/infer", str(folder / "body"),
         "--header", (folder / "header").read_text(), *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def resident(process: subprocess.Popen[str]) -> float:
    """The process's memory in MB."""
    return process_sample(process.pid).memory / (1 << 20)


def check_overload(slow: Overloaded, seconds: float) -> None:
    (process, port, _), folder = slow
    alone = load(port, folder, "--clients", "3", "--seconds", "1")
    capacity = alone["statuses"]["200"]["count"] / alone["seconds"]
    load(port, folder, "--clients", "100", "--rate", str(capacity * 10), "--seconds", "0.5")
    before, peak, ended = resident(process), [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], resident(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = load(port, folder, "--clients", "100", "--rate", str(capacity * 10), "--seconds", str(seconds))
    ended.set()
    watcher.join()
    taken, refused = found["statuses"]["200"], found["statuses"]["429"]
    print(f"capacity {capacity:.0f}/s; {found}; memory {before:.0f} MB, at most {peak[0]:.0f} MB")
    assert found["failures"] == 0
    assert set(found["statuses"]) <= {"200", "429", "504"}
    assert refused["count"] > 4 * taken["count"]
    assert taken["count"] / found["seconds"] > 0.5 * capacity
    assert taken["p99"] < DEADLINE
    assert refused["p50"] < 0.1 * DEADLINE
    assert peak[0] < before + 50


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["waiting"], indirect=True)
def test_overload_for_seconds(slow: Overloaded) -> None:
    check_overload(slow, 1)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("slow", ["waiting", "computing"], indirect=True)
def test_overload_for_a_minute(slow: Overloaded) -> None:
    check_overload(slow, 60)


@pytest.mark.parametrize("slow", ["waiting"], indirect=True)
def test_what_a_client_has_left_behind_does_not_run(slow: Overloaded) -> None:
    """Its requests leave the queue: others need not wait for them."""
    (_, port, _), folder = slow
    body = (folder / "body").read_bytes()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    whole = (head + (folder / "header").read_text() + "\r\n\r\n").encode() + body
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for one in held:
        one.sendall(whole)
    for one in held:
        one.close()
    started = time.monotonic()
    found = load(port, folder, "--clients", "1", "--seconds", "0.1")
    assert set(found["statuses"]) == {"200"}
    assert time.monotonic() - started < 5
