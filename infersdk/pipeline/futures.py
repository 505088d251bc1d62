"""The kinds of requests: how a caller waits for the end of one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Protocol

from .lazy_future import LazyFuture
from .request import Request
from .threads import PipelineThread, log_error

if TYPE_CHECKING:
    from .request import RequestOwner

__all__ = [
    "AsyncRequest", "CallbackRequest", "FutureRequest", "GroupedRequest", "MapRequest", "RequestGroup", "TaggedRequest",
    "hand_out",
]  # fmt: skip


class MapRequest(Request):
    """A request whose end one thread alone waits for, as `Pipeline.map()` does. It costs half as much as a future."""

    __slots__ = ("error", "result")

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self.result: Any = None
        self.error: BaseException | None = None

    def outcome(self, return_exceptions: bool = False) -> Any:
        """The result, once there is one; its exception is raised.

        Args:
            return_exceptions: return the exception instead, unless the request was cancelled.
        """
        self.wait_for_end()
        error = self.error
        if error is None:
            return self.result
        if return_exceptions and not isinstance(error, CancelledError):
            return error
        raise error

    def start(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        self.result = result
        self.set_ended()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.set_ended()

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Whether it is cancelled, now or before."""
        if self.owner.withdraw(self):
            self.fail(CancelledError())
            return True
        return isinstance(self.error, CancelledError)


class CallbackRequest(MapRequest):
    """A request that calls a function when it has ended, in the thread that ends it. It costs less than a future."""

    __slots__ = ("_on_end",)

    def __init__(
        self,
        owner: RequestOwner,
        item: Any,
        parameters: Mapping[str, Any] | None,
        time_limit: float | None,
        on_end: Callable[[CallbackRequest], object],
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self._on_end: Callable[[CallbackRequest], object] | None = on_end

    def set_ended(self) -> None:
        super().set_ended()
        on_end, self._on_end = self._on_end, None  # it may hold what holds this request
        if on_end is not None:
            on_end(self)


class TaggedRequest(MapRequest):
    """A request that ends together with others: those of a batch that have the same `on_ends` are given to one call of
    it, in the thread that ends them.

    Attributes:
        tag: what `on_ends` knows the request by.
        on_ends: None after the call.
    """

    __slots__ = ("on_ends", "tag")

    def __init__(
        self,
        owner: RequestOwner,
        item: Any,
        parameters: Mapping[str, Any] | None,
        time_limit: float | None,
        tag: Any,
        on_ends: Callable[[Sequence[TaggedRequest]], object],
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self.tag = tag
        self.on_ends: Callable[[Sequence[TaggedRequest]], object] | None = on_ends

    def set_ended(self) -> None:
        """Ends it alone, as for one that is cancelled."""
        super().set_ended()
        on_ends, self.on_ends = self.on_ends, None
        if on_ends is not None:
            on_ends([self])

    def set_outcome(self, outcome: Any) -> Callable[[Sequence[TaggedRequest]], object] | None:
        """Sets its result or exception. Returns what is to be called with it, once."""
        if isinstance(outcome, BaseException):
            self.error = outcome
        else:
            self.result = outcome
        on_ends, self.on_ends = self.on_ends, None
        MapRequest.set_ended(self)
        return on_ends


class _Cancellable(Protocol):
    """A request of a pipeline, or of a composition."""

    def cancel(self) -> object: ...


#: In place of the outcome of a request that has not ended.
_NO_OUTCOME: Any = object()


class RequestGroup:
    """Requests that end together: the last one that ends calls a function, in the thread that ends it.

    Args:
        count: how many there are.
        on_end: called with the group once all have ended.
        ends_early: the first exception cancels the requests whose batch has not left.

    Attributes:
        outcomes: of each request its result or its exception, in order.
        first_error: with `ends_early`, the first exception; None if there is none.
        requests: those that can be cancelled, until all have ended.
    """

    __slots__ = ("_ends_early", "_lock", "_missing", "_on_end", "first_error", "outcomes", "requests")

    def __init__(self, count: int, on_end: Callable[[RequestGroup], object], ends_early: bool = False) -> None:
        self.outcomes: list[Any] = [_NO_OUTCOME] * count
        self.first_error: BaseException | None = None
        self.requests: Sequence[_Cancellable] = ()
        self._ends_early = ends_early
        self._missing = count
        self._on_end: Callable[[RequestGroup], object] | None = on_end
        self._lock = threading.Lock()

    def ended(self, index: int, outcome: object) -> None:
        """The request at `index` has ended. Only the first time counts: a pipeline that fails may end a request that
        another thread is ending.
        """
        with self._lock:
            if self.outcomes[index] is not _NO_OUTCOME:
                return
            self.outcomes[index] = outcome
            self._missing -= 1
            missing, failed = self._missing, False
            if self._ends_early and self.first_error is None and isinstance(outcome, BaseException):
                self.first_error, failed = outcome, True
        if missing:
            if failed:
                self.cancel()
            return
        on_end, self._on_end = self._on_end, None  # it may hold what holds this group
        self.requests = ()  # they hold the group
        if on_end is not None:
            on_end(self)

    def refused(self) -> None:
        """Not all requests came in: the group does not end. It holds no request any more, and none of their images."""
        self.requests, self._on_end = (), None

    def cancel(self) -> None:
        """Cancels the requests whose batch has not left."""
        for request in list(self.requests):
            request.cancel()


class GroupedRequest(Request):
    """One request of a `RequestGroup`."""

    __slots__ = ("_group", "_index")

    def __init__(
        self,
        owner: RequestOwner,
        item: Any,
        parameters: Mapping[str, Any] | None,
        time_limit: float | None,
        group: RequestGroup,
        index: int,
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self._group, self._index = group, index

    def start(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        self.set_ended()
        self._group.ended(self._index, result)

    def fail(self, error: BaseException) -> None:
        self.succeed(error)

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        if not self.owner.withdraw(self):
            return False
        self.fail(CancelledError())
        return True


class FutureRequest(Request, LazyFuture):
    """A request that is a `concurrent.futures.Future`."""

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        LazyFuture.__init__(self)
        Request.__init__(self, owner, item, parameters, time_limit)

    _wait_for_end = Request.wait_for_end
    _end_waiting = Request.set_ended

    def start(self) -> bool:
        try:
            return self.set_running_or_notify_cancel()
        except RuntimeError:  # the caller has called set_result() or set_exception() itself
            return False

    def succeed(self, result: Any) -> None:
        self.set_result(result)

    def fail(self, error: BaseException) -> None:
        self.set_exception(error)

    def cancel(self) -> bool:
        """Cancels the request, unless its batch has left. Its slot is free again at once."""
        if not LazyFuture.cancel(self):
            return False
        if self.owner.withdraw(self):
            self.set_running_or_notify_cancel()  # informs the threads in concurrent.futures.wait()
        return True

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As `Future.add_done_callback()`. In a thread of the pipeline even SystemExit and KeyboardInterrupt end
        nothing but the callback that raises them: they are logged, as other exceptions are, and the next one runs.
        """
        LazyFuture.add_done_callback(self, _Guarded(fn))


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

    __slots__ = ("_future", "in_own_loop", "loop")

    def __init__(
        self, owner: RequestOwner, item: Any, parameters: Mapping[str, Any] | None, time_limit: float | None
    ) -> None:
        super().__init__(owner, item, parameters, time_limit)
        self.in_own_loop = False  # it ends in the thread of its loop
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def wait(self) -> Any:
        """The result, once there is one. A coroutine that is cancelled takes its request back."""
        try:
            return await self._future
        except asyncio.CancelledError:
            self.owner.withdraw(self)
            raise

    def start(self) -> bool:
        return True

    def succeed(self, result: Any) -> None:
        self._end(result)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, result: Any) -> None:
        if self.in_own_loop:
            self.resolve_here(result)
        else:
            end_in_loop(self.loop, [(self, result)])

    def cancel(self) -> bool:
        if not self.owner.withdraw(self):
            return False
        self.fail(CancelledError())
        return True

    def resolve_here(self, result: Any) -> None:
        """Ends the request in the thread of its loop."""
        self.ended = True
        self.resolve(result)

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
        request.ended = True
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
    if not requests:
        return
    first = requests[0]
    if type(first) is AsyncRequest and first.in_own_loop:  # alone, and no other thread waits for it
        first.item = None
        first.resolve_here(results[0])
        return
    wakeup = first.owner.wakeup
    wakeup.hold()
    try:
        _end_all(requests, results)
    finally:
        wakeup.let_go()


def _end_all(requests: Sequence[Request], results: Sequence[Any]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[tuple[AsyncRequest, Any]]] = {}
    tagged: dict[Callable[[Sequence[TaggedRequest]], object], list[TaggedRequest]] = {}
    for request, result in zip(requests, results, strict=True):
        request.item = None  # not under the lock: the caller's object may end here
        if type(request) is AsyncRequest and not request.in_own_loop:  # isinstance() of an abstract class takes longer
            loops.setdefault(request.loop, []).append((request, result))
            continue
        if type(request) is TaggedRequest:
            if (on_ends := request.set_outcome(result)) is not None:
                tagged.setdefault(on_ends, []).append(request)
            continue
        try:
            if isinstance(result, BaseException):
                request.fail(result)
            else:
                request.succeed(result)
        except BaseException as error:
            log_error("ending a request failed", error)
    for on_ends, ended in tagged.items():
        try:
            on_ends(ended)
        except BaseException as error:
            log_error("ending requests failed", error)
    for loop, ends in loops.items():
        end_in_loop(loop, ends)
