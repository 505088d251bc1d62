"""Wrappers through their pipeline: the same results as called directly."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from head_models import head_model
from waiting import together, until

from infersdk import models
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ClosedError, ConfigError, ImageError, InferenceError, InputError, PipelineError
from infersdk.image import read_image
from infersdk.models import UNCHECKED, YOLOv5

pytest.importorskip("onnxruntime")


def variants() -> list[np.ndarray[Any, Any]]:
    """Images of several sizes, none like another."""
    whole = np.ascontiguousarray(read_image(IMAGE).pixels[..., ::-1])
    return [np.ascontiguousarray(whole[i * 7 :, : whole.shape[1] - i * 11]) for i in range(12)]


def same(found: Any, expected: Any) -> None:
    """The same boxes: a batch of another size may round otherwise."""
    np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.05)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_submitted_from_many_threads(backend: str) -> None:
    pytest.importorskip(backend)
    images = variants()
    with YOLOv5(DETECTOR, backend=backend, conf=0.5, max_batch=4, channel_order="bgr") as detector:
        expected = [detector(image) for image in images]
        assert len({len(found) for found in expected}) > 1
        found: dict[int, Any] = {}

        def work(seed: int) -> None:
            for i in range(seed, len(images), 4):
                found[i] = detector.submit(images[i]).result(60)

        together(work, range(4))
        for i, one in enumerate(expected):
            same(found[i], one)
        for got, one in zip(detector.map(iter(images)), expected, strict=True):
            same(got, one)
        same(asyncio.run(detector.infer(images[3])), expected[3])
        assert detector.pipeline.stats().done == 2 * len(images) + 1


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_settings_of_one_call(backend: str) -> None:
    """On every path, and requests of different settings in one batch."""
    pytest.importorskip(backend)
    with YOLOv5(DETECTOR, backend=backend, conf=0.5, max_batch=4) as detector:
        whole = detector(IMAGE)
        chosen = sorted(set(whole.class_ids.tolist()))[1:3]
        own = {"conf": 0.7, "classes": chosen}
        expected = whole[(whole.scores > 0.7) & np.isin(whole.class_ids, chosen)]
        assert 0 < len(expected) < len(whole)

        async def twice() -> list[Any]:
            return list(await asyncio.gather(*(detector.infer(IMAGE, **given) for given in (own, {}))))

        for found in (
            detector(IMAGE, **own),
            *detector([IMAGE] * 3, **own),
            *detector.stream([IMAGE] * 5, **own),
            *detector.map([IMAGE] * 5, **own),
            *(future.result(60) for future in detector.submit_many([IMAGE] * 3, **own)),
        ):
            same(found, expected)
        futures = [detector.submit(IMAGE, **(own if i % 2 else {})) for i in range(12)]
        for i, future in enumerate(futures):
            same(future.result(60), expected if i % 2 else whole)
        for found, full in zip(asyncio.run(twice()), (expected, whole), strict=True):
            same(found, full)
        with pytest.raises(ConfigError, match="no class 'bicycle'"):
            detector.submit(IMAGE, classes=["bicycle"]).result(60)
        with pytest.raises(ConfigError, match=r"'max_batch' cannot be given with a call .* conf, iou"):
            detector.submit(IMAGE, max_batch=1).result(60)
        with pytest.raises(ConfigError, match=r"'timeout' cannot be given .*; timeout is an argument of submit\(\)$"):
            asyncio.run(detector.infer(IMAGE, timeout=1))
        assert len(list(detector.map([IMAGE] * 3, in_flight=np.int64(2)))) == 3  # type: ignore[arg-type]


def test_a_gap_in_the_batch_is_closed(tmp_path: Path) -> None:
    """The rows behind an image that failed move up: each result stays with its image."""
    images = variants()
    with YOLOv5(DETECTOR, conf=0.5, max_batch=8, channel_order="bgr") as detector:
        expected = [detector(image) for image in images]
        detector.configure_pipeline(max_batch=8, max_delay=0.3)
        mixed: list[Any] = [images[0], b"no image", images[1], b"", images[2], images[3]]
        futures = detector.submit_many(mixed)
        for future, want in zip(futures, (expected[0], None, expected[1], None, expected[2], expected[3]), strict=True):
            if want is None:
                assert isinstance(future.exception(60), ImageError)
            else:
                same(future.result(60), want)
        assert detector.pipeline.stats().batch_sizes == {4: 1}


def test_settings(tmp_path: Path) -> None:
    with YOLOv5(DETECTOR, max_batch=4) as detector:
        pipeline = detector.configure_pipeline(max_delay=0.01, slots=8, max_batch=2)
        assert detector.pipeline is pipeline
        assert (pipeline.max_batch, pipeline.slots) == (2, 8)
        with pytest.raises(ConfigError, match="has its pipeline already"):
            detector.configure_pipeline()
    with YOLOv5(DETECTOR, max_batch=4) as detector, pytest.raises(ConfigError, match="load it with max_batch=8"):
        detector.configure_pipeline(max_batch=8)
    table = {"type": "yolov5", "path": str(DETECTOR), "max_batch": 4, "pipeline": {"max_delay": 0.5, "slots": 4}}
    with models.create({"models": {"digits": table}})["digits"] as detector:
        assert detector.pipeline.settings.max_delay == 0.5
        assert detector.pipeline.slots == 4
        with detector.clone() as twin:
            assert twin.pipeline is not detector.pipeline
            assert twin.pipeline.slots == 4
    with pytest.raises(ConfigError, match=r"YOLOv5 pipeline: .*max_dely.*Known are: max_batch, max_delay"):
        models.create({"models": {"digits": {**table, "pipeline": {"max_dely": 1}}}})


def _freed(use: Callable[[YOLOv5], object]) -> bool:
    """Whether a model is freed that is used so and not closed, with its threads."""
    before = set(threading.enumerate())
    detector = YOLOv5(DETECTOR, max_batch=2)
    use(detector)
    own = [thread for thread in set(threading.enumerate()) - before if "decode" not in thread.name]
    assert own
    reference = weakref.ref(detector)
    del detector
    gc.collect()
    until(lambda: not any(thread.is_alive() for thread in own))
    return reference() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda model: (model(IMAGE, conf=0.4), model.submit(IMAGE, conf=0.5).result(), model(IMAGE, conf=0.6)),
        lambda model: list(model.map([IMAGE] * 2)),
        lambda model: asyncio.run(model.infer(IMAGE)),
        lambda model: models.ModelGroup(one=model).submit(IMAGE).result(),
        lambda model: models.Tiled(model).submit(IMAGE).result(),
        lambda model: model.release(after=1000),
    ],
)
def test_a_model_without_references_is_freed(use: Callable[[YOLOv5], object]) -> None:
    assert _freed(use)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_neither_copied_nor_pickled(duplicate: Callable[[Any], Any]) -> None:
    with YOLOv5(DETECTOR) as detector, models.ModelGroup(one=detector) as group:
        with pytest.raises(TypeError, match=r"YOLOv5 can be neither copied nor pickled: clone\(\) it, or load"):
            duplicate(detector)
        with pytest.raises(TypeError, match="ModelGroup can be neither copied nor pickled: load the model again"):
            duplicate(group)


def test_a_request_and_the_pipeline_outlive_the_references_to_their_model() -> None:
    expected = YOLOv5(DETECTOR, max_batch=2)(IMAGE)
    same(YOLOv5(DETECTOR, max_batch=2).submit(IMAGE).result(), expected)
    with YOLOv5(DETECTOR, max_batch=2).pipeline as pipeline:
        gc.collect()
        same(pipeline.submit(IMAGE).result(), expected)


class Weighing(models.Classifier):
    """A wrapper with a setting of a call that is an array, or a function."""

    weights: Annotated[Any, UNCHECKED] = None
    per_call = frozenset({"weights"})

    def postprocess(self, outputs: Any, geometries: Any) -> Any:
        return [float(self.weights() if callable(self.weights) else self.weights.sum()) for _ in geometries]


def test_settings_of_one_call_are_told_apart_exactly(tmp_path: Path) -> None:
    zeros, some = np.zeros((64, 64)), np.zeros((64, 64))
    some[30:40, 30:40] = 1
    near = [np.array([0.123456789]), np.array([0.1234567894])]
    with Weighing(head_model(tmp_path / "m.onnx", [np.zeros(10, np.float32)], {})) as model:
        image = np.zeros((8, 8, 3), np.uint8)
        assert [model(image, weights=one) for one in (zeros, some, *near)] == [0, 100, *(one.item() for one in near)]
        zeros[:] = 1  # the settings of an earlier call do not change with it
        assert [model(image, weights=one) for one in (np.zeros((64, 64)), zeros)] == [0, 4096]
        assert [model(image, weights=lambda value=value: value) for value in (1, 2)] == [1, 2]


@dataclass(frozen=True)
class Scores:
    values: Any


class Keeping(models.Classifier):
    """A wrapper whose results hold what `keep` makes of a row of the output."""

    per_call = frozenset({"top_k"})
    keep = staticmethod(lambda row: row)

    def postprocess(self, outputs: Any, geometries: Any) -> Any:
        return [self.keep(outputs["output0"][i]) for i, _ in enumerate(geometries)]


@pytest.mark.parametrize("parameters", [{}, {"top_k": 1}])
@pytest.mark.parametrize("keep", [lambda row: row, Scores, lambda row: {"rows": [row[2:]]}])
def test_a_result_that_is_a_view_of_the_outputs_is_refused(
    tmp_path: Path, keep: Callable[[Any], Any], parameters: dict[str, Any]
) -> None:
    path = head_model(tmp_path / "m.onnx", [np.arange(10, dtype=np.float32)], {})
    kind = type("Kept", (Keeping,), {"keep": staticmethod(keep)})
    with kind(path) as model:
        for _ in range(2):
            with pytest.raises(InferenceError, match=r"postprocess\(\) returned a view of output 'output0'.*copy"):
                model(IMAGE, **parameters)
        with pytest.raises(InferenceError, match="returned a view"):
            model.submit(IMAGE, **parameters).result(60)
    copying = type("Copying", (Keeping,), {"keep": staticmethod(lambda row: keep(row.copy()))})
    with copying(path) as model:
        assert [type(one) for one in model([IMAGE] * 2, **parameters)] == [type(keep(np.zeros(3)))] * 2


def test_attributes_that_a_wrapper_sets_later() -> None:
    """Buffers use the methods of the wrapper, which may depend on them."""

    class Marking(YOLOv5):
        def __init__(self, path: Any, **settings: Any) -> None:
            super().__init__(path, **settings)
            self.results_of_calls: list[Any] = []

        def postprocess(self, outputs: Any, geometries: Any) -> Any:
            results = super().postprocess(outputs, geometries)
            self.results_of_calls += results
            return results

    with Marking(DETECTOR, max_batch=2) as model:
        results = [model(IMAGE), model.submit(IMAGE).result(), model(IMAGE, conf=0.9)]
        assert model.results_of_calls == results


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("a fault")])
def test_a_pipeline_that_has_failed_is_replaced(fault: BaseException) -> None:
    reason = "was interrupted by KeyboardInterrupt" if isinstance(fault, KeyboardInterrupt) else "report the fault"
    with YOLOv5(DETECTOR, max_batch=2) as detector:
        first = detector.pipeline
        first._core.thread_failed(fault)
        with pytest.raises(PipelineError, match=reason):
            first.submit(IMAGE)
        assert len(detector.submit(IMAGE).result()) == len(detector(IMAGE))
        assert not any(thread.is_alive() for thread in first._core.threads)
        detector.pipeline._core.thread_failed(fault)
        assert detector.configure_pipeline(max_delay=0).fault is None
        detector.pipeline._core.thread_failed(fault)
        detector.release()


def test_closing_the_wrapper_ends_requests_that_wait() -> None:
    detector = YOLOv5(DETECTOR, max_batch=4)
    detector.configure_pipeline(max_delay=60)
    future = detector.submit(IMAGE)
    detector.close()
    assert isinstance(future.exception(0), ClosedError)
    with pytest.raises(ClosedError, match="was closed; load it again"):
        detector.configure_pipeline()


def test_results_of_requests_do_not_know_their_image(tmp_path: Path) -> None:
    with YOLOv5(DETECTOR, max_batch=2) as detector, pytest.raises(InputError, match=r"save\(path, image\)"):
        detector.submit(IMAGE).result(60).save(tmp_path / "x.jpg")


def test_closing_while_the_first_request_makes_the_pipeline() -> None:
    with YOLOv5(DETECTOR, max_batch=4) as detector:
        for _ in range(20):
            twin, futures = detector.clone(), list[Any]()

            def submit(twin: YOLOv5 = twin, futures: list[Any] = futures) -> None:
                with contextlib.suppress(ClosedError):
                    futures.append(twin.submit(IMAGE))

            thread = threading.Thread(target=submit)
            thread.start()
            twin.close()
            thread.join()
            assert all(future.done() for future in futures)
            with pytest.raises(ClosedError):
                twin.submit(IMAGE)


def test_closing_frees_the_networks_whatever_the_callbacks_raise() -> None:
    def on_done(index: int, outcome: Any) -> None:
        raise ValueError("mine")

    detector = YOLOv5(DETECTOR, max_batch=4)
    detector.configure_pipeline(max_delay=60)
    detector.submit_batch([IMAGE], on_done)
    with pytest.raises(ValueError, match="mine"):
        detector.close()
    with pytest.raises(ClosedError):
        detector(IMAGE)
