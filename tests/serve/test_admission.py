"""Which requests wait, which go first, and which are refused."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from waiting import in_a_loop

from infersdk.errors import DeadlineExceeded, Overloaded
from infersdk.serve.admission import Admission
from infersdk.serve.errors import as_request_error
from infersdk.serve.repository import load_endpoint
from infersdk.serve.settings import ServerSettings


@in_a_loop
async def test_priorities_and_the_order_of_coming() -> None:
    admission, order = Admission(1, 10, "m"), list[str]()
    await admission.enter(None, 0)

    async def one(name: str, priority: int) -> None:
        await admission.enter(None, priority)
        order.append(name)
        admission.leave()

    tasks = [asyncio.ensure_future(one(*x)) for x in (("none", 0), ("b2", 2), ("a1", 1), ("c2", 2), ("none2", 0))]
    await asyncio.sleep(0)
    assert (admission.running, admission.waiting) == (1, 5)
    admission.leave()
    await asyncio.gather(*tasks)
    assert (admission.running, admission.waiting) == (0, 0)
    assert order == ["a1", "b2", "c2", "none", "none2"]


@in_a_loop
async def test_a_full_queue_refuses_at_once() -> None:
    admission = Admission(1, 1, "m")
    await admission.enter(None, 0)
    waiting = asyncio.ensure_future(admission.enter(None, 0))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="'m' has 1 images or rows waiting, the most that it takes is 1"):
        await admission.enter(None, 1)
    later = asyncio.ensure_future(admission.enter(None, 1, admitted=True))
    with pytest.raises(DeadlineExceeded):
        await admission.enter(0.001, 1, admitted=True)
    assert admission.waiting == 2
    for task in (later, waiting):
        admission.leave()
        await task
    admission.leave()
    assert (admission.running, admission.waiting) == (0, 0)


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@in_a_loop
async def test_the_header_says_when_to_come_back() -> None:
    """As the message does."""
    clock = Clock()
    admission = Admission(1, 0, "m", clock)
    await admission.enter(None, 0)
    clock.now += 0.4
    wait = admission.estimate()
    with pytest.raises(Overloaded, match=rf"send it again in {wait:.1f} s") as raised:
        await admission.enter(None, 0)
    assert as_request_error(raised.value).headers == [("retry-after", "1")]
    assert as_request_error(Overloaded("all slots are taken")).headers == [("retry-after", "1")]


async def serve(admission: Admission, clock: Clock, requests: int, seconds: float) -> None:
    """Fills the slots, and lets so many requests take so long each."""
    for _ in range(requests // admission.slots):
        for _ in range(admission.slots):
            await admission.enter(None, 0)
        clock.now += seconds
        for _ in range(admission.slots):
            admission.leave()


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("pause", [0.0, 5.0])
@in_a_loop
async def test_the_estimate_forgets_slow_requests(slots: int, pause: float) -> None:
    """Requests with a deadline are taken again when a wait is short, even if no request waits meanwhile."""
    clock = Clock()
    admission = Admission(slots, 100, "m", clock)
    await serve(admission, clock, 10 * slots, 3.0)
    for _ in range(slots):
        await admission.enter(None, 0)
    assert admission.estimate() > 0.5
    with pytest.raises(Overloaded, match=r"after its deadline of 0\.2 s"):
        await admission.enter(0.2, 0)
    for _ in range(slots):
        admission.leave()
    refused = 0
    for _ in range(100):  # fast ones, each together with one more that has a deadline
        clock.now += pause
        for _ in range(slots):
            await admission.enter(None, 0)
        waiting = asyncio.ensure_future(admission.enter(0.2, 0))
        await asyncio.sleep(0)
        if waiting.done():
            refused += isinstance(waiting.exception(), Overloaded)
        else:
            waiting.cancel()
            await asyncio.wait([waiting])
        clock.now += 0.01
        for _ in range(slots):
            admission.leave()
    assert refused <= 60
    for _ in range(slots):
        await admission.enter(None, 0)
    assert admission.estimate() < 0.2


@in_a_loop
async def test_a_service_that_has_just_started_refuses_none() -> None:
    clock = Clock()
    admission = Admission(1, 100, "m", clock)
    await admission.enter(None, 0)
    clock.now += 0.05
    waiting = asyncio.ensure_future(admission.enter(0.1, 0))
    await asyncio.sleep(0)
    admission.leave()
    await waiting


@pytest.mark.parametrize("end", ["cancelled", "expired"])
@in_a_loop
async def test_requests_that_end_leave_nothing_behind(end: str) -> None:
    """Also behind requests of higher priority, which go on waiting."""
    admission = Admission(1, 1000, "m")
    await admission.enter(None, 0)
    first = asyncio.ensure_future(admission.enter(None, 1))
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(admission.enter(0.001 if end == "expired" else None, 2)) for _ in range(200)]
    await asyncio.sleep(0)
    kept = [weakref.ref(task) for task in later]
    if end == "cancelled":
        assert all(task.cancel() for task in later)
    await asyncio.gather(*later, return_exceptions=True)
    later.clear()
    await asyncio.sleep(0)
    gc.collect()
    assert (admission.waiting, sum(task() is not None for task in kept)) == (1, 0)
    admission.leave()
    await first


@in_a_loop
async def test_a_cancelled_request_takes_no_other_with_it() -> None:
    admission = Admission(1, 10, "m")
    await admission.enter(None, 0)
    gone = asyncio.ensure_future(admission.enter(None, 1))
    stays = [asyncio.ensure_future(admission.enter(None, 2)) for _ in range(2)]
    await asyncio.sleep(0)
    gone.cancel()
    admission.leave()  # before the cancelled one runs again
    await asyncio.gather(gone, return_exceptions=True)
    await stays[0]
    assert (admission.running, admission.waiting) == (1, 1)
    admission.leave()
    await stays[1]


@in_a_loop
async def test_deadlines_and_cancelled_requests_leave_the_queue() -> None:
    admission = Admission(1, 10, "m")
    await admission.enter(None, 0)
    with pytest.raises(DeadlineExceeded, match=r"'m' had no slot for the request within its 0\.5 s"):
        await admission.enter(0.5, 0)  # a slow machine takes less time to get here: it would be refused then
    gone = asyncio.ensure_future(admission.enter(None, 0))
    stays = asyncio.ensure_future(admission.enter(None, 0))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert admission.waiting == 1
    admission.leave()
    await stays
    assert (admission.running, admission.waiting) == (1, 0)
    late = asyncio.ensure_future(admission.enter(None, 0))
    await asyncio.sleep(0)
    admission.leave()  # the slot is its own now
    late.cancel()  # before it runs again
    with pytest.raises(asyncio.CancelledError):
        await late
    assert (admission.running, admission.waiting) == (0, 0)


@in_a_loop
async def test_what_would_be_too_late_is_refused_when_it_comes() -> None:
    admission = Admission(1, 100, "m")
    await admission.enter(None, 0)
    waiting = [asyncio.ensure_future(admission.enter(None, 0)) for _ in range(20)]
    for _ in range(10):
        await asyncio.sleep(0.02)
        admission.leave()
    assert 0.1 < admission.estimate() < 1
    with pytest.raises(Overloaded, match=r"after its deadline of 0\.05 s") as raised:
        await admission.enter(0.05, 0)
    assert raised.value.retry_after == pytest.approx(admission.estimate() - 0.05, abs=0.05)
    for _ in range(11):
        admission.leave()
    await asyncio.gather(*waiting)
    assert (admission.running, admission.waiting) == (0, 0)


@pytest.mark.parametrize(("slots", "given", "queue"), [(2, None, 64), (16, None, 128), (2, 5, 5)])
def test_a_small_pipeline_lets_the_clients_of_a_small_service_wait(
    tables: dict[str, Any], slots: int, given: int | None, queue: int
) -> None:
    table = {**tables["simple"], "max_batch": 1, "pipeline": {"instances": 1, "slots": slots}}
    endpoint = load_endpoint("m", "1", table, ServerSettings(max_queue=given))
    try:
        assert (endpoint.admission.slots, endpoint.admission.queue_limit) == (slots, queue)
    finally:
        endpoint.close(0)
