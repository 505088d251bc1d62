"""Progress and cancellation of a build."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ...core.backend import Progress

__all__ = ["make_monitor", "run_cancellable"]

T = TypeVar("T")


class _Phase:
    def __init__(self, name: str, parent: _Phase | None, steps: int) -> None:
        self.name, self.parent, self.steps = name, parent, max(1, steps)
        self.done = 0
        self.start, self.share = 0.0, 1.0  # the parts of the build before this phase, and of this phase
        if parent is not None:
            self.start = parent.start + parent.share * min(parent.done, parent.steps - 1) / parent.steps
            self.share = parent.share / parent.steps


def make_monitor(trt: Any, progress: Progress | None, cancelled: threading.Event) -> Any:
    """An IProgressMonitor that reports to `progress`, and stops the build when `cancelled` is set.

    The runtime nests phases of several steps; a phase counts as the step of its parent in which it starts. An exception
    of `progress` is kept in `.error` and sets `cancelled`, since it must not pass through the runtime.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.error: BaseException | None = None
            self._guard = threading.Lock()  # the runtime calls from several threads
            self._phases: dict[str, _Phase] = {}
            self._reported = 0.0

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            with self._guard:
                above = self._phases.get(parent) if parent is not None else None
                phase = self._phases[name] = _Phase(name, above, steps)
                self._report(name, phase.start)

        def step_complete(self, name: str, step: int) -> bool:
            with self._guard:
                if phase := self._phases.get(name):
                    phase.done = min(step + 1, phase.steps)
                    self._report(name, phase.start + phase.share * phase.done / phase.steps)
            return not cancelled.is_set()

        def phase_finish(self, name: str) -> None:
            with self._guard:
                if phase := self._phases.pop(name, None):
                    self._report(name, phase.start + phase.share)

        def _report(self, name: str, fraction: float) -> None:
            if progress is None or cancelled.is_set():
                return
            self._reported = max(self._reported, min(fraction, 1.0))
            try:
                progress(name, self._reported)
            except BaseException as error:
                self.error = error
                cancelled.set()

    return Monitor()


def run_cancellable(work: Callable[[], T], cancelled: threading.Event) -> T:
    """Runs `work` in a thread with the context of the caller, so that Ctrl-C in the main thread can set `cancelled`.

    An interrupt is raised again after the work has stopped. A second interrupt does not wait.
    """
    context = copy_context()
    future: Future[T] = Future()  # before Python 3.13, an interrupted Thread.join() marks the thread as ended

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="infersdk-build", daemon=True).start()
        wait([future])
    except BaseException:
        cancelled.set()
        if not future.cancel():
            wait([future])
        raise
    return future.result()
