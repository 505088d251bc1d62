"""The kinds of requests: how a caller waits for the end of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol

from .request import Request
from .staggered_wakeup import StaggeredWakeup, Waiter
from .threads import PipelineThread, end_request, log_error

__all__ = ["AsyncRequest", "FutureRequest", "MapRequest", "RequestOwner", "hand_out"]


class RequestOwner(Protocol):
    """What a request knows of its pipeline."""

    wakeup: StaggeredWakeup

    def withdraw(self, request: Request) -> bool:
        """Cancels a request, unless its batch has left or it has ended."""


class _AwaitedRequest(Request):
    """A request whose end threads wait for."""

    __slots__ = ("_owner", "_released", "_result_waiters")

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__(item, parameters, time_limit)
        self._owner = owner
        self._result_waiters: list[Waiter] = []
        self._released = False

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the request ends, at most `timeout` seconds."""
        if self._released:
            return
        waiter = Waiter()
        self._result_waiters.append(waiter)
        # If the request has ended by now, this waiter may have been overlooked: then it must not wait.
        self._owner.wakeup.wait(waiter, 0 if self._released else timeout)

    def release_waiters(self) -> None:
        """Ends the waiting of all threads."""
        self._released = True
        for waiter in self._result_waiters:
            self._owner.wakeup.release(waiter)


class MapRequest(_AwaitedRequest):
    """A request whose end one thread alone waits for, as `Pipeline.map()` does. It costs half as much as a future."""

    __slots__ = ("error", "result")

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self.result: Any = None
        self.error: BaseException | None = None

    def start(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        self.result = result
        self.release_waiters()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.release_waiters()

    @property
    def ended(self) -> bool:
        return self._released

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left."""
        if not self._owner.withdraw(self):
            return False
        self.fail(CancelledError())
        return True


class FutureRequest(_AwaitedRequest, Future[Any]):
    """A request that is a `concurrent.futures.Future`."""

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        Future.__init__(self)
        _AwaitedRequest.__init__(self, owner, item, parameters, time_limit)
        # The first callback: others may wait for the threads that it wakes.
        Future.add_done_callback(self, FutureRequest.release_waiters)  # type: ignore[arg-type]

    def start(self) -> bool:
        try:
            return self.set_running_or_notify_cancel()
        except RuntimeError:  # the caller has called set_result() or set_exception() itself
            return False

    def succeed(self, result: Any) -> None:
        self.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.set_exception(error)

    @property
    def ended(self) -> bool:
        return self.done()

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        if not Future.cancel(self):
            return False
        if self._owner.withdraw(self):
            self.set_running_or_notify_cancel()  # informs the threads in concurrent.futures.wait()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """As `Future.result()`."""
        self.wait(timeout)
        return Future.result(self, 0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future.exception()`."""
        self.wait(timeout)
        return Future.exception(self, 0)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As `Future.add_done_callback()`. In a thread of the pipeline even SystemExit and KeyboardInterrupt end
        nothing but the callback that raises them: they are logged, as other exceptions are, and the next one runs.
        """
        Future.add_done_callback(self, _Guarded(fn))


class _Guarded:
    """A callback of a future that does not end a thread of a pipeline."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Future[Any]], object]) -> None:
        self.callback = callback

    def __call__(self, future: Future[Any]) -> None:
        try:
            self.callback(future)
        except Exception:
            raise  # the future logs it
        except BaseException as error:
            if not isinstance(threading.current_thread(), PipelineThread):
                raise
            log_error(f"the callback {self.callback!r} of a future raised", error)


class AsyncRequest(Request):
    """A request whose end a coroutine awaits, as `Pipeline.infer()` does."""

    __slots__ = ("_ended", "_future", "_owner", "loop")

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__(item, parameters, time_limit)
        self._owner = owner
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self.loop.create_future()
        self._ended = False

    async def wait(self) -> Any:
        """The result, once there is one. A coroutine that is cancelled takes its request back."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self._owner.withdraw(self)
            raise

    def start(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        end_in_loop(self.loop, [(self, result)])

    def fail(self, error: BaseException) -> None:
        end_in_loop(self.loop, [(self, error)])

    @property
    def ended(self) -> bool:
        return self._ended

    def cancel(self) -> bool:
        if not self._owner.withdraw(self):
            return False
        self.fail(CancelledError())
        return True

    def resolve(self, result: Any) -> None:
        """Ends the waiting of the coroutine. In the thread of its loop."""
        if self._future.done():  # the coroutine was cancelled meanwhile
            return
        if isinstance(result, CancelledError):
            self._future.cancel()
        elif isinstance(result, StopIteration):  # no coroutine can raise it
            error = RuntimeError("the request raised StopIteration")
            error.__cause__ = result
            self._future.set_exception(error)
        elif isinstance(result, BaseException):
            self._future.set_exception(result)
        else:
            self._future.set_result(result)


def end_in_loop(loop: asyncio.AbstractEventLoop, ends: Sequence[tuple[AsyncRequest, Any]]) -> None:
    """Ends several requests of one event loop, and wakes its thread once for all of them."""
    for request, _ in ends:
        request._ended = True
    try:
        loop.call_soon_threadsafe(_resolve_all, ends)
    except BaseException as error:
        if not loop.is_closed():  # otherwise the coroutines have ended with their loop, and no one waits
            log_error("an event loop did not take the results of its requests", error)


def _resolve_all(ends: Sequence[tuple[AsyncRequest, Any]]) -> None:
    for request, result in ends:
        request.resolve(result)


def hand_out(requests: Sequence[Request], results: Sequence[Any]) -> None:
    """Ends the requests of a batch, each with its result or with its exception."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[AsyncRequest, Any]]] = {}
    for request, result in zip(requests, results, strict=True):
        if type(request) is AsyncRequest:  # isinstance() of an abstract class takes longer
            loops.setdefault(request.loop, []).append((request, result))
        else:
            end_request(request, result)
    for loop, ends in loops.items():
        end_in_loop(loop, ends)
