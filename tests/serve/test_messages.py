"""What is remembered of a request that comes again."""

from __future__ import annotations

import gc

from infersdk.serve.messages import KnownRows


class Endpoint:
    """What can be referred to weakly."""


def test_rows_are_those_of_one_endpoint() -> None:
    first, second, known = Endpoint(), Endpoint(), KnownRows()
    assert not known.are_of(first)
    known.keep(first, ["a"], [1])
    assert known.are_of(first)
    assert not known.are_of(second)
    known.keep(second, ["b"], [2])
    assert not known.are_of(first)
    assert (known.names, known.items) == (["b"], [2])
    del second
    gc.collect()
    assert not known.are_of(first)
