"""What a custom operator costs: yolov5n with its SiLUs as custom nodes, against the runtime's own operators.

Run: `pytest benchmarks/bench_custom_ops.py -s` (the test data of INFERSDK_ASSETS; a C compiler). All contenders run in
turns, many short turns of a few runs each, and the figures are medians of the ratios within a turn. Each contender is
checked to give the same output before it is timed.

  - unfused: the same graph with the runtime's own Sigmoid and Mul, which it is kept from fusing;
  - C: the SiLUs are nodes of one custom operator with a kernel in C, on the runtime's threads;
  - Python: the same with a kernel of NumPy, on a small model, for the cost of a node.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import infersdk
from infersdk.custom_ops import CSource, CustomOp

if TYPE_CHECKING:
    import onnx_ir as ir

pytest.importorskip("onnx")

DOMAIN = "benchmarks"
TURNS, RUNS = 150, 1

#: exp by 2^n times a polynomial; within 2 units in the last place where it matters here.
C_CODE = r"""
#include "infersdk_custom_op.h"
#include <string.h>

#define PART 16384

static inline float fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = x * 1.44269504f;
    n = (float)(int)(n + (n < 0 ? -0.5f : 0.5f));
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int i; float f; } scale = {((int)n + 127) << 23};
    return p * scale.f;
}

typedef struct job { const float *x; float *y; int64_t count; } job;

static void part(void *arg, size_t item) {
    const job *j = arg;
    int64_t start = (int64_t)item * PART, stop = start + PART < j->count ? start + PART : j->count;
    const float *restrict x = j->x;
    float *restrict y = j->y;
    for (int64_t i = start; i < stop; i++)
        y[i] = x[i] / (1.0f + fast_exp(-x[i]));
}

int32_t silu(const ifs_op_call *call) {
    job j = {call->inputs[0].data, call->outputs[0].data, ifs_op_count(&call->inputs[0])};
    call->parallel_for(call, part, &j, (size_t)((j.count + PART - 1) / PART));
    return 0;
}
"""


class SiLU(CustomOp):
    """x * sigmoid(x)"""

    domain = DOMAIN
    inputs = {"x": "float32"}  # noqa: RUF012
    outputs = {"y": "float32"}  # noqa: RUF012
    cpu = CSource(C_CODE, "silu", options=("-O3", "-march=native", "-ffast-math"))

    def shape(self, x: Any) -> Any:
        return x


def with_custom_silus(source: Path, target: Path) -> int:
    """Each `x * Sigmoid(x)` as one custom node; returns how many there are."""
    import onnx_ir as ir

    from infersdk.graph.files import read_model, write_model

    model, count = read_model(source), 0
    for node in list(model.graph):
        if node.op_type != "Mul" or node.graph is None:
            continue
        pair = _silu_of(node)
        if pair is None:
            continue
        x, sigmoid = pair
        made = ir.node("SiLU", [x], domain=DOMAIN, num_outputs=1, name=f"silu{count}")
        ir.convenience.replace_nodes_and_values(model.graph, node, [node, sigmoid], [made], node.outputs, made.outputs)
        count += 1
    model.graph.opset_imports[DOMAIN] = 1
    write_model(model, target)
    return count


def _silu_of(node: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """The x and the Sigmoid of a Mul that is x * Sigmoid(x)."""
    one, other = node.inputs
    for x, y in ((one, other), (other, one)):
        maker = y.producer() if y is not None else None
        if x is not None and maker is not None and maker.op_type == "Sigmoid" and maker.inputs[0] is x:
            return x, maker
    return None


def in_turns(contenders: dict[str, Callable[[], Any]], turns: int = TURNS, runs: int = RUNS) -> dict[str, list[float]]:
    """Seconds a run of each contender, turn by turn; the order changes from turn to turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(turns + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            for _ in range(runs):
                contenders[name]()
            if turn >= 2:
                seconds[name].append((time.perf_counter() - start) / runs)
    return seconds


def ratio(seconds: dict[str, list[float]], of: str, to: str) -> tuple[float, float, float]:
    """The median of the ratios within the turns, and the quartiles."""
    ratios = sorted(a / b for a, b in zip(seconds[of], seconds[to], strict=True))
    return statistics.median(ratios), ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]


@pytest.fixture(scope="module")
def models(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any, int]:
    plain = assets / "models" / "yolov5n.onnx"
    custom = tmp_path_factory.mktemp("silu") / "yolov5n-silu.onnx"
    count = with_custom_silus(plain, custom)
    return plain, custom, np.random.default_rng(0).random((1, 3, 640, 640), dtype="float32"), count


def test_onnxruntime(models: tuple[Path, Path, Any, int], claim: Callable[..., None]) -> None:
    ort = pytest.importorskip("onnxruntime")
    plain, custom, x, count = models
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    # What would make one operator of Sigmoid and Mul, or of a convolution with them.
    fusions = ["QuickGeluFusion", "ConvActivationFusion"]
    unfused = ort.InferenceSession(str(plain), quiet, providers=["CPUExecutionProvider"], disabled_optimizers=fusions)
    whole = ort.InferenceSession(str(plain), quiet, providers=["CPUExecutionProvider"])
    with infersdk.load(custom, "onnxruntime", custom_ops=[SiLU]) as infer:
        infer.inputs["images"].resize(x.shape).numpy(writable=True)[...] = x
        want = unfused.run(None, {"images": x})[0]
        np.testing.assert_allclose(infer.forward()["output0"].numpy(), want, rtol=2e-3, atol=2e-2)
        feeds = {"images": x}
        seconds = in_turns(
            {"C": infer.forward, "unfused": lambda: unfused.run(None, feeds), "whole": lambda: whole.run(None, feeds)}
        )
    middle, low, high = ratio(seconds, "C", "unfused")
    print(f"\nONNX Runtime, {count} SiLUs: C kernel {1e3 * statistics.median(seconds['C']):.1f} ms, unfused "
          f"{1e3 * statistics.median(seconds['unfused']):.1f} ms, ratio {middle:.3f} ({low:.3f} to {high:.3f}); with "
          f"all its fusions {1e3 * statistics.median(seconds['whole']):.1f} ms")  # fmt: skip
    claim("yolov5n's SiLUs as custom nodes in C, ONNX Runtime, time", middle, low=low, high=high)


def test_openvino(models: tuple[Path, Path, Any, int], claim: Callable[..., None]) -> None:
    pytest.importorskip("openvino")
    plain, custom, x, count = models
    with (
        infersdk.load(plain, "openvino") as own,
        infersdk.load(custom, "openvino", custom_ops=[SiLU]) as infer,
    ):
        for one in (own, infer):
            one.inputs["images"].resize(x.shape).numpy(writable=True)[...] = x
        want = own.forward()["output0"].numpy()
        np.testing.assert_allclose(infer.forward()["output0"].numpy(), want, rtol=2e-3, atol=2e-2)
        seconds = in_turns({"C": infer.forward, "whole": own.forward})
    extra = statistics.median(a - b for a, b in zip(seconds["C"], seconds["whole"], strict=True)) / count
    middle, low, high = ratio(seconds, "C", "whole")
    print(f"\nOpenVINO, {count} SiLUs: C kernel {1e3 * statistics.median(seconds['C']):.1f} ms, its own (fused) "
          f"{1e3 * statistics.median(seconds['whole']):.1f} ms, ratio {middle:.3f} ({low:.3f} to {high:.3f}), "
          f"{1e6 * extra:.0f} us a node")  # fmt: skip
    claim("SiLUs as custom nodes in C, OpenVINO (fused), time", middle, low=low, high=high)


class InPython(SiLU):
    """The same by NumPy."""

    name = "SiLU"

    def cpu(self, x: Any, y: Any) -> None:
        np.divide(x, 1 + np.exp(-x), out=y)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_node_alone(backend: str, tmp_path: Path) -> None:
    """The cost of a call: a chain of nodes over a few numbers, by its length."""
    pytest.importorskip(backend)
    from onnx import TensorProto, helper, save

    def chain(length: int, op: type[CustomOp]) -> Any:
        names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
        nodes = [helper.make_node("SiLU", [a], [b], domain=DOMAIN) for a, b in itertools.pairwise(names)]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in ("x", "y")]
        graph = helper.make_graph(nodes, "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        path = tmp_path / f"{op.__name__}{length}.onnx"
        save(model, path)
        return infersdk.load(path, backend, custom_ops=[op])

    for op, kind in ((SiLU, "C"), (InPython, "Python")):
        with chain(1, op) as short, chain(21, op) as long:
            seconds = in_turns({"short": short.forward, "long": long.forward}, runs=50)
        node = statistics.median(b - a for a, b in zip(seconds["short"], seconds["long"], strict=True)) / 20
        print(f"\n{backend}, kernel in {kind}: {1e6 * node:.1f} us a node")
