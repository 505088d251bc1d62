"""Requests of asyncio that run in the thread of their event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from squares import LONG, Squares, SquaresBuffer, begun, consistent

from infersdk import Pipeline
from infersdk.errors import ClosedError, DeadlineExceeded, InputError, PipelineError
from infersdk.pipeline import RequestStages, stage_listener
from infersdk.pipeline.admission import Admission
from infersdk.pipeline.inline_runs import SAMPLE, InlineRuns
from infersdk.pipeline.stats import Statistics

LEARNED = 200  # requests after which a pipeline knows that runs are short


class Watched(Squares):
    """Squares that notes how often which kind of thread ran a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: Counter[bool] = Counter()
        self.seconds = 0.0

    def batch_buffer(self, capacity: int | None) -> SquaresBuffer:
        buffer = super().batch_buffer(capacity)
        run = buffer.run

        def watched(count: int) -> None:
            self.inline[threading.current_thread() is threading.main_thread()] += 1
            time.sleep(self.seconds)
            run(count)

        buffer.run = watched  # type: ignore[method-assign]
        return buffer


@pytest.fixture
def model() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.go.set()
    assert watched.open == 0, "a buffer was not closed"


async def one_after_another(pipeline: Pipeline[Any], count: int = LEARNED) -> None:
    for _ in range(count):
        assert await pipeline.infer(3) == 9


# ---- the rule ----


def test_short_runs_are_trusted_after_dozens_of_them() -> None:
    inline = InlineRuns(0.001)
    assert not inline.allows()
    needed = 0
    while not inline.allows():
        inline.add(0.0005)
        needed += 1
    assert 30 < needed < 80


def test_a_long_run_ends_the_trust_and_a_hiccup_does_not_for_long() -> None:
    inline = InlineRuns(0.001)
    for _ in range(LEARNED):
        inline.add(0.0001)
    inline.add(0.004)  # the system gave the processor to another process
    assert inline.allows()
    inline.add(1.0)
    for _ in range(30):
        assert not inline.allows()
        inline.add(0.0001)


def test_a_model_whose_runs_are_long_now_and_then_is_not_trusted() -> None:
    inline = InlineRuns(0.0003)
    allowed = 0
    for i in range(1000):
        inline.add(0.1 if i % 20 == 0 else 0.0001)
        allowed += inline.allows()
    assert allowed == 0


def test_one_in_some_requests_is_for_the_threads() -> None:
    inline = InlineRuns(0.001)
    for _ in range(LEARNED):
        inline.add(0.0001)
    assert sum(inline.allows() for _ in range(10 * SAMPLE)) == 10 * (SAMPLE - 1)


# ---- in a pipeline ----


def test_a_lone_caller_is_served_in_its_own_thread(model: Watched) -> None:
    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(one_after_another(pipeline))
        model.inline.clear()
        asyncio.run(one_after_another(pipeline, 10 * SAMPLE))
        assert model.inline[True] == 10 * (SAMPLE - 1)
        assert model.inline[False] == 10
        stats = pipeline.stats()
        consistent(stats)
        assert stats.done == stats.submitted == LEARNED + 10 * SAMPLE
        assert stats.batch_sizes == {1: stats.done}
        assert stats.total.count == stats.queue.count == stats.done


def test_without_the_setting_no_loop_runs_a_model(model: Watched) -> None:
    with Pipeline(model, max_delay=0) as pipeline:
        asyncio.run(one_after_another(pipeline))
    assert not model.inline[True]


def test_long_runs_never_hold_a_loop_up(model: Watched) -> None:
    model.seconds = 0.002
    with Pipeline(model, max_delay=0, inline_limit=0.001) as pipeline:
        asyncio.run(one_after_another(pipeline))
    assert not model.inline[True]


def test_what_takes_long_to_prepare_is_for_the_threads(model: Watched) -> None:
    async def even() -> None:
        for _ in range(LEARNED):
            assert await pipeline.infer(4) == 16

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(even())
    assert not model.inline[True]


def test_several_callers_share_batches_and_one_that_is_left_is_alone_again(model: Watched) -> None:
    async def main() -> None:
        await one_after_another(pipeline)
        assert model.inline[True]
        await asyncio.gather(*(one_after_another(pipeline, 50) for _ in range(4)))
        model.batches.clear()
        await asyncio.gather(*(one_after_another(pipeline, 50) for _ in range(4)))
        assert sum(len(batch) > 1 for batch in model.batches) > 40
        await one_after_another(pipeline)
        model.inline.clear()
        await one_after_another(pipeline, 10 * SAMPLE)
        assert model.inline[True] == 10 * (SAMPLE - 1)

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(main())
        consistent(pipeline.stats())


def test_a_request_of_another_thread_keeps_the_pipeline_busy(model: Watched) -> None:
    async def main() -> None:
        await one_after_another(pipeline)
        while model.began.acquire(blocking=False):
            pass
        model.hold()
        other = pipeline.submit(5)
        await asyncio.to_thread(begun, model)
        model.inline.clear()
        waiting = asyncio.ensure_future(pipeline.infer(3))
        await asyncio.sleep(0.02)
        assert not waiting.done()  # and the loop goes on
        model.go.set()
        assert (await waiting, other.result(LONG)) == (9, 25)
        assert not model.inline[True]

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(main())


def test_threads_and_a_loop_at_the_same_time(model: Watched) -> None:
    def work() -> None:
        for number in range(300):
            assert pipeline.submit(number).result(LONG) == number * number

    with Pipeline(model, max_delay=0, inline_limit=0.05) as pipeline:
        threads = [threading.Thread(target=work) for _ in range(2)]
        asyncio.run(one_after_another(pipeline))
        for thread in threads:
            thread.start()
        asyncio.run(one_after_another(pipeline, 1000))
        for thread in threads:
            thread.join(LONG)
        stats = pipeline.stats()
        assert stats.done == LEARNED + 1000 + 600
        consistent(stats)


# ---- requests that fail ----


def test_failures_are_those_of_their_request_alone(model: Watched) -> None:
    async def main() -> None:
        await one_after_another(pipeline)
        for _ in range(3 * SAMPLE):
            with pytest.raises(InputError, match="-3 is below zero"):
                await pipeline.infer(-3)
            with pytest.raises(InputError, match="unknown parameters"):
                await pipeline.infer(3, other=1)
            with pytest.raises(ValueError, match="1313"):
                await pipeline.infer(1313)
            model.error = StopIteration("of the run")  # type: ignore[assignment]
            with pytest.raises(RuntimeError, match="StopIteration"):
                await pipeline.infer(3)
            with pytest.raises(DeadlineExceeded):
                await pipeline.infer(3, deadline=0)
            assert await pipeline.infer(3, power=3, deadline=LONG) == 27
        stats = pipeline.stats()
        consistent(stats)
        assert (stats.done, stats.failed, stats.expired) == (LEARNED + 3 * SAMPLE, 12 * SAMPLE, 3 * SAMPLE)
        model.inline.clear()
        await one_after_another(pipeline, SAMPLE)
        assert model.inline[True] == SAMPLE - 1

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(main())


def test_a_closed_pipeline_takes_none(model: Watched) -> None:
    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(one_after_another(pipeline))
        pipeline.close()
        with pytest.raises(ClosedError):
            asyncio.run(pipeline.infer(3))


def test_a_fault_hangs_nothing(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("of the statistics")

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(one_after_another(pipeline))
        with monkeypatch.context() as patch:
            patch.setattr(Statistics, "batch_done", broken)
            with pytest.raises(PipelineError, match="of the statistics"):
                asyncio.run(pipeline.infer(3))
        with pytest.raises(PipelineError, match="of the statistics"):
            asyncio.run(pipeline.infer(3))


def test_ctrl_c_hangs_nothing(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(one_after_another(pipeline))
        with monkeypatch.context() as patch:
            patch.setattr(Admission, "release", interrupted)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(pipeline.infer(3))
        with pytest.raises(PipelineError, match="KeyboardInterrupt"):
            pipeline.submit(3)


def test_a_loop_prepares_no_requests_of_others(model: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C there is not meant for those that get its slots."""
    prepare, threads, ended = SquaresBuffer.prepare, list[threading.Thread](), threading.Event()

    def watched(buffer: SquaresBuffer, row: int, item: Any, parameters: Any) -> None:
        if item > 5:
            threads.append(threading.current_thread())
        prepare(buffer, row, item, parameters)

    class OthersCome(threading.Event):
        """While a loop runs a batch."""

        came = False

        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread() and not self.came:
                self.came = True
                pipeline.submit_group(lambda group: ended.set(), range(7, 27, 2), wait=False)
                assert pipeline.stats().waiting == 10
            return super().wait(timeout)

    monkeypatch.setattr(SquaresBuffer, "prepare", watched)
    with Pipeline(model, max_delay=0.001, slots=4, inline_limit=0.05) as pipeline:
        asyncio.run(one_after_another(pipeline))
        model.go = OthersCome()
        model.go.set()
        while not model.go.came:
            asyncio.run(one_after_another(pipeline, 1))
        assert ended.wait(LONG)
    assert len(threads) == 10
    assert threading.main_thread() not in threads


def test_listeners_hear_of_all_stages(model: Watched) -> None:
    heard: list[RequestStages] = []

    async def main() -> None:
        await one_after_another(pipeline)
        token = stage_listener.set(heard.append)
        await one_after_another(pipeline, 2 * SAMPLE)
        stage_listener.reset(token)

    with Pipeline(model, max_delay=0.001, inline_limit=0.05) as pipeline:
        asyncio.run(main())
    assert len(heard) == 2 * SAMPLE
    for stages in heard:
        assert stages.submitted <= stages.prepare[0] <= stages.prepare[1] <= stages.ran <= stages.done
        assert stages.submitted <= stages.left <= stages.ran
        assert stages.batch == 1
