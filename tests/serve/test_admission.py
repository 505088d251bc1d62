"""Which requests wait, which go first, and which are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from infersdk.errors import DeadlineExceeded, Overloaded
from infersdk.serve.admission import Admission
from infersdk.serve.errors import as_request_error
from infersdk.serve.repository import load_endpoint
from infersdk.serve.settings import ServerSettings


def test_priorities_and_the_order_of_coming() -> None:
    async def run() -> list[str]:
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
        return order

    assert asyncio.run(run()) == ["a1", "b2", "c2", "none", "none2"]


def test_a_full_queue_refuses_at_once() -> None:
    async def run() -> None:
        admission = Admission(1, 1, "m")
        await admission.enter(None, 0)
        waiting = asyncio.ensure_future(admission.enter(None, 0))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="'m' has 1 requests waiting, the most that it takes"):
            await admission.enter(None, 1)
        admission.leave()
        await waiting
        admission.leave()
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(run())


def test_the_header_says_when_to_come_back() -> None:
    """As the message does."""

    async def run() -> None:
        admission = Admission(1, 0, "m")
        await admission.enter(None, 0)
        admission._interval = 7.3  # as if the requests before took so long
        with pytest.raises(Overloaded, match=r"send it again in 7\.3 s") as raised:
            await admission.enter(None, 0)
        assert as_request_error(raised.value).headers == [("retry-after", "8")]

    asyncio.run(run())
    assert as_request_error(Overloaded("all slots are taken")).headers == [("retry-after", "1")]


def test_deadlines_and_cancelled_requests_leave_the_queue() -> None:
    async def run() -> None:
        admission = Admission(1, 10, "m")
        await admission.enter(None, 0)
        with pytest.raises(DeadlineExceeded, match=r"'m' had no slot for the request within its 0\.01 s"):
            await admission.enter(0.01, 0)
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

    asyncio.run(run())


def test_what_would_be_too_late_is_refused_when_it_comes() -> None:
    async def run() -> None:
        admission = Admission(1, 100, "m")
        await admission.enter(None, 0)
        waiting = [asyncio.ensure_future(admission.enter(None, 0)) for _ in range(20)]
        for _ in range(10):
            await asyncio.sleep(0.02)
            admission.leave()
        assert 0.1 < admission.estimate() < 1
        with pytest.raises(Overloaded, match=r"after its deadline of 0\.05 s") as raised:
            await admission.enter(0.05, 0)
        assert raised.value.retry_after == pytest.approx(admission.estimate() - 0.05)
        for _ in range(11):
            admission.leave()
        await asyncio.gather(*waiting)
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(run())


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
