"""Running an iterator on a thread of its own, some items ahead of the thread that takes them."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from ..errors import ConfigError, InputError
from .processors import start_thread

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NoItemError", "Prefetch", "check_count", "paired"]

T = TypeVar("T")
R = TypeVar("R")


class NoItemError(Exception):
    """No item has come in time."""


class _Queue(Generic[T]):
    """The state of both threads. The filling thread holds nothing else, so a `Prefetch` out of use can be freed."""

    def __init__(self, size: int, drop_oldest: bool, expired: Callable[[T], bool] | None) -> None:
        self.size, self.drop_oldest, self.expired = size, drop_oldest, expired
        self.items: deque[T] = deque()
        # `with` takes the lock itself: Ctrl-C in the Python code of a condition would leave it locked.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.stopped = self.ended = False
        self.error: BaseException | None = None
        self.dropped = 0
        self.receive: Callable[[T], object] | None = None
        self.latest = 0.0  # when an item was passed to `receive`

    def fill(self, source: Iterable[T]) -> None:
        """The work of the thread. Errors of the source are kept for the thread that takes the items."""
        try:
            items = iter(source)
            try:
                for item in items:
                    if not self.put(item):
                        break
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except BaseException as error:
            self.error = error
        finally:
            with self.lock:
                self.ended = True
                self.changed.notify_all()

    def put(self, item: T) -> bool:
        """Adds an item as soon as the queue has space for it, or passes it to `receive`. Returns whether further ones
        are wanted.
        """
        with self.lock:
            if not self.drop_oldest:
                self.changed.wait_for(lambda: len(self.items) < self.size or self.stopped or self.receive)
            elif len(self.items) == self.size:
                self.items.popleft()
                self.dropped += 1
            if self.stopped:
                return False
            receive = self.receive
            if receive is None:
                self.items.append(item)
                self.changed.notify_all()
                return True
        self.latest = time.monotonic()
        receive(item)
        return True

    def pass_to(self, receive: Callable[[T], object], timeout: float | None) -> None:
        with self.lock:
            while self.items and not self.stopped:
                receive(self.items.popleft())
            self.latest, self.receive = time.monotonic(), receive
            self.changed.notify_all()
            try:
                while not self.ended and not self.stopped:
                    left = None if timeout is None else self.latest + timeout - time.monotonic()
                    if left is not None and left <= 0:
                        raise NoItemError
                    self.changed.wait(left)
            finally:
                self.receive = None  # it may refer to the caller, which has this queue
        self._raise_error()

    def take(self, timeout: float | None = None, *, keep: bool = False) -> T:
        with self.lock:
            if not self.changed.wait_for(lambda: self.items or self.ended or self.stopped, timeout):
                raise NoItemError
            if self.items and not self.stopped:
                if keep:
                    return self.items[0]
                self._drop_expired()
                self.changed.notify_all()
                return self.items.popleft()
        self._raise_error()
        raise StopIteration

    def _raise_error(self) -> None:
        """Raises the error of the source, once."""
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # with the frame that it refers to, it would wait for the garbage collector

    def _drop_expired(self) -> None:
        while self.expired is not None and len(self.items) > 1 and self.expired(self.items[0]):
            self.items.popleft()
            self.dropped += 1

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            self.items.clear()
            self.changed.notify_all()


class Prefetch(Generic[T]):
    """An iterator over `source` that runs it on a thread of its own, up to `size` items ahead.

    Errors of `source` are raised here, after the items that came before. `close()` ends the thread after the item that
    it is at; so does the garbage collector, when nothing refers to the iterator any more.

    Args:
        size: items that may wait.
        drop_oldest: `source` does not wait when `size` items wait. The oldest one is dropped, and counted in `dropped`.
        expired: with `drop_oldest`, whether an item has waited for too long: it is dropped, and counted, if a newer one
            waits when an item is taken.

    Raises:
        ConfigError: `size` is no whole number from 1.
        OutOfMemoryError: the system has no further thread.
    """

    def __init__(
        self,
        source: Iterable[T],
        size: int = 4,
        *,
        drop_oldest: bool = False,
        expired: Callable[[T], bool] | None = None,
    ) -> None:
        check_count("size", "items", size)
        self._queue: _Queue[T] = _Queue(size, drop_oldest, expired if drop_oldest else None)
        self._thread = threading.Thread(target=self._queue.fill, args=(source,), name="infersdk-prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, self._queue.stop)
        start_thread(self._thread, "reading ahead")

    @property
    def dropped(self) -> int:
        """Items that were dropped."""
        return self._queue.dropped

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._queue.take()

    def next_within(self, seconds: float | None, *, keep: bool = False) -> T:
        """As `next()`. Raises NoItemError if none has come for so many seconds; None waits for ever.

        Args:
            keep: the item stays in the queue.
        """
        return self._queue.take(seconds, keep=keep)

    def pass_to(self, receive: Callable[[T], object], timeout: float | None = None) -> None:
        """Calls `receive` with all further items, in the thread that runs `source`; returns at the end.

        Errors of `receive` end it, and are raised here.

        Raises:
            NoItemError: none has come for `timeout` seconds.
        """
        self._queue.pass_to(receive, timeout)

    def close(self, timeout: float | None = 5.0) -> bool:
        """Ends the thread. It waits for that at most `timeout` seconds, in case the source hangs in a read.

        Returns:
            Whether the thread has ended.
        """
        self._queue.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def check_count(name: str, what: str, count: int) -> None:
    """Raises ConfigError for an argument that is no whole number from 1; `what` is counted."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{name} is a number of {what} from 1, not {count!r}")


def paired(run: Callable[[Iterable[T]], Iterable[R]], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item together with its result: `for frame, found in paired(detector.map, reader)`.

    Args:
        run: takes an iterable, and returns one result for each item, in order. It may read any number of items ahead;
            they are kept until their results come.

    Raises:
        InputError: `run` returned more results than it read items, or fewer.
    """
    waiting: deque[T] = deque()
    read = returned = 0

    def reading() -> Iterator[T]:
        nonlocal read
        for item in items:
            waiting.append(item)
            read += 1
            yield item

    results = iter(run(reading()))
    with contextlib.ExitStack() as stack:
        close = getattr(results, "close", None)
        if close is not None:  # requests that are on their way end when the caller stops early
            stack.callback(close)
        for result in results:
            returned += 1
            if not waiting:
                raise InputError(f"{run!r} returned result {returned} after {read} items; it takes one for each item")
            yield waiting.popleft(), result
        if waiting:
            raise InputError(f"{run!r} returned {returned} results for {read} items; it takes one for each item")
