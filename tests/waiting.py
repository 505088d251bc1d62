"""Waiting in tests: for a condition, and for work in threads; signals that interrupt it; ports on which nothing
listens; and tests in an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

#: Whether this Python has no GIL. A thread then frees objects of its own that others have released when it runs again.
FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()


class Interrupt(KeyboardInterrupt):
    """The exception of the signals of `interrupted()`."""


def interrupted(action: Callable[[], object], longest: float, seconds: float) -> int:
    """Calls a function again and again for some seconds, while signals interrupt it.

    Args:
        longest: maximum seconds until the next signal.

    Returns:
        The number of interrupts.
    """

    def interrupt(*signal_and_frame: object) -> None:
        raise Interrupt

    def repeat() -> None:  # a function: in Python 3.13.0, a `try` does not cover the end of a loop that it holds
        while time.monotonic() < end:
            action()

    limit = signal.setitimer(signal.ITIMER_REAL, 0)[0]  # of the test
    before, count, end = signal.signal(signal.SIGALRM, interrupt), 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, longest), 0.2)
                repeat()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, limit)
    return count


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition does not hold in time"
        time.sleep(0.002)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop, for a minute at most."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 60))

    return run


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
