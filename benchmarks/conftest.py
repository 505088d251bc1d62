"""Fixtures of the benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of test data; the benchmark skips where there is none."""
    folder = Path(os.environ.get("INFERSDK_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets"))
    if not folder.is_dir():
        pytest.skip("no test data: set INFERSDK_ASSETS to its folder")
    return folder
