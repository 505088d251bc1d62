"""Warming up runs every batch size on every instance, before the first request; no request is needed for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from idle_backend import IdleInfer, idle
from squares import LONG, Squares, SquaresBuffer, begun, consistent

from infersdk import Pipeline
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ClosedError
from infersdk.infer import Scheduling
from infersdk.models import YOLOv5

if TYPE_CHECKING:
    from pathlib import Path


def recorded(monkeypatch: pytest.MonkeyPatch, kind: Any) -> list[tuple[int, int]]:
    """Which instance ran a batch of which size."""
    runs: list[tuple[int, int]] = []
    run = kind.run

    def spy(buffer: Any, count: int) -> None:
        runs.append((id(buffer), count))
        run(buffer, count)

    monkeypatch.setattr(kind, "run", spy)
    return runs


@pytest.fixture(name="inputs")
def _inputs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `IdleInfer` runs on: a copy of each batch."""
    inputs: list[Any] = []
    run = IdleInfer._enqueue

    def spy(infer: IdleInfer) -> None:
        inputs.append(infer.inputs["x"].numpy().copy())
        run(infer)

    monkeypatch.setattr(IdleInfer, "_enqueue", spy)
    return inputs


def test_closing_from_progress() -> None:
    model = Squares(capacity=4)
    pipeline = Pipeline(model, max_delay=0)
    with pytest.raises(ClosedError, match="closed while it warmed up"):
        pipeline.warm_up(lambda what, fraction: pipeline.close() if fraction == 0 else time.sleep(0.01))
    pipeline.close()
    assert model.open == 0


def test_all_sizes_on_all_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = Squares(capacity=4, concurrency=2), Squares(capacity=4)
    runs, reported = recorded(monkeypatch, SquaresBuffer), list[tuple[str, float]]()
    with Pipeline([model, other], max_delay=0) as pipeline:
        pipeline.warm_up(lambda what, fraction: reported.append((what, fraction)))
        assert len(runs) == len(set(runs)) == 7 * 3
        assert {size for _, size in runs} == {1, 2, 4}
        fractions = [fraction for _, fraction in reported]
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
        assert reported[0][0] == "Warming up: instance 1 of 7, batch 4"
        stats = pipeline.stats()
        assert (stats.submitted, stats.batch_sizes, stats.total.count) == (0, {}, 0)
        assert [f.result(LONG) for f in pipeline.submit_many(range(8))] == [n * n for n in range(8)]
    assert model.open == other.open == 0


def test_buckets_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[Any]) -> None:
    with idle(tmp_path, 12, side=2) as infer, Pipeline(infer, slots=12) as pipeline:
        pipeline.warm_up()
        assert [len(rows) for rows in inputs] == [12, 8, 4, 2, 1]
        assert float(pipeline.submit(np.full((3, 2, 2), 5, np.float32)).result(LONG)["y"]) == 5
    monkeypatch.setattr(IdleInfer, "scheduling", Scheduling(bucket_batch=lambda n: -(-n // 3) * 3))
    inputs.clear()
    with idle(tmp_path, 8, side=2) as infer, Pipeline(infer, slots=8) as pipeline:
        pipeline.warm_up()
        assert [len(rows) for rows in inputs] == [8, 6, 3]


def test_the_second_run_of_a_size_captures_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[Any]
) -> None:
    monkeypatch.setattr(IdleInfer, "scheduling", Scheduling(warm_up_runs=2))
    with idle(tmp_path, 4, side=2) as infer, Pipeline(infer, slots=4) as pipeline:
        pipeline.warm_up()
    assert [len(rows) for rows in inputs] == [4, 4, 2, 2, 1, 1]


def test_an_example_is_in_all_rows(tmp_path: Path, inputs: list[Any]) -> None:
    model = Squares(capacity=4)
    with Pipeline(model, max_delay=0) as pipeline:
        pipeline.warm_up(example=7)
    assert model.batches == [[7] * 4, [7] * 2, [7]] * 3
    example = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    with idle(tmp_path, 2, side=2) as infer, Pipeline(infer, slots=2) as pipeline:
        pipeline.warm_up(example=example)
        pipeline.warm_up()
    assert [len(rows) for rows in inputs] == [2, 1, 2, 1]
    assert all((rows == example).all() for rows in inputs[:2])
    assert not any(rows.any() for rows in inputs[2:])


def test_while_requests_come() -> None:
    """Each instance is taken out of service for its own warm-up only."""
    model = Squares(capacity=2)
    with Pipeline(model, max_delay=0) as pipeline:
        model.hold()
        first = pipeline.submit(2)
        begun(model)
        warming = threading.Thread(target=pipeline.warm_up)
        warming.start()
        futures = pipeline.submit_many([2, 4])
        model.go.set()
        warming.join(LONG)
        assert not warming.is_alive()
        assert [f.result(LONG) for f in (first, *futures)] == [4, 4, 16]
        consistent(pipeline.stats())
    assert model.open == 0


def test_what_a_run_raises_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Squares()
    with Pipeline(model, max_delay=0) as pipeline:
        model.error = RuntimeError("the runtime says no")
        with pytest.raises(RuntimeError, match="says no"):
            pipeline.warm_up()

        def stop(what: str, fraction: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pipeline.warm_up(stop)
        for _ in range(2):  # all instances are in service again
            assert [f.result(LONG) for f in pipeline.submit_many(range(12))] == [n * n for n in range(12)]
        pipeline.warm_up()
    assert model.open == 0


def test_a_pipeline_that_is_closed() -> None:
    model = Squares()
    pipeline = Pipeline(model, max_delay=0)
    ended: list[Exception] = []

    def close(what: str, fraction: float) -> None:
        if fraction > 0.5:
            closing.start()
            model.go.wait(LONG)
            while not pipeline._core.closing:
                pass

    def warm_up() -> None:
        try:
            pipeline.warm_up(close)
        except ClosedError as error:
            ended.append(error)

    closing = threading.Thread(target=pipeline.close)
    warming = threading.Thread(target=warm_up)
    warming.start()
    for thread in (warming, closing):
        thread.join(LONG)
        assert not thread.is_alive()
    assert "was closed" in str(ended[0])
    with pytest.raises(ClosedError):
        pipeline.warm_up()
    assert model.open == 0


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_real_models(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instances have run all sizes, and their results are the same before and after."""
    pytest.importorskip(backend)
    from infersdk.models.execution.buffer import HostBuffer

    with YOLOv5(DETECTOR, backend=backend, max_batch=4, conf=0.5) as detector:
        expected = detector(IMAGE)
        detector.configure_pipeline(max_batch=4)
        runs = recorded(monkeypatch, HostBuffer)
        detector.warm_up()
        instances = detector.details.concurrency + 1  # and the one of calls
        assert len(runs) == len(set(runs)) == instances * 3
        assert {size for _, size in runs} == {1, 2, 4}
        for result in detector.map([IMAGE] * 9):
            np.testing.assert_array_equal(result.class_ids, expected.class_ids)
            np.testing.assert_allclose(result.xyxy, expected.xyxy, atol=0.05)


def test_while_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    from infersdk.models import load
    from infersdk.models.execution.buffer import HostBuffer

    runs, reported = recorded(monkeypatch, HostBuffer), list[float]()
    with load(DETECTOR, warm_up=lambda what, fraction: reported.append(fraction), max_batch=2) as model:
        assert {size for _, size in runs} == {1, 2}
        assert reported[-1] == 1.0
        assert len(model(IMAGE)) > 0
    runs.clear()
    with load(DETECTOR, max_batch=2) as model:
        assert runs == []
    with load(DETECTOR, warm_up=True, type="yolov5", max_batch=2):
        assert len(runs) == len(set(runs))
        assert {size for _, size in runs} == {1, 2}


def test_a_progress_that_raises_closes_the_model() -> None:
    from infersdk.models import load

    def stop(what: str, fraction: float) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        load(DETECTOR, warm_up=stop, max_batch=2)
