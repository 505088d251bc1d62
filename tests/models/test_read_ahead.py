"""Images are decoded on several threads, in order, and no further ahead than said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ImageError
from infersdk.models import read_ahead as module
from infersdk.models.read_ahead import decoding_threads, read_ahead


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 37])
def test_order(count: int, overlap: bool) -> None:
    def read(source: Any) -> Any:
        return source if isinstance(source, np.ndarray) else int(source)

    sources: list[Any] = [str(i) if i % 3 else np.full(2, i) for i in range(count)]
    images = list(read_ahead(iter(sources), read, 4, overlap=overlap))
    assert [int(np.max(image)) for image in images] == list(range(count))


@pytest.mark.skipif(decoding_threads() < 2, reason="needs two processors")
@pytest.mark.parametrize("overlap", [False, True])
def test_several_threads_decode_at_a_time(overlap: bool) -> None:
    together = threading.Barrier(2, timeout=20)

    def read(source: str) -> str:
        together.wait()
        return source

    assert list(read_ahead(iter("abcdefgh"), read, 4, overlap=overlap)) == list("abcdefgh")


@pytest.mark.parametrize("overlap", [False, True])
def test_no_further_ahead_than_said(overlap: bool) -> None:
    taken = 0

    def sources() -> Iterator[str]:
        nonlocal taken
        for i in range(10_000):
            taken += 1
            yield str(i)

    images = read_ahead(sources(), int, 4, overlap=overlap)
    for i in range(20):
        assert next(images) == i
        assert taken <= i + 1 + (4 + decoding_threads() if overlap else 4)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_error_comes_in_its_place(overlap: bool) -> None:
    def read(source: str) -> str:
        if source == "c":
            raise ImageError("c: no image")
        return source

    images = read_ahead(iter("abcdef"), read, 3, overlap=overlap)
    assert [next(images), next(images)] == ["a", "b"]
    with pytest.raises(ImageError, match="c: no image"):
        next(images)


def test_arrays_are_read_at_once_by_the_caller() -> None:
    """The frame of a camera does not wait for the next one."""
    here, frames = threading.get_ident(), []

    def camera() -> Iterator[Any]:
        for i in range(3):
            frames.append(i)
            yield np.full((2, 2), i, np.uint8)

    def read(source: Any) -> Any:
        assert threading.get_ident() == here
        return source

    images = read_ahead(camera(), read, 8, overlap=True)
    assert next(images)[0, 0] == 0
    assert frames == [0]


def test_what_is_not_needed_any_more_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, release = [], threading.Event()

    def read(source: str) -> str:
        if source != "0":
            release.wait(20)
        decoded.append(source)
        return source

    monkeypatch.setattr(module, "MOST_THREADS", 1)
    module._pool_of.cache_clear()
    images = read_ahead(map(str, range(100)), read, 50, overlap=True)
    assert next(images) == "0"
    images.close()
    release.set()
    module._pool_of(__import__("os").getpid()).submit(int).result()  # behind all that was left
    assert len(decoded) <= 3
    module._pool_of.cache_clear()
