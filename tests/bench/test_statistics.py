"""The statistics, on numbers whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from infersdk.bench.statistics import (
    KEPT,
    is_steady,
    median_of_rounds,
    outliers,
    percentile_of_rounds,
    ratio,
    thinned,
)


def test_the_median_and_its_interval() -> None:
    found = median_of_rounds([10, 12, 11, 30, 9])
    assert found.value == 11
    assert 9 <= found.low < 11 < found.high <= 30
    assert found.rounds == [10, 12, 11, 30, 9]
    assert median_of_rounds([10, 12, 11, 30, 9]) == found  # the same each time


@pytest.mark.parametrize("rounds", [[3.0], [3.0, 4.0], [3.0, 4.0, 5.0, 6.0]])
def test_with_too_few_rounds_there_is_no_interval(rounds: list[float]) -> None:
    found = median_of_rounds(rounds)
    assert found.value == np.median(rounds)
    assert found.low is found.high is None
    assert ratio(found, median_of_rounds([1.0, 2.0, 3.0, 4.0, 5.0])).low is None
    assert percentile_of_rounds([[value] * 100 for value in rounds], 90).low is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says(rng: np.random.Generator) -> None:
    hits, widths = 0, []
    for _ in range(400):
        found = median_of_rounds(rng.normal(100, 5, 9).tolist())
        hits += found.low <= 100 <= found.high
        widths.append(found.high - found.low)
    assert hits >= 362  # 0.95 of 400 is 380, with a standard deviation of 4.4
    assert np.mean(widths) < 14  # twice 2.45 times the standard error of such a median is 10


def test_percentiles_are_of_all_samples_together(rng: np.random.Generator) -> None:
    rounds = [rng.exponential(1, 400).tolist() for _ in range(5)]
    for q in (50, 90, 99):
        found = percentile_of_rounds(rounds, q)
        assert found.value == pytest.approx(np.percentile(np.concatenate(rounds), q))
        assert found.low <= found.value <= found.high
        assert found.rounds == pytest.approx([np.percentile(r, q) for r in rounds])


def test_a_percentile_with_nothing_beyond_it_is_not_told() -> None:
    assert percentile_of_rounds([[1.0] * 33, [2.0] * 33, [3.0] * 33], 99) is None
    assert percentile_of_rounds([[1.0] * 34, [2.0] * 33, [3.0] * 33], 99) is not None
    assert percentile_of_rounds([[1.0, 2.0, 3.0]], 90) is None
    assert percentile_of_rounds([[]], 50) is None
    found = percentile_of_rounds([[], [4.0, 4.0]], 50)  # a round without a request is left out
    assert found.value == 4


def test_ratio() -> None:
    found = ratio(median_of_rounds([20, 21, 22, 20, 21]), median_of_rounds([10, 10.5, 11, 10, 10.5]))
    assert found.value == pytest.approx(2)
    assert 1.8 < found.low <= 2 <= found.high < 2.3
    same = ratio(median_of_rounds([10, 11, 12, 10, 11]), median_of_rounds([11, 10, 12, 11, 10]))
    assert same.low < 1 < same.high or same.value == 1


def test_the_ratio_of_percentiles_is_in_its_interval(rng: np.random.Generator) -> None:
    """A single round with other load makes the 99th percentile of all requests, and not the ratio."""
    old = [10 + 0.1 * rng.random(400) for _ in range(9)]
    new = [1.02 * samples for samples in old]
    new[3] = new[3] * 4
    found = ratio(percentile_of_rounds(new, 99), percentile_of_rounds(old, 99))
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1.02, rel=0.01)


def test_outliers() -> None:
    assert outliers([10.0] * 50 + [10.5] * 50) == 0
    assert outliers([10.0, 10.1, 10.2, 10.3] * 25 + [30.0, 50.0]) == 2
    assert outliers([1.0, 2.0, 300.0]) == 0  # too few to tell


def test_thinning_keeps_percentiles(rng: np.random.Generator) -> None:
    samples = rng.exponential(1, 50_000).tolist()
    kept = thinned(samples, KEPT)
    assert len(kept) == KEPT
    for q in (50, 90, 99):
        assert np.percentile(kept, q) == pytest.approx(np.percentile(samples, q), rel=0.01)
    assert max(kept) == max(samples)
    assert thinned([3.0, 1.0], KEPT).tolist() == [3.0, 1.0]


def test_percentiles_of_thinned_rounds_are_of_all_requests() -> None:
    """One round of five met other load: its requests took longer, and were fewer."""
    rounds = [[1e-4] * 10_000] * 4 + [[5e-4] * 2000]
    for q in (50, 90, 99):
        found = percentile_of_rounds(rounds, q)
        assert found.value == pytest.approx(np.percentile(np.concatenate(rounds), q))
        assert found.rounds == pytest.approx([1e-4] * 4 + [5e-4])
    assert percentile_of_rounds([[1.0] * 90_000, [9.0] * 3], 99).value == 1


def test_percentiles_of_long_rounds_are_exact(rng: np.random.Generator) -> None:
    rounds = [rng.exponential(scale, count) for scale, count in ((1.0, 9000), (0.5, 12_000), (2.0, 300), (1.0, 5000))]
    for q in (50, 90, 99):
        assert percentile_of_rounds(rounds, q).value == np.percentile(np.concatenate(rounds), q)


def test_windows_of_a_warm_up() -> None:
    # A model that gets quicker as kernels are compiled, and then stays so.
    windows = [9.0, 5.0, 3.0, 2.1, 2.0, 2.05]
    assert [is_steady(windows[:count]) for count in range(1, 7)] == [False] * 5 + [True]
    assert not any(is_steady([1.2**i for i in range(count)]) for count in range(50))
