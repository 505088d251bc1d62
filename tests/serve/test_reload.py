"""Models that are swapped under load, versions, changed files, and the end of a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node
from served_requests import PROTOCOLS, ask, client_of, inputs_of, triton
from waiting import in_a_loop, meanwhile, until

from infersdk import Pipeline
from infersdk.cli import main
from infersdk.errors import ClosedError, ConfigError, InferSDKError, ModelError
from infersdk.serve import Server
from infersdk.serve.errors import RequestError, Status
from infersdk.serve.repository import Repository, load_endpoint
from infersdk.serve.settings import ServerSettings


def times(path: Path, factor: float) -> Path:
    """y = x * factor."""
    weights = {"factor": np.float32(factor)}
    return onnx_models.save(path, [node("Mul", "x factor", "y")], "float[batch,4] x", "float[batch,4] y", weights)


def table(path: Path, **more: Any) -> dict[str, Any]:
    return {"type": "network", "path": str(path), "options": {"threads": 1}, "max_batch": 4, **more}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of one model, y = 2 x, in a file."""
    times(tmp_path / "model.onnx", 2)
    path = tmp_path / "app.json"
    server = {"http_port": 0, "grpc_port": 0, "access_log": False, "model_control": True, "drain": 10}
    path.write_text(json.dumps({"models": {"times": table(tmp_path / "model.onnx")}, "server": server}))
    return path


@pytest.fixture
def run(config: Path) -> Iterator[Callable[..., Any]]:
    """Starts servers, and ends them."""
    servers: list[Any] = []

    def start(**settings: Any) -> Any:
        servers.append(Server(config, **settings))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


def factor(server: Any, model: str = "times", version: str = "") -> float:
    """What a model multiplies by."""
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}
    where = f"/versions/{version}" if version else ""
    answer = ask(server.http_port, f"/v2/models/{model}{where}/infer", {"inputs": [entry]})
    assert answer.status == 200, answer.body
    return float(answer.json()["outputs"][0]["data"][0])


def replace(path: Path, new: float) -> None:
    """Puts another model in the place of one, in one step."""
    times(path.with_suffix(".new"), new)
    os.replace(path.with_suffix(".new"), path)


@pytest.mark.slow
def test_no_request_fails_over_many_swaps(run: Callable[..., Any], tmp_path: Path) -> None:
    server = run()
    ended, seen = threading.Event(), set[float]()
    counts = [0] * 4

    def ask_always(index: int) -> None:
        kind = PROTOCOLS[index % 2]
        with client_of(server, kind) as client:
            inputs = inputs_of(kind, {"x": np.ones((2, 4), np.float32)}, "FP32")
            while not ended.is_set():
                y = client.infer("times", inputs).as_numpy("y")
                assert (y == y[0, 0]).all()
                seen.add(float(y[0, 0]))
                counts[index] += 1

    with meanwhile(ask_always, range(4)):
        try:
            for swap in range(30):
                replace(tmp_path / "model.onnx", 3 + swap)
                assert ask(server.http_port, "/v2/repository/models/times/load", b"{}").status == 200
        finally:
            ended.set()
    assert min(counts) > 30
    assert len(seen) > 15
    assert factor(server) == 32
    # What was replaced is closed: no threads of old pipelines are left.
    until(lambda: sum("model.onnx" in thread.name for thread in threading.enumerate()) < 20)


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(run: Callable[..., Any], tmp_path: Path) -> None:
    server = run()
    (tmp_path / "model.onnx").write_bytes(b"no model")
    answer = ask(server.http_port, "/v2/repository/models/times/load", b"{}")
    assert answer.status == 400
    assert "failed to load 'times'" in answer.json()["error"]
    assert factor(server) == 2
    (row,) = ask(server.http_port, "/v2/repository/index", b"{}").json()
    assert row["state"] == "READY"
    assert "model.onnx" in row["reason"]


def test_versions(run: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    data = json.loads(config.read_text())
    last = 1795968412168000001  # a time in nanoseconds
    paths = {str(n): str(times(tmp_path / f"{n}.onnx", n % 100)) for n in (2, last, 9)}
    data["models"]["times"] = table(tmp_path / "x", versions={n: {"path": path} for n, path in paths.items()})
    config.write_text(json.dumps(data))
    server = run()
    assert factor(server) == 1
    assert [factor(server, version=n) for n in ("2", "9", str(last))] == [2, 9, 1]
    assert ask(server.http_port, "/v2/models/times").json()["versions"] == ["2", str(last), "9"]
    policy = ask(server.http_port, "/v2/models/times/config").json()["version_policy"]
    assert policy == {"latest": {"num_versions": 3}}
    assert len(ask(server.http_port, "/v2/models/times/stats").json()["model_stats"]) == 3
    answer = ask(server.http_port, "/v2/models/times/versions/3/infer", {"inputs": []})
    assert (answer.status, f"its versions are 2, {last}, 9" in answer.json()["error"]) == (404, True)


def test_a_changed_file_is_loaded(
    run: Callable[..., Any], config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = run(watch=0.05)
    replace(tmp_path / "model.onnx", 5)
    until(lambda: factor(server) == 5)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    until(lambda: server.repository.models["times"].reason != "")
    assert factor(server) == 5
    replace(tmp_path / "model.onnx", 6)
    until(lambda: factor(server) == 6)
    data = json.loads(config.read_text())
    data["models"] = {"other": table(times(tmp_path / "other.onnx", 7))}
    config.write_text(json.dumps(data))
    until(lambda: list(server.repository.models) == ["other"] and server.repository.ready)
    assert factor(server, "other") == 7
    assert ask(server.http_port, "/v2/models/times").status == 404
    config.write_text("{")
    time.sleep(0.2)
    assert factor(server, "other") == 7
    data["models"]["bad"] = table(tmp_path / "none.onnx")
    config.write_text(json.dumps(data))
    until(lambda: "none.onnx" in getattr(server.repository.models.get("bad"), "reason", ""))
    assert "serve on" not in caplog.text  # a new model has no previous versions


def test_a_changed_table_of_the_server_is_told(
    run: Callable[..., Any], config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = run(watch=0.02)
    data = json.loads(config.read_text())
    for limit in (5, 6):
        caplog.clear()
        data["server"]["max_queue"] = limit
        config.write_text(json.dumps(data))
        until(lambda: "the table server has changed; it takes effect after a restart" in caplog.text)
        time.sleep(0.1)  # some more checks
        assert caplog.text.count("takes effect after a restart") == 1
    data["server"]["max_quue"] = 7
    config.write_text(json.dumps(data))
    until(lambda: "the previous one stays in use: server: unknown field `max_quue`" in caplog.text)
    assert server.settings.max_queue is None
    assert server.repository.models["times"].loads == 1


def test_a_changed_file_of_an_unloaded_model_is_not_loaded(run: Callable[..., Any], tmp_path: Path) -> None:
    server = run(watch=0.02)
    models = "/v2/repository/models/times"
    assert ask(server.http_port, f"{models}/unload", {}).status == 200
    replace(tmp_path / "model.onnx", 5)
    time.sleep(0.3)
    assert ask(server.http_port, "/v2/models/times").status == 404
    assert ask(server.http_port, f"{models}/load", {}).status == 200
    assert factor(server) == 5


def test_requests_that_run_end_when_a_server_stops(run: Callable[..., Any]) -> None:
    server = run()
    answers: list[int] = []

    def ask_always() -> None:
        entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}
        while True:
            try:
                answers.append(ask(server.http_port, "/v2/models/times/infer", {"inputs": [entry]}).status)
            except OSError:  # nothing listens any more
                return

    with meanwhile(ask_always, [()] * 4):
        until(lambda: len(answers) > 50)
        server.stop()
    assert set(answers) == {200}


def test_what_cannot_be_started(config: Path, tmp_path: Path) -> None:
    def refused(kind: type[Exception], said: str, **settings: Any) -> None:
        with pytest.raises(kind, match=said):
            Server(config, **settings).start()

    refused(ConfigError, "server: .*unknown field `nonesuch`", nonesuch=1)
    refused(ConfigError, "server: TLS needs both", certificate="x.pem")
    refused(ConfigError, "server: http_port and grpc_port are both missing", http_port=None, grpc_port=None)
    refused(ConfigError, r"server: x\.pem cannot be read: No such file", certificate="x.pem", private_key="y.pem")
    with Server(config).start() as server:
        refused(ConfigError, f"cannot listen on 127.0.0.1:{server.http_port}", http_port=server.http_port)
        refused(ConfigError, f"cannot listen on 127.0.0.1:{server.grpc_port}", grpc_port=server.grpc_port)
    shutil.rmtree(tmp_path / "model.onnx", ignore_errors=True)
    (tmp_path / "model.onnx").unlink()
    refused(ModelError, r"model\.onnx")


@pytest.mark.posix
def test_the_command_ends_well_with_sigterm(config: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "infersdk", "serve", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0] == "times: loading\n"
        assert lines[1].startswith("times 1: onnxruntime, batches of up to 4, loaded in ")
        port = int(lines[2].rsplit(":", 1)[1])
        assert ask(port, "/v2/health/ready").status == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()


class GatedLoads:
    """What a repository loads is kept from it until a test opens the gate; `endpoints` are those that were loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.gate, self.endpoints = threading.Event(), threading.Event(), list[Any]()

        def load(*arguments: Any) -> Any:
            self.endpoints.append(load_endpoint(*arguments))
            self.begun.set()
            assert self.gate.wait(60)
            return self.endpoints[-1]

        monkeypatch.setattr("infersdk.serve.repository.load_endpoint", load)

    def are_closed(self) -> bool:
        return all(endpoint._network._closed for endpoint in self.endpoints)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedLoads]:
    """At the end of the test each is closed."""
    own = GatedLoads(monkeypatch)
    yield own
    own.gate.set()
    assert own.are_closed()


def repository_of(config: Path, drain: float = 1) -> Any:
    return Repository(config, ServerSettings(drain=drain))


@in_a_loop
async def test_a_model_that_waits_for_its_turn_is_unavailable(config: Path, tmp_path: Path, loads: GatedLoads) -> None:
    data = json.loads(config.read_text())
    data["models"]["later"] = table(tmp_path / "model.onnx")
    config.write_text(json.dumps(data))
    repository, lines = repository_of(config), list[str]()
    repository.report = lines.append
    loading = asyncio.ensure_future(repository.load_all())
    assert await asyncio.to_thread(loads.begun.wait, 60)
    assert not repository.ready
    for name in ("times", "later"):
        with pytest.raises(RequestError, match=f"'{name}' is not ready, its state is LOADING") as raised:
            repository.find(name)
        assert raised.value.status is Status.UNAVAILABLE
    with pytest.raises(RequestError, match="'other' is not found") as raised:
        repository.find("other")
    assert raised.value.status is Status.NOT_FOUND
    loads.gate.set()
    await loading
    assert repository.ready
    assert [line.split(",")[0] for line in lines] == [
        "times: loading", "times 1: onnxruntime", "later: loading", "later 1: onnxruntime",
    ]  # fmt: skip
    await repository.unload("later")
    with pytest.raises(RequestError, match="unloaded") as raised:
        repository.find("later")
    assert raised.value.status is Status.NOT_FOUND
    await repository.close()


@in_a_loop
async def test_old_versions_that_drain_take_no_threads_of_others(config: Path) -> None:
    repository = repository_of(config, drain=50)
    await repository.load_all()
    old = contextlib.ExitStack()
    for _ in range(40):
        (endpoint,) = repository.endpoints()
        old.enter_context(endpoint.in_use())
        await repository.load("times")
    started = time.monotonic()
    assert await asyncio.to_thread(int, 1) == 1
    assert time.monotonic() - started < 10
    names = {thread.name for thread in threading.enumerate()}
    assert len([name for name in names if name.startswith("infersdk-close")]) <= 4
    old.close()
    await repository.close()


@in_a_loop
async def test_all_that_drains_shares_one_time(config: Path) -> None:
    """However many threads there are for it."""
    repository = repository_of(config)  # its drain is 1 s
    await repository.load_all()
    with contextlib.ExitStack() as old:
        for _ in range(12):
            (endpoint,) = repository.endpoints()
            old.enter_context(endpoint.in_use())
            await repository.load("times")
        started = time.monotonic()
        await repository.close()
        assert time.monotonic() - started < 2.9


def fail(endpoint: Any) -> None:
    """Ends a pipeline of a model as a fault of its own would."""
    endpoint.pipeline._core.thread_failed(AssertionError("a fault"))


def test_a_model_whose_pipeline_has_failed_is_not_ready_and_is_loaded_again(
    run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = run()
    (endpoint,) = server.repository.endpoints()
    loads = server.repository.models["times"].loads
    fail(endpoint)
    assert endpoint.fault is not None
    entry = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 1, 1, 1]}
    statuses = [
        ask(server.http_port, path, *body).status
        for path, *body in (
            ("/v2/health/ready",), ("/v2/models/times/ready",), ("/v2/models/times/infer", {"inputs": [entry]}),
        )
    ]  # fmt: skip
    if server.repository.models["times"].loads == loads:  # else it has been loaded again meanwhile
        assert statuses == [400, 400, 503]
    until(lambda: server.repository.models["times"].loads > loads)
    assert factor(server) == 2
    assert ask(server.http_port, "/v2/health/ready").status == 200
    assert "model 'times' has failed, and is loaded again: a fault" in caplog.text


@in_a_loop
async def test_a_failed_model_that_cannot_be_loaded_is_unavailable(config: Path, tmp_path: Path) -> None:
    repository = repository_of(config)
    await repository.load_all()
    (endpoint,) = repository.endpoints()
    (tmp_path / "model.onnx").write_bytes(b"no model")
    fail(endpoint)
    looking = asyncio.ensure_future(repository.reload_failed())
    entry = repository.models["times"]
    while "model.onnx" not in entry.reason:
        await asyncio.sleep(0.05)
    assert (entry.state, repository.ready) == ("UNAVAILABLE", False)
    with pytest.raises(RequestError, match="model 'times' has failed, and is loaded again: a fault") as raised:
        repository.find("times")
    assert raised.value.status is Status.UNAVAILABLE
    looking.cancel()
    await repository.close()


@pytest.mark.parametrize("place", ["path", "names", "type", "version"])
def test_a_null_character_in_a_watched_configuration_is_refused(
    run: Callable[..., Any], config: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = run(watch=0.02)
    data = json.loads(config.read_text())
    if place == "version":
        data["models"]["times"]["versions"] = {"1": {"path": "a\0b"}}
    else:
        data["models"]["times"][place] = "a\0b"
    config.write_text(json.dumps(data))
    until(lambda: "has a null character" in caplog.text)
    time.sleep(0.1)  # some more checks
    assert caplog.text.count("has a null character") == 1
    assert factor(server) == 2
    data["models"] = {"other": table(times(config.parent / "other.onnx", 7))}
    config.write_text(json.dumps(data))
    until(lambda: list(server.repository.models) == ["other"] and server.repository.ready)
    assert factor(server, "other") == 7


@pytest.mark.posix  # Windows replaces no weights that are mapped
def test_weights_in_a_file_of_their_own_are_watched(run: Callable[..., Any], config: Path, tmp_path: Path) -> None:
    """They are replaced in place, too: what serves does not see that, and the new ones are loaded."""
    import onnx

    def write(new: float) -> None:
        times(tmp_path / "whole.onnx", new)
        model = onnx.load(str(tmp_path / "whole.onnx"))
        onnx.save(model, str(tmp_path / "apart.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)

    write(2)
    data = json.loads(config.read_text())
    data["models"]["times"]["path"] = str(tmp_path / "apart.onnx")
    config.write_text(json.dumps(data))
    unwatched, watched = run(), run(watch=0.05)
    with open(tmp_path / "w.bin", "r+b") as file:
        file.write(np.float32(5).tobytes())
    until(lambda: factor(watched) == 5)
    assert factor(unwatched) == 2
    os.truncate(tmp_path / "w.bin", 0)
    assert (factor(unwatched), factor(watched)) == (2, 5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pipeline": [1]}, "models.times.pipeline is a table, not \\[1\\]"),
        ({"bath": 1}, "models.times has no field 'bath'.*'path'"),
        ({"path": 5}, "models.times: a model is a path, .*not a int"),
        ({"options": {"backend": "openvino"}}, "models.times.options: 'backend' is not an option of the backend"),
        ({"options": {"custom_ops": [1]}}, "models.times.options: 'custom_ops' is not an option of the backend"),
        pytest.param({"path": "/dev/zero"}, "'/dev/zero' is not a regular file", marks=pytest.mark.posix),
    ],
)
def test_a_wrong_table_of_a_network(
    config: Path, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(config.read_text())
    data["models"]["times"] |= changes
    config.write_text(json.dumps(data))
    with pytest.raises(InferSDKError, match=said):
        Server(config).start()
    assert main(["serve", str(config)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@in_a_loop
async def test_a_load_goes_on_when_the_client_that_asked_has_gone(config: Path, loads: GatedLoads) -> None:
    repository = repository_of(config)
    asked = asyncio.ensure_future(repository.load("times"))
    assert await asyncio.to_thread(loads.begun.wait, 60)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    loads.gate.set()
    while repository.models["times"].state != "READY":
        await asyncio.sleep(0.01)
    assert list(repository.endpoints()) == loads.endpoints
    await repository.close()


@pytest.mark.parametrize("end", ["close", "remove"])
@in_a_loop
async def test_a_model_that_is_loaded_too_late_is_closed(config: Path, loads: GatedLoads, end: str) -> None:
    """The server ends meanwhile, or the configuration has lost it."""
    repository = repository_of(config)
    loading = asyncio.ensure_future(repository.load_all())
    assert await asyncio.to_thread(loads.begun.wait, 60)
    if end == "close":
        loading.cancel()
        closing = asyncio.ensure_future(repository.close())
        await asyncio.sleep(0.1)
        loads.gate.set()
        await closing
    else:
        await repository.remove("times")
        loads.gate.set()
        with pytest.raises(ConfigError, match="'times' was taken out of the configuration while it was loaded"):
            await loading
        await repository.close()
    assert len(loads.endpoints) == 1


@in_a_loop
async def test_a_model_that_is_unloaded_while_it_is_loaded_stays_unloaded(config: Path, loads: GatedLoads) -> None:
    data = json.loads(config.read_text())
    data["models"]["later"] = data["models"]["times"]
    config.write_text(json.dumps(data))
    repository = repository_of(config)
    loading = asyncio.ensure_future(repository.load_all())
    assert await asyncio.to_thread(loads.begun.wait, 60)
    for name in ("times", "later"):
        await repository.unload(name)
    loads.gate.set()
    await loading
    assert {(entry.state, entry.reason) for entry in repository.models.values()} == {("UNAVAILABLE", "unloaded")}
    assert repository.ready
    await repository.load("later")
    assert [endpoint.name for endpoint in repository.endpoints()] == ["later"]
    await repository.close()


@in_a_loop
async def test_the_end_of_the_server_ends_a_warm_up(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up, begun, gate = Pipeline.warm_up, threading.Event(), threading.Event()

    def gated(pipeline: Pipeline[Any], *arguments: Any) -> None:
        begun.set()
        assert gate.wait(60)
        warm_up(pipeline, *arguments)

    monkeypatch.setattr(Pipeline, "warm_up", gated)
    repository = repository_of(config)
    loading = asyncio.ensure_future(repository.load_all())
    assert await asyncio.to_thread(begun.wait, 60)
    closing = asyncio.ensure_future(repository.close())
    await asyncio.sleep(0.1)
    gate.set()
    with pytest.raises(ClosedError, match="the server stops"):
        await loading
    await closing


@pytest.mark.parametrize("protocols", [("http", "grpc"), ("grpc",), ("http",)])
def test_a_pair_of_files_that_is_no_certificate(config: Path, tmp_path: Path, protocols: tuple[str, ...]) -> None:
    (tmp_path / "x.pem").write_text("neither")
    ports = {f"{name}_port": 0 if name in protocols else None for name in ("http", "grpc")}
    with pytest.raises(
        ConfigError, match=r"x\.pem cannot be used: .*a pair of PEM files, and the key has no passphrase"
    ):
        Server(config, certificate=str(tmp_path / "x.pem"), private_key=str(tmp_path / "x.pem"), **ports)


def test_an_ipv6_address(run: Callable[..., Any]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    server = run(host="::1")
    assert server.settings.address(80) == "[::1]:80"
    assert triton("grpc").InferenceServerClient(f"[::1]:{server.grpc_port}").is_server_ready()
    with urllib.request.urlopen(f"http://[::1]:{server.http_port}/v2/health/ready", timeout=30) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("version", ["01", "٣", "-1", "1" * 20])
def test_an_entry_that_is_no_table_or_has_no_number(version: str) -> None:
    with pytest.raises(ConfigError, match=r"^models\.times is a table, not 3"):
        Server({"models": {"times": 3}}).start()
    with pytest.raises(ConfigError, match=f"up to 19 digits, without leading zeros, and has a table, not '{version}'"):
        Server({"models": {"times": {"versions": {version: {}}}}}).start()
    with pytest.raises(ConfigError, match="other than 'stats'"):
        Server({"models": {"stats": {}}}).start()
