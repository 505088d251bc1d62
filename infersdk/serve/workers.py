"""Concurrent parts of a request, and worker threads for its slow parts: large bodies and results, compression."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..errors import DeadlineExceeded

__all__ = ["all_results", "in_worker", "within"]

_Result = TypeVar("_Result")

#: Two threads for all servers of a process, apart from those that load, run and close models.
_WORKERS = ThreadPoolExecutor(2, "infersdk-serve-worker")


async def in_worker(function: Callable[..., _Result], *arguments: object, when: bool = True) -> _Result:
    """Calls a function in a worker thread, so that it does not block the event loop; without `when` directly, because
    it is fast.
    """
    if not when:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, function, *arguments)


async def all_results(calls: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of concurrent calls. If one fails, the others are cancelled and end, and it is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def within(deadline: float | None, writing: Awaitable[_Result]) -> _Result:
    """Awaits `writing`, which encodes a result for its client. Raises DeadlineExceeded after `deadline` seconds."""
    try:
        return await asyncio.wait_for(writing, deadline)
    except asyncio.TimeoutError:
        raise DeadlineExceeded(
            f"the result could not be written within the {deadline:g} s of the request; ask for fewer rows or for bytes"
        ) from None
