"""Requests, and the places that they take."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from .staggered_wakeup import Gate

if TYPE_CHECKING:
    from .batch_buffer import BatchBuffer
    from .batcher import Batcher

__all__ = ["BatchState", "InstanceGroup", "Promise", "Request", "Ticket", "Waiter"]


class Request(ABC):
    """What was asked for, where it is, and its end. Threads that wait for that are woken by the batcher's wakeup."""

    __slots__ = (
        "_batcher", "_ended", "_gates", "batch", "deadline", "item", "left", "over", "parameters", "preparing", "row",
        "submitted", "within",
    )  # fmt: skip

    def __init__(
        self, batcher: Batcher, item: Any, parameters: Mapping[str, Any] | None, deadline: float | None
    ) -> None:
        self.item, self.parameters = item, parameters
        self.submitted = monotonic()
        self.within = deadline
        self.deadline = None if deadline is None else self.submitted + deadline  # on the monotonic clock
        self.batch: BatchState | None = None  # where its slot is
        self.row = -1
        self.preparing = False
        self.left = False  # its batch is on its way, or has been
        self.over = False  # it is settled, or about to be: whoever sets this under the lock settles it
        self._batcher = batcher
        self._gates: list[Gate] = []  # of the threads that wait for the end
        self._ended = False  # and they have been let through

    @abstractmethod
    def begin(self) -> bool:
        """Its batch leaves, or it is about to fail: it cannot be cancelled any more. False: it was."""

    @abstractmethod
    def succeed(self, result: Any) -> None:
        """The end."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """The other end."""

    @abstractmethod
    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""

    def wait(self, timeout: float | None = None) -> None:
        """Until its end, or for `timeout` seconds."""
        if self._ended:
            return
        gate = Gate()
        self._gates.append(gate)
        # If it has ended by now the gate may have been overlooked or not: either way it is taken back.
        self._batcher.wakeup.wait(gate, 0 if self._ended else timeout)

    def _let(self) -> None:
        self._ended = True
        for gate in self._gates:
            self._batcher.wakeup.let(gate)


class Ticket(Request):
    """A request whose end one thread alone waits for, as `map()` does: it takes half of the time of a future."""

    __slots__ = ("error", "result")

    def __init__(
        self, batcher: Batcher, item: Any, parameters: Mapping[str, Any] | None, deadline: float | None
    ) -> None:
        super().__init__(batcher, item, parameters, deadline)
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        self.result = result
        self._let()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._let()

    def cancel(self) -> bool:
        if not self._batcher.drop(self):
            return False
        self.fail(CancelledError())
        return True


class Promise(Request, Future[Any]):
    """A request that is a future."""

    def __init__(
        self, batcher: Batcher, item: Any, parameters: Mapping[str, Any] | None, deadline: float | None
    ) -> None:
        Future.__init__(self)
        Request.__init__(self, batcher, item, parameters, deadline)
        self.add_done_callback(_let)  # before anybody's own

    def begin(self) -> bool:
        return self.set_running_or_notify_cancel()

    def succeed(self, result: Any) -> None:
        self.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.set_exception(error)

    def cancel(self) -> bool:
        if not Future.cancel(self):
            return False
        if self._batcher.drop(self):
            self.set_running_or_notify_cancel()  # tells those in concurrent.futures.wait()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """As `Future.result()`."""
        self.wait(timeout)
        return Future.result(self, 0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future.exception()`."""
        self.wait(timeout)
        return Future.exception(self, 0)


def _let(promise: Future[Any]) -> None:
    assert isinstance(promise, Promise)
    promise._let()


class BatchState:
    """A buffer and the requests in its rows."""

    def __init__(self, buffer: BatchBuffer, group: InstanceGroup, lock: threading.Lock) -> None:
        self.buffer, self.group = buffer, group
        self.capacity = buffer.capacity
        self.settled = threading.Condition(lock)  # the runner that has it waits here for its last rows
        self.clear()

    def clear(self) -> None:
        self.rows: list[Request | None] = []
        self.holes: list[int] = []  # rows whose request has gone
        self.todo: deque[Request] = deque()  # placed, and not taken by a worker yet
        self.preparing = 0  # rows that workers are at
        self.first = 0.0  # when its oldest request was submitted
        self.sealed = False  # it takes no more requests

    @property
    def live(self) -> int:
        return len(self.rows) - len(self.holes)

    @property
    def prepared(self) -> bool:
        return not self.todo and not self.preparing

    def close_ranks(self) -> list[Request]:
        """Moves the last rows to where requests have gone, so that the rest lie in front; these, in order."""
        rows = self.rows
        there = sum(request is not None for request in rows)
        holes = [row for row in range(there) if rows[row] is None]
        behind = [row for row in range(there, len(rows)) if rows[row] is not None]
        for hole, source in zip(holes, behind, strict=True):
            self.buffer.move(source, hole)
            rows[hole], rows[source] = rows[source], None
        return [request for request in rows if request is not None]


class InstanceGroup:
    """Batch buffers of one model: at most `permits` are under way at a time, and `executors` of those run."""

    def __init__(self, buffers: Sequence[BatchBuffer], permits: int, executors: int, lock: threading.Lock) -> None:
        self.batches = [BatchState(buffer, self, lock) for buffer in buffers]
        self.free: deque[BatchState] = deque(self.batches)
        self.ready: deque[BatchState] = deque()  # full, in the order in which they became so
        self.permits, self.executors, self.running = permits, executors, 0
        self.wake = threading.Condition(lock)  # the runners wait here for a batch that may leave

    @property
    def load(self) -> float:
        return (self.running + len(self.ready)) / self.permits


class Waiter:
    """A request in line for a slot."""

    __slots__ = ("gate", "request")

    def __init__(self, request: Request, gate: Gate | None) -> None:
        self.request = request
        self.gate = gate  # closed until the request has its slot, or never will; None where nobody waits
