"""What a user's code raises ends no thread of a pipeline; and if one ends all the same, nothing hangs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
from squares import LONG, Squares, SquaresBuffer, begun, consistent, until

from infersdk import Pipeline
from infersdk.errors import ClosedError, InputError, PipelineError
from infersdk.pipeline import workers
from infersdk.pipeline.request import stage_listener
from infersdk.pipeline.scheduler import Scheduler
from infersdk.pipeline.stats import Statistics

ENDS = [SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, ZeroDivisionError]


def in_time(work: Callable[[], Any]) -> Any:
    """Does something that may hang, in a thread of its own."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
    thread.start()
    thread.join(LONG)
    assert done, "it hangs"
    return done[0]


def works(pipeline: Pipeline[Any], count: int = 12) -> None:
    """All threads of the pipeline are alive and at work."""
    assert all(thread.is_alive() for thread in pipeline._core.threads)
    numbers = list(range(count))
    assert in_time(lambda: [f.result(LONG) for f in pipeline.submit_many(numbers)]) == [n * n for n in numbers]
    consistent(pipeline.stats())


# ---- what a user's code raises ----


@pytest.mark.parametrize("kind", ENDS)
def test_callbacks_that_raise(model: Squares, kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """More of them than there are threads; the callbacks behind them run all the same."""
    later: list[int] = []

    def bad(_: Future[Any]) -> None:
        raise kind("of the callback")

    with Pipeline(model, max_delay=0.001) as pipeline:
        model.hold()
        with caplog.at_level(logging.ERROR):
            futures = pipeline.submit_many(range(8))
            for future in futures:
                future.add_done_callback(bad)
                future.add_done_callback(lambda f: later.append(f.result(0)))
            model.go.set()
            assert [f.result(LONG) for f in futures] == [n * n for n in range(8)]
            until(lambda: len(later) == 8)
        works(pipeline)
        in_time(pipeline.close)
    assert sum("of the callback" in str(r.exc_info[1]) for r in caplog.records if r.exc_info) == 8


def test_a_callback_that_exits_raises_in_the_thread_of_the_user(model: Squares) -> None:
    """There it means what it says: the future had ended before, or is cancelled there."""
    with Pipeline(model, max_delay=0) as pipeline:
        future = pipeline.submit(2)
        assert future.result(LONG) == 4
        with pytest.raises(SystemExit):
            future.add_done_callback(lambda _: sys.exit(9))
        model.hold()
        first = pipeline.submit(1)
        begun(model)
        begun(model)
        second = pipeline.submit(2)
        second.add_done_callback(lambda _: sys.exit(9))
        with pytest.raises(SystemExit):
            second.cancel()
        model.go.set()
        assert first.result(LONG) == 1
        works(pipeline)


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("number", [2, 3])  # prepared by a worker, and by the caller's thread
def test_preprocessing_that_raises(
    model: Squares, kind: type[BaseException], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = SquaresBuffer.prepare

    def bad(buffer: SquaresBuffer, row: int, item: int, parameters: Any) -> None:
        if item == number:
            raise kind("of the preprocessing")
        prepare(buffer, row, item, parameters)

    monkeypatch.setattr(SquaresBuffer, "prepare", bad)
    with Pipeline(model, max_delay=0.001) as pipeline:
        for _ in range(8):
            if kind is KeyboardInterrupt and number == 3:  # Ctrl-C in the caller's thread is for the caller
                with pytest.raises(KeyboardInterrupt):
                    pipeline.submit(number)
            else:
                with pytest.raises(kind, match="of the preprocessing"):
                    pipeline.submit(number).result(LONG)
        assert pipeline.submit(5).result(LONG) == 25
        assert pipeline.stats().failed == 8
        monkeypatch.undo()
        works(pipeline)


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("method", ["move", "run", "results", "refresh"])
def test_batch_buffers_that_raise(
    model: Squares, kind: type[BaseException], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(buffer: SquaresBuffer, *_: Any) -> Any:
        buffer.running = False
        raise kind("of the buffer")

    monkeypatch.setattr(
        Scheduler, "_complete", lambda _, batch, occupied: occupied >= batch.capacity
    )  # both requests wait for others
    with Pipeline(model, max_delay=0.05) as pipeline:
        monkeypatch.setattr(SquaresBuffer, method, bad)
        for _ in range(4):
            gone, stays = pipeline.submit_many([2, 4])
            assert gone.cancel()  # the row behind it moves up
            if method == "refresh":  # the results were there
                assert stays.result(LONG) == 16
            else:
                with pytest.raises(kind, match="of the buffer"):
                    stays.result(LONG)
        monkeypatch.undo()
        works(pipeline)


@pytest.mark.parametrize("results", [[], [1, 2], None, 7])
def test_results_of_another_number(model: Squares, results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(buffer: SquaresBuffer, count: int) -> Sequence[Any]:
        buffer.running = False
        found: Sequence[Any] = results
        return found

    with Pipeline(model, max_delay=0) as pipeline:
        monkeypatch.setattr(SquaresBuffer, "results", wrong)
        error = pipeline.submit(2).exception(LONG)
        assert isinstance(error, (RuntimeError, TypeError))
        monkeypatch.undo()
        works(pipeline)


def test_a_future_that_the_user_ends(model: Squares) -> None:
    with Pipeline(model, max_delay=0.05) as pipeline:
        before, running = pipeline.submit(2), pipeline.submit(4)
        before.set_result("mine")
        assert before.result(LONG) == "mine"
        assert running.result(LONG) == 16
        model.hold()
        begun(model)
        during = pipeline.submit(6)
        begun(model)
        during.set_exception(KeyError("mine"))
        model.go.set()
        with pytest.raises(KeyError):
            during.result(LONG)
        works(pipeline)


def test_a_log_handler_that_exits(model: Squares) -> None:
    class Bad(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise SystemExit

    handler, log = Bad(), logging.getLogger("infersdk.pipeline")
    log.addHandler(handler)
    try:
        with Pipeline(model, max_delay=0) as pipeline:
            for number in range(8):
                future = pipeline.submit(number)
                future.add_done_callback(lambda _: sys.exit(9) if threading.current_thread().daemon else None)
                assert future.result(LONG) == number * number
            works(pipeline)
    finally:
        log.removeHandler(handler)


def test_coroutines_whose_loop_has_closed(model: Squares) -> None:
    model.hold()

    async def leave() -> None:
        task = asyncio.ensure_future(pipeline.infer(2))
        await asyncio.to_thread(begun, model)
        task.cancel()

    with Pipeline(model, max_delay=0) as pipeline:
        asyncio.run(leave())
        model.go.set()
        works(pipeline)


def test_a_request_that_raises_stop_iteration(model: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine cannot raise it."""

    def bad(buffer: SquaresBuffer, row: int, item: Any, parameters: Any) -> None:
        raise StopIteration

    with Pipeline(model, max_delay=0) as pipeline:
        monkeypatch.setattr(SquaresBuffer, "prepare", bad)
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(asyncio.wait_for(pipeline.infer(2), LONG))
        monkeypatch.undo()
        works(pipeline)


def test_two_callbacks_close(model: Squares) -> None:
    """In two threads of the pipeline, which do not wait for its end."""
    both = threading.Barrier(2)
    two = Squares(capacity=1, concurrency=2)
    pipeline = Pipeline(two, max_delay=0)

    def close(_: Future[Any]) -> None:
        both.wait(LONG)
        pipeline.close()

    two.hold()
    futures = pipeline.submit_many([2, 4])
    for future in futures:
        future.add_done_callback(close)
    two.go.set()
    assert [f.result(LONG) for f in futures] == [4, 16]
    until(lambda: two.open == 0)


def test_all_callbacks_close(model: Squares) -> None:
    """The threads that would run the other requests are in callbacks, too."""
    pipeline = Pipeline(model, max_delay=0, slots=16, workers=1)
    model.hold()
    futures = pipeline.submit_many([-2, *range(14)])  # the first one ends in the thread that prepares
    for future in futures:
        future.add_done_callback(lambda _: pipeline.close())
    model.go.set()
    assert isinstance(futures[0].exception(LONG), InputError)
    assert [f.result(LONG) for f in futures[1:]] == [n * n for n in range(14)]
    until(lambda: model.open == 0)


def test_threads_that_cannot_start(model: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def fails(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(workers.PipelineThread, "start", fails)
    with pytest.raises(PipelineError, match=r"cannot start its \d+ threads \(can't start .*\); .* fewer workers"):
        Pipeline(model, workers=8)
    for thread in started:
        thread.join(LONG)
    assert not any(thread.is_alive() for thread in started)
    assert model.open == 0


@pytest.mark.parametrize("kind", ENDS)
def test_listeners_to_stages_that_raise(
    model: Squares, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def bad(_: object) -> None:
        raise kind("of the listener")

    with Pipeline(model, max_delay=0) as pipeline:
        token = stage_listener.set(bad)
        try:
            assert pipeline.submit(2).result(LONG) == 4
        finally:
            stage_listener.reset(token)
        works(pipeline)
    assert any("of the listener" in str(r.exc_info[1]) for r in caplog.records if r.exc_info)


def test_closing_ends_all_whatever_the_callbacks_raise(model: Squares) -> None:
    pipeline = Pipeline(model, max_delay=LONG)
    futures = pipeline.submit_many([2, 4, 6])
    for future in futures:
        future.add_done_callback(lambda _: sys.exit(9))

    def close() -> BaseException | None:
        try:
            pipeline.close(drain=False)
        except SystemExit as error:
            return error
        return None

    assert isinstance(in_time(close), SystemExit)
    assert all(isinstance(future.exception(0), ClosedError) for future in futures)
    assert not any(thread.is_alive() for thread in pipeline._core.threads)


# ---- a fault of the pipeline itself ----


def fault(pipeline: Pipeline[Any], futures: Sequence[Future[Any]]) -> None:
    """All that waits and all that comes later fails with the reason, and the pipeline can be closed."""
    for future in futures:
        if (error := future.exception(LONG)) is None:
            continue  # another thread finished it before
        assert isinstance(error, PipelineError)
        assert "OSError('a fault')" in str(error)
        assert isinstance(error.__cause__, OSError)
    until(lambda: isinstance(pipeline.fault, OSError))
    for later in (lambda: pipeline.submit(2), pipeline.warm_up, lambda: next(pipeline.map([2]))):
        with pytest.raises(PipelineError, match="has failed by a fault of its own"):
            later()
    with pytest.raises(PipelineError, match="make a new one"):
        asyncio.run(pipeline.infer(2))
    in_time(pipeline.close)
    in_time(pipeline.close)
    assert not any(thread.is_alive() for thread in pipeline._core.threads)


def broken(*_: Any, **__: Any) -> Any:
    raise OSError("a fault")


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Scheduler, "next_batch"),
        (Scheduler, "outputs_ready"),
        (Scheduler, "_free"),
        (Statistics, "batch_left"),
        (Statistics, "batch_done"),
        (workers, "fail_expired"),
    ],
)
def test_a_runner_that_ends(model: Squares, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str) -> None:
    pipeline = Pipeline(model, max_delay=0.05, slots=4)
    assert pipeline.submit(2).result(LONG) == 4
    until(lambda: pipeline.stats().done == 1)  # its thread waits for requests
    monkeypatch.setattr(kind, method, broken)
    futures = pipeline.submit_many([2, 4])
    fault(pipeline, futures)


@pytest.mark.parametrize(
    ("kind", "method"), [(Scheduler, "take_unprepared"), (Scheduler, "prepared"), (Scheduler, "notify_prepared")]
)
def test_a_worker_that_ends(model: Squares, monkeypatch: pytest.MonkeyPatch, kind: Any, method: str) -> None:
    pipeline = Pipeline(model, max_delay=0, slots=4, max_batch=2)
    monkeypatch.setattr(kind, method, broken)
    fault(pipeline, pipeline.submit_many([2, 4]))


def test_requests_that_wait_for_a_slot_while_a_thread_ends(model: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(model, max_delay=0, slots=4)
    model.hold()
    futures = [pipeline.submit(2)]
    begun(model)
    ended: list[Any] = []
    threads = [threading.Thread(target=lambda: ended.append(pipeline.submit(4).exception(LONG))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: pipeline.stats().waiting == 3)
    coroutine = threading.Thread(target=lambda: ended.append(_awaited(pipeline)))
    coroutine.start()
    until(lambda: pipeline.stats().waiting == 4)
    monkeypatch.setattr(Statistics, "batch_done", broken)
    model.go.set()
    for thread in (*threads, coroutine):
        thread.join(LONG)
    assert len(ended) == 4
    assert all(isinstance(error, PipelineError) for error in ended)
    fault(pipeline, futures)


def _awaited(pipeline: Pipeline[Any]) -> BaseException | None:
    async def main() -> BaseException | None:
        try:
            await asyncio.wait_for(pipeline.infer(4), LONG)
        except PipelineError as error:
            return error
        return None

    return asyncio.run(main())


def test_batches_of_other_threads_keep_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Squares(capacity=1, concurrency=2)
    pipeline = Pipeline(model, max_delay=0)
    model.hold()
    running = pipeline.submit_many([2, 4])
    for _ in range(2):
        begun(model)
    waiting = pipeline.submit(6)
    monkeypatch.setattr(Scheduler, "take_unprepared", broken)
    late = pipeline.submit(8)
    for future in (waiting, late):
        error = future.exception(LONG)
        assert isinstance(error, PipelineError)
    model.go.set()
    assert [f.result(LONG) for f in running] == [4, 16]
    fault(pipeline, [late])
    assert model.open == 0


def test_ctrl_c_in_the_middle_of_a_change(model: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can rely on what it leaves, so nothing waits for it."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    pipeline = Pipeline(model, max_delay=LONG)
    waiting = pipeline.submit(2)
    monkeypatch.setattr(Scheduler, "_add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.submit(4)
    assert isinstance(waiting.exception(LONG), PipelineError)
    with pytest.raises(PipelineError, match="KeyboardInterrupt"):
        pipeline.submit(6)
    in_time(pipeline.close)


def test_cancelled_requests_stay_cancelled_when_a_thread_ends(model: Squares, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(model, max_delay=LONG)
    kept, dropped = pipeline.submit_many([2, 4])
    assert dropped.cancel()
    monkeypatch.setattr(Scheduler, "take_unprepared", broken)
    last = pipeline.submit(6)
    with pytest.raises(CancelledError):
        dropped.result(LONG)
    fault(pipeline, [kept, last])
