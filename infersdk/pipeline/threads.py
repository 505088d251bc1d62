"""The threads of a pipeline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .._text import logger

if TYPE_CHECKING:
    from .request import Request

__all__ = ["Lifecycle", "PipelineThread", "Supervisor", "end_request", "log_error"]

_log = logger("infersdk.pipeline")


@dataclass
class Lifecycle:
    """How far the end of a pipeline is. It changes under the pipeline's lock."""

    closing: bool = False  # no more requests come in
    stopped: bool = False  # the threads end
    fault: BaseException | None = None  # what ended a thread of the pipeline; no batch is begun any more


class Supervisor(Protocol):
    """What the threads of a pipeline know of the whole."""

    def thread_failed(self, error: BaseException, requests: Sequence[Request] = ()) -> None:
        """A fault of ours ends the calling thread; these requests are on their way, and it had to end them."""

    def thread_ended(self) -> None:
        """The calling thread ends now, in whatever way."""


class PipelineThread(threading.Thread):
    """A thread that only its own work ends. What the work raises is a fault of ours, and reported."""

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


def end_request(request: Request, outcome: object) -> None:
    """Ends a request with a result, or with an exception.

    A thread of the pipeline does not end by what the caller's code raises: it is logged.
    """
    try:
        request.end(outcome)
    except BaseException as error:
        if not isinstance(threading.current_thread(), PipelineThread):
            raise
        log_error("ending a request failed", error)


def log_error(message: str, error: BaseException) -> None:
    """Logs an exception with its traceback. It raises nothing, whatever the handlers of the log do."""
    with contextlib.suppress(BaseException):
        _log.error("%s: %r", message, error, exc_info=error)
