"""The figures of the HTTP clients."""

from __future__ import annotations

import pytest
from http_load import summary


def test_quantiles_of_the_answers() -> None:
    found = summary({503: [2.0], 200: [float(seconds) for seconds in range(100, -1, -1)]})
    assert list(found) == ["200", "503"]
    assert found["200"] == pytest.approx({"count": 101, "p50": 50, "p90": 90, "p99": 99})
    assert summary({200: [1.0, 3.0]})["200"]["p50"] == 2
