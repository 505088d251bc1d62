"""Threads that wait for their results through a pipeline, with each way of waking them: all of them come back."""

from __future__ import annotations

import queue
import random
import sys
import threading
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FuturesTimeout  # its own before Python 3.11
from typing import TYPE_CHECKING, Any

import pytest
from squares import LONG, Squares, consistent

from infersdk import Pipeline
from infersdk.errors import DeadlineExceeded, Overloaded
from infersdk.pipeline import spinning_wakeup
from infersdk.pipeline.spinning_wakeup import SpinningWakeup
from infersdk.pipeline.staggered_wakeup import StaggeredWakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALLERS, ROUNDS = 24, 150


@pytest.fixture(
    autouse=True,
    params=[1 << 20, pytest.param(1, marks=pytest.mark.skipif(sys.platform != "linux", reason="on Linux only"))],
    ids=["staggered", "spinning"],
)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """From so many processors on threads spin."""
    monkeypatch.setattr(spinning_wakeup, "MANY_PROCESSORS", request.param)
    return SpinningWakeup if request.param == 1 else StaggeredWakeup


def in_threads(work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert not failures


def test_each_caller_gets_its_own_result(kind: type) -> None:
    with Pipeline(Squares(capacity=4, concurrency=3), max_delay=0.0005) as pipeline:
        assert type(pipeline._core.wakeup) is kind

        def work(i: int) -> None:
            for n in range(ROUNDS):
                assert pipeline.submit(i + n).result(LONG) == (i + n) ** 2

        in_threads(work)
        assert pipeline.stats().done == CALLERS * ROUNDS


def test_callers_that_cancel_expire_and_lose_patience() -> None:
    with Pipeline(Squares(capacity=4, concurrency=2), max_delay=0.0005, slots=8) as pipeline:

        def work(i: int) -> None:
            rng = random.Random(i)
            for n in range(ROUNDS):
                try:
                    future = pipeline.submit(
                        n, timeout=rng.choice([None, 0.0002, 0]), deadline=rng.choice([None, 1, 0.0005])
                    )
                    if rng.random() < 0.2:
                        future.cancel()
                    if rng.random() < 0.2:
                        future.exception(0.0002)
                    assert future.result(LONG) == n * n
                except (Overloaded, DeadlineExceeded, CancelledError, FuturesTimeout):
                    continue

        in_threads(work)
        consistent(pipeline.stats())
        assert pipeline.submit(5).result(LONG) == 25


def test_groups_whose_slots_come_before_they_wait() -> None:
    """A thread that submits several requests prepares some of them itself while it is released already."""
    with Pipeline(Squares(capacity=4, concurrency=2), max_delay=0.0005, slots=8) as pipeline:

        def work(i: int) -> None:
            for n in range(ROUNDS // 5):
                ended = threading.Semaphore(0)

                def on_ends(requests: Sequence[Any], ended: threading.Semaphore = ended) -> None:
                    ended.release(len(requests))

                requests = pipeline.submit_each([(i + n + k, k) for k in range(11)], on_ends)
                for _ in requests:
                    assert ended.acquire(timeout=LONG)
                assert [request.result for request in requests] == [(i + n + k) ** 2 for k in range(11)]

        in_threads(work)
        assert pipeline.stats().done == CALLERS * (ROUNDS // 5) * 11


@pytest.mark.parametrize("wakeups", [1, 2])
def test_threads_that_never_wait_again_leave_none_asleep(kind: type, wakeups: int) -> None:
    """A thread that is let through may wake others only when it waits again, and not at all where it waits elsewhere
    or ends."""
    several = [kind() for _ in range(wakeups)]
    asleep: queue.Queue[tuple[Any, Any]] = queue.Queue()
    awake = [0] * CALLERS

    def release_all(count: int) -> None:
        found = [asleep.get(timeout=LONG) for _ in range(count)]
        for wakeup in several:
            wakeup.hold()
            for own, waiter in found:
                if own is wakeup:
                    wakeup.release(waiter)
            wakeup.let_go()

    def work(i: int) -> None:
        for n in range(ROUNDS // 3 + 1):
            wakeup = several[(i + n) % wakeups]
            waiter = wakeup.waiter()
            asleep.put((wakeup, waiter))
            assert wakeup.wait(waiter, LONG)
            awake[i] += 1

    releasing = threading.Thread(target=lambda: [release_all(CALLERS) for _ in range(ROUNDS // 3 + 1)])
    releasing.start()
    in_threads(work)
    releasing.join(LONG)
    assert awake == [ROUNDS // 3 + 1] * CALLERS
