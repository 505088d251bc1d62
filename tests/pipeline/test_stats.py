"""Percentiles out of buckets, against those of the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from infersdk.pipeline.stats import BOUNDS, Durations


def test_percentiles_are_near_the_truth(rng: np.random.Generator) -> None:
    values = rng.lognormal(-6, 1.5, 20_000)
    durations = Durations()
    durations.add(*values[:10_000].tolist())
    for value in values[10_000:]:
        durations.add(float(value))
    found = durations.percentiles()
    for q, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value == pytest.approx(np.percentile(values, q), rel=0.05)
    assert found.count == len(values)
    assert found.mean == pytest.approx(values.mean())
    assert found.max == values.max()


def test_the_ends() -> None:
    empty = Durations().percentiles()
    assert (empty.count, empty.mean, empty.p99, empty.max) == (0, 0, 0, 0)
    durations = Durations()
    durations.add(0.0)
    assert durations.percentiles().p50 == 0
    durations.add(1e6, 1e6, 1e6)
    assert durations.percentiles().p99 == pytest.approx(BOUNDS[-1], rel=0.1)  # above the last bucket
    assert durations.percentiles().max == 1e6
    assert durations.percentiles().mean == pytest.approx(750_000)
