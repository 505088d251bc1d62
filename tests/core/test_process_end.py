"""A process that ends while daemon threads run models, and while its exit handlers do."""

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


LAST_RUN = """
import atexit, sys
sys.path.insert(0, sys.argv[3])
import numpy as np, infersdk
from pathlib import Path

@atexit.register
def last_run():
    print(infer(np.full((1, 8), 9, "float32"))["y"].max())

from custom_operators import HSwish, swish_model
infer = infersdk.load(swish_model(Path(sys.argv[1]) / "m.onnx"), sys.argv[2], custom_ops=[HSwish])
"""


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_custom_operator_in_an_exit_handler(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    command = [sys.executable, "-c", LAST_RUN, str(tmp_path), backend, str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "9.0\n"


LAST_REQUESTS = """
import atexit, sys

def last_requests():
    try:
        print(infersdk.Pipeline(infer).submit(np.zeros(8, "float32")).result(30)["y"].max())
    except infersdk.errors.ClosedError as error:
        print(error)

if sys.argv[2] == "before":
    atexit.register(last_requests)
import numpy as np, infersdk
if sys.argv[2] == "after":
    atexit.register(last_requests)
infer = infersdk.load(sys.argv[1], "onnxruntime")
pipelines = [infersdk.Pipeline(infer) for _ in sys.argv[3:]]
"""


@pytest.mark.parametrize("others", [(), ("one",)])
@pytest.mark.parametrize(("registered", "expected"), [("after", "1.0\n"), ("before", "the process ends, and ")])
def test_a_pipeline_in_an_exit_handler(tmp_path: Path, registered: str, expected: str, others: tuple[str, ...]) -> None:
    pytest.importorskip("onnxruntime")
    model = save(tmp_path / "m.onnx", [node("Exp", "x", "y")], [value("x", ("n", 8))], [value("y", ("n", 8))])
    command = [sys.executable, "-c", LAST_REQUESTS, str(model), registered, *others]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(expected)
