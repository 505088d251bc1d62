"""Reading and decoding images on all processors, ahead of the batches that need them."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from ..ops.batch import available_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["read_ahead"]

T = TypeVar("T")

#: The most threads that decode, however many processors there are.
MOST_THREADS = 64


def decoding_threads() -> int:
    """One for each processor that this process may use, 64 at most."""
    return min(available_processors(), MOST_THREADS)


@lru_cache(maxsize=2)
def _pool_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(decoding_threads(), "infersdk-decode")


def _takes_time(source: Any) -> bool:
    """Whether reading this source may take a while: a file, an address or encoded bytes.

    Arrays are not copied, and streams and PIL images may belong to the thread that gives them.
    """
    return isinstance(source, (str, bytes, bytearray, memoryview, os.PathLike))


def read_ahead(sources: Iterator[Any], read: Callable[[Any], T], group: int, *, overlap: bool) -> Iterator[T]:
    """The images of `sources`, in order; files and encoded bytes are decoded on a thread for each processor.

    What `read` raises is raised in the place of its image. Arrays, streams and PIL images are read by the caller.

    Args:
        sources: what `read` takes; read as far ahead as images are decoded.
        read: reads one of them. Several threads call it.
        group: images that are decoded together.
        overlap: whether the next group is decoded while the caller works on the last one. A model that runs on the
            processors itself would only be held up.
    """
    pool = _pool_of(os.getpid())
    if overlap:
        yield from _overlapped(sources, read, group + decoding_threads(), pool)
        return
    while waiting := list(islice(sources, group)):
        if sum(map(_takes_time, waiting)) < 2:
            yield from map(read, waiting)
            continue
        pending: deque[Future[T]] = deque(
            pool.submit(read, source) if _takes_time(source) else _done(read, source) for source in waiting
        )
        yield from _drained(pending)


def _overlapped(sources: Iterator[Any], read: Callable[[Any], T], most: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    pending: deque[Future[T]] = deque()
    try:
        for source in sources:
            if _takes_time(source):
                pending.append(pool.submit(read, source))
            elif pending:
                pending.append(_done(read, source))
            else:  # nothing waits, as with the frames of a camera: at once
                yield read(source)
            if len(pending) >= most:
                yield pending.popleft().result()
        yield from _drained(pending)
    finally:
        _cancel(pending)


def _done(read: Callable[[Any], T], source: Any) -> Future[T]:
    """The image of a source that takes no time, or what reading it raised."""
    future: Future[T] = Future()
    try:
        future.set_result(read(source))
    except Exception as error:
        future.set_exception(error)
    return future


def _drained(pending: deque[Future[T]]) -> Iterator[T]:
    try:
        while pending:
            yield pending.popleft().result()
    finally:
        _cancel(pending)


def _cancel(pending: deque[Future[T]]) -> None:
    for future in pending:
        future.cancel()
