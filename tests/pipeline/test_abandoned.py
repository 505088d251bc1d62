"""Iterations that are left before their end: their generators end in any thread, at any moment."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from squares import LONG, Squares, consistent, until

from infersdk import Pipeline
from infersdk.models.requests import IdleRelease
from infersdk.pipeline import request
from infersdk.pipeline.request import run_elsewhere

if TYPE_CHECKING:
    import pytest


def held(model: Squares, pipeline: Pipeline[int]) -> Iterator[int]:
    """An iteration that has given its first result. Its second request is on the model, and its third one waits."""

    def items() -> Iterator[int]:
        yield 0
        until(lambda: pipeline.stats().done == 1)
        model.hold()
        yield from (1, 2)

    results = pipeline.map(items(), in_flight=3)
    assert next(results) == 0
    until(lambda: pipeline.stats().running == 1)
    return results


def ended_by(thread: threading.Thread) -> bool:
    thread.start()
    thread.join(LONG)
    return not thread.is_alive()


def test_in_a_thread_that_holds_the_lock_of_the_pipeline() -> None:
    """The garbage collector runs wherever a thread allocates something."""
    model = Squares(capacity=1)
    with Pipeline(model) as pipeline:
        results = held(model, pipeline)

        def collect() -> None:
            with pipeline._core.lock:
                results.close()  # type: ignore[attr-defined]

        assert ended_by(threading.Thread(target=collect, daemon=True))
        until(lambda: pipeline.stats().cancelled == 1)
        model.go.set()
        assert pipeline.submit(3).result(LONG) == 9
        consistent(pipeline.stats())


def test_the_garbage_collector_at_every_allocation() -> None:
    """Iterations in cycles, which the threads of the pipeline and its callers collect."""

    class Holder:
        itself: Any
        results: Iterator[int]

    with Pipeline(Squares(capacity=4)) as pipeline:
        threshold = gc.get_threshold()
        gc.freeze()  # what is there already: it would take long
        gc.set_threshold(7, 1, 1)
        try:
            for _ in range(100):
                holder = Holder()
                holder.itself, holder.results = holder, pipeline.map(range(100), in_flight=6)
                next(holder.results)
                assert pipeline.submit(3).result(LONG) == 9
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
        del holder
        gc.collect()
        until(lambda: pipeline.stats().queued == pipeline.stats().running == 0)
        consistent(pipeline.stats())


def test_slots_are_free_when_an_iteration_is_given_up() -> None:
    model = Squares(capacity=1)
    with Pipeline(model) as pipeline:
        results = held(model, pipeline)
        del results
        assert pipeline.stats().cancelled == 1
        model.go.set()


def test_what_a_task_raises_is_logged_and_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise SystemExit("mine")

    run_elsewhere(fails)
    done = threading.Event()
    run_elsewhere(done.set)
    assert done.wait(LONG)
    assert "SystemExit('mine')" in caplog.text


def test_a_task_that_waits_for_the_calling_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PATIENCE", 0.05)
    lock, done = threading.Lock(), threading.Event()

    def task() -> None:
        with lock:
            done.set()

    with lock:
        started = time.monotonic()
        run_elsewhere(task)
        assert 0.04 < time.monotonic() - started < LONG
        assert not done.is_set()
    assert done.wait(LONG)


def test_a_model_is_free_when_its_iteration_ends_while_the_model_asks_for_requests() -> None:
    """`release()` holds its lock while it waits for that of the pipeline, and this thread holds that one."""
    pipeline_lock, asked = threading.Lock(), threading.Event()

    class Model:
        @property
        def _pipeline_holder(self) -> Model:
            return self

        @property
        def requests(self) -> int:
            asked.set()
            with pipeline_lock:
                return 0

        def _release_now(self) -> Callable[[], None]:
            return lambda: released.append(1)

    released: list[int] = []
    model: Any = Model()
    idle = IdleRelease(model, "a model")

    def used() -> Iterator[int]:
        with idle:
            yield from (1, 2)

    results = used()
    assert next(results) == 1

    def collect() -> None:
        with pipeline_lock:
            releasing.start()
            assert asked.wait(LONG)
            results.close()  # type: ignore[attr-defined]

    errors: list[Exception] = []

    def release() -> None:
        try:
            idle.now(model)
        except Exception as error:  # the iteration was in use at that moment
            errors.append(error)

    releasing = threading.Thread(target=release, daemon=True)
    assert ended_by(threading.Thread(target=collect, daemon=True))
    releasing.join(LONG)
    assert not releasing.is_alive()
    assert len(errors) == 1
    idle.now(model)
    assert released == [1]
