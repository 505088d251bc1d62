"""The executors of a wrapper's calls and streams: one for each that is under way."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from ...errors import ClosedError
from .following import FollowingExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...infer import Infer
    from .executor import Executor

__all__ = ["ExecutorPool", "Lease"]

Result = TypeVar("Result")


class ExecutorPool(Generic[Result]):
    """Lends executors to calls and streams. Any number of threads may use it.

    A call waits while `limit` others are under way. A stream never waits, since one thread may have several of them: it
    gets an executor of its own. Executors are made when they are first needed, over clones of the network.

    Args:
        network: of the wrapper, for the first executor; it is not closed here.
        make: makes an executor for a network.
        limit: calls that run at a time.
    """

    def __init__(self, network: Infer, make: Callable[[Infer], Executor[Result]], limit: int) -> None:
        self._network, self._make, self._limit = network, make, limit
        self._changed = threading.Condition()
        first = FollowingExecutor(network, make)
        self._all: dict[FollowingExecutor[Result], Infer | None] = {first: None}  # with the clone that each owns
        self._idle = [first]
        self._calls = 0
        self._active = 0  # calls, and streams while they make a batch
        self._closed = False

    def lease(self, *, stream: bool = False) -> Lease[Result]:
        """An executor for one thread; a call waits until it is its turn. The lease is active.

        Raises:
            ClosedError: the model was closed.
        """
        with self._changed:
            self._check_open()
            while not stream and self._calls >= self._limit:
                self._changed.wait()
                self._check_open()
            own = self._idle.pop() if self._idle else None
            self._calls += not stream
            self._active += 1
        try:
            lease = Lease(self, own if own is not None else self._new(), stream)
            lease.executor = lease.following.current()
        except BaseException:
            with self._changed:
                if own is not None:
                    self._idle.append(own)
                self._calls -= not stream
                self._active -= 1
                self._changed.notify_all()
            raise
        return lease

    def _new(self) -> FollowingExecutor[Result]:
        clone = self._network.clone()
        try:
            following = FollowingExecutor(clone, self._make)
        except BaseException:
            clone.close()
            raise
        with self._changed:
            self._all[following] = clone
        return following

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self._network.backend} model {self._network.model.name} was closed; load it again")

    def resume(self) -> None:
        """A stream goes on. Raises ClosedError."""
        with self._changed:
            self._check_open()
            self._active += 1

    def pause(self) -> None:
        """A stream waits for its caller, or for its images."""
        with self._changed:
            self._active -= 1
            if not self._active:
                self._changed.notify_all()

    def give_back(self, lease: Lease[Result]) -> None:
        """A call or a stream has ended; it is active no more."""
        with self._changed:
            self._idle.append(lease.following)
            self._calls -= not lease.stream
            self._active -= lease.is_active
            lease.is_active = False
            self._changed.notify_all()

    def release(self) -> None:
        """Frees what the executors hold; called while none is lent. The next call makes the first one again."""
        with self._changed:
            for following, clone in list(self._all.items()):
                following.release()
                if clone is not None:
                    clone.close()
                    del self._all[following]
            self._idle = list(self._all)

    def close(self) -> None:
        """Waits for what is under way. Streams that wait for their callers end in ClosedError when they go on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._active:
                self._changed.wait()
            closing, self._all = self._all, {}
        for following, clone in closing.items():
            following.close()
            if clone is not None:
                clone.close()


class Lease(Generic[Result]):
    """An executor that is lent to one call or stream.

    Attributes:
        executor: the executor of the network that serves now.
        is_active: whether `ExecutorPool.close()` waits for it.
    """

    def __init__(self, pool: ExecutorPool[Result], following: FollowingExecutor[Result], stream: bool) -> None:
        self._pool, self.following, self.stream = pool, following, stream
        self.executor = following.executor
        self.is_active = True
        self._thread = threading.get_ident()

    def resume(self) -> None:
        """Raises ClosedError."""
        self._pool.resume()
        self.is_active, self._thread = True, threading.get_ident()

    def pause(self) -> None:
        """The executor is not in use until `resume()`."""
        self.is_active = False
        self._pool.pause()

    @property
    def is_active_here(self) -> bool:
        """Whether the calling thread is the one that made it active."""
        return self.is_active and self._thread == threading.get_ident()

    def end(self) -> None:
        """The executor goes back."""
        self._pool.give_back(self)
