"""Releasing the memory of a wrapper, now or after some time without use."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from ..core.text import logger
from ..errors import InferenceError
from ..pipeline.request import run_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["IdleRelease"]

T = TypeVar("T")

_log = logger("infersdk.models")


class IdleRelease:
    """Counts the uses of a model, and releases it when there are none. In its `with` block the model is used.

    Args:
        release: frees the memory; called while the model is not used. The function that it returns is called
            afterwards, when the model may be used again: it ends threads, which may take a while.
        requests: the number of requests that have not ended.
        name: of the model, for messages.

    Attributes:
        limit: seconds without use after which the model is released; None where it is released on request alone.
    """

    def __init__(self, release: Callable[[], Callable[[], None]], requests: Callable[[], int], name: str) -> None:
        self._release, self._requests, self._name = release, requests, name
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._uses = 0
        self._last_use = monotonic()
        self._released_at = -1.0  # the last use before the last release
        self.limit: float | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._uses += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._uses -= 1
            self._last_use = monotonic()

    def until_the_end(self, results: Iterator[T]) -> Iterator[T]:
        """These results; the model counts as used until they end."""
        self.__enter__()
        try:
            yield from results
        except GeneratorExit:  # perhaps of the garbage collector, in a thread with a lock that `requests` needs
            run_elsewhere(self.__exit__)
            raise
        except BaseException:
            self.__exit__()
            raise
        self.__exit__()

    def now(self) -> None:
        """Releases the model.

        Raises:
            InferenceError: calls, streams or requests are running.
        """
        with self._changed:
            uses, requests = self._uses, self._requests()
            if uses or requests:
                raise InferenceError(
                    f"{self._name} cannot be released: {uses} calls or streams and {requests} requests are "
                    "running; wait for their results, or use release(after=seconds)"
                )
            finish = self._release()
        finish()

    def after(self, seconds: float) -> None:
        """Releases the model after this number of seconds without use, each time."""
        with self._changed:
            self.limit, self._last_use = seconds, monotonic()
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="infersdk-release", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        try:
            while (finish := self._wait_until_idle()) is not None:
                finish()
        except Exception as error:  # there is no caller to raise it to
            _log.error("%s could not be released: %s", self._name, error)

    def _wait_until_idle(self) -> Callable[[], None] | None:
        """Releases the model when its time has come; None when nothing is to be released any more."""
        with self._changed:
            while self.limit is not None:
                if self._requests():
                    self._last_use = monotonic()
                left = self._last_use + self.limit - monotonic()
                if not self._uses and left <= 0 and self._released_at != self._last_use:
                    self._released_at = self._last_use
                    return self._release()
                self._changed.wait(max(left, self.limit / 4, 0.001))
        return None

    def close(self) -> None:
        """Ends the watching, and waits for a release in progress."""
        with self._changed:
            self.limit = None
            self._changed.notify_all()
