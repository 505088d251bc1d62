"""An engine as one of several of a model that is cut: on a stream that is given, and in one graph with the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .contexts import ContextSet

if TYPE_CHECKING:
    from ...stream import Stream

__all__ = ["QueuedRuns"]


class QueuedRuns:
    """What the Infer on TensorRT offers for that, beside `enqueue()`."""

    # Those of the Infer.
    stream: Any
    _own_stream: bool
    _engine: Any
    _contexts: Any
    _cuda: Any
    options: Any
    _bound: Any
    _first: bool
    _grown: Any
    _copied: bool
    _generations: Callable[[], list[int]]
    _rebind: Callable[[], None]
    _update_addresses: Callable[[], None]
    _graph_key: Callable[[], tuple[Any, ...]]
    _use_contexts: Callable[[ContextSet], None]
    _set_context: Callable[[], None]
    _queue: Callable[[], None]
    _can_capture: Callable[[], bool]

    def use_stream(self, stream: Stream) -> None:
        """Runs on `stream` from now on, which stays the caller's, and on contexts that no clone shares: the graph that
        the caller captures does not wait for runs of others.
        """
        self.stream.synchronize()
        self._engine.leave(self._contexts)
        if self._own_stream:
            self.stream.close()
        self.stream, self._own_stream = stream, False
        self._use_contexts(ContextSet(self._engine, self.options))
        self._bound = None

    def place_run(self) -> tuple[Any, ...] | None:
        """Binds and brings the inputs up to date for `queue_run()`. Returns what a graph of it is captured with; None
        where a run cannot be captured.
        """
        if self._bound != self._generations():
            self._rebind()
        self._update_addresses()
        with self._cuda:
            self._set_context()
            capturable = not (self._first or self._grown or self._copied) and self._can_capture()
        return self._graph_key() if capturable else None

    def queue_run(self) -> None:
        """Queues a run that was placed; while a graph is captured, within `capture_guard`."""
        with self._cuda:
            self._queue()

    @property
    def capture_guard(self) -> contextlib.AbstractContextManager[Any]:
        """Held while a graph is captured: making contexts and compiling elsewhere may end a capture."""
        guard: contextlib.AbstractContextManager[Any] = self._engine.guard
        return guard
