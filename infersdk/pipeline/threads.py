"""The threads of a pipeline, and the end of iterations that are abandoned.

The garbage collector may end an abandoned generator in any thread, also in one that holds the lock of the pipeline.
Cancelling a request there would wait for this lock for ever, so another thread does it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from ..core.text import logger

__all__ = [
    "CancelsPending",
    "Lifecycle",
    "PipelineThread",
    "Supervisor",
    "log_error",
    "prepare_elsewhere",
    "run_elsewhere",
]

_log = logger("infersdk.pipeline")


@dataclass
class Lifecycle:
    """How far a pipeline is closed. It changes under the pipeline's lock."""

    closing: bool = False  # no more requests come in
    stopped: bool = False  # the threads end
    fault: BaseException | None = None  # what ended a thread of the pipeline; no batch is begun any more


class Supervisor(Protocol):
    """The part of a pipeline that its threads call."""

    def thread_failed(self, error: BaseException, requests: Sequence[Any] = ()) -> None:
        """Reports that a fault of the pipeline ends the calling thread, which was running these requests."""

    def thread_ended(self) -> None:
        """Reports that the calling thread ends."""


class PipelineThread(threading.Thread):
    """A thread of a pipeline. An exception of its work is a fault of the pipeline, and reported."""

    def __init__(self, name: str, work: Callable[[], None], supervisor: Supervisor) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._supervisor = work, supervisor

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._supervisor.thread_failed(error)
        finally:
            self._supervisor.thread_ended()


def log_error(message: str, error: BaseException) -> None:
    """Logs an exception with its traceback. Exceptions of log handlers are suppressed."""
    with contextlib.suppress(BaseException):
        _log.error("%s: %r", message, error, exc_info=error)


#: Maximum seconds that `run_elsewhere()` waits.
PATIENCE = 0.02


class _Cancellable(Protocol):
    def cancel(self) -> object: ...


class _Worker:
    """The thread; there is one in a process, from the first iteration on."""

    def __init__(self) -> None:
        # Its put() may be called at any moment, even within another call of put() in the same thread.
        self._tasks = SimpleQueue[tuple[Callable[[], object], threading.Event]]()
        self._guard = threading.Lock()
        self._started = False

    def start(self) -> None:
        if self._started:
            return
        with self._guard:
            if not self._started:
                threading.Thread(target=self._work, name="infersdk-abandoned", daemon=True).start()
                self._started = True

    def run(self, task: Callable[[], object]) -> None:
        done = threading.Event()
        self._tasks.put((task, done))
        done.wait(PATIENCE)

    def _work(self) -> None:
        while self._run_next():
            """A waiting thread holds no requests, so their images are freed."""

    def _run_next(self) -> bool:
        task, done = self._tasks.get()
        try:
            task()
        except BaseException as error:  # of a callback
            log_error("ending an iteration that was abandoned failed", error)
        done.set()
        return True


_worker = _Worker()


def _new_worker() -> None:
    global _worker  # noqa: PLW0603
    _worker = _Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_worker)


def prepare_elsewhere() -> None:
    """Starts the thread of `run_elsewhere()`, if it has not been started. A generator calls this when it begins."""
    _worker.start()


def run_elsewhere(task: Callable[[], object]) -> None:
    """Runs a function in another thread, and waits for it up to `PATIENCE` seconds: the calling thread may hold a lock
    that the function needs. Its exceptions are logged.
    """
    _worker.run(task)


class CancelsPending:
    """At the end of its `with` block, in a generator, the requests that are left are cancelled.

    Args:
        requests: the block adds requests, and removes those whose outcomes it has taken.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: Collection[_Cancellable]) -> None:
        self._requests = requests

    def __enter__(self) -> None:
        prepare_elsewhere()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._requests:
            return
        if kind is GeneratorExit:
            run_elsewhere(self._cancel)
        else:
            self._cancel()

    def _cancel(self) -> None:
        for request in self._requests:
            request.cancel()
