"""A detector, and a second model on what it found."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from concurrent.futures import CancelledError, Future, wait
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import FREE_THREADED, until

from infersdk import models
from infersdk.data import CLASSIFIER, CLASSIFIER_SETTINGS, DETECTOR, IMAGE
from infersdk.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    ImageError,
    InputError,
    Overloaded,
    UnsupportedModelError,
)
from infersdk.image import HostImage, read_image, sources
from infersdk.models import Classifications, Detections, ModelGroup, Tiled, TwoStage
from infersdk.models.composed.crops import cutter
from infersdk.models.execution.buffer import HostBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def two() -> Iterator[TwoStage]:
    detector = models.YOLOv5(DETECTOR, max_batch=2, threads=1)
    with TwoStage(detector, models.Classifier(CLASSIFIER, max_batch=4, threads=1, **CLASSIFIER_SETTINGS)) as two:
        yield two


@pytest.fixture(scope="module")
def images() -> list[Any]:
    whole = read_image(IMAGE).pixels
    return [whole, np.zeros((40, 50, 3), np.uint8), whole[:200], IMAGE, whole[:, ::-1].copy()]


def said(result: Detections) -> list[Any]:
    return [(box.xyxy, box.columns["second"].to_dicts()) for box in result]


def expected(two: TwoStage, image: Any) -> list[Any]:
    """Each box by a call of its own on the pixels within its edges."""
    pixels = read_image(image).pixels
    rows = []
    for box in two.detector(image):
        x1, y1, x2, y2 = box.xyxy
        part = pixels[int(np.floor(y1)) : int(np.ceil(y2)), int(np.floor(x1)) : int(np.ceil(x2))]
        rows.append((box.xyxy, two.second(HostImage(part, read_image(image).format)).to_dicts()))
    return rows


def test_every_way_gives_what_single_calls_give(two: TwoStage, images: list[Any]) -> None:
    want = [expected(two, image) for image in images]
    assert len(want[0]) > 5
    assert want[1] == []

    async def coroutines() -> list[Detections]:
        return await asyncio.gather(*(two.infer(image) for image in images))

    for results in (
        two(images), [two(image) for image in images], list(two.stream(images)), list(two.map(images, in_flight=3)),
        [future.result(60) for future in [two.submit(image) for image in images]], asyncio.run(coroutines()),
    ):  # fmt: skip
        for got, rows in zip(results, want, strict=True):
            assert len(got) == len(rows)
            for (box, classes), (other, reference) in zip(said(got), rows, strict=True):
                assert box == other
                assert [c["label"] for c in classes] == [c["label"] for c in reference]
                np.testing.assert_allclose([c["score"] for c in classes], [c["score"] for c in reference], atol=1e-6)


def test_the_classifier_agrees_with_the_detector(two: TwoStage) -> None:
    """Given what it was trained on: the digit in the middle of a square."""

    def squares(image: Any, boxes: Detections) -> list[Any]:
        parts = []
        for x1, y1, x2, y2 in boxes.xyxy.tolist():
            x, y, half = (x1 + x2) / 2, (y1 + y2) / 2, 0.6 * max(x2 - x1, y2 - y1)
            edges = [max(round(edge), 0) for edge in (x - half, y - half, x + half, y + half)]
            parts.append(image.pixels[edges[1] : edges[3], edges[0] : edges[2]])
        return parts

    result = TwoStage(two.detector, two.second, crop=squares)(IMAGE)
    agree = [box.label == box.columns["second"][0].label for box in result]
    assert sum(agree) >= len(agree) - 1


def test_the_column_goes_where_the_boxes_go(two: TwoStage) -> None:
    result = two(IMAGE)
    row = json.loads(result.to_json())[0]
    assert row["second"][0]["label"] == result[0].columns["second"][0].label
    few = result[result.scores > 0.9]
    assert len(few.columns["second"]) == len(few)


def test_parameters_are_the_detectors(two: TwoStage) -> None:
    assert len(two(IMAGE, conf=0.9)) < len(two(IMAGE))
    assert len(two.submit(IMAGE, conf=0.9).result(60)) == len(two(IMAGE, conf=0.9))


def test_a_part_that_fails_fails_alone() -> None:
    """By every way: the others have their results, and its place holds the reason."""

    def cut(image: Any, boxes: Detections) -> list[Any]:
        parts = list(cutter("box")(image, boxes))
        parts[1] = InputError("box 1 was not wanted")
        parts[2] = np.zeros((3, 3), np.float32)  # no image: the second model refuses it
        return parts

    with TwoStage(
        models.YOLOv5(DETECTOR, threads=1), models.Classifier(CLASSIFIER, threads=1, **CLASSIFIER_SETTINGS), crop=cut
    ) as two:
        for result in (two(IMAGE), *two.stream([IMAGE]), two.submit(IMAGE).result(60), *two.map([IMAGE, IMAGE])):
            column = result.columns["second"]
            assert str(column[1]) == "box 1 was not wanted"
            assert isinstance(column[2], ImageError)
            assert all(isinstance(one, Classifications) for one in [column[0], *column[3:]])
            assert result.to_dicts()[1]["second"] == {"error": "box 1 was not wanted"}


def test_boxes_without_width_fail_alone() -> None:
    image = HostImage(np.zeros((20, 20, 3), np.uint8), "bgr")
    boxes = Detections.of([[2, 2, 2, 9], [1, 1, 5, 5]], [0.9, 0.8], names=("a",), size=(20, 20))
    empty, good = cutter("box")(image, boxes)
    assert str(empty) == "box 0 is 0 x 7 pixels, so there is nothing to cut out"
    assert good.pixels.shape == (4, 4, 3)


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["box", "oriented"])
def test_boxes_that_are_not_finite_fail_alone(kind: Any, wrong: float) -> None:
    image = HostImage(np.zeros((20, 20, 3), np.uint8), "bgr")
    oriented = np.float32([[6, 6, 8, 9, 0]] * 6)
    boxes = Detections.of([[2, 3, 8, 9]] * 6, [0.5] * 6, names=("a",), size=(20, 20), oriented=oriented)
    column = boxes.xyxy if kind == "box" else boxes.oriented
    count = column.shape[1]
    column[range(count), range(count)] = wrong
    parts = cutter(kind)(image, boxes)
    for error in parts[:count]:
        assert isinstance(error, InputError)
        assert "no finite numbers" in str(error)
    assert isinstance(parts[5], HostImage)


def test_margins_end_at_the_image() -> None:
    pixels = np.arange(20 * 30 * 3, dtype=np.uint16).astype(np.uint8).reshape(20, 30, 3)
    boxes = Detections.of([[2, 4, 12, 14.5]], [0.9], names=("a",), size=(30, 20))
    (part,) = cutter("box", margin=0.3)(HostImage(pixels, "bgr"), boxes)
    np.testing.assert_array_equal(part.pixels, pixels[0:18, 0:15])


def test_oriented_boxes_are_turned_upright() -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 255, (60, 80, 3), np.uint8)

    def oriented(*values: float) -> Detections:
        return Detections.of([[0, 0, 80, 60]], [0.9], names=("a",), size=(80, 60), oriented=np.float32([values]))

    image = HostImage(pixels, "bgr")
    (straight,) = cutter("oriented")(image, oriented(30, 20, 20, 10, 0))
    np.testing.assert_array_equal(straight.pixels, pixels[15:25, 20:40])
    (quarter,) = cutter("oriented")(image, oriented(30, 20, 10, 20, np.pi / 2))
    difference = quarter.pixels.astype(int) - np.rot90(pixels[15:25, 20:40], 1).astype(int)
    assert np.abs(difference).max() <= 1
    (flat,) = cutter("oriented")(image, oriented(30, 20, 0, 20, 0))
    assert isinstance(flat, InputError)
    for sides in ((1e6, 1e6), (1e9, 0.001)):
        (huge,) = cutter("oriented")(image, oriented(30, 20, *sides, 0.5))
        assert "and the image 80 x 60; a box of more than 4 times the square of the image's longer side" in str(huge)
    (whole,) = cutter("oriented", margin=1.0)(image, oriented(40, 30, 100, 100, np.pi / 4))
    assert whole.pixels.shape == (300, 300, 3)


def test_a_crop_by_landmarks_needs_five() -> None:
    boxes = Detections.of([[0, 0, 9, 9]], [0.9], names=("a",), size=(9, 9), keypoints=np.zeros((1, 17, 3), np.float32))
    (error,) = cutter("landmarks")(HostImage(np.zeros((9, 9, 3), np.uint8), "bgr"), boxes)
    assert "has 17 keypoints; a crop by landmarks needs the five of a face" in str(error)


@pytest.mark.parametrize(("crop", "what"), [("landmarks", "keypoints"), ("oriented", "angles")])
def test_boxes_without_what_the_crop_needs(crop: Any, what: str) -> None:
    second = models.Classifier(CLASSIFIER, threads=1, **CLASSIFIER_SETTINGS)
    with TwoStage(models.YOLOv5(DETECTOR, threads=1), second, crop=crop) as two:
        for call in (
            lambda: two(IMAGE),
            lambda: list(two.stream([IMAGE])),
            lambda: two.submit(IMAGE).result(60),
            lambda: list(two.map([IMAGE])),
        ):
            with pytest.raises(InputError, match=f"these boxes have no {what}; their columns are none"):
                call()
        assert len(two(np.zeros((32, 32, 3), np.uint8))) == 0


def test_cancelling_reaches_the_second_model() -> None:
    detector = models.YOLOv5(DETECTOR, threads=1)
    second = models.Classifier(CLASSIFIER, threads=1, **CLASSIFIER_SETTINGS)
    asked = threading.Event()
    go = threading.Event()

    def cut(image: Any, boxes: Detections) -> Any:
        asked.set()
        assert go.wait(30)
        return cutter("box")(image, boxes)

    with TwoStage(detector, second, crop=cut) as two:
        future = two.submit(IMAGE)
        assert asked.wait(30)
        assert future.cancel()
        go.set()
        with pytest.raises(CancelledError):
            future.result(30)
        until(lambda: not two.detector.details.pipelines[0].stats().running)
        stats = second.pipeline.stats()
        assert stats.submitted == stats.cancelled + stats.done


@pytest.fixture
def slow() -> Iterator[TwoStage]:
    """The second model waits for a batch of 64 parts, which never comes."""
    second = models.Classifier(CLASSIFIER, max_batch=64, threads=1, **CLASSIFIER_SETTINGS)
    second.configure_pipeline(max_delay=60, slots=128)
    with TwoStage(models.YOLOv5(DETECTOR, threads=1), second) as two:
        two.detector(IMAGE)  # the first run takes longer
        yield two


def test_cancelling_takes_the_parts_back(slow: TwoStage) -> None:
    pipeline = slow.second.details.pipelines[0]
    futures = [slow.submit(IMAGE) for _ in range(2)]
    until(lambda: pipeline.stats().queued == 2 * len(slow.detector(IMAGE)))
    assert futures[0].cancel()
    assert futures[0].cancel()
    assert not wait(futures, 0.01).done - {futures[0]}
    until(lambda: pipeline.stats().queued == len(slow.detector(IMAGE)))
    with pytest.raises(CancelledError):
        futures[0].result(0)

    def results() -> None:
        with pytest.raises(ClosedError):
            next(slow.map([IMAGE] * 3, in_flight=2))
        ended.set()

    ended = threading.Event()
    mapping = threading.Thread(target=results, daemon=True)
    mapping.start()
    until(lambda: pipeline.stats().queued > len(slow.detector(IMAGE)))
    slow.close()  # and so does closing
    assert ended.wait(30)
    with pytest.raises(ClosedError):
        futures[1].result(30)


def on_done(index: int, outcome: Any) -> None:
    raise ValueError("mine")


def test_exceptions_of_callbacks_are_logged(two: TwoStage, caplog: pytest.LogCaptureFixture) -> None:
    two.submit_batch([IMAGE], on_done)
    until(lambda: "ValueError('mine')" in caplog.text)


def test_closing_closes_both_whatever_the_callbacks_raise() -> None:
    detector = models.YOLOv5(DETECTOR, max_batch=2)
    detector.configure_pipeline(max_delay=60)
    two = TwoStage(detector, models.Classifier(CLASSIFIER, **CLASSIFIER_SETTINGS))
    two.submit_batch([IMAGE], on_done)
    with pytest.raises(ValueError, match="mine"):
        two.close()
    for model in two.models.values():
        with pytest.raises(ClosedError):
            model(IMAGE)


def test_a_deadline_reaches_through_both(slow: TwoStage) -> None:
    result = slow.submit(IMAGE, deadline=1).result(30)
    assert {type(one) for one in result.columns["second"]} == {DeadlineExceeded}
    assert len(result) == len(slow.detector(IMAGE))
    with pytest.raises(DeadlineExceeded):
        slow.submit(IMAGE, deadline=0).result(30)

    async def coroutine() -> Detections:
        return await slow.infer(IMAGE, deadline=1)

    assert {type(one) for one in asyncio.run(coroutine()).columns["second"]} == {DeadlineExceeded}


@pytest.mark.parametrize("settings", [{"when_full": "raise"}, {"timeout": 0.05}, {}])
def test_images_between_the_models_are_limited(settings: dict[str, Any]) -> None:
    """The parts of an image wait for the second model without an end, and its slot of the first one is free."""
    detector = models.YOLOv5(DETECTOR, max_batch=1, threads=1)
    detector.configure_pipeline(slots=2, **settings)
    second = models.Classifier(CLASSIFIER, max_batch=2, threads=1, **CLASSIFIER_SETTINGS)
    second.configure_pipeline(slots=4)
    with TwoStage(detector, second) as two:
        expected, run, go = two(IMAGE), HostBuffer.run, threading.Event()

        def held(self: HostBuffer[Any], count: int, *more: Any) -> None:
            if self.infer.model is second.network.model:
                assert go.wait(30)
            run(self, count, *more)

        def through_the_detector(count: int) -> None:
            until(lambda: detector.pipeline.stats().done == count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HostBuffer, "run", held)
            done = detector.pipeline.stats().done
            futures = []
            for number in range(1, 7):  # the slots of both pipelines
                futures.append(two.submit(IMAGE))
                through_the_detector(done + number)
            if settings:
                with pytest.raises(Overloaded, match="6 images are in progress in both models"):
                    two.submit(IMAGE)
            with pytest.raises(Overloaded, match="6 images are in progress in both models"):
                two.submit(IMAGE, timeout=0)
            if not settings:
                with pytest.raises(DeadlineExceeded, match="while other images were in progress"):
                    two.submit(IMAGE, deadline=0.05).result(30)
            through_the_detector(done + 6)
            go.set()
        for future in futures:
            assert said(future.result(30)) == said(expected)
        with pytest.raises(ImageError, match="no image at"):
            two.submit("missing.png")
        for _ in range(12):  # all slots of images are free again
            assert said(two.submit(IMAGE).result(30)) == said(expected)


def test_callbacks_that_submit_more_than_there_are_slots(two: TwoStage, images: list[Any]) -> None:
    """The threads that free slots do not wait for them."""
    ended: list[int] = []

    def more(future: Future[Any]) -> None:
        ended.append(len(future.result()))
        if len(ended) <= 100:
            for _ in range(2):
                two.submit(images[0]).add_done_callback(more)

    two.submit(images[0]).add_done_callback(more)
    until(lambda: len(ended) == 201)
    assert len(set(ended)) == 1


def test_map_waits_for_the_slots_of_compositions() -> None:
    """As for those of wrappers: whatever the settings of their pipelines say."""

    def tiled(model: Any, tile: int) -> Tiled:
        model.configure_pipeline(slots=2, max_batch=1, when_full="raise")
        return Tiled(model, tile=tile)

    with TwoStage(tiled(models.YOLOv5(DETECTOR, threads=1), 320), tiled(models.YOLOv5(DETECTOR, threads=1), 64)) as two:
        expected = two(IMAGE)
        assert len(expected) > 5
        for result in two.map([IMAGE] * 3):
            assert [len(one) for one in result.columns["second"]] == [len(one) for one in expected.columns["second"]]
        image = read_image(IMAGE)
        with pytest.raises(Overloaded, match="all 2 slots"):  # images end more slowly than they are submitted
            [two.submit(image) for _ in range(100)]
        with ModelGroup(both=two, tiles=two.detector) as group:
            for found in group.map([IMAGE] * 3):
                assert not found.errors


@pytest.mark.skipif(FREE_THREADED, reason="a thread that waits frees nothing of its own")
@pytest.mark.usefixtures("no_garbage_collector")
def test_no_image_waits_for_the_garbage_collector(slow: TwoStage) -> None:
    """Whether the detector refuses it, the second model does, its future is cancelled, or its parts expire."""
    pixels, images = read_image(IMAGE).pixels, list[Any]()

    def image() -> Any:
        copy = pixels.copy()
        images.append(weakref.ref(copy))
        return copy

    def submit_many(two: TwoStage) -> None:
        for _ in range(20):
            try:
                futures.append(two.submit(image()))
            except Overloaded:
                refused.append(1)

    futures, refused = list[Any](), list[int]()
    detector = models.YOLOv5(DETECTOR, max_batch=1, threads=1)
    detector.configure_pipeline(slots=1, when_full="raise")
    second = models.Classifier(CLASSIFIER, max_batch=2, threads=1, **CLASSIFIER_SETTINGS)
    second.configure_pipeline(slots=2, when_full="raise")
    with TwoStage(detector, second) as full:
        submit_many(full)
        assert refused
        wait(futures)
    futures.clear()
    future = slow.submit(image())
    until(lambda: slow.second.details.pipelines[0].stats().queued)
    assert future.cancel()
    late = slow.submit(image(), deadline=1).result(30)
    assert {type(one) for one in late.columns["second"]} == {DeadlineExceeded}
    until(lambda: all(image() is None for image in images))


def test_files_are_read_by_the_threads_of_the_detector(two: TwoStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `map()`; each once, and also where the models are compositions themselves."""
    readers: list[str] = []

    def read(source: Any, **settings: Any) -> HostImage:
        readers.append(threading.current_thread().name)
        return read_image(source, **settings)

    expected = two(IMAGE)
    monkeypatch.setattr(sources, "read_image", read)
    for result in two.map([IMAGE] * 5):
        assert said(result) == said(expected)
    assert len(readers) == 5
    assert all("worker" in name for name in readers)


def test_models_that_are_compositions() -> None:
    detector, reader = models.YOLOv5(DETECTOR, threads=1), models.YOLOv5(DETECTOR, threads=1)
    with TwoStage(Tiled(detector, tile=320), Tiled(reader, tile=64)) as two:
        expected = two(IMAGE)
        assert len(expected) > 5
        whole = read_image(IMAGE)
        for box, part in zip(expected, cutter("box")(whole, expected), strict=True):
            assert box.columns["second"].xyxy.tolist() == two.second(part).xyxy.tolist()
        for result in (two.submit(IMAGE).result(60), *two.map([IMAGE, whole.pixels[..., ::-1]])):
            assert result.xyxy.tolist() == expected.xyxy.tolist()
            got = [len(found) for found in result.columns["second"]]
            assert got == [len(found) for found in expected.columns["second"]]


def test_settings_are_checked(two: TwoStage) -> None:
    for settings, words in (
        ({"crop": "round"}, "crop is 'round'; use box, oriented or landmarks"),
        ({"margin": -0.5}, "margin is a share of a box's side, from 0, not -0.5"),
        ({"column": "mask"}, "column is 'mask'"),
        ({"column": "track_id"}, "column is 'track_id'"),
        ({"column": "label"}, "column is 'label'"),
    ):
        with pytest.raises(ConfigError, match=words):
            TwoStage(two.detector, two.second, **settings)
    with pytest.raises(UnsupportedModelError, match="Classifier gives Classifications"):
        TwoStage(two.second, two.detector)  # type: ignore[arg-type]
    twice = TwoStage(two, two.second)
    for call in (lambda: twice(IMAGE), lambda: twice.submit(IMAGE).result(60), lambda: list(twice.map([IMAGE]))):
        with pytest.raises(ConfigError, match="have a column 'second' already; pass another column="):
            call()
    for crop, given in (([], "0 images"), (None, "NoneType"), (iter(()), "tuple_iterator")):
        with pytest.raises(ConfigError, match=f"crop gives {given} for"):
            TwoStage(two.detector, two.second, crop=lambda *_, crop=crop: crop)(IMAGE)
