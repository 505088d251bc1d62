"""When a batch leaves, in simulated time: what the rule promises, whatever comes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from simulated_time import Simulation, h200_seconds

from infersdk.pipeline.scheduler import WINDOW, Callers

# ---- the callers ----


def _came(callers: Callers, in_pipeline: int) -> None:
    if in_pipeline > callers.peak:
        callers.peak_rises(in_pipeline)


def test_nothing_is_known_at_first() -> None:
    callers = Callers()
    _came(callers, 5)
    callers.batch_left()
    assert callers.expected is None


def test_waiting_in_vain_tells_how_many_there_are() -> None:
    callers = Callers()
    _came(callers, 3)
    callers.waited_in_vain(3)
    assert callers.expected == 3
    _came(callers, 4)  # one more than known
    assert callers.expected == 4
    callers.waited_in_vain(2)
    assert callers.expected == 2


def test_so_does_a_peak_that_lasts() -> None:
    callers = Callers()
    for _ in range(WINDOW):
        for in_pipeline in (6, 7, 8):
            _came(callers, in_pipeline)
        callers.batch_left()
    assert callers.expected == 8
    for _ in range(2 * WINDOW):  # three of them have gone
        _came(callers, 5)
        callers.batch_left()
    assert callers.expected == 5


# ---- the bound ----


@pytest.mark.parametrize("seed", range(12))
def test_no_request_waits_longer_than_max_delay_for_others(seed: int) -> None:
    """While the model is free; callers of all kinds, of which many come and go."""
    rng = random.Random(seed)
    max_delay = rng.choice([0.0, 0.5e-3, 2e-3, 20e-3])
    instances = rng.choice([(1, 1), (2, 2), (3, 1), (4, 1)])
    capacity = rng.choice([1, 4, 8, 32])
    sim = Simulation(
        rng.choice([0, 1, 3, 20, 70]), capacity=capacity, max_in_flight=instances[0], max_running=instances[1],
        max_delay=max_delay, host=rng.choice([5e-6, 50e-6]), lag=rng.choice([10e-6, 100e-6]),
        think=lambda: rng.choice([0.0, 1e-4, 5e-3]),
    )  # fmt: skip
    time = 0.0
    while time < 3.0:  # bursts and single ones, besides
        time += rng.expovariate(rng.choice([20, 500, 5000]))
        for _ in range(rng.choice([1, 1, 1, 7, 40])):
            sim.submit_at(time, comes_back=False)
    for part in range(30):
        sim.run(0.1)
        sim.callers = max(0, sim.callers + rng.randint(-5, 3)) if part % 3 == 0 else sim.callers
    sim.callers = 0
    sim.run(5.0)
    assert sim.statistics.in_pipeline == 0
    assert sim.statistics.done == sum(size for _, size in sim.batches)
    assert max(size for _, size in sim.batches) <= capacity
    assert sim.longest_wait <= max_delay + 1e-9


# ---- what it brings ----


def rates(callers: int, **kwargs: Any) -> tuple[float, float]:
    """Results per second without and with learning, once the first second has passed."""
    found = []
    for learns in (False, True):
        sim = Simulation(callers, learns=learns, **kwargs)
        sim.run(1.0)
        found.append(sim.run(1.0))
    return found[0], found[1]


@pytest.mark.parametrize("host", [10e-6, 40e-6, 80e-6, 120e-6])
@pytest.mark.parametrize("callers", [1, 2, 4, 8, 16, 32, 64, 128])
def test_callers_that_come_back_are_served_at_least_as_fast(callers: int, host: float) -> None:
    plain, learning = rates(callers, host=host)
    assert learning >= 0.995 * plain
    if callers <= 32:  # less than a batch
        assert learning > 1.15 * plain


@pytest.mark.parametrize("host", [10e-6, 40e-6, 80e-6, 120e-6])
@pytest.mark.parametrize("callers", [1, 2, 5, 10, 20, 40, 64, 90, 128])
def test_so_they_are_where_batches_are_padded(callers: int, host: float) -> None:
    """As on TensorRT-RTX: no batch is padded more than a full one of all callers would be."""
    plain, learning = rates(callers, host=host, sizes=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
    assert learning >= 0.99 * plain


@pytest.mark.parametrize("max_running", [1, 2])
@pytest.mark.parametrize("callers", [1, 2, 4, 8, 12, 24])
def test_so_they_are_where_a_batch_is_no_faster_than_its_requests(callers: int, max_running: int) -> None:
    """As on a processor."""
    plain, learning = rates(
        callers, capacity=8, max_in_flight=max_running, max_running=max_running, copy=0.0, lag=30e-6,
        max_delay=10e-3, seconds=lambda count: 0.002 + 0.01 * count,
    )  # fmt: skip
    assert learning >= 0.99 * plain


def test_one_caller_does_not_wait_for_others() -> None:
    sim = Simulation(1)
    sim.run(0.1)
    assert [size for _, size in sim.batches[:20]] == [1] * 20
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(sim.batches)]
    alone = h200_seconds(1) + 0.6e-3
    assert gaps[0] < alone  # the first wait comes before the first batch
    assert max(gaps) < alone
    assert sim.batches[0][0] > 2e-3


def test_callers_are_spread_so_that_one_batch_runs_while_another_comes_back() -> None:
    sim = Simulation(32, host=20e-6)
    sim.run(1.0)
    busy, start = sim.busy, sim.now
    sim.run(1.0)
    assert (sim.busy - busy) / (sim.now - start) > 0.99
    assert {size for _, size in sim.batches[-50:]} <= {15, 16, 17}


def test_callers_that_go_cost_one_wait() -> None:
    sim = Simulation(24)
    sim.run(1.0)
    sim.callers = 5
    sim.run(0.05)
    before = sim.now
    sim.run(0.2)
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(t for t in sim.batches if t[0] > before)]
    assert max(gaps) < 2e-3
    assert sim.statistics.in_pipeline <= 5


def test_random_arrivals_have_their_results_sooner() -> None:
    for load in (0.1, 0.5, 0.9):
        found = []
        for learns in (False, True):
            rng, sim, time = random.Random(1), Simulation(learns=learns), 0.0
            while time < 1.0:
                time += rng.expovariate(load * 32 / h200_seconds(32))
                sim.submit_at(time, comes_back=False)
            sim.run(2.0)
            found.append(sim.statistics.total.percentiles())
        plain, learning = found
        assert learning.mean < plain.mean
        assert learning.p99 <= 1.05 * plain.p99
