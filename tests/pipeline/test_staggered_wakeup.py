"""Threads that wait and are woken a few at a time: each of them is woken, whatever ends the waiting."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from infersdk.pipeline.staggered_wakeup import StaggeredWakeup, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = 30.0


def sleepers(
    wakeup: StaggeredWakeup, count: int, then: Callable[[int], None]
) -> tuple[list[Waiter], list[threading.Thread]]:
    waiters = [Waiter() for _ in range(count)]

    def work(i: int) -> None:
        assert wakeup.wait(waiters[i], LONG)
        then(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return waiters, threads


def test_who_was_let_through_does_not_wait() -> None:
    wakeup, waiter = StaggeredWakeup(), Waiter()
    wakeup.release(waiter)
    assert wakeup.wait(waiter)


def test_who_was_not_waits_so_long_and_is_not_waited_for() -> None:
    wakeup, gone, waiter = StaggeredWakeup(concurrent=1), Waiter(), Waiter()
    assert not wakeup.wait(gone, 0.01)
    assert not wakeup.wait(Waiter(), 0)
    wakeup.release(gone)  # too late: it does not stand in anybody's way
    wakeup.release(waiter)
    assert wakeup.wait(waiter, LONG)


def test_twice_is_once() -> None:
    wakeup, waiter, other = StaggeredWakeup(concurrent=1), Waiter(), Waiter()
    for _ in range(2):
        wakeup.release(waiter)
        wakeup.release(other)
    assert wakeup.wait(waiter, LONG)
    wakeup.release(waiter)
    assert wakeup.wait(other, LONG)


def test_each_wakes_the_next() -> None:
    wakeup, order = StaggeredWakeup(concurrent=1), list[int]()
    waiters, threads = sleepers(wakeup, 16, order.append)
    for waiter in waiters:
        wakeup.release(waiter)
    for thread in threads:
        thread.join(LONG)
    assert sorted(order) == list(range(16))


def test_only_so_many_are_woken_at_a_time() -> None:
    wakeup, waiters = StaggeredWakeup(concurrent=2), [Waiter() for _ in range(5)]
    for waiter in waiters:
        wakeup.release(waiter)
    assert [waiter.waking for waiter in waiters] == [True, True, False, False, False]
    assert wakeup.wait(waiters[0])
    assert waiters[2].waking
    assert wakeup.wait(waiters[3], 0)  # in line, and gone before its turn
    assert wakeup.wait(waiters[1])
    assert waiters[4].waking


def test_turmoil() -> None:
    """Those let through, those out of patience, and both at once: all come back, and all turns with them."""
    wakeup, rng = StaggeredWakeup(concurrent=2), random.Random(3)
    told: list[tuple[bool, bool]] = []

    def work(waiter: Waiter, patience: float | None) -> None:
        told.append((wakeup.wait(waiter, patience), waiter.released))

    for _ in range(30):
        waiters = [Waiter() for _ in range(24)]
        patience = [rng.choice([None, 0, 0.0005, 0.002]) for _ in waiters]
        threads = [threading.Thread(target=work, args=pair) for pair in zip(waiters, patience, strict=True)]
        for thread in threads:
            thread.start()
        for waiter in rng.sample(waiters, len(waiters)):
            wakeup.release(waiter)
            if rng.random() < 0.2:
                time.sleep(0.0005)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
    assert len(told) == 30 * 24
    assert any(through for through, _ in told)
    last = [Waiter(), Waiter()]
    for waiter in last:
        wakeup.release(waiter)
    assert all(waiter.waking for waiter in last)  # both turns are free again
