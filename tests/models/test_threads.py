"""Calls, streams and `close()` of one wrapper from several threads."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import interrupted, meanwhile, together, until

import infersdk
from infersdk import Infer, models
from infersdk.core.processors import available_processors
from infersdk.data import CLASSIFIER, DETECTOR, IMAGE
from infersdk.errors import ClosedError, ImageError
from infersdk.image import read_image
from infersdk.models.execution import execution
from infersdk.models.execution.buffer import HostBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONG = 30.0
BACKENDS = ["onnxruntime", "openvino"]


def frames() -> list[Any]:
    whole = read_image(IMAGE).pixels
    return [np.ascontiguousarray(np.roll(whole, 40 * i, axis=1)) for i in range(4)]


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Iterator[models.YOLOv5]:
    pytest.importorskip(request.param)
    with models.YOLOv5(DETECTOR, request.param, max_batch=4, threads=1) as model:
        yield model


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("settings", [{}, {"threads": 1}], ids=["", "one-thread"])
def test_postprocessing_that_calls_another_model_with_lists(backend: str, settings: dict[str, Any]) -> None:
    pytest.importorskip(backend)

    class Lengths(models.VisionModel[list[int]]):
        def preprocessing(self, input: models.ImageInput) -> models.Preprocessor:
            return models.Preprocessor.letterbox(input)

        def postprocess(self, outputs: Any, geometries: Any) -> list[list[int]]:
            return [[len(boxes) for boxes in detector([IMAGE] * 3)] for _ in geometries]

    with models.YOLOv5(DETECTOR, backend, **settings) as detector, Lengths(DETECTOR, backend, **settings) as model:
        expected = [len(detector(IMAGE))] * 3
        assert model([IMAGE] * 4) == [expected] * 4
        assert list(model.map([IMAGE] * 4)) == [expected] * 4


def test_every_thread_has_its_own_results(model: models.YOLOv5) -> None:
    images = frames()
    expected = [boxes.data.tobytes() for boxes in model(images)]
    assert len(set(expected)) > 1

    def call(index: int) -> None:
        for _ in range(5):
            assert model(images[index]).data.tobytes() == expected[index]

    def listed() -> None:
        for _ in range(3):
            assert [boxes.data.tobytes() for boxes in model(images)] == expected

    def streamed() -> None:
        found = model.stream(itertools.islice(itertools.cycle(images), 12))
        assert [boxes.data.tobytes() for boxes in found] == expected * 3

    works = [*(partial(call, i) for i in range(4)), listed, listed, streamed, streamed]
    together(lambda work: work(), works)


def test_close_waits_for_calls_and_later_ones_are_refused(model: models.YOLOv5) -> None:
    images = frames()
    expected = [boxes.data.tobytes() for boxes in model(images)]
    begun = threading.Semaphore(0)
    wrong: list[int] = []

    def call() -> None:
        try:
            for count in itertools.count():
                index = count % len(images)
                if model(images[index]).data.tobytes() != expected[index]:
                    wrong.append(index)
                begun.release()
        except ClosedError:
            pass

    def stream() -> None:
        try:
            for index, boxes in enumerate(model.stream(itertools.cycle(images))):
                if boxes.data.tobytes() != expected[index % len(images)]:
                    wrong.append(index)
        except ClosedError:
            pass

    def close() -> None:
        for _ in range(8):
            assert begun.acquire(timeout=LONG)
        model.close()

    together(lambda work: work(), [call, call, call, stream, stream, close])
    assert wrong == []
    with pytest.raises(ClosedError, match="was closed; load it again"):
        model(images[0])
    with pytest.raises(ClosedError):
        next(model.stream(images))


def test_threads_call_in_turn(model: models.YOLOv5) -> None:
    """A thread that has just got its result does not overtake threads that wait."""
    image, calls, left = frames()[0], Counter[int](), iter(range(160))

    def work(thread: int) -> None:
        for _ in left:
            model(image)
            calls[thread] += 1

    together(work, range(available_processors() + 6))
    assert min(calls.values()) > max(calls.values()) / 4, calls
    assert len(calls) == available_processors() + 6


def test_calls_are_refused_while_the_requests_end(model: models.YOLOv5) -> None:
    """Those of other threads would take the networks for which the last batch waits."""
    image, goes_on = frames()[0], threading.Event()
    model.submit(image).add_done_callback(lambda _: goes_on.wait(LONG))

    def is_refused(use: Callable[[], Any]) -> bool:
        try:
            use()
        except ClosedError as error:
            return "was closed; load it again" in str(error)
        return False

    with meanwhile(lambda close: close(), [model.close]):
        try:
            for use in (lambda: model(image), lambda: model.submit(image), lambda: next(model.stream([image]))):
                until(partial(is_refused, use))
        finally:
            goes_on.set()


@pytest.fixture
def slow_close(monkeypatch: pytest.MonkeyPatch) -> list[Infer]:
    """Closing takes a while; returns a list that gets each closed network."""
    close_tensors, closed = Infer._close_tensors, list[Infer]()

    def slowly(self: Infer) -> None:
        closed.append(self)
        time.sleep(0.05)
        close_tensors(self)

    monkeypatch.setattr(Infer, "_close_tensors", slowly)
    return closed


def test_many_threads_close_a_network(slow_close: list[Infer]) -> None:
    infer = infersdk.load(DETECTOR, threads=1)
    together(lambda work: work(), [infer.close] * 6)
    assert slow_close == [infer]


@pytest.mark.parametrize("used", ["call", "submit", "not at all"])
def test_many_threads_close_a_model(model: models.YOLOv5, slow_close: list[Infer], used: str) -> None:
    image = frames()[0]
    if used == "call":
        model(image)
    elif used == "submit":
        model.submit(image).result()
    open_after_close: list[Infer] = []

    def close() -> None:
        model.close()
        open_after_close.extend([] if model.network._closed else [model.network])

    together(lambda work: work(), [close] * 6)
    assert open_after_close == []
    assert len({id(infer) for infer in slow_close}) == len(slow_close)
    assert model.network in slow_close
    with pytest.raises(ClosedError, match="was closed; load it again"):
        model(image)


def test_callbacks_and_threads_close_a_model(model: models.YOLOv5, slow_close: list[Infer]) -> None:
    futures = model.submit_many(frames() * 4)
    for future in futures:
        future.add_done_callback(lambda _: model.close())
    together(lambda work: work(), [model.close] * 4)
    assert all(future.done() for future in futures)
    assert slow_close.count(model.network) == 1


def test_close_waits_for_the_call_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()
    run = HostBuffer.run

    def held(self: HostBuffer[Any], count: int) -> None:
        inside.set()
        assert go.wait(LONG)
        run(self, count)

    model = models.YOLOv5(DETECTOR, threads=1)
    image = frames()[0]
    expected = model(image)
    monkeypatch.setattr(HostBuffer, "run", held)
    found: list[Any] = []
    calling = threading.Thread(target=lambda: found.append(model(image)))
    calling.start()
    assert inside.wait(LONG)
    closing = threading.Thread(target=model.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    with pytest.raises(ClosedError):
        model(image)
    go.set()
    for thread in (calling, closing):
        thread.join(LONG)
        assert not thread.is_alive()
    np.testing.assert_array_equal(found[0].data, expected.data)


@pytest.mark.parametrize("used", ["call", "stream", "map", "warm_up", "pipeline.warm_up"])
def test_a_call_that_is_interrupted_by_close(used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the handler of a signal: `close()` cannot wait for the call that it interrupts."""
    image = np.zeros((64, 64, 3), np.uint8)
    model = models.YOLOv5(DETECTOR, max_batch=2, threads=1)

    def close(*_: Any) -> None:
        model.close()

    def images() -> Iterator[Any]:
        yield image
        close()
        yield image

    if used == "call":
        write = HostBuffer.write
        monkeypatch.setattr(HostBuffer, "write", lambda *arguments: (close(), write(*arguments)))
    uses: dict[str, Callable[[], object]] = {
        "call": lambda: model(image),
        "stream": lambda: list(model.stream(images())),
        "map": lambda: list(model.map(images())),
        "warm_up": lambda: model.warm_up(close),
        "pipeline.warm_up": lambda: model.pipeline.warm_up(close),
    }
    with contextlib.suppress(ClosedError):
        uses[used]()
    until(lambda: model.network._closed)
    model.close()
    with pytest.raises(ClosedError):
        uses[used]()


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("how", ["stream", "map", "tiles", "two stages", "two stages by map"])
def test_results_before_an_exception_of_the_images(threads: int, how: str) -> None:
    """They are given first, however far the images are read ahead."""
    image = frames()[0]

    def images() -> Iterator[Any]:
        yield from [image] * 3
        raise LookupError("the camera is gone")

    with models.YOLOv5(DETECTOR, max_batch=2, threads=threads) as model:
        stages = models.TwoStage(model, model) if "two" in how else None
        ways: dict[str, Callable[[], Iterator[Any]]] = {
            "stream": lambda: model.stream(images()),
            "map": lambda: model.map(images()),
            "tiles": lambda: models.Tiled(model).stream(images()),
            "two stages": lambda: stages.stream(images()),  # type: ignore[union-attr]
            "two stages by map": lambda: stages.map(images()),  # type: ignore[union-attr]
        }
        found: list[Any] = []
        with pytest.raises(LookupError, match="the camera is gone"):
            found.extend(ways[how]())
        assert len(found) == 3


def test_close_does_not_wait_for_streams_that_wait() -> None:
    """Neither for one whose caller does something else, nor for one whose images do not come."""
    images = frames()
    model = models.YOLOv5(DETECTOR, max_batch=1, threads=1)
    streams = [
        model.stream(itertools.cycle(images)) for _ in range(8)
    ]  # by one thread: they do not wait for each other
    for stream in streams:
        next(stream)
    go, asked, raised = threading.Event(), threading.Event(), list[BaseException]()

    def camera() -> Iterator[Any]:
        yield images[0]
        asked.set()
        assert go.wait(LONG)
        yield images[1]

    def watch() -> None:
        try:
            list(model.stream(camera()))
        except ClosedError as error:
            raised.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    assert asked.wait(LONG)
    model.close()
    go.set()
    watching.join(LONG)
    assert len(raised) == 1
    with pytest.raises(ClosedError):
        next(streams[0])
    streams[1].close()  # type: ignore[attr-defined]
    del streams[2:]


def test_a_stream_has_a_buffer_only_while_it_runs() -> None:
    images = frames()
    with models.YOLOv5(DETECTOR, max_batch=2, threads=1) as model:
        for _ in range(3):
            assert len(list(model.stream(images))) == 4
            next(model.stream(itertools.cycle(images)))
            model(images[0])
            model(images)
        assert len(model._execution._idle) == 1


@pytest.mark.timeout(30)
@pytest.mark.posix
def test_a_call_that_the_handler_of_a_signal_ends_gives_its_buffer_back() -> None:
    model = models.YOLOv5(DETECTOR, max_batch=1, threads=1)
    image = read_image(IMAGE).pixels
    expected = model(image)
    for call in (lambda: model(image), lambda: model([image, image])):
        assert interrupted(call, 2e-4, 0.4) > 5
    assert np.array_equal(model(image).xyxy, expected.xyxy)
    closing = threading.Thread(target=model.close, daemon=True)
    closing.start()
    closing.join(2)
    assert not closing.is_alive()


def test_ctrl_c_leaves_no_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would in the Python code of a condition or semaphore, between the lock and the `with` block."""

    def interrupted(condition: threading.Condition) -> Any:
        condition.acquire()
        raise KeyboardInterrupt

    with models.YOLOv5(DETECTOR, max_batch=4) as detector, models.load(CLASSIFIER) as second:
        two = models.TwoStage(detector, second)
        expected = two(IMAGE)
        two.submit(IMAGE).result(LONG)
        monkeypatch.setattr(threading.Condition, "__enter__", interrupted)
        found = [two.submit(IMAGE).result(LONG), *two.map([IMAGE]), *detector.map([IMAGE])]
        monkeypatch.undo()
    assert all(np.array_equal(boxes.xyxy, expected.xyxy) for boxes in found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_after_the_main_thread_has_ended(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    code = """
import sys, threading
from infersdk import models
from infersdk.data import CLASSIFIER, IMAGE
model = models.load(CLASSIFIER, backend=sys.argv[1])
if sys.argv[2] == "used":
    model([IMAGE] * 3)
def calls():
    threading.main_thread().join()
    first = str(model(IMAGE))
    assert [str(one) for one in model([IMAGE] * 3)] == [first] * 3
    assert [str(one) for one in model.stream([IMAGE] * 3)] == [first] * 3
    print("done")
threading.Thread(target=calls).start()
"""
    for used in ("used", "new"):
        command = [sys.executable, "-c", code, backend, used]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("settings", [{}, {"threads": 1}], ids=["", "one-thread"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.usefixtures("no_garbage_collector")
def test_the_error_of_an_image_is_in_no_cycle(backend: str, settings: dict[str, Any]) -> None:
    """Its traceback has the image, which would stay until the garbage is collected."""
    pytest.importorskip(backend)

    def error_of(images: list[Any]) -> weakref.ref[BaseException]:
        try:
            list(model.stream(images))
        except ImageError as error:
            return weakref.ref(error)
        raise AssertionError("no image has failed")

    with models.YOLOv5(DETECTOR, backend, max_batch=4, **settings) as model:
        error = error_of([*frames(), b"no image", *frames()])
        until(lambda: error() is None)


@pytest.mark.parametrize("started", [False, True])
def test_each_image_is_prepared_once_where_threads_cannot_be_started(
    model: models.YOLOv5, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool keeps the tasks for which it could not start a thread."""
    prepared, write = Counter[int](), HostBuffer.write

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def counted(buffer: HostBuffer, row: int, *arguments: Any) -> None:
        prepared[row] += 1
        write(buffer, row, *arguments)

    with ThreadPoolExecutor(8, "infersdk-decode") as pool:
        monkeypatch.setattr(execution, "_pool_of", lambda process: pool)
        if started:
            pool.submit(int).result()
        monkeypatch.setattr(threading.Thread, "start", refused)
        monkeypatch.setattr(HostBuffer, "write", counted)
        results = model([IMAGE] * 4)
    monkeypatch.undo()
    assert prepared == dict.fromkeys(range(4), 1)
    assert [len(boxes) for boxes in results] == [len(model(IMAGE))] * 4
