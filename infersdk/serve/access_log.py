"""The access log: a line of JSON for each request, written by a thread, so that a slow reader delays no request."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from typing import Any, TextIO

import msgspec

__all__ = ["AccessLog"]

#: Lines that wait to be written; more are dropped, and counted in the next line that is written.
_MOST_LINES = 10_000
#: Control characters that JSON leaves as they are, and that a terminal may execute.
_ESCAPED = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class AccessLog:
    """Writes lines to a stream.

    Args:
        stream: None is stderr at the time of writing.
        enabled: without it nothing is written, and no thread runs.
    """

    def __init__(self, stream: TextIO | None = None, *, enabled: bool = True) -> None:
        self._stream, self.enabled = stream, enabled
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="infersdk-access-log", daemon=True)
        if enabled:
            self._thread.start()

    def write(self, protocol: str, method: str, path: str, status: int | str, seconds: float, **fields: Any) -> None:
        """Puts a request down. Fields that are empty are left out."""
        if not self.enabled:
            return
        line = {
            "time": time.time(), "protocol": protocol, "method": method, "path": path, "status": status,
            "ms": round(seconds * 1e3, 3), **{key: value for key, value in fields.items() if value not in ("", 0)},
        }  # fmt: skip
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped:
                line["dropped"], self._dropped = self._dropped, 0
            with contextlib.suppress(OSError, ValueError):  # its reader has gone, or the stream is closed
                print(
                    msgspec.json.encode(line).decode().translate(_ESCAPED), file=self._stream or sys.stderr, flush=True
                )

    def close(self) -> None:
        """Writes what is left, for a second at most."""
        if self.enabled:
            with contextlib.suppress(queue.Full):
                self._lines.put(None, timeout=1)
            self._thread.join(1)
