"""What the interface costs: `Infer.forward()` and `infer(x)` against ONNX Runtime called by hand, and the import.

    pytest benchmarks/bench_infer.py -q

The model is one addition over four numbers, so that all that is timed is the way into the runtime and back. Baselines:
a session with I/O binding over a NumPy array's own memory, bound once, as one writes it for speed; and `session.run()`,
as most write it. The session settings are the same.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import infersdk

if TYPE_CHECKING:
    from pathlib import Path

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

#: At most so much may `forward()` take beyond the binding by hand, and `import infersdk`, in seconds.
FORWARD_BUDGET = 10e-6
IMPORT_BUDGET = 20e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = ["batch", 4]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    path = tmp_path_factory.mktemp("infer") / "double.onnx"
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture(scope="module")
def infer(model: Path) -> Any:
    with infersdk.load(model, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def session(model: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


class ByHand:
    """I/O binding over arrays that stay where they are."""

    def __init__(self, session: Any) -> None:
        self.x, self.y = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
        self.session, self.binding = session, session.io_binding()
        self.binding.bind_input("x", "cpu", 0, np.float32, self.x.shape, self.x.ctypes.data)
        self.binding.bind_output("y", "cpu", 0, np.float32, self.y.shape, self.y.ctypes.data)

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)


X = np.ones((1, 4), np.float32)


@pytest.mark.benchmark(group="one run, tensors bound")
def test_forward(benchmark: Any, infer: Any) -> None:
    infer.inputs["x"].resize((1, 4)).numpy(writable=True)[:] = X
    benchmark(infer.forward)
    assert (infer.outputs["y"].numpy() == 2).all()


@pytest.mark.benchmark(group="one run, tensors bound")
def test_binding_by_hand(benchmark: Any, session: Any) -> None:
    run = ByHand(session)
    benchmark(run)
    assert (run.y == 2).all()


@pytest.mark.benchmark(group="one run, an array in and arrays out")
def test_call(benchmark: Any, infer: Any) -> None:
    assert (benchmark(infer, X)["y"] == 2).all()


@pytest.mark.benchmark(group="one run, an array in and arrays out")
def test_session_run(benchmark: Any, session: Any) -> None:
    assert (benchmark(session.run, None, {"x": X})[0] == 2).all()


@pytest.mark.benchmark(group="a NumPy view of a tensor")
def test_numpy_view(benchmark: Any, infer: Any) -> None:
    benchmark(infer.inputs["x"].numpy)


def test_forward_stays_within_its_budget(infer: Any, session: Any) -> None:
    """Both in small rounds that alternate, and the best round of each: what else the machine does falls on both."""
    ours, theirs, rounds = infer.forward, ByHand(session), 200
    infer.inputs["x"].resize((1, 4)).numpy(writable=True)[:] = X
    best = [float("inf"), float("inf")]
    for _ in range(60):
        for which, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            for _ in range(rounds):
                run()
            best[which] = min(best[which], (time.perf_counter() - start) / rounds)
    print(
        f"\nforward {best[0] * 1e6:.1f} us, by hand {best[1] * 1e6:.1f} us, difference {(best[0] - best[1]) * 1e6:.1f}"
    )
    assert best[0] - best[1] <= FORWARD_BUDGET


def processor_time() -> float:
    """What the processes that were waited for have used: a machine that is busy with other things adds little to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_import_stays_within_its_budget(tmp_path: Path) -> None:
    """Processor time of `import infersdk` beyond a bare interpreter, the best of several; and what takes longest."""
    # With byte code at hand, as where the package was installed.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    programs = {"infersdk": "import infersdk", "numpy": "import numpy", "nothing": "pass"}
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(10):
        for name, program in programs.items():
            start = processor_time()
            subprocess.run([sys.executable, "-P", "-c", program], check=True, env=environment)
            best[name] = min(best[name], processor_time() - start)
    command = [sys.executable, "-P", "-X", "importtime", "-c", "import infersdk"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr
    entries = [(int(own), name) for own, name in re.findall(r"(\d+) \| +\d+ \| +(.+)", text)]
    report = "\n".join(f"{own / 1e3:8.1f} ms  {name}" for own, name in sorted(entries, reverse=True)[:12])
    took, numpy = best["infersdk"] - best["nothing"], best["numpy"] - best["nothing"]
    print(
        f"\nimport infersdk {took * 1e3:.0f} ms; numpy, which comes with the first use, {numpy * 1e3:.0f} ms\n{report}"
    )
    assert took <= IMPORT_BUDGET
