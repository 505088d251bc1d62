"""One thread that takes blocks of images through both models: what single calls give."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from infersdk import Pipeline, models
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import ClosedError, ConfigError, ForkError, ImageError, InputError
from infersdk.image import read_image
from infersdk.models import Classifications, Detections, TwoStage
from infersdk.models.composed import cutter
from infersdk.models.composed.stage_driver import ImageBlock, StageDriver, map_blocks
from infersdk.models.execution.host import HostExecutor


def two_stage(**settings: Any) -> TwoStage:
    detector = models.YOLOv5(DETECTOR, max_batch=2, threads=1)
    second = models.Classifier(CLASSIFIER, max_batch=4, threads=1, **CLASSIFIER_SETTINGS)
    return TwoStage(detector, second, **settings)


@pytest.fixture(scope="module")
def two() -> Iterator[TwoStage]:
    with two_stage() as two:
        yield two


@pytest.fixture(scope="module")
def images() -> list[Any]:
    whole = read_image(IMAGE).pixels
    empty = np.zeros((40, 50, 3), np.uint8)
    return [whole, empty, whole[:200], empty, empty, whole[:, ::-1].copy(), whole, whole, empty]


def said(result: Detections) -> list[Any]:
    return [(box.xyxy, box.columns["second"].to_dicts()) for box in result]


def mapped(two: TwoStage, images: Sequence[Any], ahead: int = 12, return_exceptions: bool = False) -> Iterator[Any]:
    driver = StageDriver(two, {})

    def submit(several: Sequence[Any]) -> ImageBlock:
        return driver.submit([one if isinstance(one, Exception) else two._read(one) for one in several])

    try:
        yield from map_blocks(iter(images), submit, driver.capacity, ahead, return_exceptions)
    finally:
        driver.close()


@pytest.mark.parametrize("ahead", [1, 2, 3, 12])
def test_it_gives_what_single_calls_give(two: TwoStage, images: list[Any], ahead: int) -> None:
    before = [model.pipelines[0].stats().done for model in two.models]
    expected = [two(image) for image in images]
    for got, wanted in zip(mapped(two, images, ahead), expected, strict=True):
        assert [box for box, _ in said(got)] == [box for box, _ in said(wanted)]
        for (_, classes), (_, reference) in zip(said(got), said(wanted), strict=True):
            assert [c["label"] for c in classes] == [c["label"] for c in reference]
            np.testing.assert_allclose([c["score"] for c in classes], [c["score"] for c in reference], atol=1e-6)
    counted = [model.pipelines[0].stats().done - old for model, old in zip(two.models, before, strict=True)]
    assert counted == [len(images), sum(map(len, expected))]


def test_batches_are_full(images: list[Any]) -> None:
    with two_stage() as two:
        assert len(list(mapped(two, images))) == len(images)
        first, second = (model.pipelines[0].stats() for model in two.models)
        assert first.batch_sizes == {1: 1, 2: 4}
        assert second.batch_sizes[4] >= (second.done - 3 * len(images)) // 4


def test_parts_images_and_runs_fail_alone(images: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(image: Any, boxes: Detections) -> list[Any]:
        parts = list(cutter("box")(image, boxes))
        if parts:
            parts[1] = InputError("box 1 was not wanted")
            parts[2] = np.zeros((3, 3), np.float32)  # no image: the second model refuses it
        return parts

    with two_stage(crop=cut) as two:
        given = [images[0], ImageError("it was not read"), np.zeros((3, 3), np.float32), images[1], images[0]]
        first, unread, wrong, empty, last = mapped(two, given, return_exceptions=True)
        assert str(unread) == "it was not read"
        assert isinstance(wrong, ImageError)
        assert len(empty) == 0
        for result in (first, last):
            column = result.columns["second"]
            assert str(column[1]) == "box 1 was not wanted"
            assert isinstance(column[2], ImageError)
            assert all(isinstance(one, Classifications) for one in [column[0], *column[3:]])
        results = mapped(two, given)
        assert len(next(results)) == len(first)
        with pytest.raises(ImageError, match="it was not read"):
            next(results)

        run = HostExecutor.run_rows

        def failing(self: HostExecutor[Any], count: int, *more: Any) -> None:
            if self.infer.model is two.second.network.model:
                raise ValueError("no luck")
            run(self, count, *more)

        monkeypatch.setattr(HostExecutor, "run_rows", failing)
        (result,) = mapped(two, images[:1])
        assert {type(one) for one in result.columns["second"]} == {ValueError, InputError, ImageError}


def test_a_cut_that_fails_fails_its_image(images: list[Any]) -> None:
    with two_stage(crop=lambda *_: []) as two:
        failed, empty = mapped(two, images[:2], return_exceptions=True)
        assert isinstance(failed, ConfigError)
        assert len(empty) == 0


def test_requests_of_others_share_the_models(two: TwoStage, images: list[Any]) -> None:
    """In both directions, with batches of both models in flight all the time."""
    expected = [said(two(image)) for image in images]
    results: list[list[Any]] = [[], []]

    def drive(kept: list[Any]) -> None:
        kept.extend(said(result) for result in mapped(two, images * 3))

    threads = [threading.Thread(target=drive, args=(kept,)) for kept in results]
    for thread in threads:
        thread.start()
    for _ in range(3):
        assert [len(two.submit(image).result(60)) for image in images] == [len(one) for one in expected]
    for thread in threads:
        thread.join(60)
    for kept in results:
        assert [[box for box, _ in one] for one in kept] == [[box for box, _ in one] for one in expected * 3]


def test_it_waits_where_requests_of_others_come_first(
    two: TwoStage, images: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch at a time then, and no step in vain."""
    borrow, step, steps = Pipeline.borrow_batch, StageDriver._step, [0]

    def patient(pipeline: Pipeline[Any], *, wait: bool = False) -> Any:
        return borrow(pipeline, wait=True) if wait else None

    def counted(driver: StageDriver) -> bool:
        steps[0] += 1
        return step(driver)

    expected = [said(two(image)) for image in images]
    runs = [sum(model.pipelines[0].stats().batch_sizes.values()) for model in two.models]
    monkeypatch.setattr(Pipeline, "borrow_batch", patient)
    monkeypatch.setattr(StageDriver, "_step", counted)
    assert [[box for box, _ in said(result)] for result in mapped(two, images)] == [
        [box for box, _ in one] for one in expected
    ]
    runs = [
        sum(model.pipelines[0].stats().batch_sizes.values()) - old for model, old in zip(two.models, runs, strict=True)
    ]
    assert steps[0] <= 2 * sum(runs) + 12  # a block that comes, and the end


def test_an_iteration_that_ends_early_gives_its_batches_back(images: list[Any]) -> None:
    with two_stage() as two:
        results = mapped(two, images * 4)
        assert len(next(results)) > 0
        results.close()
        two.detector.close()  # waits for them
        two.second.close()


def test_closing_ends_the_images(images: list[Any]) -> None:
    two = two_stage()
    driver = StageDriver(two, {})
    blocks = [driver.submit([two._read(image) for image in images[:2]]) for _ in range(20)]
    blocks[0].wait()
    two.close()
    outcomes = blocks[-1].wait()
    assert {type(outcome) for outcome in outcomes} == {ClosedError}
    driver.close()

    other = StageDriver(two_stage(), {})
    other.close()
    assert {type(outcome) for outcome in other.submit(images[:1]).wait()} == {CancelledError}
    other._stages.detector.pipelines[0].close()


def test_a_block_ends_once() -> None:
    block = ImageBlock([1, 2])
    block.end(0, "first")
    block.end_all(CancelledError())
    block.end_all(ValueError())
    outcomes = block.wait()
    assert outcomes[0] == "first"
    assert isinstance(outcomes[1], CancelledError)


@pytest.mark.parametrize("stage", ["detector", "second"])
def test_what_ends_a_program_ends_the_images_and_no_more(
    stage: str, images: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sys.exit() in a wrapper of one's own, with several batches on their way."""
    run = HostExecutor.run_rows

    def leaving(self: HostExecutor[Any], count: int, *more: Any) -> None:
        if self.infer.model is getattr(two, stage).network.model:
            raise SystemExit("on purpose")
        run(self, count, *more)

    with two_stage() as two:
        two(images[0])
        monkeypatch.setattr(HostExecutor, "run_rows", leaving)
        driver = StageDriver(two, {})
        blocks = [driver.submit([two._read(image) for image in images[:2]]) for _ in range(6)]
        assert {
            type(outcome) for block in blocks for outcome in block.wait() if not isinstance(outcome, Detections)
        } == {SystemExit}
        monkeypatch.undo()
        assert len(two.submit(images[0]).result(60)) > 0


def test_not_in_a_child_process(two: TwoStage, images: list[Any]) -> None:
    results = mapped(two, images * 3)
    next(results)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            list(results)
        except ForkError as error:
            code = 0 if "began in another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(results)) == 3 * len(images) - 1
