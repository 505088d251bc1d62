"""Several models on the same images."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from head_models import head_model
from PIL import Image
from waiting import together, until

import infersdk
from infersdk import pinned_empty
from infersdk.core.device import Device
from infersdk.data import DETECTOR
from infersdk.data import IMAGE as DIGITS
from infersdk.errors import ClosedError, ConfigError, DeadlineExceeded, ImageError, InputError, PipelineError
from infersdk.image import HostImage, SharedImage, read_image
from infersdk.models import (
    Classifier,
    DepthMap,
    Detections,
    GroupResult,
    ImageResult,
    Matte,
    ModelGroup,
    Tiled,
    YOLOv5,
    YOLOv8,
    create,
)

pytest.importorskip("onnxruntime")

IMAGE = np.zeros((100, 200, 3), np.uint8)


def head(score: float) -> np.ndarray[Any, Any]:
    output = np.zeros((6, 84), np.float32)
    output[:, 70] = [32, 32, 32, 16, score, 0]
    return output


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return {
        "detector": head_model(tmp_path / "detector.onnx", [head(0.9)], {}),
        "classes": head_model(tmp_path / "classes.onnx", [np.array([0.1, 0.9])], {}),
    }


@pytest.fixture
def group(files: dict[str, Path]) -> Iterator[ModelGroup]:
    with ModelGroup(
        detector=YOLOv8(files["detector"], max_batch=4), classes=Classifier(files["classes"], max_batch=4)
    ) as made:
        yield made


def check(result: GroupResult) -> None:
    assert list(result) == ["detector", "classes"]
    assert result.errors == {}
    np.testing.assert_allclose(result["detector"].xyxy, [[50, 25, 150, 75]], atol=1e-3)
    assert result["classes"].class_ids.tolist() == [1, 0]


class CountingFile(io.BytesIO):
    """An encoded image that counts how often it is read."""

    def __init__(self) -> None:
        stream = io.BytesIO()
        Image.fromarray(IMAGE).save(stream, "PNG")
        super().__init__(stream.getvalue())
        self.reads = 0

    def read(self, *arguments: Any) -> bytes:
        self.reads += not arguments or arguments[0] in (-1, None)
        return super().read(*arguments)


def test_every_model_has_its_result(group: ModelGroup) -> None:
    assert "detector=<YOLOv8" in repr(group)
    check(group(IMAGE))
    check(group.submit(IMAGE).result(30))
    for result in group.map([IMAGE] * 11):
        check(result)
    for result in group.map(iter([IMAGE] * 5), in_flight=1):
        check(result)
    check(asyncio.run(group.infer(IMAGE)))
    for several in (group([IMAGE] * 3), list(group.stream([IMAGE] * 3))):
        assert len(several) == 3
        for result in several:
            check(result)
    assert group.result_type() is GroupResult
    check(group(Image.fromarray(IMAGE)))
    check(pickle.loads(pickle.dumps(group(IMAGE))))
    assert dict(group(IMAGE)).keys() == {"detector", "classes"}
    assert infersdk.ModelGroup is ModelGroup


def test_an_image_is_decoded_once(group: ModelGroup) -> None:
    sources = [CountingFile() for _ in range(6)]
    for result in group.map(sources):
        check(result)
        assert result.decoder == result["classes"].decoder == "pillow"
    assert [source.reads for source in sources] == [1] * 6


def test_settings_of_one_request(group: ModelGroup) -> None:
    strict = group(IMAGE, detector={"conf": 0.95}, classes={"top_k": 1})
    assert len(strict["detector"]) == 0
    assert len(strict["classes"]) == 1
    check(group(IMAGE))
    assert [len(one["detector"]) for one in group.map([IMAGE] * 3, detector={"conf": 0.95})] == [0] * 3
    for wrong in ({"road": {"conf": 1}}, {"detector": 0.5}):
        with pytest.raises(ConfigError, match=r"detector, classes"):
            group.submit(IMAGE, **wrong)
        with pytest.raises(ConfigError, match="mapping by the name of a model"):
            next(group.map([IMAGE], **wrong))


def test_an_error_of_one_model_leaves_the_others_alone(group: ModelGroup) -> None:
    for result in (
        group(IMAGE, detector={"conf": 7}),
        asyncio.run(group.infer(IMAGE, detector={"conf": 7})),
        *group.map([IMAGE], detector={"conf": 7}),
    ):
        assert result["classes"].class_ids.tolist() == [1, 0]
        assert set(result.errors) == {"detector"}
        assert "detector" in result
        assert len(result) == 2
        with pytest.raises(ConfigError, match="conf"):
            result["detector"]
        assert "conf" in repr(result)
    group.models["detector"].close()
    result = group(IMAGE)
    assert isinstance(result.errors["detector"], ClosedError)
    assert result["classes"].class_ids.tolist() == [1, 0]


def test_an_image_that_cannot_be_read(group: ModelGroup) -> None:
    first, bad, last = group.map([IMAGE, "none.png", IMAGE], return_exceptions=True)
    check(first)
    check(last)
    assert isinstance(bad, ImageError)
    for run in (group, lambda image: group.submit(image).result(30), lambda image: list(group.map([IMAGE, image]))):
        with pytest.raises(ImageError, match=r"none\.png"):
            run("none.png")


def test_requests_are_taken_back(files: dict[str, Path]) -> None:
    with ModelGroup(a=YOLOv8(files["detector"], max_batch=4), b=Classifier(files["classes"], max_batch=4)) as group:
        for model in group.models.values():
            model.configure_pipeline(max_delay=2.0, workers=1)
        pending = group.submit(IMAGE)
        assert pending.cancel(), "its batches wait for others"
        assert pending.cancel(), "it is cancelled already"
        with pytest.raises(CancelledError):
            pending.result(10)
        assert pending.cancelled()
        done = group.submit(IMAGE).result(30)
        assert not done.errors
        results = group.map(itertools.repeat(IMAGE), in_flight=3)
        assert not next(results).errors
        results.close()  # what is on its way is taken back


def test_a_future_of_the_group(files: dict[str, Path]) -> None:
    """Deadlines, callbacks, and cancelling while one model has run and the other waits."""
    with ModelGroup(a=YOLOv8(files["detector"], max_batch=2), b=Classifier(files["classes"], max_batch=2)) as group:
        group.models["a"].configure_pipeline(max_batch=2, slots=2, when_full="raise", max_delay=30.0)
        called: list[GroupResult] = []
        late = group.submit(IMAGE, deadline=0)
        late.add_done_callback(lambda future: called.append(future.result()))
        assert {type(error) for error in late.result(10).errors.values()} == {DeadlineExceeded}
        assert called == [late.result()]
        assert not late.cancel()
        waiting = group.submit(IMAGE)  # `a` waits for a second image, `b` does not
        until(lambda: group.models["b"].details.pipelines[0].stats().done == 1)
        assert not waiting.done()
        assert waiting.cancel()
        with pytest.raises(CancelledError):
            waiting.result(10)
        until(lambda: group.models["a"].details.pipelines[0].stats().cancelled == 1)


def test_the_deadline_of_a_coroutine_counts_while_no_thread_is_free(files: dict[str, Path]) -> None:
    async def late(group: ModelGroup) -> GroupResult:
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            threads.submit(time.sleep, 0.1)
            return await group.infer(IMAGE, deadline=0.05)

    with ModelGroup(a=Classifier(files["classes"])) as group:
        group.warm_up()
        with pytest.raises(InputError, match="deadline is from 0"):
            asyncio.run(group.infer(IMAGE, deadline=-1))
        assert isinstance(asyncio.run(late(group)).errors["a"], DeadlineExceeded)


def test_a_request_that_is_ended_and_refused(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pipeline does that fails just then: the end counts once, also where there is no other model."""
    error = PipelineError("a fault")

    def submit_batch(images: Any, on_done: Callable[[int, Any], object], *arguments: Any, **limits: Any) -> None:
        on_done(0, error)
        raise error

    with ModelGroup(classes=Classifier(files["classes"])) as group:
        monkeypatch.setattr(group.models["classes"], "submit_batch", submit_batch)
        assert group.submit(DIGITS).result(30).errors == {"classes": error}


def test_map_waits_for_slots(files: dict[str, Path]) -> None:
    """As the `map()` of a model does, also where `submit()` raises."""
    with ModelGroup(a=YOLOv8(files["detector"], max_batch=2), b=Classifier(files["classes"], max_batch=2)) as group:
        for model in group.models.values():
            model.configure_pipeline(slots=2, when_full="raise", workers=1)
        for result in group.map([IMAGE] * 40, in_flight=16):
            assert result.errors == {}


def test_a_model_that_is_closed_while_images_are_mapped(group: ModelGroup) -> None:
    results = group.map(itertools.repeat(IMAGE), in_flight=2)
    check(next(results))
    group.models["detector"].close()
    for result in itertools.islice(results, 4):
        assert result["classes"].class_ids.tolist() == [1, 0]
    assert isinstance(next(results).errors["detector"], ClosedError)


def test_map_ends_when_all_is_taken_back(files: dict[str, Path]) -> None:
    """The models are closed while their batches wait for more images."""
    with ModelGroup(a=YOLOv8(files["detector"], max_batch=4), b=Classifier(files["classes"], max_batch=4)) as group:
        for model in group.models.values():
            model.configure_pipeline(max_batch=4, max_delay=30.0, workers=1)
        closing = threading.Timer(0.2, group.close)
        closing.start()
        with pytest.raises(ClosedError):
            next(group.map([IMAGE]))
        closing.join()


def test_wrong_groups(files: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="one model or more"):
        ModelGroup()
    with pytest.raises(ConfigError, match="detector is a wrapper of infersdk.models, not str"):
        ModelGroup(detector="yolov8n.onnx")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model is a wrapper of infersdk.models, not str; use models.load\(\)"):
        Tiled("yolov8n.onnx")  # type: ignore[arg-type]
    with YOLOv8(files["detector"]) as model:
        with pytest.raises(ConfigError, match=r"same model.*clone"):
            ModelGroup(a=model, b=model)
        group = ModelGroup(a=model)
        with pytest.raises(ConfigError, match=r"same model.*of a composition a second one"):
            ModelGroup(a=group, b=group)
        with pytest.raises(ConfigError, match="'deadline' is an argument"):
            ModelGroup(deadline=model)
        with pytest.raises(ConfigError, match="in_flight is at least 1, not 0"):
            ModelGroup(a=model).map([IMAGE], in_flight=0)


# ---- what they share ----


def test_a_shared_image_is_read_by_the_first_thread_that_needs_it() -> None:
    source = CountingFile()
    shared = SharedImage(source)
    assert source.reads == 0
    read: list[HostImage] = []
    together(lambda _: read.append(shared.read()), range(8))
    assert source.reads == 1
    assert all(image.pixels is read[0].pixels for image in read)
    broken = SharedImage(b"no image")
    for _ in range(2):
        with pytest.raises(ImageError, match="not an image"):
            broken.read()


def test_an_array_keeps_the_order_that_each_model_gives_it() -> None:
    shared = SharedImage(IMAGE)
    assert shared.read("bgr").format == "bgr"
    assert shared.read("rgb").format == "rgb"
    assert shared.read().pixels is IMAGE


def test_models_take_an_array_in_the_order_of_the_group() -> None:
    pixels = read_image(DIGITS).pixels
    colours = np.dstack([pixels[..., 0], pixels[..., 1] // 2, np.zeros_like(pixels[..., 2])])
    with (
        YOLOv5(DETECTOR, threads=1) as model,
        ModelGroup(rgb=YOLOv5(DETECTOR, threads=1, channel_order="rgb"), bgr=model.clone()) as group,
    ):
        expected = model(np.ascontiguousarray(colours[..., ::-1]))
        assert not np.array_equal(model(colours).scores, expected.scores)
        for result in (group(colours), group.submit(colours).result(30), next(group.map([colours]))):
            for one in result.values():
                np.testing.assert_array_equal(one.scores, expected.scores)


@pytest.mark.gpu
def test_an_image_is_copied_to_a_device_once(files: dict[str, Path]) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    shared = SharedImage(CountingFile())
    assert shared.on_device("cuda:0").upload is shared.on_device("cuda:0").upload
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (120 + 8 * i, 200, 3), np.uint8) for i in range(9)]
    images[3].setflags(write=False)
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "max_batch": 4}
    with (
        ModelGroup(
            detector=YOLOv8(files["detector"], **settings), classes=Classifier(files["classes"], **settings)
        ) as group,
        YOLOv8(files["detector"]) as host,
    ):
        for result, expected in zip(group.map(images), host(images), strict=True):
            assert result.errors == {}
            np.testing.assert_array_equal(result["detector"].xyxy, expected.xyxy)
            assert result["classes"].class_ids.tolist() == [1, 0]


def test_compositions_and_wrappers_share_an_image() -> None:
    """`ModelGroup` takes whatever a configuration makes."""
    digits = {"type": "yolov5", "path": str(DETECTOR), "options": {"threads": 1}}
    tables = {"whole": digits, "tiles": {"type": "tiled", "tile": 200, "model": digits}}
    with ModelGroup(**create({"models": tables})) as group:
        expected = {name: model(DIGITS) for name, model in group.models.items()}
        for result in (group(DIGITS), *group.map([DIGITS])):
            for name, one in expected.items():
                np.testing.assert_array_equal(result[name].xyxy, one.xyxy)


@pytest.mark.gpu
@pytest.mark.parametrize("page_locked", [False, True])
def test_memory_of_frames_is_used_again(page_locked: bool) -> None:
    """Many more frames than there are slots, all different: each model sees the right ones."""
    pytest.importorskip("tensorrt_rtx_bindings")
    whole = read_image(DIGITS).pixels
    images = []
    for i in range(60):
        shifted = np.roll(whole, 4 * i, axis=1)
        images.append(pinned_empty(whole.shape) if page_locked else np.empty_like(whole))
        images[-1][:] = shifted
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "max_batch": 4, "channel_order": "rgb", "tf32": False}
    with YOLOv5(DETECTOR, **settings) as alone:
        expected = list(alone.map(images))
        assert len({one.xyxy.tobytes() for one in expected}) > 10
        with ModelGroup(first=alone.clone(), second=alone.clone()) as group:
            for result, one in zip(group.map(images), expected, strict=True):
                for name in group.models:
                    assert len(result[name]) == len(one)
                    np.testing.assert_allclose(result[name].xyxy, one.xyxy, atol=0.5)
            pool = group._pools.of(Device.parse("cuda:0"))
            del result
            gc.collect()
            slots = sum(model.details.pipelines[0].slots for model in group.models.values())
            assert 1 <= len(pool._free) <= slots


# ---- drawing ----

FOUND = Detections.of([[10, 30, 60, 60]], [0.5], names=["x"], size=(100, 80))
DEPTH = DepthMap(np.zeros((80, 100), np.float32))
GREY = np.full((80, 100, 3), 50, np.uint8)


def of_a_group(**results: Any) -> GroupResult:
    return GroupResult(tuple(results), results, {})


@pytest.mark.parametrize(
    "below", [DEPTH, ImageResult(GREY // 2), Matte(np.zeros((80, 100), np.float32))], ids=["depth", "image", "matte"]
)
def test_a_result_that_replaces_the_image_is_below_the_others(below: Any) -> None:
    expected = FOUND.draw(np.asarray(below.draw(GREY))[..., ::-1])
    for result in (of_a_group(found=FOUND, below=below), of_a_group(below=below, found=FOUND)):
        np.testing.assert_array_equal(result.draw(GREY), expected)


def test_results_that_do_not_fit_into_one_drawing() -> None:
    larger = ImageResult(np.zeros((160, 200, 3), np.uint8), (2.0, 2.0))
    assert of_a_group(larger=larger).draw(GREY).size == (200, 160)
    with pytest.raises(InputError, match=r"has 100 x 80 pixels, and the result 'larger' 200 x 160; draw each .* alone"):
        of_a_group(found=FOUND, larger=larger).draw(GREY)
    with pytest.raises(InputError, match=r"'a' and 'b' replace the image; draw each .*: result\['a'\].draw\(image\)"):
        of_a_group(a=DEPTH, b=DEPTH).draw(GREY)
