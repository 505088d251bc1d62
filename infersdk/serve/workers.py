"""Worker threads for slow parts of a request: large bodies and results, compression."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ..errors import DeadlineExceeded

__all__ = ["in_worker", "within"]

_Result = TypeVar("_Result")

#: Two threads for all servers of a process, apart from those that load, run and close models.
_WORKERS = ThreadPoolExecutor(2, "infersdk-serve-worker")


async def in_worker(function: Callable[..., _Result], *arguments: object, when: bool = True) -> _Result:
    """Calls a function in a worker thread, so that it does not block the event loop.

    Args:
        when: False calls the function directly, because it is fast.
    """
    if not when:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, function, *arguments)


async def within(deadline: float | None, writing: Awaitable[_Result]) -> _Result:
    """Awaits `writing`, which encodes a result for its client.

    Args:
        deadline: deadline of the request, in seconds from now.

    Raises:
        DeadlineExceeded: the result was not encoded before the deadline.
    """
    try:
        return await asyncio.wait_for(writing, deadline)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(
            f"the result could not be written within the {deadline:g} s of the request; ask for fewer rows or for bytes"
        ) from None
