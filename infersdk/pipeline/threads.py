"""The threads of a pipeline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.text import logger

__all__ = ["Lifecycle", "PipelineThread", "Supervisor", "log_error"]

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
