"""What is remembered of a request that comes again."""

from __future__ import annotations

import gc
import weakref

from infersdk.serve.messages import KnownRows


class Endpoint:
    """What can be referred to weakly."""


def test_rows_are_those_of_one_endpoint() -> None:
    first, second, known = Endpoint(), Endpoint(), KnownRows()
    assert known.of(first) is None
    known.keep(first, ["a"], [1])
    assert known.of(first) == (["a"], [1])
    assert known.of(second) is None
    known.keep(second, ["b"], [2])
    assert known.of(first) is None
    assert known.of(second) == (["b"], [2])
    is_there = weakref.ref(second)
    del second
    gc.collect()
    assert is_there() is None
    assert known.of(first) is None
