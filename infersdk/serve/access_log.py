"""The access log: a line of JSON for each request, written by a thread, so that a slow reader delays no request."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from typing import Any

import msgspec

from ..core.text import printable
from .errors import shortened

__all__ = ["AccessLog"]

#: Size of the queue. Further lines are dropped; the next line reports their number.
_MOST_LINES = 10_000
#: Maximum characters of a field: clients choose names and ids.
_LONGEST = 1000


class AccessLog:
    """Writes lines to stderr. Without `enabled`, nothing is written and no thread runs."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="infersdk-access-log", daemon=True)
        if enabled:
            self._thread.start()

    def write(self, protocol: str, method: str, path: str, status: int | str, seconds: float, **fields: Any) -> None:
        """Logs a request. Empty fields are omitted."""
        if not self.enabled:
            return
        line = {
            "time": time.time(), "protocol": protocol, "method": method, "path": path, "status": status,
            "ms": round(seconds * 1e3, 3), **{key: value for key, value in fields.items() if value not in ("", 0)},
        }  # fmt: skip
        line = {key: shortened(text, _LONGEST) if isinstance(text, str) else text for key, text in line.items()}
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped:
                line["dropped"], self._dropped = self._dropped, 0
            with contextlib.suppress(OSError, ValueError):  # its reader has gone, or the stream is closed
                print(printable(msgspec.json.encode(line).decode()), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Writes the remaining lines; waits at most one second."""
        if self.enabled:
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=1)
            self._thread.join(1)
