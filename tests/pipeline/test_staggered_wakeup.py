"""Threads that wait and are woken a few at a time: each of them is woken, whatever ends the waiting."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from infersdk.errors import InputError
from infersdk.pipeline import spinning_wakeup
from infersdk.pipeline.spinning_wakeup import SpinningWakeup, best_wakeup
from infersdk.pipeline.staggered_wakeup import StaggeredWakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from infersdk.pipeline.staggered_wakeup import Wakeup

    Make = Callable[..., Wakeup]

LONG = 30.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="threads are woken ahead on Linux only")


@pytest.fixture(
    params=[
        StaggeredWakeup,
        pytest.param(SpinningWakeup, marks=LINUX),
        pytest.param(partial(SpinningWakeup, patience=0), marks=LINUX),
    ],
    ids=["staggered", "spinning", "without patience"],
)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def sleepers(wakeup: Wakeup, count: int, then: Callable[[int], None]) -> tuple[list[Any], list[threading.Thread]]:
    waiters = [wakeup.waiter() for _ in range(count)]

    def work(i: int) -> None:
        assert wakeup.wait(waiters[i], LONG)
        then(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return waiters, threads


def test_who_was_let_through_does_not_wait(make: Make) -> None:
    wakeup = make()
    waiter = wakeup.waiter()
    wakeup.release(waiter)
    assert wakeup.wait(waiter)


def test_who_was_not_waits_so_long_and_is_not_waited_for(make: Make) -> None:
    wakeup = make(concurrent=1)
    gone, waiter = wakeup.waiter(), wakeup.waiter()
    assert not wakeup.wait(gone, 0.01)
    assert not wakeup.wait(wakeup.waiter(), 0)
    wakeup.release(gone)  # too late: it does not stand in anybody's way
    wakeup.release(waiter)
    assert wakeup.wait(waiter, LONG)


def test_twice_is_once(make: Make) -> None:
    wakeup = make(concurrent=1)
    waiter, other = wakeup.waiter(), wakeup.waiter()
    for _ in range(2):
        wakeup.release(waiter)
        wakeup.release(other)
    assert wakeup.wait(waiter, LONG)
    wakeup.release(waiter)
    assert wakeup.wait(other, LONG)


def test_each_wakes_the_next(make: Make) -> None:
    wakeup, order = make(concurrent=1), list[int]()
    waiters, threads = sleepers(wakeup, 16, order.append)
    for waiter in waiters:
        wakeup.release(waiter)
    for thread in threads:
        thread.join(LONG)
    assert sorted(order) == list(range(16))


def test_only_so_many_are_woken_at_a_time() -> None:
    wakeup = StaggeredWakeup(concurrent=2)
    waiters = [wakeup.waiter() for _ in range(5)]
    for waiter in waiters:
        wakeup.release(waiter)
    assert [bool(waiter.waking) for waiter in waiters] == [True, True, False, False, False]
    assert wakeup.wait(waiters[0])
    assert waiters[2].waking
    assert wakeup.wait(waiters[3], 0)  # in line, and gone before its turn
    assert wakeup.wait(waiters[1])
    assert waiters[4].waking


def test_turmoil(make: Make) -> None:
    """Those let through, those out of patience, and both at once: all come back, and all turns with them."""
    wakeup, rng = make(concurrent=2), random.Random(3)
    told: list[tuple[bool, bool]] = []

    def work(waiter: Any, patience: float | None) -> None:
        told.append((wakeup.wait(waiter, patience), waiter.released))

    for _ in range(30):
        waiters = [wakeup.waiter() for _ in range(24)]
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
    if isinstance(wakeup, StaggeredWakeup):
        last = [wakeup.waiter(), wakeup.waiter()]
        for waiter in last:
            wakeup.release(waiter)
        assert all(waiter.waking for waiter in last)  # both turns are free again
        for waiter in last:
            wakeup.forget(waiter)
    waiters, threads = sleepers(wakeup, 8, lambda _: None)
    for waiter in waiters:
        wakeup.release(waiter)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_signals_end_no_waiting_but_that_of_who_raises(make: Make) -> None:
    """A handler runs while the main thread waits. It goes on waiting, unless the handler raises, as that of Ctrl-C."""
    wakeup, handled = make(concurrent=1), list[int]()
    main = threading.main_thread().ident
    assert main is not None
    assert threading.current_thread() is threading.main_thread()

    def handler(number: int, _: object) -> None:
        handled.append(number)
        if len(handled) == 3:
            raise InterruptedError

    def interrupt() -> None:
        for _ in range(3):
            time.sleep(0.02)
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=interrupt)
    try:
        waiter, start = wakeup.waiter(), time.monotonic()
        thread.start()
        with pytest.raises(InterruptedError):
            wakeup.wait(waiter, LONG)
        assert len(handled) == 3
        assert time.monotonic() - start < LONG / 2
        thread.join(LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)
    wakeup.release(waiter)  # too late
    other = wakeup.waiter()
    wakeup.release(other)
    assert wakeup.wait(other, LONG)


def test_a_timeout_that_signals_interrupt_is_as_long(make: Make) -> None:
    wakeup = make()
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=lambda: [(time.sleep(0.01), signal.pthread_kill(main, signal.SIGUSR1))] * 1)
    try:
        start = time.monotonic()
        thread.start()
        assert not wakeup.wait(wakeup.waiter(), 0.1)
        assert 0.1 <= time.monotonic() - start < LONG
    finally:
        thread.join(LONG)
        signal.signal(signal.SIGUSR1, before)


def test_timeouts_of_any_size(make: Make) -> None:
    wakeup = make()
    for timeout in (0.0, -1.0, -1e300, 1e-9):
        assert not wakeup.wait(wakeup.waiter(), timeout)
    for timeout in (1e8, threading.TIMEOUT_MAX, None):
        waiter = wakeup.waiter()
        wakeup.release(waiter)
        assert wakeup.wait(waiter, timeout)


def test_a_thread_that_does_not_come_back_holds_up_no_other(make: Make) -> None:
    """Threads that come back at once are waited for; who does not is not waited for long."""
    wakeup, stop = make(concurrent=2), threading.Event()
    rounds, counts = 60, dict.fromkeys(range(6), 0)
    current = [wakeup.waiter() for _ in counts]

    def work(i: int) -> None:
        for n in range(rounds):
            assert wakeup.wait(current[i], LONG)
            current[i] = wakeup.waiter()
            counts[i] += 1
            if i == 0 and n == rounds // 2:
                stop.wait(LONG)  # with its turn
        wakeup.forget(current[i])

    def release() -> None:
        while any(thread.is_alive() for thread in threads):
            wakeup.hold()
            for waiter in list(current):
                wakeup.release(waiter)
            wakeup.let_go()
            if all(counts[i] == rounds for i in range(1, 6)):
                stop.set()
            time.sleep(0.0002)

    threads = [threading.Thread(target=work, args=(i,)) for i in counts]
    releaser = threading.Thread(target=release)
    for thread in [*threads, releaser]:
        thread.start()
    for thread in [*threads, releaser]:
        thread.join(LONG)
        assert not thread.is_alive()
    assert set(counts.values()) == {rounds}
    assert stop.is_set()


def test_who_forgets_without_waiting_lets_the_next_one_wake(make: Make) -> None:
    wakeup = make(concurrent=1)
    first, second, third = (wakeup.waiter() for _ in range(3))
    for waiter in (first, second, third):
        wakeup.release(waiter)
    wakeup.forget(second)  # in the queue
    wakeup.forget(first)  # awake
    assert wakeup.wait(third, LONG)


@LINUX
def test_quick_threads_are_waited_for_and_slow_ones_are_not() -> None:
    """After quick work four threads wake up, and spin while another one works; after slow work none waits for it."""
    wakeup = SpinningWakeup(concurrent=4, patience=0.3)

    def work(seconds: float, times: int) -> None:
        for _ in range(times):
            waiter = wakeup.waiter()
            wakeup.release(waiter)
            assert wakeup.wait(waiter, LONG)
            time.sleep(seconds)

    def let_through() -> tuple[int, int]:
        """Of six threads that are released while another one works: how many were woken, and how many let through."""
        waiters, threads = sleepers(wakeup, 6, lambda _: None)
        end = time.monotonic() + LONG
        while not all(waiter.waiting for waiter in waiters):
            assert time.monotonic() < end
            time.sleep(0.001)
        wakeup.hold()
        for waiter in waiters:
            wakeup.release(waiter)
        time.sleep(0.1)
        seen = sum(waiter.waking for waiter in waiters), sum(waiter.gone for waiter in waiters)
        wakeup.let_go()
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        return seen

    def after_quick_work() -> tuple[int, int]:
        work(0, 300)
        return let_through()

    assert let_through() == (6, 6)
    assert (4, 0) in (after_quick_work() for _ in range(10))  # a busy machine makes some of it slow
    work(0.002, 60)
    assert let_through() == (6, 6)


@LINUX
def test_who_is_released_before_it_waits_holds_up_no_other() -> None:
    wakeup = SpinningWakeup(concurrent=1)
    early = [wakeup.waiter() for _ in range(3)]  # of threads that are at work still
    waiters, threads = sleepers(wakeup, 4, lambda _: None)
    for waiter in [*early, *waiters]:
        wakeup.release(waiter)
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    for waiter in early:
        assert wakeup.wait(waiter, LONG)


@LINUX
def test_wrong_settings() -> None:
    with pytest.raises(InputError, match="0 threads"):
        SpinningWakeup(concurrent=0)
    with pytest.raises(InputError, match="-1000 ns"):
        SpinningWakeup(patience=-1e-6)


@LINUX
def test_threads_spin_where_processors_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, kind in ((2, StaggeredWakeup), (16, SpinningWakeup)):
        monkeypatch.setattr(spinning_wakeup, "available_processors", lambda count=processors: count)
        assert type(best_wakeup()) is kind
