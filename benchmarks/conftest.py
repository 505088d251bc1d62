"""Fixtures of the benchmarks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of test data; the benchmark skips where there is none."""
    folder = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))
    if not folder.is_dir():
        pytest.skip("no test data: set INFERSDK_ASSETS to its folder")
    return folder


@pytest.fixture
def claim(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Keeps a ratio for the tables, see `table.py`: `claim("64 threads", 0.99, low=0.97, high=1.01)`."""

    def keep(name: str, ratio: float, *, low: float | None = None, high: float | None = None) -> None:
        record_property("claim", json.dumps({"name": name, "ratio": ratio, "low": low, "high": high}))

    return keep
