"""Do the layers of `infersdk layers` add up to what `infersdk bench` measures, and what does the profiler cost?

Run: `pytest benchmarks/bench_layers.py -s` (the test data of INFERSDK_ASSETS). For each model and backend, five times
in one process: a report, with the sum of the layers and a run without the profiler, between two measurements of bench's
scenario `engine`. These two differ as the machine changes its pace, so bench's figure for that report lies between
them. The claim, for each report: the sum is within 10 % of bench's figure, or the report says what the difference
consists of.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from rounds import Spread

import infersdk
import infersdk.layers
from infersdk.backends import _cuda
from infersdk.bench.plan import BenchSettings, Combination
from infersdk.bench.scenarios import Scenarios
from infersdk.bench.workload import Workload
from infersdk.layers import ProfileSettings

MODELS = ("yolov5n", "yolov8n", "yolox_nano", "squeezenet1.1")
ROUNDS = 5


def bench_seconds(model: str, target: str) -> float:
    """The median run of bench's scenario `engine`, on arrays."""
    settings = BenchSettings(type="arrays", scenarios=["engine"])
    parsed = infersdk.Target.parse(target)
    combination = Combination(model=model, target=parsed, batch=1)
    infer = infersdk.load(model, **parsed.arguments, max_batch=1)
    scenarios = Scenarios(Workload(infer, combination, settings, infersdk.load), settings)
    try:
        scenarios.warm_up("engine", 0.3, 5.0)
        return statistics.median(scenarios.run("engine", 1.0).latencies)
    finally:
        scenarios.close()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", MODELS)
def test_totals(assets: Path, name: str, backend: str) -> None:
    compare(assets, name, backend)


@pytest.mark.gpu
@pytest.mark.skipif(_cuda.device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("backend", ["tensorrt-rtx", "tensorrt-rtx/fp16", "onnxruntime@cuda:0"])
@pytest.mark.parametrize("name", ["yolov8n", "squeezenet1.1"])
def test_totals_on_a_gpu(assets: Path, name: str, backend: str) -> None:
    compare(assets, name, backend)


def compare(assets: Path, name: str, backend: str) -> None:
    model = str(assets / "models" / f"{name}.onnx")
    benched, sides = [bench_seconds(model, backend)], []
    for _ in range(ROUNDS):
        settings = ProfileSettings(batch=1, runs=max(30, round(1 / benched[-1])), warm_up=10)  # a second, as of bench
        (side,) = infersdk.layers.profile(model, backend, settings).sides
        assert side.run_seconds is not None
        assert side.profiled_seconds is not None
        sides.append(side)
        benched.append(bench_seconds(model, backend))
        print(
            f"{name} on {backend}: bench {benched[-1] * 1e3:.3f} ms, run {side.run_seconds * 1e3:.3f}, profiled "
            f"{side.profiled_seconds * 1e3:.3f}, layers {side.layer_seconds * 1e3:.3f}: {side.explanation()}"
        )
    ratios = [2 * side.layer_seconds / sum(pair) for side, pair in zip(sides, pairwise(benched), strict=True)]
    costs = [side.profiled_seconds / side.run_seconds for side in sides]
    print(f"{name} on {backend}: layers/bench {Spread.of(ratios):.3f}, profiled/plain {Spread.of(costs):.3f}")
    for side, pair in zip(sides, pairwise(benched), strict=True):
        agrees = 0.9 * min(pair) <= side.layer_seconds <= 1.1 * max(pair)
        assert agrees or side.is_explained, f"bench measures {pair} s, and the report says: {side.explanation()}"
