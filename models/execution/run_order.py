"""The order in which a device runs the batches of a pipeline, each of which has a stream of its own."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...stream import Event, Stream

__all__ = ["RunOrder"]


class RunOrder:
    """Lets a device run one batch after another while two are in flight, and two at a time while more are.

    A device gives each of two batches that are ready half of itself, so they end at nearly the same time. Then the
    callers of both come back at the same time, and the device stands still until they have. One after the other, the
    first batch ends after half of the time, and its callers come back while the second one runs. Their copies go side
    by side in any case.

    With more batches in flight there is always one that is ready. There the device runs two at a time: one fills what
    the other one leaves idle. Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._runs: deque[Event] = deque(maxlen=2)  # the ends of the last runs that were queued
        self._in_flight = 0

    def wait(self, stream: Stream) -> None:
        """Lets `stream` wait for the run that has to end before its next one begins."""
        with self._lock:
            ahead = min(self._in_flight, 2)
            end = self._runs[-ahead] if 0 < ahead <= len(self._runs) else None
        if end is not None:
            stream.wait(end)

    def queued(self, end: Event, stream: Stream) -> None:
        """A run is queued on `stream`; `end` is recorded behind it. The batch is in flight until `finished()`."""
        end.record(stream)
        with self._lock:
            self._runs.append(end)
            self._in_flight += 1

    def finished(self) -> None:
        """A batch is not in flight any more."""
        with self._lock:
            self._in_flight -= 1
