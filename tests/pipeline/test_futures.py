"""The futures of requests keep the contract of `concurrent.futures.Future`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
import weakref
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
from waiting import interrupted, meanwhile

from infersdk.pipeline.request import RequestFuture, wake_waiters, wakes_in_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG = 30.0


class OfNoRequest(RequestFuture):
    """It is cancelled, and begins, as any future."""

    cancel, running = Future.cancel, Future.running  # type: ignore[assignment]


def after(seconds: float, action: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: (time.sleep(seconds), action(*arguments)))
    thread.start()
    return thread


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(LONG)
        assert not thread.is_alive()


def test_who_waits_too_long() -> None:
    future = OfNoRequest()
    for timeout in (0, -1, 0.01):
        for ask in (future.result, future.exception):
            with pytest.raises(futures.TimeoutError):
                ask(timeout)
    future.set_result(1)
    assert future.result(0) == 1


@pytest.mark.parametrize("end", ["set_result", "set_exception", "cancel"])
def test_all_threads_that_wait_come_back(threads: list[threading.Thread], end: str) -> None:
    future, seen = OfNoRequest(), list[Any]()

    def work() -> None:
        try:
            seen.append(future.result(LONG))
        except BaseException as error:
            seen.append(type(error))

    threads += [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    getattr(future, end)(*{"set_result": (3,), "set_exception": (OSError(),), "cancel": ()}[end])
    for thread in threads:
        thread.join(LONG)
    assert seen == [{"set_result": 3, "set_exception": OSError, "cancel": futures.CancelledError}[end]] * 5


def test_callbacks_run_once_in_order_and_whatever_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    future, called = OfNoRequest(), list[Any]()

    def fails(_: Future[Any]) -> None:
        raise ValueError("from the callback")

    future.add_done_callback(lambda f: called.append((1, f)))
    future.add_done_callback(fails)
    future.add_done_callback(lambda f: called.append((2, f.result())))
    future.set_result(7)
    assert called == [(1, future), (2, 7)]
    future.add_done_callback(lambda f: called.append(3))
    future.add_done_callback(fails)
    assert called[2:] == [3]
    assert [record.name for record in caplog.records] == ["concurrent.futures"] * 2
    assert future.result() == 7


def test_a_callback_may_ask_and_add_another() -> None:
    future, called = OfNoRequest(), list[Any]()

    def first(f: Future[Any]) -> None:
        called.append(f.result(0))
        f.add_done_callback(lambda g: called.append(g.done()))

    future.add_done_callback(first)
    future.set_result("a")
    assert called == ["a", True]


@pytest.mark.usefixtures("no_garbage_collector")
def test_a_raised_exception_is_in_no_cycle() -> None:
    """Who asks for the result of a failed request does not keep its image alive until the garbage is collected."""
    future = OfNoRequest()
    future.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        future.result()
    alive = weakref.ref(future)
    del future
    assert alive() is None


@pytest.mark.posix
def test_the_exception_of_a_signal_handler_is_raised_as_it_is() -> None:
    future = RequestFuture()

    def ask() -> None:
        with pytest.raises(futures.TimeoutError):
            future.result(1e-9)

    assert interrupted(ask, 60e-6, 0.5) > 100
    future.set_result(1)
    assert future.result(0) == 1


# ---- concurrent.futures and asyncio ----


def test_an_exception_whose_truth_value_is_false_is_raised() -> None:
    class EmptyError(Exception):
        def __bool__(self) -> bool:
            return False

    future = RequestFuture()
    future.end(EmptyError())
    with pytest.raises(EmptyError):
        future.result(LONG)


def test_wait(threads: list[threading.Thread]) -> None:
    ended, failed, cancelled, pending, late = (OfNoRequest() for _ in range(5))
    ended.set_result(1)
    failed.set_exception(OSError())
    cancelled.cancel()
    cancelled.set_running_or_notify_cancel()
    threads.append(after(0.01, late.set_result, 2))
    everything = [ended, failed, cancelled, pending, late]
    done, left = futures.wait(everything, timeout=0)
    assert {ended, failed, cancelled} <= done
    assert pending in left
    assert futures.wait([pending, late], LONG, futures.FIRST_COMPLETED) == ({late}, {pending})
    assert futures.wait(everything, timeout=0.01) == ({ended, failed, cancelled, late}, {pending})
    threads.append(after(0.01, pending.set_exception, KeyError()))
    assert not futures.wait(everything, LONG).not_done


def test_wait_for_one_that_is_cancelled(threads: list[threading.Thread]) -> None:
    """It counts once `set_running_or_notify_cancel()` has seen it, as in an executor."""
    future = OfNoRequest()
    future.cancel()
    assert futures.wait([future], 0.01).not_done == {future}
    threads.append(after(0.01, future.set_running_or_notify_cancel))
    assert futures.wait([future], LONG).done == {future}


def test_as_completed(threads: list[threading.Thread]) -> None:
    several = [OfNoRequest() for _ in range(4)]
    several[2].set_result(2)
    for i in (3, 0, 1):
        threads.append(after(0.02 * (1 + i), several[i].set_result, i))
    assert [future.result(0) for future in futures.as_completed(several, LONG)] == [2, 0, 1, 3]
    with pytest.raises(futures.TimeoutError):
        list(futures.as_completed([OfNoRequest()], 0.01))


@pytest.mark.parametrize("end", ["set_result", "set_exception", "cancel"])
def test_asyncio_wraps_it(threads: list[threading.Thread], end: str) -> None:
    future = OfNoRequest()

    async def main() -> Any:
        arguments = {"set_result": (3,), "set_exception": (OSError("a"),), "cancel": ()}[end]
        threads.append(after(0.01, getattr(future, end), *arguments))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), LONG)
        except (OSError, asyncio.CancelledError) as error:
            return type(error)

    assert asyncio.run(main()) == {"set_result": 3, "set_exception": OSError, "cancel": asyncio.CancelledError}[end]


def test_asyncio_cancels_it() -> None:
    future = OfNoRequest()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.01)

    asyncio.run(main())
    assert future.cancelled()


# ---- races ----


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads lose the interpreter's lock all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_of_threads_that_end_it_one_wins() -> None:
    """Each future ends once, and its callback runs once."""
    several, called = [OfNoRequest() for _ in range(300)], list[Future[Any]]()
    barrier, won = threading.Barrier(4), list[Future[Any]]()

    def work(action: Callable[[Future[Any]], Any]) -> None:
        barrier.wait(LONG)
        for future in several:
            with contextlib.suppress(futures.InvalidStateError):
                action(future)
                won.append(future)

    for future in several:
        future.add_done_callback(called.append)
    actions: list[Callable[[Future[Any]], Any]] = [
        lambda f: f.set_result(1), lambda f: f.set_result(2), lambda f: f.set_exception(OSError()),
    ]  # fmt: skip
    with meanwhile(work, actions):
        barrier.wait(LONG)
    assert sorted(map(id, called)) == sorted(map(id, won)) == sorted(map(id, several))
    assert all(future.done() for future in several)


@pytest.mark.usefixtures("switching")
def test_no_end_is_overlooked() -> None:
    """Threads wait by all means while another one ends the futures: all of them come back, and none too early."""
    rng = random.Random(5)
    for _ in range(12):
        several = [OfNoRequest() for _ in range(60)]

        def wait_for_all(several: list[Future[Any]] = several) -> bool:
            return not futures.wait(several, LONG).not_done

        def completed(several: list[Future[Any]] = several) -> bool:
            return {future.result(0) for future in futures.as_completed(several, LONG)} == set(range(60))

        def one_by_one(several: list[Future[Any]] = several) -> bool:
            return [future.result(LONG) for future in several] == list(range(60))

        def callbacks(several: list[Future[Any]] = several) -> bool:
            called, last = list[int](), threading.Semaphore(0)
            for future in several:
                future.add_done_callback(lambda f: (called.append(f.result(0)), last.release()))
            return all(last.acquire(timeout=LONG) for _ in several) and sorted(called) == list(range(60))

        def asked(several: list[Future[Any]] = several) -> bool:
            return [asyncio.run(_first(future)) for future in several[:3]] == [0, 1, 2]

        def work(wait: Callable[[], bool]) -> None:
            assert wait(), wait.__name__

        order = list(enumerate(several))
        rng.shuffle(order)
        with meanwhile(work, [wait_for_all, completed, one_by_one, callbacks, asked, one_by_one, wait_for_all]):
            for i, future in order:
                future.set_running_or_notify_cancel()
                future.set_result(i)
                if rng.random() < 0.1:
                    time.sleep(0.0002)


async def _first(future: Future[Any]) -> Any:
    return await asyncio.wrap_future(future)


# ---- threads that are woken in turn ----


def waiting(
    count: int, timeouts: dict[int, float] | None = None
) -> tuple[list[RequestFuture], list[threading.Thread], list[Any]]:
    """Futures, a thread that waits for each of them, and what the threads have got so far."""
    ended: list[Any] = []
    awaited = [RequestFuture() for _ in range(count)]

    def wait(index: int) -> None:
        try:
            ended.append(awaited[index].result((timeouts or {}).get(index)))
        except futures.TimeoutError:
            ended.append("late")

    started = [threading.Thread(target=wait, args=(index,)) for index in range(count)]
    for thread in started:
        thread.start()
    blocked, end = count - len(timeouts or {}), time.monotonic() + LONG
    while sum(bool(future._condition._blocked) for future in awaited) < blocked and time.monotonic() < end:
        time.sleep(0.001)
    return awaited, started, ended


@pytest.mark.parametrize("count", [1, 3, 40])
def test_all_are_woken_in_turn(count: int) -> None:
    awaited, started, ended = waiting(count)
    with wakes_in_turn():
        for index, future in enumerate(awaited):
            future.set_result(index)
        time.sleep(0.01)
        assert not ended  # at the end of the block
    for thread in started:
        thread.join(LONG)
    assert sorted(ended) == list(range(count))


def test_a_thread_whose_time_is_up_wakes_the_next_one() -> None:
    for _ in range(20):
        awaited, started, ended = waiting(12, dict.fromkeys(range(0, 12, 2), 0.004))
        with wakes_in_turn():
            for future in awaited:
                future.set_result(1)
                time.sleep(0.0005)
        for thread in started:
            thread.join(LONG)
            assert not thread.is_alive()
        assert len(ended) == 12
        assert set(ended) <= {1, "late"}


def test_callbacks_run_after_the_threads_before_them_are_woken() -> None:
    awaited, started, ended = waiting(3)
    seen: list[bool] = []

    def callback(_: Future[Any]) -> None:
        started[0].join(LONG)  # would not end if its turn came later
        seen.append(not started[0].is_alive())

    awaited[1].add_done_callback(callback)
    with wakes_in_turn():
        for future in awaited:
            future.set_result(1)
    for thread in started:
        thread.join(LONG)
    assert seen == [True]
    assert ended == [1, 1, 1]


def test_without_a_block_a_thread_is_woken_at_once() -> None:
    (future,), (thread,), ended = waiting(1)
    wake_waiters()
    future.set_result(5)
    thread.join(LONG)
    assert ended == [5]
