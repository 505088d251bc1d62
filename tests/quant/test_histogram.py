"""Ranges, histograms and thresholds: the native core against NumPy, every SIMD variant against the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infersdk import errors
from infersdk._lib import check, lib
from infersdk.quant import Histogram, Range, entropy_threshold, quantize_expand

VARIANTS = {"none": 0, "avx2": 2, "avx512": 3}


@pytest.fixture(params=VARIANTS)
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each variant that runs here."""
    before = lib.ifs_simd()
    if lib.ifs_set_simd(VARIANTS[request.param]) != 0:
        pytest.skip(f"no {request.param} here")
    yield request.param
    check(lib.ifs_set_simd(before))


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
    """KL(P || Q) for each candidate, as the paper has it."""
    found = np.full(len(counts), np.inf)
    for n in range(levels, len(counts)):
        p = counts[:n].astype(float)
        p[-1] += counts[n:].sum()
        q = expand(counts[:n].astype(float), p, levels)
        if (q[p > 0] > 0).all():
            p, q = p / p.sum(), q / q.sum()
            found[n] = np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))
    return found


def test_the_worked_example() -> None:
    assert quantize_expand([1, 0, 2, 3, 5, 3, 1, 7], 2).tolist() == [2, 0, 2, 2, 4, 4, 4, 4]


@pytest.mark.parametrize(("bins", "levels"), [(8, 3), (17, 4), (129, 128), (255, 128), (7, 7), (1, 1)])
def test_expansion_keeps_sums_and_empty_bins(bins: int, levels: int, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 4, bins).astype(float)
    found = quantize_expand(counts, levels)
    np.testing.assert_allclose(found, expand(counts, counts, levels))
    assert found.sum() == pytest.approx(counts.sum())
    assert not found[counts == 0].any()


@pytest.mark.parametrize("bad", [[1, -1, 2], [1, np.nan, 2], [np.inf, 1, 2]])
def test_expansion_refuses_what_is_no_count(bad: list[float]) -> None:
    with pytest.raises(errors.InputError, match="a count must be finite and not negative"):
        quantize_expand(bad, 2)
    with pytest.raises(errors.InputError, match="3 bins in 4 levels"):
        quantize_expand([1, 2, 3], 4)


def shapes(rng: np.random.Generator, bins: int) -> dict[str, np.ndarray[Any, Any]]:
    """Histograms like those of activations, and odd ones."""
    edges = np.linspace(0, 1, bins + 1)

    def of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.histogram(np.abs(values) / np.abs(values).max(), edges)[0]

    sparse = np.zeros(bins, np.int64)
    sparse[rng.choice(bins, 12, replace=False)] = rng.integers(1, 50, 12)
    relu = of(np.maximum(rng.normal(size=20_000), 0))
    return {
        "normal": of(rng.normal(size=20_000)),
        "laplace": of(rng.laplace(size=20_000)),
        "outlier": of(np.append(rng.normal(size=20_000), 40)),
        "uniform": of(rng.random(20_000)),
        "relu": relu,
        "sparse": sparse,
        "few": rng.integers(0, 2, bins),
    }


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


def test_an_outlier_is_cut_off() -> None:
    # Half a normal distribution over a quarter of the bins, and one value far out: it costs less than coarser steps.
    values = np.random.default_rng(1).normal(size=200_000).astype(np.float32)
    values[0] = 4 * np.abs(values).max()
    histogram = Histogram(float(np.abs(values).max()))
    histogram.update(values)
    assert 0.1 * histogram.absmax < histogram.entropy() < 0.3 * histogram.absmax


def test_zeros_do_not_take_part() -> None:
    values = np.random.default_rng(2).normal(size=100_000).astype(np.float32)
    without, rectified = (Histogram(float(np.abs(values).max())) for _ in range(2))
    without.update(values)
    rectified.update(np.append(values, np.zeros(300_000, np.float32)))
    assert rectified.entropy() < without.entropy()
    assert rectified.entropy(zeros=300_000) == without.entropy()


def test_where_nothing_may_be_cut_off() -> None:
    counts = np.zeros(2048, np.int64)
    counts[-1] = 5  # each candidate would put all of it where nothing was
    assert entropy_threshold(counts) == (2048, 0.0)
    histogram = Histogram(2.0)
    histogram.update(np.full(9, 2.0, np.float32))
    assert histogram.entropy() == 2.0


@pytest.mark.parametrize(
    ("counts", "words"),
    [(np.zeros(2048), "empty"), (np.array([1, -2, 3]), "-2"), (np.ones(1), "1 bins"), (np.ones(128), "128 bins")],
)
def test_histograms_that_have_no_threshold(counts: np.ndarray[Any, Any], words: str) -> None:
    with pytest.raises(errors.InputError, match=words):
        entropy_threshold(counts, 2 if len(counts) == 3 else 128)


# ---- ranges and histograms ----


@pytest.mark.parametrize("size", [0, 1, 7, 15, 16, 17, 63, 1000, 4099])
def test_ranges(simd: str, size: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=size).astype(np.float32)
    values[1::3] = 0
    found = Range()
    for part in np.array_split(values, 3):
        found.update(part)
    assert (found.count, found.nonfinite, found.zeros) == (size, 0, int((values == 0).sum()))
    assert (found.min, found.max) == ((float(values.min()), float(values.max())) if size else (0, 0))
    assert found.absmax == (float(np.abs(values).max()) if size else 0)


def test_ranges_leave_out_what_is_not_finite(simd: str, rng: np.random.Generator) -> None:
    values = rng.normal(size=999).astype(np.float32)
    values[[0, 500, 998]] = [np.nan, np.inf, -np.inf]
    found = Range()
    found.update(np.full(3, np.nan, np.float32))
    assert (found.min, found.max, found.nonfinite, found.count) == (0, 0, 3, 3)
    found.update(values)
    assert found.nonfinite == 6
    finite = values[np.isfinite(values)]
    assert (found.min, found.max) == (float(finite.min()), float(finite.max()))
    zero = Range()
    zero.update(np.array([-0.0, 0.0] * 20, np.float32))
    assert (str(zero.min), str(zero.max)) == ("0.0", "0.0")


@pytest.mark.parametrize("size", [0, 1, 3, 15, 16, 33, 5001])
@pytest.mark.parametrize("bins", [1, 7, 2048])
def test_histograms(simd: str, size: int, bins: int, rng: np.random.Generator) -> None:
    values = (rng.normal(size=size) * 3).astype(np.float32)
    values[::5] = 0
    values[3::17] = np.nan
    values[4::31] = -np.inf
    absmax = np.float32(4.5)
    found = Histogram(float(absmax), bins)
    for part in np.array_split(values, 2):
        found.update(part)
    finite = np.abs(values[np.isfinite(values)])
    at = np.minimum(finite * (np.float32(bins) / absmax), np.float32(bins - 1)).astype(np.int64)
    np.testing.assert_array_equal(found.counts, np.bincount(at, minlength=bins))
    assert found.nonfinite == size - len(finite)
    assert found.counts.sum() == len(finite)


def test_extreme_values(simd: str) -> None:
    largest = np.finfo(np.float32).max
    found = Histogram(1.0, 4)
    found.update(np.array([largest, -largest, 1.0, 0.999, 1e-45], np.float32))
    assert found.counts.tolist() == [1, 0, 0, 4]
    whole = Range()
    whole.update(np.array([largest, -largest], np.float32))
    assert (whole.min, whole.max) == (-largest, largest)


@pytest.mark.parametrize("absmax", [0.0, -1.0, float("nan"), float("inf"), 1e-40])
def test_histograms_that_cannot_be(absmax: float) -> None:
    with pytest.raises(errors.InputError, match="absmax is"):
        Histogram(absmax)


def test_other_types_are_refused() -> None:
    with pytest.raises(errors.DTypeError, match="float64"):
        Range().update(np.zeros(3))


def test_percentiles() -> None:
    histogram = Histogram(10.0, 10)
    histogram.update(np.arange(0.5, 10, 1).astype(np.float32))  # one a bin
    assert [histogram.percentile(p) for p in (5, 10, 11, 50, 90, 99, 100)] == [1, 1, 2, 5, 9, 10, 10]
    for wrong in (0, -1, 100.1, float("nan")):
        with pytest.raises(errors.InputError, match="percentile"):
            histogram.percentile(wrong)
    with pytest.raises(errors.InputError, match="empty"):
        Histogram(1.0).percentile(50)
