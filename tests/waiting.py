"""Waiting in tests: for a condition, and for work in threads; and ports on which nothing listens."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: Whether this Python has no GIL. A thread then frees objects of its own that others have released when it runs again.
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition does not hold in time"
        time.sleep(0.002)


def together(work: Callable[..., Any], arguments: Iterable[Any]) -> None:
    """Calls a function with each of these, a tuple of arguments or one, at the same time; what one raises is raised."""
    with meanwhile(work, arguments):
        pass


@contextlib.contextmanager
def meanwhile(work: Callable[..., Any], arguments: Iterable[Any]) -> Iterator[list[Future[Any]]]:
    """As `together()`, while the body of the `with` statement runs; raises after it."""
    given = [one if isinstance(one, tuple) else (one,) for one in arguments]
    with ThreadPoolExecutor(len(given)) as threads:
        running = [threads.submit(work, *one) for one in given]
        yield running
        for one in running:
            one.result()


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
