"""What is read of the machine: memory, energy, and what else it does."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import time
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import numpy as np
import pytest

import infersdk
from infersdk.bench import energy, machine, nvidia
from infersdk.bench.energy import NOT_MEASURABLE, EnergyMeter, Watch, _rapl, open_meter
from infersdk.bench.machine import contention, counters, describe_machine, growth, peak_resident_bytes, resident_bytes
from infersdk.core.processors import available_processors

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux' /proc")


def test_the_description() -> None:
    found = describe_machine()
    assert found["processor"]
    assert found["cores"] == available_processors()
    assert found["system"].startswith(f"{platform.system()}-{platform.release()}-{platform.machine()}")
    assert found["memory_bytes"] > 2**28
    assert found["packages"]["numpy"] == np.__version__


def test_memory_goes_up_with_what_is_touched() -> None:
    block = mmap.mmap(-1, 64 << 20)  # not from the heap, which may have as much to spare
    before = resident_bytes()
    np.frombuffer(block, np.uint8)[:] = 1
    assert resident_bytes() - before > 60 << 20
    assert peak_resident_bytes() >= resident_bytes() - (1 << 20)
    del block


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_work_of_another_process_is_seen_and_our_own_is_not() -> None:
    other = multiprocessing.get_context("fork").Process(target=_spin, args=(0.6,))
    before = counters()
    other.start()
    time.sleep(0.5)
    seen = contention([growth(before)])
    other.kill()
    other.join()
    assert seen is not None
    share = 1 / (os.cpu_count() or 1)
    assert seen.others > 0.3 * share  # a whole processor, unless the machine is busy
    if seen.others > 0.05:
        assert seen.disturbed
    before, used = counters(), time.process_time()
    _spin(0.5)
    mine, used = contention([growth(before)]), time.process_time() - used
    # Our time is not in it, however little the machine gave us: with us on it, others cannot have filled it.
    assert mine.others <= 1 - 0.8 * used / mine.seconds * share + 0.02  # the kernel counts in ticks of 10 ms


@pytest.mark.parametrize(
    ("grown", "disturbed"),
    [
        ({"total": 100, "others": 5, "steal": 1, "delay": 0.5, "throttled": 0}, False),
        ({"total": 100, "others": 6, "steal": 0}, True), ({"total": 100, "others": 0, "steal": 2}, True),
        ({"throttled": 0.1}, True), ({}, False),
    ],
)  # fmt: skip
def test_what_counts_as_disturbed(grown: dict[str, float], disturbed: bool) -> None:
    found = contention([{"seconds": 1, **grown}])
    assert found is not None
    assert found.disturbed is disturbed


def test_contention_of_several_measurements() -> None:
    short = {"seconds": 1, "total": 10, "others": 1, "steal": 0, "delay": 0.5, "throttled": 0.1, "load": 2}
    long = {"seconds": 3, "total": 30, "others": 9, "steal": 2, "delay": 0.3, "throttled": 0.2, "load": 3}
    found = contention([short, long])
    assert found is not None
    assert (found.seconds, found.others, found.steal, found.load) == (4, 0.25, 0.05, 3)
    assert (found.run_delay, found.throttled) == (pytest.approx(0.2), pytest.approx(0.3))
    assert contention([]) is None


@pytest.mark.parametrize("line", ["throttled_usec 2500000", "throttled_time 2500000000"])
def test_throttling_is_that_of_the_innermost_group_with_a_limit(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    groups[2].mkdir(parents=True)
    for group, text in zip(groups, ("throttled_usec 1", line, "usage_usec 7"), strict=True):
        (group / "cpu.stat").write_text(f"nr_periods 3\n{text}\n")
    monkeypatch.setattr(machine, "control_groups", lambda: groups)
    assert counters()["throttled"] == 2.5


def powercap(folder: Path) -> Path:
    """As the kernel lays it out: two packages, one with a part of its own, and the memory controller."""
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:1": "package-1", "intel-rapl:2": "psys"}
    for zone, name in zones.items():
        (folder / zone).mkdir()
        for file, text in (("name", name), ("energy_uj", "1000000"), ("max_energy_range_uj", "5000000")):
            (folder / zone / file).write_text(text + "\n")
    return folder


def test_rapl_adds_up_packages_and_knows_that_counters_run_over(tmp_path: Path) -> None:
    meter = _rapl(powercap(tmp_path))
    assert meter.joules() == 0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("4000000")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("9000000")  # is in its package already
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500000")  # went over 5,000,000
    assert meter.joules() == pytest.approx(3 + 4.5)
    assert meter.joules() == pytest.approx(3 + 4.5)


def steps(watts: float, moves: Sequence[float], lost: float = float("inf")) -> EnergyMeter:
    """A counter of so many watts that moves at times that are not even, as drivers' do, and fails from `lost` on."""
    start = perf_counter()

    def joules() -> float:
        now = perf_counter() - start
        if now > lost:
            raise RuntimeError("GPU is lost")
        return watts * max((moment for moment in moves if moment <= now), default=0.0)

    return EnergyMeter("a counter", joules)


def test_power_is_that_between_two_steps_of_the_counter() -> None:
    # At its ends the counter would show 36 J for 0.55 s: 65 W, not 100.
    with Watch(steps(100, [0.1, 0.13, 0.36])) as watch:
        sleep(0.55)
    assert watch.watts == pytest.approx(100, rel=0.3)  # a look may come late on a busy machine
    with Watch(steps(100, [0.05])) as watch:
        sleep(0.15)
    assert watch.watts is None
    assert watch.source.endswith("did not move twice in a round")


def test_a_counter_that_fails_is_named() -> None:
    with Watch(steps(100, [0.01, 0.02, 0.03], lost=0.05)) as watch:
        sleep(0.15)
    assert watch.watts is None
    assert watch.source == f"{NOT_MEASURABLE}: a counter says GPU is lost"


def test_what_cannot_be_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_POWERCAP", tmp_path)
    meter, why = open_meter("cpu")
    assert meter is None
    assert why.startswith(f"{NOT_MEASURABLE}: no RAPL counters")
    meter, why = open_meter("npu:0")
    assert meter is None
    assert why.startswith(NOT_MEASURABLE)


def test_nvml_is_asked_for_where_it_is_missing() -> None:
    meter, why = open_meter("cuda:0")
    try:
        import pynvml  # noqa: F401
    except ImportError:
        assert (meter, why) == (None, f'{NOT_MEASURABLE}: NVML needs nvidia-ml-py: pip install "infersdk[bench]"')
    else:
        assert (meter is None) == bool(why)
    if not infersdk.device_count():
        assert meter is None
        assert why.startswith(f"{NOT_MEASURABLE}: NVML ")
        assert nvidia.process_bytes(0) is None
        assert nvidia.used_bytes(0) is None
        assert nvidia.free_share(0) == 1.0
        watch = nvidia.DeviceMemory(0)
        with watch:
            pass
        assert watch.peak is None
        with pytest.raises(OSError, match=r"libcuda|cuInit|cuDeviceGet"):
            nvidia.pci_address(0)


def test_device_memory_is_of_our_own_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU that does not tell memory by process: what others take and give between our steps is not ours."""
    used = 5000
    monkeypatch.setattr(nvidia, "used_bytes", lambda index: used)
    monkeypatch.setattr(nvidia, "process_bytes", lambda index: None)
    watch = nvidia.DeviceMemory(0)
    for taken, by_others in ((700, 3000), (200, -4000), (-300, 0)):
        with watch:
            used += taken
        used += by_others
    assert watch.peak == 900
    assert "more of the GPU was in use" in watch.source
    monkeypatch.setattr(nvidia, "process_bytes", lambda index: 850)  # the driver tells after all: that goes before
    with watch:
        pass
    assert watch.peak == 850
    assert watch.source.startswith("NVML: this process")
    monkeypatch.setattr(nvidia, "process_bytes", lambda index: None)
    with watch:
        pass
    assert watch.peak == 850
