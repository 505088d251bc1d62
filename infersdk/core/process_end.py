"""The end of the process. Python stops daemon threads when they ask for its lock. In the C++ code of a runtime this
aborts the process, so the process closes pipelines, waits for runs under way, and no daemon thread begins another one.
"""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

__all__ = ["at_end", "new_run_lock", "open_pipelines", "stop_daemon"]

#: Maximum seconds that the process waits for runs.
_PATIENCE = 5.0
_locks: WeakSet[threading.Lock] = WeakSet()
#: Their threads are daemon threads. A handler of `atexit` may make the first one: this module is imported before that.
open_pipelines: WeakSet[Any] = WeakSet()
#: Its callbacks run once the pipelines are closed.
at_end = ExitStack()
#: Whether the process ends. Whoever begins a run then calls `stop_daemon()`, and no pipeline is made.
begun = False


def new_run_lock() -> threading.Lock:
    """A lock that is held during a run."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def stop_daemon() -> None:
    """Does not return in a daemon thread."""
    if threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def _end() -> None:
    with ExitStack() as closing:  # it goes on after an exception of a callback
        closing.callback(_wait_for_runs)
        closing.enter_context(at_end.pop_all())
        for pipeline in list(open_pipelines):
            closing.callback(pipeline.close, drain=False)


def _wait_for_runs() -> None:
    global begun
    begun, deadline = True, time.monotonic() + _PATIENCE
    for lock in list(_locks):
        if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            lock.release()
