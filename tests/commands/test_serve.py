"""`infersdk serve` as a process, and what it asks of gRPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value

from infersdk.cli import main

pytest.importorskip("grpc")
pytest.importorskip("uvicorn")
NAME = "GRPC_EXPERIMENTS"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of a server of the model y = -x, over gRPC alone."""
    values = [value("x", ["batch", 4])], [value("y", ["batch", 4])]
    model = onnx_models.save(tmp_path / "negated.onnx", [node("Neg", "x", "y")], *values)
    table = {"type": "network", "path": str(model), "options": {"threads": 1}}
    path = tmp_path / "app.json"
    server = {"http_port": None, "grpc_port": 0, "access_log": False}
    path.write_text(json.dumps({"models": {"negated": table}, "server": server}))
    return path


@pytest.mark.parametrize("given", [None, "-tcp_rcv_lowat"])
def test_the_variable_of_grpc_is_set_unless_it_is_given(
    config: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    class Server:
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            found.append(os.environ[NAME])

        def run(self, listening: Any, *, owns_process: bool) -> None:
            assert owns_process

    monkeypatch.setattr("infersdk.serve.Server", Server)
    environment = {key: text for key, text in os.environ.items() if key != NAME}
    monkeypatch.setattr(os, "environ", environment if given is None else {**environment, NAME: given})
    assert main(["serve", str(config)]) == 0
    assert found == ["-event_engine_listener" if given is None else given]


def test_grpc_knows_the_variable_and_the_server_answers(config: Path) -> None:
    import tritonclient.grpc

    environment = {key: text for key, text in os.environ.items() if key not in (NAME, "GRPC_VERBOSITY")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "infersdk", "serve", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        port = int(lines[1].rsplit(":", 1)[1])
        x = tritonclient.grpc.InferInput("x", [2, 4], "FP32")
        x.set_data_from_numpy(np.ones((2, 4), np.float32))
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            np.testing.assert_array_equal(client.infer("negated", [x]).as_numpy("y"), np.full((2, 4), -1))
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    # Once gRPC has forgotten the experiment, it says so here: then the command need not name it any more.
    assert "experiment" not in err
