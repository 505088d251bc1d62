"""Running an iterator on a thread of its own, a few results ahead of who takes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Ahead", "paired"]

T = TypeVar("T")
R = TypeVar("R")


class _Buffer(Generic[T]):
    """What the thread and the one who takes share; the thread knows no more, so that the taker can be forgotten."""

    def __init__(self, size: int, drop_oldest: bool) -> None:
        self.size, self.drop_oldest = size, drop_oldest
        self.items: deque[T] = deque()
        self.changed = threading.Condition()
        self.stopped = self.ended = False
        self.error: BaseException | None = None
        self.dropped = 0

    def fill(self, source: Iterable[T]) -> None:
        items = iter(source)
        try:
            for item in items:
                if not self.put(item):
                    break
        except BaseException as error:
            self.error = error
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
            with self.changed:
                self.ended = True
                self.changed.notify_all()

    def put(self, item: T) -> bool:
        with self.changed:
            if self.drop_oldest:
                if len(self.items) == self.size:
                    self.items.popleft()
                    self.dropped += 1
            else:
                self.changed.wait_for(lambda: len(self.items) < self.size or self.stopped)
            if not self.stopped:
                self.items.append(item)
                self.changed.notify_all()
            return not self.stopped

    def take(self) -> T:
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.ended or self.stopped)
            if self.items and not self.stopped:
                self.changed.notify_all()
                return self.items.popleft()
            error, self.error = self.error, None
        if error is not None:
            raise error
        raise StopIteration

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.items.clear()
            self.changed.notify_all()


class Ahead(Generic[T]):
    """An iterator over `source`, which runs on a thread and is at most `size` items ahead.

    What `source` raises is raised here, after the items before it. `close()`, or forgetting the iterator, stops the
    thread after the item at hand.

    Args:
        size: items that may wait.
        drop_oldest: `source` does not wait when so many are there; the oldest one is dropped, and counted in `dropped`.
    """

    def __init__(self, source: Iterable[T], size: int = 4, *, drop_oldest: bool = False) -> None:
        self._buffer: _Buffer[T] = _Buffer(size, drop_oldest)
        self._thread = threading.Thread(target=self._buffer.fill, args=(source,), name="infersdk-ahead", daemon=True)
        self._finalizer = weakref.finalize(self, self._buffer.stop)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._buffer.dropped

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._buffer.take()

    def close(self, timeout: float | None = 5.0) -> None:
        """Stops the thread; waits for it `timeout` seconds at most, in case it hangs in a read."""
        self._buffer.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def paired(run: Callable[[Iterable[T]], Iterable[R]], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item with what `run` makes of it: `for frame, found in paired(detector.map, reader)`.

    `run` takes an iterable and gives one result an item, in order. It may read as far ahead as it likes: the items
    that it has read and not answered are kept.
    """
    waiting: deque[T] = deque()

    def passing() -> Iterator[T]:
        for item in items:
            waiting.append(item)
            yield item

    results: Any = run(passing())
    for result in results:
        yield waiting.popleft(), result
