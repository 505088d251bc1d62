"""`infersdk serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value

pytest.importorskip("grpc")
pytest.importorskip("uvicorn")


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


def test_the_server_answers(config: Path) -> None:
    import tritonclient.grpc

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "infersdk", "serve", str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("gRPC: "))
        port = int(line.rsplit(":", 1)[1])
        x = tritonclient.grpc.InferInput("x", [2, 4], "FP32")
        x.set_data_from_numpy(np.ones((2, 4), np.float32))
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            np.testing.assert_array_equal(client.infer("negated", [x]).as_numpy("y"), np.full((2, 4), -1))
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
