"""Top-k and softmax: against NumPy, and the same bits for every SIMD variant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_math import reference_exp
from simd_variants import VARIANTS, variant

from infersdk import errors
from infersdk.ops.classification import topk

F = np.float32


def reference_softmax(x: np.ndarray) -> np.ndarray:
    """Sixteen lanes, then a tree, as native/src/topk.c says."""
    e = reference_exp(x - x.max())
    padded = np.zeros(-(-len(e) // 16) * 16, F)
    padded[: len(e)] = e
    lanes = np.zeros(16, F)
    for row in padded.reshape(-1, 16):
        lanes = lanes + row
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.asarray(e / lanes[0])


def assert_same(scores: np.ndarray, k: int, softmax: bool) -> None:
    x = scores.astype(F)
    with np.errstate(under="ignore", invalid="ignore"):
        values = reference_softmax(x) if softmax else x
    order = np.argsort(-x, kind="stable")[:k]
    for simd in VARIANTS:
        with variant(simd):
            class_ids, best = topk(scores, k, softmax=softmax)
        assert (class_ids.dtype, best.dtype) == (np.int32, F)
        assert class_ids.tolist() == order.tolist()
        assert best.tobytes() == values[order].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("softmax", [False, True], ids=["raw", "softmax"])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 63, 64, 65, 1000, 2047, 2048, 2049, 4113, 21841])
def test_equals_the_reference(rng: np.random.Generator, n: int, softmax: bool, dtype: str) -> None:
    cases = [rng.normal(0, 3, n), np.round(rng.normal(0, 1, n)), np.sort(rng.normal(0, 5, n)), np.zeros(n)]
    cases.append(np.where(rng.random(n) < 0.5, -0.0, 0.0))
    cases.append(np.where(np.arange(n) % 3 == 0, rng.normal(0, 40, n), -np.inf))  # masked out
    for scores in cases:
        for k in {1, min(5, n), min(32, n), min(33, n), min(100, n), n}:
            assert_same(scores.astype(dtype), k, softmax)


def test_infinities_are_scores_like_others_without_softmax() -> None:
    assert_same(np.array([1, np.inf, -np.inf, np.inf, -3], F), 5, False)
    assert_same(np.full(200, -np.inf, F), 100, False)


@given(
    st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-200, 200, width=32)), min_size=1, max_size=90),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(max_examples=150)
def test_any_scores(scores: list[float], k: int, softmax: bool) -> None:
    assert_same(np.array(scores, F), k % len(scores) + 1, softmax)


def test_softmax_is_close_to_the_exact_one(rng: np.random.Generator) -> None:
    x = rng.normal(0, 4, 1000).astype(F)
    exact = np.exp(x.astype(np.float64) - x.max())
    exact /= exact.sum()
    class_ids, best = topk(x, 1000)
    np.testing.assert_allclose(best, exact[class_ids], rtol=3e-6)  # x - max is rounded to float32
    assert abs(float(best.sum(dtype=np.float64)) - 1) < 1e-6


def test_rows(rng: np.random.Generator) -> None:
    scores = rng.normal(0, 1, (7, 50)).astype(F)
    class_ids, best = topk(scores, 3)
    assert class_ids.shape == best.shape == (7, 3)
    for row in range(7):
        one = topk(scores[row], 3)
        assert one[0].tolist() == class_ids[row].tolist()
        assert one[1].tobytes() == best[row].tobytes()
    by_column = topk(scores.T, 3)  # not in C order
    assert by_column[0].tolist() == topk(scores.T.copy(), 3)[0].tolist()
    assert topk(np.zeros((0, 50), F), 3)[0].shape == (0, 3)


def test_checks_its_arguments() -> None:
    with pytest.raises(errors.DTypeError, match="float64"):
        topk(np.zeros(5))
    with pytest.raises(errors.DTypeError, match=">f4"):
        topk(np.zeros(5, ">f4"))
    with pytest.raises(errors.ShapeError, match=r"\(1, 2, 5\)"):
        topk(np.zeros((1, 2, 5), F))
    for k in (0, -1, 6):
        with pytest.raises(errors.InputError, match=f"k is {k}; with 5"):
            topk(np.zeros(5, F), k)
    with pytest.raises(errors.InputError, match="k is 5; with 0"):
        topk(np.zeros(0, F))
    for simd in VARIANTS:
        with variant(simd):
            for at in (0, 15, 16, 2999):
                scores = np.zeros(3000, F)
                scores[at] = np.nan
                with pytest.raises(errors.InputError, match=f"score {at} of 3000 is NaN"):
                    topk(scores)
            for scores in (np.array([0, np.inf], F), np.full(20, -np.inf, F)):
                with pytest.raises(errors.InputError, match="inf"):
                    topk(scores, 1)


def test_scores_that_are_not_aligned() -> None:
    """A core that is built with sanitizers reports each read of them."""
    scores = np.frombuffer(bytes(1) + np.arange(50, dtype=F).tobytes(), F, offset=1)
    assert topk(scores, 3, softmax=False)[1].tolist() == [49, 48, 47]
