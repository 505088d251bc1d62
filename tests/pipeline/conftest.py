"""A model of whole numbers for the pipelines of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from squares import Squares


@pytest.fixture
def model() -> Iterator[Squares]:
    squares = Squares()
    yield squares
    squares.go.set()
    assert squares.open == 0, "a buffer was not closed"
