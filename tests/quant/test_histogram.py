"""Ranges, histograms and thresholds: the native core against NumPy, every SIMD variant against the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.quant import ChannelRanges, Histogram, entropy_threshold
from infersdk.quant.ranges import tensor_range


def expand(raw: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], levels: int) -> np.ndarray[Any, Any]:
    """The expansion written out: bin k belongs to level floor(k levels / n)."""
    n = len(raw)
    out = np.zeros(n)
    level = np.arange(n) * levels // n
    for j in range(levels):
        inside = level == j
        filled = inside & (reference > 0)
        if filled.any():
            out[filled] = raw[inside].sum() / filled.sum()
    return out


def divergences(counts: np.ndarray[Any, Any], levels: int) -> np.ndarray[Any, Any]:
    """KL(P || Q) for each candidate, as the paper has it; infinity for those with fewer than two filled bins."""
    found = np.full(len(counts), np.inf)
    for n in range(levels, len(counts)):
        if np.count_nonzero(counts[:n]) < 2:
            continue
        p = counts[:n].astype(float)
        p[-1] += counts[n:].sum()
        q = expand(counts[:n].astype(float), p, levels)
        if (q[p > 0] > 0).all():
            p, q = p / p.sum(), q / q.sum()
            found[n] = np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))
    return found


def shapes(rng: np.random.Generator, bins: int) -> dict[str, np.ndarray[Any, Any]]:
    """Histograms like those of activations, and odd ones."""
    edges = np.linspace(0, 1, bins + 1)

    def of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.histogram(np.abs(values) / np.abs(values).max(), edges)[0]

    sparse = np.zeros(bins, np.int64)
    sparse[rng.choice(bins, 12, replace=False)] = rng.integers(1, 50, 12)
    relu = of(np.maximum(rng.normal(size=20_000), 0))
    return {
        "normal": of(rng.normal(size=20_000)), "laplace": of(rng.laplace(size=20_000)),
        "outlier": of(np.append(rng.normal(size=20_000), 40)), "uniform": of(rng.random(20_000)), "relu": relu,
        "sparse": sparse, "few": rng.integers(0, 2, bins),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["normal", "laplace", "outlier", "uniform", "relu", "sparse", "few"])
@pytest.mark.parametrize(("bins", "levels"), [(300, 128), (257, 16), (64, 7)])
def test_threshold_is_that_of_numpy_and_of_the_plain_reference(
    kind: str, bins: int, levels: int, rng: np.random.Generator
) -> None:
    counts = shapes(rng, bins)[kind]
    expected = divergences(counts, levels)
    best, divergence = entropy_threshold(counts, levels)
    assert (best, divergence) == entropy_threshold(counts, levels, plain=True)
    if np.isfinite(expected).any():
        assert expected[best] == pytest.approx(expected.min(), abs=1e-12)
        assert divergence == pytest.approx(expected.min(), abs=1e-12)
    else:
        assert best == bins


@pytest.mark.parametrize("kind", ["normal", "laplace", "outlier", "relu", "sparse"])
def test_full_size_thresholds_are_those_of_the_plain_reference(kind: str, rng: np.random.Generator) -> None:
    counts = shapes(rng, 2048)[kind]
    assert entropy_threshold(counts) == entropy_threshold(counts, plain=True)


def test_zeros_do_not_take_part() -> None:
    values = np.random.default_rng(2).normal(size=100_000).astype(np.float32)
    without, rectified = Histogram(), Histogram()
    without.update(values)
    rectified.update(np.append(values, np.zeros(300_000, np.float32)))
    assert rectified.entropy() < without.entropy()
    assert rectified.entropy(zeros=300_000) == without.entropy()


def test_where_nothing_may_be_cut_off() -> None:
    counts = np.zeros(2048, np.int64)
    counts[-1] = 5  # each candidate would put all of it where nothing was
    assert entropy_threshold(counts) == (2048, 0.0)
    histogram = Histogram()
    histogram.update(np.full(9, 2.0, np.float32))
    assert histogram.entropy() == 2.0


@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_are_all_far_from_zero_are_not_clipped_to_the_smallest(sign: int, rng: np.random.Generator) -> None:
    histogram = Histogram()
    histogram.update((sign * rng.uniform(1, 2, 50_000)).astype(np.float32))
    assert histogram.entropy() > 1.9


@pytest.mark.parametrize(
    ("counts", "words"),
    [(np.zeros(2048), "empty"), (np.array([1, -2, 3]), "-2"), (np.ones(1), "1 bins"), (np.ones(128), "128 bins")],
)
def test_histograms_that_have_no_threshold(counts: np.ndarray[Any, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        entropy_threshold(counts, 2 if len(counts) == 3 else 128)


# ---- ranges and histograms ----


@pytest.mark.parametrize("size", [0, 1, 7, 15, 16, 17, 63, 1000, 4099])
def test_ranges(simd: int, size: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=size).astype(np.float32)
    values[1::3] = 0
    found = ChannelRanges()
    for part in np.array_split(values, 3):
        found.update(part)
    assert (found.count, found.nonfinite, found.zeros) == (size, 0, int((values == 0).sum()))
    assert (found.min, found.max) == ((float(values.min()), float(values.max())) if size else (0, 0))
    assert found.absmax == (float(np.abs(values).max()) if size else 0)
    assert found.channel_mean == pytest.approx([values.mean(dtype=np.float64) if size else 0], abs=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_ranges_of_channels(simd: int, axis: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 5, 4, 37)).astype(np.float32)
    found = ChannelRanges(values.shape[axis], axis)
    for _ in range(2):
        found.update(values)
    others = tuple(i for i in range(4) if i != axis % 4)
    assert (found.min, found.max) == (values.min(), values.max())
    np.testing.assert_allclose(found.channel_mean, values.mean(others, dtype=np.float64), atol=1e-12)
    with pytest.raises(errors.InputError, match=r"shape \(2, 9\) does not have"):
        found.update(np.zeros((2, 9), np.float32))


def test_sums_do_not_depend_on_the_instructions(rng: np.random.Generator) -> None:
    values = (rng.normal(size=5003) * 1e3).astype(np.float32)
    found = set()
    for simd in VARIANTS:
        with variant(simd):
            ranges = ChannelRanges()
            ranges.update(values)
            found.add(float(ranges.channel_mean[0]))
    assert len(found) == 1


def test_ranges_leave_out_what_is_not_finite(simd: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=999).astype(np.float32)
    values[[0, 500, 998]] = [np.nan, np.inf, -np.inf]
    found = ChannelRanges()
    found.update(np.full(3, np.nan, np.float32))
    assert (found.min, found.max, found.nonfinite, found.count) == (0, 0, 3, 3)
    found.update(values)
    assert found.nonfinite == 6
    finite = values[np.isfinite(values)]
    assert (found.min, found.max) == (float(finite.min()), float(finite.max()))
    assert found.channel_mean == pytest.approx([finite.mean(dtype=np.float64)])
    zero = ChannelRanges()
    zero.update(np.array([-0.0, 0.0] * 20, np.float32))
    assert (str(zero.min), str(zero.max)) == ("0.0", "0.0")


@pytest.mark.parametrize("size", [0, 1, 3, 15, 16, 33, 5001])
@pytest.mark.parametrize("bins", [4, 64, 8192])
def test_histograms(simd: int, size: int, bins: int, rng: np.random.Generator) -> None:
    values = (rng.normal(size=size) * 3).astype(np.float32)
    values[::5] = 0
    values[3::17] = np.nan
    values[4::31] = -np.inf
    found = Histogram(bins)
    for part in np.array_split(values, 2):
        found.update(part)
    finite = values[np.isfinite(values)].astype(np.float64)
    at = np.clip(np.floor(finite / found.width) + bins // 2, 0, bins - 1).astype(np.int64)
    np.testing.assert_array_equal(found.counts, np.bincount(at, minlength=bins))
    if finite.any():
        assert found.limit / 2 < np.abs(finite).max() <= found.limit


def test_a_histogram_that_grows_is_that_of_the_larger_limit(simd: int, rng: np.random.Generator) -> None:
    parts = [(rng.normal(size=3000) * scale).astype(np.float32) for scale in (0.01, 1, 0.1, 300)]
    grown, whole = Histogram(256), Histogram(256)
    for part in parts:
        grown.update(part)
    whole.update(np.concatenate(parts))
    assert grown.limit == whole.limit
    np.testing.assert_array_equal(grown.counts, whole.counts)


def test_extreme_values(simd: int) -> None:
    largest = np.finfo(np.float32).max
    found = Histogram(4)
    found.update(np.array([1.0, 0.999, 1e-45, -0.25], np.float32), absmax=1.0)
    assert found.counts.tolist() == [0, 1, 1, 2]
    found.update(np.array([largest, -largest], np.float32))
    assert found.limit == 2.0**127
    assert found.counts.tolist() == [1, 1, 3, 1]
    whole = ChannelRanges()
    whole.update(np.array([largest, -largest], np.float32))
    assert (whole.min, whole.max) == (-largest, largest)


@pytest.mark.parametrize("bins", [0, 2, 3, 1000])
def test_histograms_that_cannot_grow(bins: int) -> None:
    with pytest.raises(errors.InputError, match="must be a power of two"):
        Histogram(bins)


def test_other_types_are_refused() -> None:
    with pytest.raises(errors.DTypeError, match="float64"):
        ChannelRanges().update(np.zeros(3))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_range_of_an_activation_that_is_almost_always_zero(sign: int) -> None:
    values, histogram, ranges = np.zeros(9999, np.float32), Histogram(), ChannelRanges()
    values[7] = sign
    ranges.update(values)
    histogram.update(values)
    found = tensor_range("percentile", ranges, histogram, percentile=99)
    assert found.threshold == found.high - found.low == histogram.width
    assert max(sign * found.low, sign * found.high) == histogram.width


def test_percentiles() -> None:
    histogram = Histogram(32)
    histogram.update(np.arange(-15.5, 16, 1).astype(np.float32))  # one a bin, from -16 to 16
    assert histogram.limit == 16
    assert histogram.percentile(100) == (-16, 16)
    assert histogram.percentile(95) == (-15, 15)  # 1.6 of 32 beyond on each side
    assert histogram.percentile(90) == (-13, 13)
    assert histogram.magnitude_percentile(100) == 16
    assert histogram.magnitude_percentile(50) == 8
    for wrong in (0, -1, 100.1, float("nan")):
        with pytest.raises(errors.InputError, match="percentile"):
            histogram.percentile(wrong)
    with pytest.raises(errors.InputError, match="empty"):
        Histogram().percentile(50)
