"""Measuring and tuning on an NVIDIA GPU: what only one can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

import infersdk
from infersdk.bench import BenchSettings, Report, bench, combine
from infersdk.bench import nvidia as driver
from infersdk.bench.candidates import candidates
from infersdk.bench.energy import open_meter
from infersdk.bench.page import html_report
from infersdk.bench.plan import usable_backends
from infersdk.bench.tune import tune
from infersdk.bench.tuned_file import tuned_toml
from infersdk.data import DETECTOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),  # its benchmarks run in the fixture, beside other tests
]
pytest.importorskip("tensorrt_rtx_bindings")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

RTX = "tensorrt-rtx"
QUICK = BenchSettings(time=1.5, rounds=3, warmup=2.0)


@pytest.fixture(scope="module")
def report() -> Report:
    return bench(combine([DETECTOR], [RTX, f"{RTX}/fp16"], batches=[4]), QUICK)


def test_each_way_and_measure(report: Report) -> None:
    for row in report.rows:
        assert row.status == "ok", row.reason
        assert (row.ran["device"], row.ran["kind"]) == ("cuda:0", "yolov5")
        assert row.scenarios.keys() == {"engine", "engine_parallel", "multi_stream", "offline"}
        engine, single = row.scenarios["engine"], row.scenarios["multi_stream"]
        assert engine.latency_ms["p50"] is not None
        assert single.latency_ms["p50"] is not None
        # A call is the engine and what is around it: what is not waited for would be quicker than the engine alone.
        assert single.latency_ms["p50"].value > 0.9 * engine.latency_ms["p50"].value
        assert row.stages_ms.keys() == {"engine", "around the engine"}
        assert sum(row.stages_ms.values()) == pytest.approx(single.latency_ms["p50"].value, rel=0.3)
        # What a pipeline serves goes through the engine, however many run side by side.
        most = max(engine.throughput.value, row.scenarios["engine_parallel"].throughput.value)
        assert row.scenarios["offline"].throughput.value < 1.3 * most
        assert row.accuracy.value > 0.99


def test_the_second_load_compiles_nothing(report: Report) -> None:
    for row in report.rows:
        loading = row.loading
        assert loading.cached_seconds is not None
        assert loading.cold_first_run_seconds is not None
        cold = loading.cold_seconds + loading.cold_first_run_seconds
        assert loading.cached_seconds + loading.cached_first_run_seconds < cold


def test_device_memory_and_its_source(report: Report) -> None:
    pytest.importorskip("vl_convert")
    for row in report.rows:
        assert row.memory.device_peak_bytes is not None, row.memory.device_source
        assert 1 << 20 < row.memory.device_peak_bytes < 4 << 30
        assert row.memory.device_source
    assert f"<td>{report.rows[0].memory.device_peak_bytes / 1e6:,.0f}</td>" in html_report(report)  # type: ignore[union-attr, operator]


def test_nvml_means_the_same_gpu_as_cuda() -> None:
    pytest.importorskip("pynvml")
    for index in range(infersdk.device_count()):
        nvml, handle = driver.nvml_handle(index)
        name = nvml.nvmlDeviceGetName(handle)
        info = infersdk.device_info(f"cuda:{index}")
        assert (name.decode() if isinstance(name, bytes) else name) == info["name"]
        before = driver.used_bytes(index)
        block = infersdk.Tensor((1 << 30,), "uint8", f"cuda:{index}")
        block.device_ptr(read=False, write=True)
        after = driver.used_bytes(index)
        block.close()
        assert after is not None
        assert after - before > 700 << 20


def test_energy_is_counted_or_its_lack_explained(report: Report) -> None:
    meter, why = open_meter("cuda:0")
    for row in report.rows:
        if meter is None:
            assert row.energy.source == why
        elif row.energy.images_per_joule is not None:
            assert row.energy.scenario == "offline"
            # Between 5 W and 2 kW: the counter is of this GPU, and in millijoules.
            watts = row.scenarios["offline"].throughput.value / row.energy.images_per_joule.value
            assert 5 < watts < 2000
        else:
            assert "did not move twice" in row.energy.source


def test_device_memory_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container where the driver tells nothing of processes."""
    monkeypatch.setattr(driver, "process_bytes", lambda index: None)
    for nvml in (True, False):
        if not nvml:
            monkeypatch.setattr(driver, "used_bytes", lambda index: None)
        watch = driver.DeviceMemory(0)
        with watch:
            block = infersdk.Tensor((1 << 30,), "uint8", "cuda:0")
            block.device_ptr(read=False, write=True)
        block.close()
        assert watch.peak is not None
        assert watch.peak == pytest.approx(1 << 30, rel=0.3)


def test_the_winner_of_a_search_loads_from_its_file(tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(DETECTOR.read_bytes())
    search = candidates([model], [RTX], objective="latency", precisions=[None, "fp16"])
    assert any(what.options.get("half_io") for what in search)
    found = tune(search, objective="latency", budget=60)
    assert not found.failed
    text = tuned_toml(found, BenchSettings(), tmp_path / "tuned.toml")
    (tmp_path / "tuned.toml").write_text(text)
    table = msgspec.toml.decode(text)["models"]["digits"]
    with infersdk.load(tmp_path / "tuned.toml") as infer:
        assert (infer.backend, infer.device) == (RTX, "cuda:0")
        for name, value in table.get("options", {}).items():
            assert getattr(infer.options, name) == value
    made = infersdk.models.create(tmp_path / "tuned.toml")["digits"]
    assert made.submit(np.zeros((64, 64, 3), np.uint8)).result(60) is not None
    made.close()


def test_the_gpu_is_among_the_default_sides() -> None:
    assert RTX in usable_backends()
