"""The threads on which images are decoded, and batches prepared."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.processors import available_processors
from ..image import HostImage, SharedImage

__all__ = ["is_read_by_any_thread", "shared_pool"]

#: Maximum number of threads that decode, however many processors there are.
MOST_THREADS = 64


@lru_cache(maxsize=2)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(available_processors(), MOST_THREADS), "infersdk-decode")


def shared_pool() -> ThreadPoolExecutor:
    """The threads that this process decodes and runs batches on, one for each of its processors. Their
    tasks do not wait for each other.
    """
    return _pool_of(os.getpid())


def is_read_by_any_thread(source: Any) -> bool:
    """Whether any thread may read this source. Streams and PIL images may belong to the thread that gives them."""
    return isinstance(source, (np.ndarray, str, bytes, bytearray, memoryview, os.PathLike, HostImage, SharedImage))
