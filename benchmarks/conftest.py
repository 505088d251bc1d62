"""Fixtures of the benchmarks."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rounds import ASSETS, Turns

from infersdk import device_count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device_count() == 0:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of the test data; a benchmark skips without it."""
    if not ASSETS.is_dir():
        pytest.skip("no test data: set INFERSDK_ASSETS to its folder")
    return ASSETS


@pytest.fixture(scope="session")
def photograph(assets: Path) -> np.ndarray[Any, Any]:
    """bus.jpg, 810 x 1080, BGR."""
    from infersdk.image import read_image

    return np.ascontiguousarray(read_image(assets / "images" / "bus.jpg").pixels[..., ::-1])


@pytest.fixture
def turns(benchmark: Any) -> Turns:
    """Measures contenders in turns; the figures and ratios are in pytest-benchmark's `extra_info`."""
    return Turns(benchmark)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """OpenCV and PyTorch compute on one thread each, where they are installed."""
    with ExitStack() as stack:
        with suppress(ImportError):
            import cv2

            stack.callback(cv2.setNumThreads, cv2.getNumThreads())
            cv2.setNumThreads(1)
        with suppress(ImportError):
            import torch

            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        yield
