"""Literals in metadata, read by many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from infersdk.models.names import python_literal


def test_many_threads() -> None:
    names = {i: f"class {i}" for i in range(300)}
    with ThreadPoolExecutor(16) as pool:
        assert all(result == names for result in pool.map(python_literal, [str(names)] * 200))


@pytest.mark.parametrize("text", ["", "{0: ", "f(1)", "[" * 5000])
def test_what_is_no_literal(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, MemoryError, RecursionError)):
        python_literal(text)
