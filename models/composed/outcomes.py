"""How requests to compositions end: in an object, or in a future."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

__all__ = ["CancellableRequest", "Ended", "EndedRequest", "FutureEnd", "RequestFuture"]


class CancellableRequest(Protocol):
    """A request on its way."""

    def cancel(self) -> object: ...


class EndedRequest(Protocol):
    """A request whose end one thread waits for, such as a pipeline's `MapRequest`."""

    @property
    def ended(self) -> bool: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> BaseException | None: ...
    def wait_for_end(self) -> None: ...
    def cancel(self) -> bool: ...


class Ended:
    """A request that has ended.

    Args:
        outcome: its result or its exception.
    """

    __slots__ = ("error", "result")
    ended = True

    def __init__(self, outcome: Any) -> None:
        self.error: BaseException | None = outcome if isinstance(outcome, BaseException) else None
        self.result: Any = None if self.error is not None else outcome

    def wait_for_end(self) -> None:
        """It has ended."""

    def cancel(self) -> bool:
        return False


class FutureEnd:
    """A future as a request whose end one thread waits for."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    @classmethod
    def of(cls, done: Future[Any]) -> FutureEnd:
        """That of a future which has ended."""
        end = cls(done)
        end.wait_for_end()
        return end

    def wait_for_end(self) -> None:
        try:
            self.error = self._future.exception()
        except CancelledError as error:
            self.error = error
        if self.error is None:
            self.result = self._future.result()
        self.ended = True

    def cancel(self) -> bool:
        return self._future.cancel()


class RequestFuture(Future[Any]):
    """The future of a request that says when it has ended: by `end()`."""

    def __init__(self) -> None:
        super().__init__()
        self.request: CancellableRequest | None = None

    def cancel(self) -> bool:
        """Cancels what has not left, and this future."""
        cancelled = super().cancel()
        if cancelled and self.request is not None:
            self.request.cancel()
        return cancelled

    def end(self, ended: EndedRequest) -> None:
        """The request has ended. What the callbacks of this future raise goes on to the thread that calls."""
        self.request = None
        if isinstance(ended.error, CancelledError):
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return  # it is cancelled
        if ended.error is not None:
            self.set_exception(ended.error)
        else:
            self.set_result(ended.result)
