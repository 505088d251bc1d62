"""The parts of calibration: thresholds side by side with ONNX Runtime's calibrator, passes over an activation, memory.

Run: `pytest -s benchmarks/bench_calibration.py` (pytest-benchmark; the test data of INFERSDK_ASSETS). Thresholds are
searched in the same 60 histograms. For memory there is a process with 20 images and one with 500, and the peak of each.
Whole quantisers are compared by `bench_quant.py`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from infersdk import quant

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pytest_benchmark")
pytest.importorskip("onnxruntime")

TENSORS, BINS = 60, 4096


@pytest.fixture(scope="module")
def histograms() -> list[quant.Histogram]:
    """Like those of a network's activations: normal and Laplace distributions, rectified or not, with outliers."""
    rng = np.random.default_rng(0)
    result = []
    for i in range(TENSORS):
        values = (rng.normal if i % 2 else rng.laplace)(size=200_000).astype(np.float32)
        if i % 3 == 0:
            values = np.maximum(values, 0)
        values[: i % 7] *= 5
        result.append(quant.Histogram(2 * BINS))
        result[-1].update(values)
    return result


# ---- thresholds ----


@pytest.mark.benchmark(group=f"entropy thresholds of {TENSORS} tensors")
def test_thresholds(benchmark: Any, histograms: list[quant.Histogram]) -> None:
    benchmark(lambda: [h.entropy() for h in histograms])


@pytest.mark.benchmark(group=f"entropy thresholds of {TENSORS} tensors")
def test_thresholds_plain_c(benchmark: Any, histograms: list[quant.Histogram]) -> None:
    result = benchmark.pedantic(
        lambda: [quant.entropy_threshold(h.magnitudes(), plain=True) for h in histograms], rounds=1
    )
    assert result == [quant.entropy_threshold(h.magnitudes()) for h in histograms]


@pytest.mark.benchmark(group=f"entropy thresholds of {TENSORS} tensors")
def test_thresholds_onnxruntime(benchmark: Any, histograms: list[quant.Histogram]) -> None:
    from onnxruntime.quantization.calibrate import HistogramCollector

    collector = HistogramCollector("entropy", True, 2 * BINS, 128, 99.999, "same")
    for i, h in enumerate(histograms):
        edges = h.edges.astype(np.float32)
        collector.histogram_dict[str(i)] = (h.counts, edges, -h.limit, h.limit, h.limit)
    result = benchmark.pedantic(collector.compute_entropy, rounds=1)
    assert len(result) == TENSORS


# ---- one pass over an activation ----


@pytest.fixture(scope="module")
def activation() -> np.ndarray[Any, Any]:
    """32 channels of 320 x 320 after a ReLU: half of it is 0."""
    return np.maximum(np.random.default_rng(1).normal(size=(1, 32, 320, 320)), 0).astype(np.float32)


@pytest.mark.benchmark(group="histogram of 3.3 million values")
@pytest.mark.parametrize("simd", ["none", "avx2", "avx512"])
def test_histogram(benchmark: Any, activation: np.ndarray[Any, Any], simd: str) -> None:
    from infersdk._lib import lib

    before = lib.ifs_simd()
    if lib.ifs_set_simd({"none": 0, "avx2": 2, "avx512": 3}[simd]):
        pytest.skip(f"no {simd} here")
    histogram, peak = quant.Histogram(), float(activation.max())
    benchmark(lambda: histogram.update(activation, peak))
    lib.ifs_set_simd(before)


@pytest.mark.benchmark(group="histogram of 3.3 million values")
def test_histogram_numpy(benchmark: Any, activation: np.ndarray[Any, Any]) -> None:
    peak = float(activation.max())
    benchmark(lambda: np.histogram(np.abs(activation), BINS, (0, peak)))


@pytest.mark.benchmark(group="range of 3.3 million values")
@pytest.mark.parametrize("contender", ["ours", "numpy"])
def test_range(benchmark: Any, activation: np.ndarray[Any, Any], contender: str) -> None:
    result = quant.ChannelRanges(32)
    if contender == "ours":
        benchmark(result.update, activation)
    else:
        axes = (0, 2, 3)
        benchmark(
            lambda: (activation.min(axes), activation.max(axes), activation.mean(axes), np.isfinite(activation).all())
        )


# ---- memory ----

_PEAK = """
import sys, resource
from pathlib import Path
from infersdk import quant
from infersdk.models import Classifier
assets, count = Path(sys.argv[1]), int(sys.argv[2])
path = assets / "models" / "squeezenet1.1.onnx"
files = sorted((assets / "coco" / "val").glob("*.jpg")) + sorted((assets / "imagenet").glob("*.JPEG"))
with Classifier(path, preset="caffe") as model:
    table = quant.calibrate(path, quant.ImageInputs(model, [files[i % len(files)] for i in range(count)]))
assert table.samples == count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def test_memory_does_not_grow(assets: Path) -> None:
    peaks = []
    for count in (20, 500):
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PEAK, str(assets), str(count)], check=True, capture_output=True, text=True
        )
        peaks.append(float(done.stdout))
    print(f"peak: {peaks[0]:.0f} MB for 20 images, {peaks[1]:.0f} MB for 500")
    assert peaks[1] < peaks[0] + 200
