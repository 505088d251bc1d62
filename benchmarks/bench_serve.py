"""`infersdk serve` against Triton, LitServe and FastAPI, and against `submit()` in process.

    pytest benchmarks/bench_serve.py -q -s

`INFERSDK_TRITON` names a command that serves a model repository with Triton; it is called with the repository, `--http
PORT` and `--grpc PORT`. What is missing is skipped with the reason.

LitServe and FastAPI (`pip install litserve fastapi`) come in three kinds, whose programs lie in `serving/`:

- "FastAPI", "LitServe": a server as their documentation writes it, around a detector written by hand with ONNX Runtime,
  OpenCV and NumPy, without infersdk. Of the settings that the documentation names the fastest ones are taken.
- "..., one thread": the same, with runs of ONNX Runtime of one thread, which their documentation does not name. Ours
  comes with and without it, too.
- "..., our wrapper": the wrapper of infersdk inside, so that serving alone differs.

Each server gets the same form with a file, and answers the same boxes.

Each server has a process of its own, and each round runs all of them in turns. A ratio is the median over the rounds of
ours by theirs in the same round; the interval is that of resampled rounds.

INFERSDK_BENCH_SECONDS is how long a round runs (default 4), INFERSDK_BENCH_ROUNDS how many there are (default 5).
INFERSDK_BENCH_BACKEND and INFERSDK_BENCH_DEVICE choose what runs the detector (default `onnxruntime`, on its default
device).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from infersdk.bench.statistics import Estimate, median_of_rounds
from infersdk.ops.batch import available_processors

HERE = Path(__file__).resolve().parent
SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "4"))
ROUNDS = int(os.environ.get("INFERSDK_BENCH_ROUNDS", "5"))
BACKEND = os.environ.get("INFERSDK_BENCH_BACKEND", "onnxruntime")
DEVICE = os.environ.get("INFERSDK_BENCH_DEVICE")
CLIENTS = 64
FRAME = (1, 640, 640, 3)
#: As long as those of clients (32 characters from urllib3, 38 from browsers): servers search the whole file for it, and
#: a short one takes longer to rule out.
BOUNDARY = "5d1f0c8e7a3b4926b0e4c17f92a6d835"
#: The header of the form that every server of boxes is sent.
FORM = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def process(command: list[str], ready: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from when it answers `ready`."""
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 180
            while not answers(ready):
                if running.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    pytest.fail(f"{command}: {log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.2)
            yield running
        finally:
            running.terminate()
            running.wait(60)
            with contextlib.suppress(ProcessLookupError):  # LitServe leaves its workers behind
                os.killpg(running.pid, signal.SIGKILL)


@contextmanager
def served(models: dict[str, Any], folder: Path, **settings: Any) -> Iterator[tuple[int, int]]:
    """Our server; its ports for HTTP and gRPC."""
    http, grpc = free_port(), free_port()
    path = folder / f"app-{http}.json"
    server = {"http_port": http, "grpc_port": grpc, "access_log": False, "shared_memory_prefix": "/", **settings}
    path.write_text(json.dumps({"models": models, "server": server}))
    command = [sys.executable, "-P", "-m", "infersdk", "serve", str(path)]
    with process(command, f"http://127.0.0.1:{http}/v2/health/ready"):
        yield http, grpc


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


@contextmanager
def triton(folder: Path) -> Iterator[tuple[int, int]]:
    command = os.environ.get("INFERSDK_TRITON")
    if not command:
        pytest.skip("no Triton: INFERSDK_TRITON names the command that serves a repository")
    (folder / "repository" / "echo" / "1").mkdir(parents=True)
    (folder / "repository" / "echo" / "1" / "model.py").write_text(ECHO)
    (folder / "repository" / "echo" / "config.pbtxt").write_text(CONFIG)
    http, grpc = free_port(), free_port()
    whole = [*shlex.split(command), str(folder / "repository"), "--http", str(http), "--grpc", str(grpc)]
    with process(whole, f"http://127.0.0.1:{http}/v2/health/ready"):
        yield http, grpc


def echo_model(path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    shape = ["batch", *FRAME[1:]]
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.UINT8, shape) for n in ("INPUT0", "OUTPUT0")]
    node = onnx.helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    graph = onnx.helper.make_graph([node], "echo", infos[:1], infos[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return path


class Echo:
    """One way to send a frame to a server and to get it back."""

    def __init__(self, ports: tuple[int, int], protocol: str, *, shared: bool) -> None:
        self.module = importlib.import_module(f"tritonclient.{protocol}")
        port = ports[0] if protocol == "http" else ports[1]
        self.client = self.module.InferenceServerClient(f"127.0.0.1:{port}")
        self.frame = np.random.default_rng(0).integers(0, 256, FRAME, np.uint8)
        self.input = self.module.InferInput("INPUT0", list(FRAME), "UINT8")
        self.output = self.module.InferRequestedOutput("OUTPUT0")
        self.handle: Any = None
        if shared:
            self._share()
        else:
            self.input.set_data_from_numpy(self.frame)

    def _share(self) -> None:
        import tritonclient.utils.shared_memory as shm

        name, size = f"bench-{uuid.uuid4().hex}", self.frame.nbytes
        self.handle = shm.create_shared_memory_region(name, f"/{name}", 2 * size)
        shm.set_shared_memory_region(self.handle, [self.frame])
        self.client.register_system_shared_memory(name, f"/{name}", 2 * size)
        self.input.set_shared_memory(name, size)
        self.output.set_shared_memory(name, size, offset=size)

    def ask(self) -> float:
        """Seconds of one request."""
        started = perf_counter()
        result = self.client.infer("echo", [self.input], outputs=[self.output])
        if self.handle is None:
            result.as_numpy("OUTPUT0")
        return perf_counter() - started

    def check(self) -> None:
        import tritonclient.utils.shared_memory as shm

        result = self.client.infer("echo", [self.input], outputs=[self.output])
        if self.handle is None:
            found = result.as_numpy("OUTPUT0")
        else:
            found = shm.get_contents_as_numpy(self.handle, np.uint8, FRAME, offset=self.frame.nbytes)
        np.testing.assert_array_equal(found, self.frame)

    def close(self) -> None:
        import tritonclient.utils.shared_memory as shm

        self.client.close()
        if self.handle is not None:
            shm.destroy_shared_memory_region(self.handle)


@pytest.mark.parametrize(
    ("protocol", "shared", "target"), [("grpc", True, 1.0), ("http", False, 1.3), ("grpc", False, None)]
)
def test_echo(tmp_path: Path, claim: Callable[..., None], protocol: str, shared: bool, target: float | None) -> None:
    """The median time of a request that echoes a frame of 640x640x3 uint8, ours by Triton's."""
    pytest.importorskip("tritonclient.grpc")
    options = {"threads": 1}
    models = {
        "echo": {
            "type": "network", "path": str(echo_model(tmp_path / "echo.onnx")), "max_batch": 4, "options": options,
            "pipeline": {"instances": 1},
        }
    }  # fmt: skip
    with ExitStack() as stack:
        theirs = Echo(stack.enter_context(triton(tmp_path)), protocol, shared=shared)
        stack.callback(theirs.close)
        ours = Echo(stack.enter_context(served(models, tmp_path)), protocol, shared=shared)
        stack.callback(ours.close)
        medians: list[list[float]] = []
        for one in (ours, theirs):
            one.check()
            for _ in range(20):
                one.ask()
        for _ in range(ROUNDS):
            medians.append([float(np.median([one.ask() for _ in range(100)])) for one in (ours, theirs)])
    ratio = median_of_rounds([a / b for a, b in medians])
    what = f"echo, {protocol}{', shared memory' if shared else ''}"
    claim(what, ratio.value, low=ratio.low, high=ratio.high)
    own, other = (float(np.median([row[i] for row in medians])) * 1e3 for i in (0, 1))
    bound = f", target at most {target}" if target else ""
    print(f"\n{what}: {own:.2f} ms, Triton {other:.2f} ms: {text(ratio)}{bound}")


def text(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f" ({estimate.low:.3f} to {estimate.high:.3f})"
    return f"{estimate.value:.3f}{interval}"


# ---- JPEG to boxes ----


class Peer(NamedTuple):
    """A server of others that answers `POST /predict` as ours does."""

    package: str
    script: str
    #: Arguments of the script; the fastest of them is compared.
    settings: list[str]


def written_by_hand() -> dict[str, Peer]:
    """The detector without infersdk, as the documentation of each server has it, with all the settings that it names:
    one process or one for each processor, and with LitServe batches or none. "One thread" adds what it does not name:
    runs of one thread each, which suit a server with many callers.
    """
    workers = [f"--workers {count}" for count in (1, available_processors())]
    batches = [f"{each} --batch {size}" for each in workers for size in (1, 8)]
    one_thread = "--threads 1"
    return {
        "FastAPI": Peer("fastapi", "fastapi_server.py", workers),
        "LitServe": Peer("litserve", "litserve_server.py", batches),
        "FastAPI, one thread": Peer("fastapi", "fastapi_server.py", [f"{each} {one_thread}" for each in workers]),
        "LitServe, one thread": Peer(
            "litserve", "litserve_server.py", [f"{each} {one_thread}" for each in batches[2:]]
        ),
    }


def own_settings(*, one_thread: bool) -> dict[str, dict[str, Any]]:
    """The settings of our own servers, by name; with the one that suits many callers on processors, if asked for."""
    settings: dict[str, dict[str, Any]] = {"infersdk serve": {"max_batch": 8}}
    if one_thread:
        pipeline = {"instances": available_processors()}
        settings["infersdk serve, one thread"] = {"max_batch": 1, "options": {"threads": 1}, "pipeline": pipeline}
    if DEVICE:
        settings = {name: {**each, "device": DEVICE} for name, each in settings.items()}
    return settings


def with_our_wrapper() -> dict[str, Peer]:
    """Our own wrapper inside, so that serving alone differs: decoding, preprocessing and postprocessing are ours."""
    settings = [f"{BACKEND} {DEVICE or ''}"]
    return {
        "FastAPI, our wrapper": Peer("fastapi", "fastapi_wrapper.py", settings),
        "LitServe, our wrapper": Peer("litserve", "litserve_wrapper.py", settings),
    }


@contextmanager
def peer_served(peer: Peer, model: Path, settings: str) -> Iterator[int]:
    """A peer's server; its port."""
    port = free_port()
    command = [sys.executable, str(HERE / "serving" / peer.script), str(model), str(port), *settings.split()]
    with process(command, f"http://127.0.0.1:{port}/health"):
        yield port


def fastest(name: str, peer: Peer, model: Path, body: Path, check: Callable[[int], None]) -> str:
    """The settings with which a peer answers most requests; `check` is given the port of each server."""
    rates = {}
    for settings in peer.settings:
        with peer_served(peer, model, settings) as port:
            check(port)
            rates[settings] = load(port, body)
    print(f"\n{name}: " + "; ".join(f"{key}: {rate:.1f} images/s" for key, rate in rates.items()), end="", flush=True)
    return max(rates, key=lambda settings: rates[settings])


def form(image: bytes) -> bytes:
    delimiter = f"--{BOUNDARY}".encode()
    disposition = b'Content-Disposition: form-data; name="file"; filename="a.jpg"'
    return b"\r\n".join([delimiter, disposition, b"Content-Type: image/jpeg", b"", image, delimiter + b"--", b""])


def load(port: int, body: Path, *, clients: int = CLIENTS) -> float:
    """Forms with an image a second that a server answers, of so many clients, each of which asks and waits."""
    command = [
        sys.executable, "-P", str(HERE / "http_load.py"), f"http://127.0.0.1:{port}/predict", str(body), "--clients",
        str(clients), "--seconds", str(SECONDS), "--header", FORM,
    ]  # fmt: skip
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert set(result["statuses"]) == {"200"}, result
    assert not result["failures"]
    return float(result["statuses"]["200"]["count"] / result["seconds"])


def boxes(port: int, body: Path) -> npt.NDArray[np.float64]:
    """What a server answers to the form: for each box its edges, its score and its class; the best one first."""
    name, _, value = FORM.partition(": ")
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body.read_bytes(), {name: value})
    with urllib.request.urlopen(request, timeout=60) as answer:
        rows = json.loads(answer.read())["results"]
    return np.array(sorted(([*row["xyxy"], row["score"], row["class_id"]] for row in rows), key=lambda row: -row[4]))


@contextmanager
def in_process(model: Path, image: bytes) -> Iterator[Callable[[], float]]:
    """64 threads that submit the file to the wrapper in this process."""
    from infersdk.models import YOLOv5

    with YOLOv5(model, backend=BACKEND, device=DEVICE, max_batch=8) as detector, ThreadPoolExecutor(CLIENTS) as threads:
        detector.warm_up()

        def measure() -> float:
            end = perf_counter() + SECONDS

            def work(_: int) -> int:
                count = 0
                while perf_counter() < end:
                    detector.submit(image).result()
                    count += 1
                return count

            started = perf_counter()
            return sum(threads.map(work, range(CLIENTS))) / (perf_counter() - started)

        yield measure


@pytest.mark.timeout(3600)  # eight minutes on an idle machine
def test_jpeg_to_boxes(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    """64 clients that send a form with bus.jpg and get its boxes, by yolov5n: images a second. Each server answers the
    same boxes.
    """
    model, image = assets / "models" / "yolov5n.onnx", (assets / "images" / "bus.jpg").read_bytes()
    body = tmp_path / "form"
    body.write_bytes(form(image))
    by_hand = written_by_hand() if BACKEND == "onnxruntime" and DEVICE in (None, "cpu") else {}  # it runs there
    with ExitStack() as stack:
        runs: dict[str, Callable[[], float]] = {}
        for name, settings in own_settings(one_thread=bool(by_hand)).items():
            table = {"type": "yolov5", "path": str(model), "backend": BACKEND, **settings}
            http, _ = stack.enter_context(served({"detector": table}, tmp_path))
            runs[name] = lambda port=http: load(port, body)  # type: ignore[misc]
        own = list(runs)
        expected = boxes(http, body)
        assert len(expected) == 5  # four persons and a bus

        def check(port: int) -> None:
            np.testing.assert_allclose(boxes(port, body), expected, rtol=0, atol=0.05)

        for name, peer in {**by_hand, **with_our_wrapper()}.items():
            if importlib.util.find_spec(peer.package) is None:
                print(f"\n{name} is not installed: pip install {peer.package}")
                continue
            several = len(peer.settings) > 1
            chosen = fastest(name, peer, model, body, check) if several else peer.settings[0]
            port = stack.enter_context(peer_served(peer, model, chosen))
            check(port)
            runs[name] = lambda port=port: load(port, body)  # type: ignore[misc]
        runs["submit()"] = stack.enter_context(in_process(model, image))
        for run in runs.values():
            run()  # warm
        rates = [{name: run() for name, run in runs.items()} for _ in range(ROUNDS)]
    print()
    for name in runs:
        print(f"{name}: {float(np.median([row[name] for row in rates])):.1f} images/s")
        for server in () if name in own else own:
            ratio = median_of_rounds([row[server] / row[name] for row in rates])
            claim(f"{server}, {CLIENTS} clients, against {name}", ratio.value, low=ratio.low, high=ratio.high)
            target = ", target at least 1.5" if name in ("FastAPI", "LitServe") else ""
            print(f"  {server} is {text(ratio)} times that{target}")


def test_frames_in_shared_memory(assets: Path, tmp_path: Path, claim: Callable[..., None]) -> None:
    """64 gRPC clients whose frames lie in shared memory, against `submit()` in process: for a GPU."""
    pytest.importorskip("tritonclient.grpc")
    from infersdk.image import read_image

    model = assets / "models" / "yolov5n.onnx"
    pixels = np.ascontiguousarray(read_image(assets / "images" / "bus.jpg").pixels[..., ::-1])
    table: dict[str, Any] = {"type": "yolov5", "path": str(model), "backend": BACKEND, "max_batch": 32}
    if DEVICE:
        table["device"] = DEVICE
    np.save(tmp_path / "frame.npy", pixels)
    with ExitStack() as stack:
        _, grpc = stack.enter_context(served({"detector": table}, tmp_path))
        submit = stack.enter_context(in_process(model, pixels))  # type: ignore[arg-type]

        def through_server() -> float:
            command = [sys.executable, "-P", "-c", SHARED_CLIENTS, str(grpc), str(tmp_path / "frame.npy"), str(SECONDS)]
            workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
            return sum(float(worker.communicate()[0]) for worker in workers)

        submit(), through_server()
        rates = [(through_server(), submit()) for _ in range(ROUNDS)]
    ratio = median_of_rounds([a / b for a, b in rates])
    claim("serve, shared memory, against submit()", ratio.value, low=ratio.low, high=ratio.high)
    own, other = (float(np.median([row[i] for row in rates])) for i in (0, 1))
    print(f"\nframes in shared memory: {own:.1f} images/s, submit() {other:.1f}: {text(ratio)}")


#: 16 clients in one event loop: prints frames a second.
SHARED_CLIENTS = """
import asyncio, sys, time, uuid
import numpy as np
import tritonclient.grpc.aio as triton
import tritonclient.utils.shared_memory as shm

async def main(port, path, seconds):
    frame = np.load(path)[None]
    name = uuid.uuid4().hex
    handle = shm.create_shared_memory_region(name, "/" + name, frame.nbytes)
    shm.set_shared_memory_region(handle, [frame])
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    await client.register_system_shared_memory(name, "/" + name, frame.nbytes)
    one = triton.InferInput("pixels", list(frame.shape), "UINT8")
    one.set_shared_memory(name, frame.nbytes)
    end, count = time.perf_counter() + seconds, 0
    async def ask():
        nonlocal count
        while time.perf_counter() < end:
            await client.infer("detector", [one])
            count += 1
    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(16)))
    print(count / (time.perf_counter() - started))
    await client.unregister_system_shared_memory(name)
    shm.destroy_shared_memory_region(handle)

asyncio.run(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
"""
