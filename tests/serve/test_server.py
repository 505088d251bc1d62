"""A server's end with its process."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from served_requests import ask, client_of, serving, simple_body

from infersdk.errors import ClosedError, ConfigError, OutOfMemoryError
from infersdk.serve import Server
from infersdk.serve.settings import ServerSettings

PROGRAM = """
    import json, sys, urllib.request
    from infersdk.serve import Server

    settings = {"http_port": 0, "grpc_port": 0, "access_log": False}
    server = Server({"models": json.loads(sys.argv[1]), "server": settings}).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/health/ready", timeout=30) as answer:
        print(answer.status, flush=True)
"""


def test_a_process_that_ends_stops_its_server(tables: dict[str, Any], tmp_path: Path) -> None:
    """Its thread does not go on while the interpreter is taken down."""
    program = textwrap.dedent(
        """
        import atexit, threading

        @atexit.register  # before the server's own, which therefore runs earlier
        def left():
            print([thread.name for thread in threading.enumerate() if thread.name == "infersdk-serve"], flush=True)
        """
    ) + textwrap.dedent(PROGRAM)  # fmt: skip
    command = [sys.executable, "-c", program, json.dumps({"simple": tables["simple"]})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "200\n[]\n", "")


def test_a_server_without_a_further_thread(tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    server = Server({"models": {"simple": tables["simple"]}, "server": {"http_port": 0}})
    with pytest.raises(OutOfMemoryError, match="the server: .*can't start new thread"):
        server.start()
    server.stop()


@pytest.mark.parametrize("name", ["servr", "Server", "camera"])
def test_a_table_that_it_does_not_read_is_refused(name: str, tables: dict[str, Any]) -> None:
    """Its API keys, for example, would not be asked for."""
    with pytest.raises(ConfigError, match=f"{name}.*a server reads models and server alone") as caught:
        Server({"models": {"simple": tables["simple"]}, name: {"api_keys": ["k" * 16]}})
    assert ("did you mean 'server'" in str(caught.value)) == (name != "camera")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, 1 << 63) for name in ("max_body", "max_decompressed", "max_bodies", "max_json", "max_elements")),
        *((name, 1 << 63) for name in ("max_connections", "max_header_bytes", "max_headers", "max_images")),
        *((name, 1e300) for name in ("read_timeout", "keep_alive", "drain", "default_deadline", "watch")),
        ("max_queue", 1 << 63), ("max_results", 1 << 63), ("read_timeout", float("inf")), ("max_body", 10**30),
    ],
)  # fmt: skip
def test_settings_beyond_all_reason_are_refused(setting: str, value: Any) -> None:
    """At the start, and not by a request."""
    with pytest.raises(ConfigError, match=setting):
        ServerSettings.of({setting: value})


@pytest.mark.parametrize("key", ["schlüssel", " long-enough", "long-enough\n", "long\tenough"])
def test_keys_that_not_all_clients_can_send_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="key 2 of api_keys"):
        ServerSettings.of({"api_keys": ["long enough", key]})


def test_a_server_runs_once(tables: dict[str, Any]) -> None:
    with serving({"simple": tables["simple"]}) as server:
        for start in (server.start, server.run):
            with pytest.raises(ClosedError, match="make a new Server"):
                start()
        assert ask(server.http_port, "/v2/health/ready").status == 200
    with pytest.raises(ClosedError, match="make a new Server"):
        server.start()


def test_the_largest_settings_serve(tables: dict[str, Any]) -> None:
    """Over both protocols."""
    settings = {
        "max_body": 1 << 30, "max_decompressed": 1 << 40,
        "max_bodies": 1 << 40, "max_json": 1 << 40, "max_elements": 1 << 31, "max_headers": 1 << 20,
        "max_header_bytes": 16 << 20, "max_connections": 1 << 20, "max_images": 1 << 20, "max_results": 1 << 20,
        "max_queue": 1 << 20, "read_timeout": 86_400, "keep_alive": 86_400, "drain": 86_400, "default_deadline": 86_400,
    }  # fmt: skip
    with serving({"simple": tables["simple"]}, **settings) as server:
        packed = gzip.compress(json.dumps(simple_body()).encode())
        path = "/v2/models/simple/infer"
        assert ask(server.http_port, path, packed, headers={"Content-Encoding": "gzip"}).status == 200
        with client_of(server, "grpc") as client:
            assert client.is_model_ready("simple")
