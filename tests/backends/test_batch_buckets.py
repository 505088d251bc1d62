"""The batches that runtimes are spared a change of."""

from __future__ import annotations

from infersdk.backends._batch_buckets import BatchBuckets, next_size


def test_sizes_to_pad_to() -> None:
    assert sorted({next_size(n, 32) for n in range(1, 33)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert sorted({next_size(n, 20) for n in range(1, 21)}) == [1, 2, 3, 4, 6, 8, 12, 16, 20]
    for n in range(1, 101):
        assert n <= next_size(n, 100) <= min(100, -(-n * 3 // 2))


def test_a_steady_batch_grows_at_once_and_shrinks_after_a_while() -> None:
    steady = BatchBuckets(32)
    assert [steady.size_for(n) for n in (1, 5, 3, 20, 32, 1)] == [1, 6, 6, 24, 32, 32]
    # One run in a while that needs it keeps the size.
    for _ in range(5):
        assert {steady.size_for(1) for _ in range(steady.PATIENCE - 1)} == {32}
        assert steady.size_for(31) == 32
    sizes = [steady.size_for(3) for _ in range(3 * steady.PATIENCE)]
    changes = [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]
    assert changes in ([32, 3], [3])
    assert steady.size_for(4) == 4


def test_a_steady_batch_holds_what_it_is_asked_for() -> None:
    steady = BatchBuckets(20)
    for i in range(2000):
        n = 1 + i * i % 20 if i % 500 < 250 else 1 + i % 3
        assert n <= steady.size_for(n) <= 20
