"""A process that ends while daemon threads run models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from onnx_models import node, save, value

SCRIPT = """
import sys, threading
import numpy as np, infersdk

def run(begun):
    infer = infersdk.load(sys.argv[1], sys.argv[2], threads=1)
    clone = infer.clone()
    while True:
        infer(x), clone(x)
        begun.set()

x = np.ones((1024, 1024), np.float32)
events = [threading.Event() for _ in range(2)]
for event in events:
    threading.Thread(target=run, args=[event], daemon=True).start()
for event in events:
    event.wait()
print("end")
"""


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_daemon_threads_that_run_models(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    x, y = (value(name, (1024, 1024)) for name in "xy")
    model = save(tmp_path / "product.onnx", [node("MatMul", "x x", "a"), node("MatMul", "a a", "y")], [x], [y])
    command = [sys.executable, "-c", SCRIPT, str(model), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    # ONNX Runtime reports that Wine has no DXGI.
    errors = [line for line in done.stderr.splitlines() if "DXGI" not in line]
    assert (done.returncode, done.stdout, errors) == (0, "end\n", [])
