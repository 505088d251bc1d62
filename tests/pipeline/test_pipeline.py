"""Requests, slots and batches: who leaves when, who fails, who waits."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from idle_backend import idle
from squares import LONG, Squares, SquaresBuffer, begun, consistent, until
from waiting import FREE_THREADED, together

import infersdk
from infersdk import Pipeline
from infersdk.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    ForkError,
    InferenceError,
    InputError,
    OutOfMemoryError,
    Overloaded,
    ShapeError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from infersdk.pipeline import PipelineStats

#: Of the clock, in seconds: Windows has 0.0156.
RESOLUTION = time.get_clock_info("monotonic").resolution


# ---- when a batch leaves ----


def test_one_request_leaves_after_the_delay(model: Squares) -> None:
    with Pipeline(model, max_delay=0.05) as pipeline:
        start = time.monotonic()
        assert pipeline.submit(3).result(LONG) == 9
        assert time.monotonic() - start >= 0.05 - RESOLUTION
        stats = pipeline.stats()
    assert (stats.submitted, stats.done, stats.batch_sizes) == (1, 1, {1: 1})
    assert stats.queue.max >= 0.05
    assert stats.queue.max <= stats.total.max


def test_while_a_batch_runs_the_next_one_fills(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0) as pipeline:
        first = pipeline.submit(1)
        begun(model)
        others = pipeline.submit_many([2, 3, 4])  # past their delay, and the model is not free
        time.sleep(0.05)
        assert model.batches == [[1]]
        model.go.set()
        assert [f.result(LONG) for f in (first, *others)] == [1, 4, 9, 16]
        assert sorted(model.batches[1]) == [2, 3, 4]
        assert pipeline.stats().batch_sizes == {1: 1, 3: 1}


def test_as_many_run_side_by_side_as_the_model_says() -> None:
    model = Squares(capacity=1, concurrency=3)
    model.hold()
    with Pipeline(model, max_delay=0) as pipeline:
        futures = pipeline.submit_many(range(5))
        for _ in range(3):
            begun(model)
        time.sleep(0.02)
        assert len(model.batches) == 3
        assert pipeline.stats().running == 3
        assert pipeline.stats().queued == 2
        model.go.set()
        assert [f.result(LONG) for f in futures] == [0, 1, 4, 9, 16]
    with Pipeline(model, max_delay=0, instances=1) as pipeline:
        assert pipeline.slots == 3


def test_behind_a_batch_that_runs_one_that_is_not_full_goes_on_filling() -> None:
    model = Squares(capacity=2, concurrency=3)
    model.serializes_runs = True
    model.hold()
    with Pipeline(model, max_delay=0) as pipeline:
        first = pipeline.submit(1)
        begun(model)
        others = [pipeline.submit(2)]  # past its delay, and would only stand behind the first
        time.sleep(0.05)
        assert model.batches == [[1]]
        others.append(pipeline.submit(3))  # a full one leaves at once
        begun(model)
        assert sorted(model.batches[1]) == [2, 3]
        others.append(pipeline.submit(4))
        time.sleep(0.02)
        assert pipeline.stats().running == 3
        model.go.set()
        assert [f.result(LONG) for f in (first, *others)] == [1, 4, 9, 16]
        assert model.batches[2] == [4]


def test_several_models_share_the_requests() -> None:
    models = [Squares(capacity=2), Squares(capacity=2)]
    for one in models:
        one.hold()
    with Pipeline(models, max_delay=LONG) as pipeline:
        futures = pipeline.submit_many(range(4))
        for one in models:
            begun(one)
            one.go.set()
        assert [f.result(LONG) for f in futures] == [0, 1, 4, 9]
        assert sorted(itertools.chain(*models[0].batches, *models[1].batches)) == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="same largest batch"):
        Pipeline([Squares(2), Squares(3)])


def test_a_callback_may_wait_for_who_waits_for_the_result(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0) as pipeline:
        future = pipeline.submit(3)
        found: list[int] = []
        waiter = threading.Thread(target=lambda: found.append(future.result(LONG)))
        future.add_done_callback(lambda _: waiter.join(LONG))
        waiter.start()
        model.go.set()
        assert future.result(LONG) == 9
        waiter.join(LONG)
        assert found == [9]


# ---- each request its own ----


def test_a_bad_item_fails_alone(model: Squares) -> None:
    with Pipeline(model, max_delay=0.2) as pipeline:
        bad, *good = pipeline.submit_many([-1, 5, 6, 7])
        with pytest.raises(InputError, match="-1 is below zero"):
            bad.result(LONG)
        assert [f.result(LONG) for f in good] == [25, 36, 49]
        assert pipeline.stats().failed == 1
    assert [sorted(batch) for batch in model.batches] == [[5, 6, 7]]  # without a gap


@pytest.mark.parametrize(("method", "count"), [("prepare", 1), *itertools.product(["run", "results", "move"], [1, 4])])
@pytest.mark.usefixtures("no_garbage_collector")
def test_the_error_of_a_batch_is_in_no_cycle(
    model: Squares, method: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its traceback has the item, perhaps a large image, which would stay until the garbage is collected."""

    def fails(self: SquaresBuffer, *arguments: Any) -> None:
        self.running = False
        raise InferenceError("the run failed")

    for name in {method, "results" if method == "move" else method}:  # rows are moved after a failure
        monkeypatch.setattr(SquaresBuffer, name, fails)
    with Pipeline(model, max_delay=0.2) as pipeline:
        futures = pipeline.submit_many(range(count))
        errors = [weakref.ref(future.exception(LONG)) for future in futures]
        del futures

        def freed() -> bool:
            if FREE_THREADED:
                pipeline.submit(2).exception(LONG)
            return not any(error() for error in errors)

        until(freed)


def test_a_bad_result_fails_alone(model: Squares) -> None:
    with Pipeline(model, max_delay=0.05) as pipeline:
        bad, good = pipeline.submit_many([1313, 14])
        with pytest.raises(ValueError, match="bad luck"):
            bad.result(LONG)
        assert good.result(LONG) == 196


@pytest.mark.parametrize("bad", [{0}, {5}, {7}, {2, 6}, set(range(8)), set()])
def test_a_run_that_fails_fails_the_requests_that_cause_it(bad: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is run again by halves, so that the other requests of the batch have their own results."""
    model = Squares(capacity=8)
    run, runs = SquaresBuffer.run, [0]

    def failing(buffer: SquaresBuffer, count: int) -> None:
        runs[0] += 1
        if bad & set(buffer.rows[:count]):
            raise RuntimeError("the index is out of range")
        run(buffer, count)

    monkeypatch.setattr(SquaresBuffer, "run", failing)
    with Pipeline(model, max_delay=LONG) as pipeline:
        futures = pipeline.submit_many(range(8))
        for number, future in enumerate(futures):
            if number in bad:
                with pytest.raises(RuntimeError, match="out of range"):
                    future.result(LONG)
            else:
                assert future.result(LONG) == number * number
        stats = pipeline.stats()
    assert (stats.done, stats.failed) == (8 - len(bad), len(bad))
    assert runs[0] <= 15
    assert (stats.reruns > 0) == bool(bad)


def test_a_failure_that_does_not_come_again_fails_no_request(model: Squares) -> None:
    model.error = RuntimeError("the runtime says no")
    with Pipeline(model, max_delay=LONG) as pipeline:
        assert [f.result(LONG) for f in pipeline.submit_many(range(4))] == [0, 1, 4, 9]
        assert (pipeline.stats().failed, pipeline.stats().reruns) == (0, 1)


def test_cancelled_before_it_left(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=8) as pipeline:
        running = pipeline.submit(1)
        begun(model)
        keep, drop = pipeline.submit(2), pipeline.submit(3)
        assert drop.cancel()
        assert drop.cancel()  # once more is no matter
        assert not running.cancel()
        assert wait([drop], timeout=LONG).done  # the waiting ends
        model.go.set()
        assert (running.result(LONG), keep.result(LONG)) == (1, 4)
        assert not keep.cancel()
        with pytest.raises(CancelledError):
            drop.result()
        stats = pipeline.stats()
    assert (stats.done, stats.cancelled) == (2, 1)
    assert model.batches == [[1], [2]]


def test_the_slot_of_a_cancelled_request_is_free_at_once(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=LONG, slots=8, when_full="raise") as pipeline:
        running = pipeline.submit_many(range(4))
        begun(model)
        waiting = pipeline.submit_many([10, 11, 12])
        for _ in range(20):
            assert pipeline.submit(20).cancel()
        assert waiting[1].cancel()
        until(lambda: pipeline.stats().queued == 2)
        more = pipeline.submit(14)
        model.go.set()
        pipeline.close()
        assert [f.result(LONG) for f in (*running, waiting[0], waiting[2], more)] == [0, 1, 4, 9, 100, 144, 196]


def test_all_of_a_batch_cancelled(model: Squares) -> None:
    with Pipeline(model, max_delay=0.05) as pipeline:
        for _ in range(50):  # more than there are slots
            assert pipeline.submit(1).cancel()
        assert pipeline.submit(2).result(LONG) == 4
    assert model.batches == [[2]]


def test_deadlines(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=4) as pipeline:
        first = pipeline.submit(1, deadline=0.5)
        begun(model)  # it has left in time, and will have its result
        time.sleep(0.6)
        model.go.set()
        assert first.result(LONG) == 1
        with pytest.raises(DeadlineExceeded, match=r"not left within 0 s"):
            pipeline.submit(5, deadline=0).result(LONG)
        assert pipeline.stats().expired == 1


def test_a_deadline_is_told_while_the_model_is_busy(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0) as pipeline:
        running = pipeline.submit(1)
        begun(model)
        start = time.monotonic()
        late, patient = pipeline.submit(2, deadline=0.1), pipeline.submit(3, deadline=LONG)
        with pytest.raises(DeadlineExceeded):
            late.result(LONG)
        assert 0.05 < time.monotonic() - start < LONG / 2
        assert not running.done()
        model.go.set()
        assert (running.result(LONG), patient.result(LONG)) == (1, 9)
        assert pipeline.stats().expired == 1
        assert isinstance(late.exception(), TimeoutError)


def test_a_deadline_is_told_while_rows_wait_for_their_preparation(model: Squares) -> None:
    """The rows of requests that have expired are not prepared."""
    prepared, go = [], threading.Event()
    with Pipeline(model, max_batch=1, max_delay=0, slots=12, workers=1) as pipeline:
        prepare = SquaresBuffer.prepare

        def slow(buffer: SquaresBuffer, row: int, item: Any, parameters: Any) -> None:
            prepared.append(item)
            assert go.wait(LONG)
            prepare(buffer, row, item, parameters)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SquaresBuffer, "prepare", slow)
            first, second = pipeline.submit(2), pipeline.submit(4)
            late = [pipeline.submit(n, deadline=0.05) for n in range(6, 22, 2)]
            until(lambda: prepared == [2])
            time.sleep(0.1)
            go.set()
            for future in late:
                assert isinstance(future.exception(LONG), DeadlineExceeded)
            assert (first.result(LONG), second.result(LONG)) == (4, 16)
    assert prepared == [2, 4]


def test_a_deadline_passes_in_line(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=0, slots=4) as pipeline:
        running = pipeline.submit(1)
        begun(model)
        refused: list[Future[Any]] = []
        thread = threading.Thread(target=lambda: refused.append(pipeline.submit(2, deadline=0.1)))
        thread.start()
        thread.join(LONG)  # let go at its deadline, though no slot has come free
        assert isinstance(refused[0].exception(LONG), DeadlineExceeded)
        assert not running.done()
        model.go.set()


# ---- parameters of a request ----


def test_requests_with_parameters_of_their_own_share_a_batch(model: Squares) -> None:
    with Pipeline(model, max_delay=LONG) as pipeline:
        futures = [pipeline.submit(3), pipeline.submit(3, power=3), pipeline.submit(2, power=4), pipeline.submit(5)]
        assert [f.result(LONG) for f in futures] == [9, 27, 16, 25]
        assert pipeline.stats().batch_sizes == {4: 1}
        assert [f.result(LONG) for f in pipeline.submit_many([1, 2, 3, 4], power=3)] == [1, 8, 27, 64]
    with Pipeline(model, max_delay=0.001) as pipeline:
        assert list(pipeline.map(range(6), power=1)) == list(range(6))
        assert asyncio.run(pipeline.infer(2, power=5)) == 32


def test_parameters_move_with_their_row(model: Squares) -> None:
    with Pipeline(model, max_delay=0.1) as pipeline:
        bad, *good = [pipeline.submit(n, power=p) for n, p in ((-1, 2), (2, 3), (2, 4), (2, 5))]
        with pytest.raises(InputError):
            bad.result(LONG)
        assert [f.result(LONG) for f in good] == [8, 16, 32]


def test_an_unknown_parameter_fails_its_own_request(model: Squares, tmp_path: Path) -> None:
    with Pipeline(model, max_delay=0.1) as pipeline:
        bad, good = pipeline.submit(3, powr=3), pipeline.submit(3, power=3)
        with pytest.raises(InputError, match="powr"):
            bad.result(LONG)
        assert good.result(LONG) == 27
    with idle(tmp_path, 4, side=2) as infer, Pipeline(infer, max_delay=0) as pipeline:
        with pytest.raises(InputError, match=r"takes no parameters with a request, and conf was given"):
            pipeline.submit(row(1), conf=0.5).result(LONG)
        assert float(pipeline.submit(row(1)).result(LONG)["y"]) == 1


# ---- no slot ----


def test_overloaded(model: Squares) -> None:
    model.hold()
    with Pipeline(model, max_delay=LONG, slots=8, when_full="raise") as pipeline:
        futures = pipeline.submit_many(range(8))
        with pytest.raises(Overloaded, match="all 8 slots of the pipeline of Squares are taken"):
            pipeline.submit(9)
        extra = pipeline.submit_many([10, 11])
        assert all(isinstance(f.exception(), Overloaded) for f in extra)
        model.go.set()
        assert [f.result(LONG) for f in futures] == [i * i for i in range(8)]
        assert pipeline.stats().rejected == 3
        assert pipeline.submit_many(range(4))[3].result(LONG) == 9


@pytest.mark.parametrize("given", ["setting", "argument"])
def test_waits_so_long(model: Squares, given: str) -> None:
    model.hold()
    settings = {"timeout": 0.05} if given == "setting" else {}
    argument = {"timeout": 0.05} if given == "argument" else {}
    with Pipeline(model, max_delay=LONG, slots=4, **settings) as pipeline:
        futures = pipeline.submit_many(range(4))
        start = time.monotonic()
        with pytest.raises(Overloaded, match=r"all 4 slots .* were taken for 0\.05 s"):
            pipeline.submit(9, **argument)
        assert time.monotonic() - start >= 0.05 - RESOLUTION
        with pytest.raises(Overloaded):
            pipeline.submit(9, timeout=0)
        model.go.set()
        assert [f.result(LONG) for f in futures] == [0, 1, 4, 9]
        stats = pipeline.stats()
    assert (stats.submitted, stats.rejected) == (4, 2)


def test_those_who_wait_are_served_in_order(model: Squares) -> None:
    model.hold()
    order: list[int] = []
    with Pipeline(model, max_delay=0.01, slots=4, max_batch=1) as pipeline:
        running = [pipeline.submit(i) for i in range(4)]
        with ThreadPoolExecutor(10) as threads:
            for i in range(10, 20):
                threads.submit(lambda i=i: pipeline.submit(i).result(LONG))
                until(lambda i=i: pipeline.stats().waiting == i - 9)
            model.go.set()
        assert [f.result(LONG) for f in running] == [0, 1, 4, 9]
        order = [number for batch in model.batches for number in batch]
    assert order == [0, 1, 2, 3, *range(10, 20)]


# ---- the end ----


def test_close_runs_what_was_taken_in(model: Squares) -> None:
    pipeline = Pipeline(model, max_delay=LONG)
    futures = pipeline.submit_many(range(6))
    pipeline.close()
    assert [f.result(0) for f in futures] == [0, 1, 4, 9, 16, 25]
    pipeline.close()
    with pytest.raises(ClosedError, match="the pipeline of Squares was closed"):
        pipeline.submit(1)
    consistent(pipeline.stats())


def test_close_lets_go_of_those_who_wait(model: Squares) -> None:
    model.hold()
    pipeline = Pipeline(model, max_delay=0, slots=4, max_batch=4)
    running = pipeline.submit(1)
    begun(model)
    ended: list[Any] = []

    def submit() -> None:
        try:
            ended.append(pipeline.submit(2).result(LONG))
        except (CancelledError, ClosedError) as error:
            ended.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    until(lambda: pipeline.stats().waiting == 1)
    threading.Timer(0.05, model.go.set).start()
    pipeline.close(drain=False)
    thread.join(LONG)
    assert running.result(0) == 1
    assert isinstance(ended[0], ClosedError)


def test_callbacks_that_submit_more_than_there_are_slots(model: Squares) -> None:
    """The threads that free slots do not wait for them."""
    ended: list[int] = []
    with Pipeline(model, max_delay=0, slots=4) as pipeline:

        def more(future: Future[Any]) -> None:
            ended.append(future.result())
            if len(ended) <= 40:
                for n in (2, 3):
                    pipeline.submit(n).add_done_callback(more)

        pipeline.submit(2).add_done_callback(more)
        until(lambda: len(ended) == 81)
        consistent(pipeline.stats())


def test_requests_that_a_closed_pipeline_refuses_are_not_counted(model: Squares) -> None:
    pipeline = Pipeline(model, max_delay=0)
    assert pipeline.submit(2).result(LONG) == 4
    pipeline.close()
    for _ in range(3):
        with pytest.raises(ClosedError):
            list(pipeline.map([2]))
    stats = pipeline.stats()
    consistent(stats)
    assert (stats.submitted, stats.done, stats.cancelled) == (1, 1, 0)


def test_an_exception_in_the_block_does_not_wait_for_the_rest(model: Squares) -> None:
    futures: list[Future[Any]] = []

    def block() -> None:
        with Pipeline(model, max_delay=LONG) as pipeline:
            futures.extend(pipeline.submit_many([1, 2]))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        block()
    assert all(isinstance(f.exception(0), ClosedError) for f in futures)


def test_a_pipeline_without_references_ends(model: Squares) -> None:
    pipeline = Pipeline(model, max_delay=0)
    assert pipeline.submit(3).result(LONG) == 9
    threads = list(pipeline._core.threads)
    del pipeline
    gc.collect()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    until(lambda: model.open == 0)


def test_a_pipeline_without_references_ends_after_its_requests(model: Squares) -> None:
    assert Pipeline(model, max_delay=0.01).submit(3).result(LONG) == 9
    ended: list[Any] = []
    Pipeline(model, max_delay=0.01).submit_batch([4], lambda index, outcome: ended.append(outcome))
    until(lambda: model.open == 0)
    assert ended == [16]


@pytest.mark.posix
@pytest.mark.parametrize("method", ["stats", "durations"])
def test_no_statistics_in_a_child_process(model: Squares, method: str) -> None:
    """Another thread may have held the lock at the fork, so the child does not wait for it."""
    with Pipeline(model) as pipeline, pipeline._core.lock:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(10)
                getattr(pipeline, method)()
            except ForkError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.posix
def test_not_in_a_child_process(model: Squares) -> None:
    with Pipeline(model, max_delay=0) as pipeline:
        assert pipeline.submit(3).result(LONG) == 9
        child = os.fork()
        if child == 0:
            code = 1
            try:
                pipeline.submit(3)
            except ForkError as error:
                pipeline.close()  # returns, and leaves the parent's alone
                code = 0 if f"was made in process {os.getppid()}" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pipeline.submit(4).result(LONG) == 16


def run_script(text: str, folder: Path, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": path}, cwd=folder, **kwargs,
    )  # fmt: skip


def test_the_end_of_the_process_leaves_nothing_hanging(tmp_path: Path) -> None:
    done = run_script(
        """
        import pathlib, numpy as np
        from idle_backend import idle
        from infersdk import Pipeline
        pipeline = Pipeline(idle(pathlib.Path("."), 2, seconds=0.2, side=2), max_delay=10)
        futures = pipeline.submit_many([np.full((3, 2, 2), i, np.float32) for i in range(5)])
        print(futures[0].result()["y"])
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.0\n", "")


def test_the_end_of_the_process_closes_all_whatever_the_callbacks_raise(tmp_path: Path) -> None:
    done = run_script(
        """
        import pathlib, numpy as np
        from idle_backend import idle
        from infersdk import Pipeline

        def on_done(index, outcome):
            print(type(outcome).__name__)
            raise ValueError("mine")

        pipelines = [Pipeline(idle(pathlib.Path("."), 2, side=2), max_delay=10) for _ in range(2)]
        for pipeline in pipelines:
            pipeline.submit_batch([np.zeros((3, 2, 2), np.float32)], on_done)
        """,
        tmp_path,
    )
    assert done.stdout == "ClosedError\n" * 2


@pytest.mark.posix
def test_ctrl_c(tmp_path: Path) -> None:
    done = run_script(
        """
        import os, pathlib, signal, threading, numpy as np
        from idle_backend import idle
        from infersdk import Pipeline
        pipeline = Pipeline(idle(pathlib.Path("."), 1, seconds=1.0, side=2), max_delay=0, slots=1)
        first = pipeline.submit(np.zeros((3, 2, 2), np.float32))
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            with pipeline:
                pipeline.submit(np.zeros((3, 2, 2), np.float32))  # waits for a slot
        except KeyboardInterrupt:
            stats = pipeline.stats()
            print(first.done(), stats.done, stats.waiting, stats.cancelled + stats.done == stats.submitted)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1 0 True\n", "")


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_ctrl_c_while_a_thread_prepares_its_own_request(
    model: Squares, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The runner that has the row does not wait for it for ever."""
    pipeline = Pipeline(model, max_delay=0)
    workers = pipeline._core.workers
    prepare_own, prepare = workers.prepare_all, SquaresBuffer.prepare

    def interrupted(*arguments: Any) -> Any:
        if when == "after":
            prepare_own(*arguments)
        raise KeyboardInterrupt

    if when == "in":
        monkeypatch.setattr(SquaresBuffer, "prepare", interrupted)
    else:
        monkeypatch.setattr(workers, "prepare_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.submit(3)  # odd: by this thread
    monkeypatch.setattr(SquaresBuffer, "prepare", prepare)
    monkeypatch.setattr(workers, "prepare_all", prepare_own)
    assert [future.result(LONG) for future in pipeline.submit_many([4, 5])] == [16, 25]
    pipeline.close()
    consistent(pipeline.stats())


# ---- map ----


def test_map_keeps_the_order_and_takes_no_more_than_it_needs(model: Squares) -> None:
    taken: list[int] = []

    def endless() -> Iterator[int]:
        for i in itertools.count():
            taken.append(i)
            yield i

    with Pipeline(model, max_delay=0.001) as pipeline:
        results = pipeline.map(endless(), in_flight=6)
        assert [next(results) for _ in range(40)] == [i * i for i in range(40)]
        assert len(taken) <= 46
        results.close()  # type: ignore[attr-defined]
        assert list(pipeline.map(range(10))) == [i * i for i in range(10)]
        assert list(pipeline.map([])) == []
        for count in (0, 1.5, "3"):
            with pytest.raises(ConfigError, match=f"in_flight is at least 1, not {count!r}"):
                pipeline.map([], in_flight=count)  # type: ignore[arg-type]


def test_map_waits_where_submit_would_raise(model: Squares) -> None:
    with Pipeline(model, max_delay=0, slots=4, when_full="raise") as pipeline:
        assert list(pipeline.map(range(12), in_flight=100)) == [i * i for i in range(12)]


def test_map_and_errors(model: Squares) -> None:
    with Pipeline(model, max_delay=0) as pipeline:
        results = pipeline.map([1, -2, 3])
        assert next(results) == 1
        with pytest.raises(InputError, match="-2 is below zero"):
            next(results)
        found = list(pipeline.map([1, -2, 3], return_exceptions=True))
        assert (found[0], type(found[1]), found[2]) == (1, InputError, 9)


# ---- asyncio ----


def test_from_asyncio(model: Squares) -> None:
    async def many() -> list[Any]:
        return await asyncio.gather(*(pipeline.infer(i) for i in range(200)))

    async def bad() -> None:
        await pipeline.infer(-5)

    with Pipeline(model, max_delay=0.001, slots=8) as pipeline:
        assert asyncio.run(many()) == [i * i for i in range(200)]
        with pytest.raises(InputError, match="-5 is below zero"):
            asyncio.run(bad())


def test_a_coroutine_that_is_cancelled(model: Squares) -> None:
    model.hold()

    async def main() -> None:
        running = asyncio.ensure_future(pipeline.infer(1))
        await asyncio.to_thread(begun, model)
        tasks = [asyncio.ensure_future(pipeline.infer(i)) for i in range(2, 12)]  # some wait for a slot
        await asyncio.sleep(0.01)
        assert pipeline.stats().waiting > 0
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        model.go.set()
        assert await running == 1
        assert [await task for task in tasks[1::2]] == [i * i for i in range(3, 12, 2)]
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    with Pipeline(model, max_delay=0, slots=4, max_batch=2) as pipeline:
        asyncio.run(main())
        assert pipeline.stats().cancelled == 5


def test_asyncio_and_no_slot(model: Squares) -> None:
    model.hold()

    async def main() -> None:
        tasks = [asyncio.ensure_future(pipeline.infer(i)) for i in range(4)]
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded):
            await pipeline.infer(5)
        model.go.set()
        assert await asyncio.gather(*tasks) == [0, 1, 4, 9]

    with Pipeline(model, max_delay=0, max_batch=1, slots=4, when_full="raise") as pipeline:
        asyncio.run(main())


# ---- settings ----


NO_SECONDS = [float("inf"), float("nan"), 1e10, 1e15, -1.0, 10**400, True, "1", 1j, np.float32("inf"), np.array(1.0)]


@pytest.mark.parametrize("name", ["deadline", "timeout"])
@pytest.mark.parametrize("value", NO_SECONDS, ids=lambda value: repr(value)[:12])
def test_times_of_a_request_are_bounded(model: Squares, name: str, value: Any) -> None:
    with Pipeline(model, max_delay=0) as pipeline:
        with pytest.raises(InputError, match=f"{name} is (from 0 to 1,000,000|a number of) seconds"):
            pipeline.submit(3, **{name: value})
        if name == "deadline":
            with pytest.raises(InputError, match="deadline is"):
                asyncio.run(pipeline.infer(3, deadline=value))
        for one in (np.float32(1000), np.float64(1000), np.int8(100), 1_000_000, 1000):
            assert pipeline.submit(3, **{name: one}).result(LONG) == 9
        assert pipeline.fault is None


@pytest.mark.parametrize("name", ["max_delay", "timeout"])
@pytest.mark.parametrize("value", NO_SECONDS, ids=lambda value: repr(value)[:12])
def test_times_of_the_settings_are_bounded(model: Squares, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        Pipeline(model, **{name: value})
    with Pipeline(model, **{name: np.float32(0.001)}, max_batch=np.int64(2)) as pipeline:
        assert pipeline.max_batch == 2
        assert pipeline.submit(3).result(LONG) == 9


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_batch": 0}, r"max_batch"),
        ({"max_delay": -1}, r"max_delay"),
        ({"slots": 1 << 40}, r"slots"),
        ({"instances": 1 << 40}, r"instances"),
        ({"workers": 1 << 40}, r"workers"),
        ({"when_full": "drop"}, r"when_full"),
        ({"batch": 2}, r"unknown field `batch`. Known are: max_batch, max_delay"),
    ],
)
def test_settings_that_say_something_wrong(model: Squares, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Pipeline(model, **settings)
    with pytest.raises(ConfigError, match="needs a model"):
        Pipeline([])


def test_slots_are_whole_batches(model: Squares) -> None:
    for wanted, have in ((1, 4), (4, 4), (5, 8), (None, 12)):
        with Pipeline(model, slots=wanted) as pipeline:
            assert (pipeline.slots, pipeline.max_batch) == (have, 4)


# ---- an Infer ----


@pytest.fixture
def onnx_models() -> Any:
    """The module of that name; the test skips without ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("onnx_models")


def row(value: float, side: int = 2) -> np.ndarray[Any, Any]:
    return np.full((3, side, side), value, np.float32)


def test_arrays_through_an_infer(tmp_path: Path) -> None:
    with idle(tmp_path, 4, side=2) as infer, Pipeline(infer, max_delay=0.01) as pipeline:
        assert pipeline.max_batch == 4
        futures = pipeline.submit_many([row(i) for i in range(10)])
        assert [float(f.result(LONG)["y"]) for f in futures] == list(range(10))
        assert float(pipeline.submit({"x": row(5)}).result(LONG)["y"]) == 5
        with pytest.raises(ShapeError, match=r"input 'x' takes \(3, 2, 2\) for one request, not \(3, 3, 3\)"):
            pipeline.submit(row(1, 3)).result(LONG)
        with pytest.raises(InputError, match="no input 'z'; the model's inputs are"):
            pipeline.submit({"z": row(1)}).result(LONG)
        with pytest.raises(InputError, match="takes float32, not float64"):
            pipeline.submit(row(1).astype(float)).result(LONG)
        with pytest.raises(InputError, match="input 'x' is not an array: .*; give rows of equal length"):
            pipeline.submit([[1.0], [2.0, 3.0]]).result(LONG)
        with pytest.raises(InputError, match=r"takes arrays, not 'a\.jpg'; infersdk\.models\.load\(\) gives the"):
            pipeline.submit("a.jpg").result(LONG)
    assert infer.backend == "idle"


@pytest.mark.parametrize("batch", ["n", 2])
def test_items_that_write_their_own_row(tmp_path: Path, onnx_models: Any, batch: str | int) -> None:
    class Item:
        def __init__(self, *shape: int, dtype: type = np.float32) -> None:
            self.shape, self.dtype = shape, np.dtype(dtype)

        def read_into(self, row: Any) -> None:
            row[:] = 3

    path = onnx_models.double(tmp_path / "m.onnx", [batch, 4])
    with infersdk.load(path) as infer, Pipeline(infer, max_batch=2, max_delay=0) as pipeline:
        (found,) = pipeline.submit(Item(4)).result(LONG).values()
        assert found.tolist() == [6] * 4
        with pytest.raises(ShapeError, match=r"takes \(4,\) for one request, not \(2, 4\)"):
            pipeline.submit(Item(2, 4)).result(LONG)
        with pytest.raises(InputError, match="takes float32, not float64"):
            pipeline.submit(Item(4, dtype=np.float64)).result(LONG)


@pytest.mark.parametrize("models", [None, "abc", 5, [None], iter(())])
def test_what_is_no_model(models: Any) -> None:
    with pytest.raises(ConfigError, match="a pipeline takes"):
        Pipeline(models)


def test_a_model_without_a_batch_axis(tmp_path: Path, onnx_models: Any) -> None:
    fixed = "no free batch axis in front, so batches of 8 .* with a dynamic first dimension, or use max_batch=3"
    for dims, words in (([3, 4], fixed), (["n", "m"], "leaves more than its batch free")):
        path = onnx_models.identity(tmp_path / "m.onnx", dims)
        with infersdk.load(path) as infer, pytest.raises(UnsupportedModelError, match=words):
            Pipeline(infer, max_batch=8)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_a_model_with_a_row_for_each_object(tmp_path: Path, onnx_models: Any, backend: str, capacity: int) -> None:
    """Which row belongs to which request is unknown, also where there are as many."""
    pytest.importorskip(backend)
    for make in (onnx_models.found, onnx_models.nonzero):
        with infersdk.load(make(tmp_path / "m.onnx"), backend) as infer, pytest.raises(UnsupportedModelError) as raised:
            Pipeline(infer, max_batch=capacity)
        assert "use max_batch" not in str(raised.value)


def test_one_number_for_each_request_is_an_array(tmp_path: Path, onnx_models: Any) -> None:
    path = onnx_models.double(tmp_path / "m.onnx", ["batch"])
    with infersdk.load(path, "onnxruntime") as infer, Pipeline(infer, max_batch=2) as pipeline:
        result = pipeline.submit(np.float32(3)).result(LONG)["y"]
        assert isinstance(result, np.ndarray)
        assert (result.shape, result.tolist()) == ((), 6)


@pytest.mark.parametrize("named", ["y_dim_0", None])
def test_an_output_whose_batch_has_another_name(tmp_path: Path, onnx_models: Any, named: str | None) -> None:
    """Exporters give numbered names to the free dimensions of outputs."""
    path = onnx_models.identity(tmp_path / "m.onnx", ["batch", 4], declared=[named, 4])
    with infersdk.load(path, "onnxruntime") as infer, Pipeline(infer, max_batch=2) as pipeline:
        row = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(pipeline.submit(row).result(LONG)["y"], row)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_larger_batch_than_the_model_was_loaded_for(tmp_path: Path, onnx_models: Any, wrapped: bool) -> None:
    path = onnx_models.double(tmp_path / "m.onnx", ["n", 3, 4, 4] if wrapped else ["n", 4])
    message = r"max_batch=8, but m\.onnx takes batches up to 2; load it with max_batch=8, or leave max_batch out"
    with infersdk.load(path, max_batch=2) as infer:
        model = infersdk.models.ImageToImage(infer) if wrapped else infer
        with pytest.raises(ConfigError, match=message):
            Pipeline(model, max_batch=8)
        with Pipeline(model, max_batch=1) as pipeline:
            assert pipeline.max_batch == 1


def test_models_of_other_inputs_or_outputs(tmp_path: Path, onnx_models: Any) -> None:
    def made(name: str, output: str, shape: list[Any], dtype: str = "float32") -> infersdk.Infer:
        x, y = onnx_models.value("x", shape, dtype), onnx_models.value(output, shape, dtype)
        return infersdk.load(onnx_models.save(tmp_path / name, [onnx_models.node("Add", "x x", output)], [x], [y]))

    first, same = made("a.onnx", "y", ["n", 4]), made("same.onnx", "y", [8, 4])
    with Pipeline([first, same], max_delay=0) as pipeline:
        for future in pipeline.submit_many([np.ones(4, np.float32)] * 9):
            assert future.result(LONG)["y"].tolist() == [2] * 4
    for side, other in (
        ("outputs", made("b.onnx", "z", ["n", 4])),
        ("inputs", made("c.onnx", "y", ["n", 5])),
        ("inputs", made("d.onnx", "y", ["n", 4], "float64")),
    ):
        with pytest.raises(ConfigError, match=rf"have the same {side}, and those of a\.onnx and .*; make a pipeline"):
            Pipeline([first, same, other])


def test_a_model_that_zeros_ask_for_too_much_memory(tmp_path: Path, onnx_models: Any) -> None:
    pytest.importorskip("onnxruntime")
    graph = """(float[n] x) => (float[n] y) {
        one = Constant<value_float=1.0>()
        many = Constant<value_float=1e15>()
        left = Sub(one, x)
        numbers = Mul(left, many)
        most = ReduceMax<keepdims=1>(numbers)
        size = Cast<to=7>(most)
        wide = Expand(one, size)
        total = ReduceSum<keepdims=0>(wide)
        y = Add(x, total)
    }"""
    with infersdk.load(onnx_models.save_text(tmp_path / "m.onnx", graph)) as infer:
        with Pipeline(infer) as pipeline:
            assert pipeline.submit(np.float32(1)).result(LONG)["y"] == 1
        with pytest.raises(OutOfMemoryError, match="m.onnx: the process lacks memory"):
            infer(np.zeros(2, np.float32))


def test_a_model_whose_output_has_other_rows_than_the_batch(tmp_path: Path, onnx_models: Any) -> None:
    path = onnx_models.twice_as_many(tmp_path / "m.onnx")
    with infersdk.load(path) as infer, Pipeline(infer) as pipeline:
        for future in pipeline.submit_many(np.ones((4, 2), np.float32)):
            with pytest.raises(UnsupportedModelError, match="output 'y' has 2 rows for a batch of 1, .*; call the"):
                future.result(LONG)


# ---- everything at once ----


def turmoil(folder: Path, requests: int, threads: int) -> PipelineStats:
    """Requests of which 1 in 100 is bad, cancelled, or has no time; runs fail now and then. Each is accounted for."""
    counts = {"ok": 0, "bad": 0, "cancelled": 0, "late": 0, "failed": 0}
    guard, wrong = threading.Lock(), []

    def settle(number: int, kind: str, future: Future[Any]) -> str:
        try:
            value = float(future.result(LONG)["y"])
        except CancelledError:
            return "cancelled" if kind == "cancel" else "wrong: cancelled"
        except DeadlineExceeded:
            return "late" if kind == "late" else "wrong: late"
        except ShapeError:
            return "bad" if kind == "bad" else "wrong: bad"
        except RuntimeError as error:
            return "failed" if "the runtime says no" in str(error) else f"wrong: {error}"
        return "ok" if value == number and kind != "bad" else f"wrong: {value} for {number}"

    def work(seed: int) -> None:
        rng, own = random.Random(seed), dict.fromkeys(counts, 0)
        pending: list[tuple[int, str, Future[Any]]] = []
        for i in range(requests // threads):
            number = seed * 100_000 + i % 100_000 if seed < 160 else i
            kind = rng.choices(("ok", "bad", "cancel", "late"), (97, 1, 1, 1))[0]
            future = pipeline.submit(row(number, 3 if kind == "bad" else 2), deadline=1e-4 if kind == "late" else None)
            if kind == "cancel":
                future.cancel()
            pending.append((number, kind, future))
            if len(pending) > 8 or i == requests // threads - 1:
                for entry in pending:
                    how = settle(*entry)
                    if how in own:
                        own[how] += 1
                    else:
                        wrong.append(how)
                pending.clear()
        with guard:
            for how, count in own.items():
                counts[how] += count

    with idle(folder, 8, side=2, fail=97) as infer, Pipeline(infer, max_delay=0.0005, instances=3) as pipeline:
        together(work, range(threads))
        assert wrong == []
        assert sum(counts.values()) == requests // threads * threads
        # No slot was lost: all of them can be taken at once.
        until(lambda: pipeline.stats().queued == pipeline.stats().running == 0)
        free = [group.free for group in pipeline._core.groups]
        assert sum(len(batches) for batches in free) * 8 == pipeline.slots
        stats = pipeline.stats()
        consistent(stats)
        assert stats.done == counts["ok"]
        assert stats.cancelled == counts["cancelled"]
        assert stats.expired == counts["late"]
        assert stats.failed == counts["bad"] + counts["failed"]
        assert min(counts[how] for how in ("ok", "bad", "cancelled", "late")) > 0
        assert stats.reruns > 0, "runs that fail now and then"
    return stats


def test_turmoil(tmp_path: Path) -> None:
    assert turmoil(tmp_path, 20_000, 8).submitted == 20_000


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_million_requests(tmp_path: Path) -> None:
    import resource

    turmoil(tmp_path, 50_000, 16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turmoil(tmp_path, 1_000_000, 16)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 16, f"the process grew by {grown:.0f} MiB"
