"""The wrappers on a CUDA device, with TensorRT-RTX: what comes out is what the host's path gives."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from waiting import together

from infersdk import Pipeline, device_count, errors, pinned_empty
from infersdk.errors import ImageError
from infersdk.image import read_image
from infersdk.models import Classifier, GroupResult, ModelGroup, Tiled, YOLOv5, YOLOv8
from infersdk.ops import DetectionDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.assets]
pytest.importorskip("tensorrt_rtx_bindings")
BATCH = 4
#: All kernels are compiled before the first run, and each batch size runs the same ones: later runs give the same bits.
STEADY: dict[str, Any] = {"kernel_specialization": "eager", "tf32": False, "exact_batches": []}


@pytest.fixture(scope="module")
def detector(request: pytest.FixtureRequest) -> Iterator[YOLOv5]:
    assets: Path = request.getfixturevalue("assets")
    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, backend="tensorrt-rtx", max_batch=BATCH, preprocess="device", **STEADY) as model:
        yield model


@pytest.fixture(scope="module")
def frames(request: pytest.FixtureRequest) -> list[np.ndarray[Any, Any]]:
    """Images of several sizes, in BGR."""
    assets: Path = request.getfixturevalue("assets")
    files = [*sorted((assets / "coco" / "val").glob("*.jpg"))[:9], assets / "images" / "bus.jpg"]
    return [np.ascontiguousarray(read_image(f).pixels[..., ::-1]) for f in files]


def by_hand(model: YOLOv5, frames: list[Any]) -> list[np.ndarray[Any, Any]]:
    """The same outputs decoded by the host's kernels: preprocessing, model and NMS one after the other."""
    from infersdk.ops import preprocess

    results = []
    for frame in frames:
        preprocessor = model._stages.preprocessor
        geometry = preprocessor.geometry_of((frame.shape[1], frame.shape[0]))
        tensor = preprocessor.input.tensor(model.network, 1, BATCH)
        tensor.numpy(writable=True)[0] = preprocess(frame, geometry, preprocessor.transform)
        output = next(iter(model.network.forward().values())).numpy()[0]
        with DetectionDecoder("yolov5", 80, len(output)) as decode:
            results.append(decode(output, geometry)[0])
    return results


def same(found: Any, expected: Any) -> None:
    """The same boxes: another batch size runs other kernels, which round otherwise."""
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found["class_id"], expected["class_id"])
    np.testing.assert_allclose(found["xyxy"], expected["xyxy"], atol=0.3)
    np.testing.assert_allclose(found["score"], expected["score"], atol=2e-3)


def test_one_at_a_time_is_what_the_host_gives_bit_for_bit(detector: YOLOv5, frames: list[Any]) -> None:
    for frame, expected in zip(frames, by_hand(detector, frames), strict=True):
        np.testing.assert_array_equal(detector(frame).data, expected)


def test_batches_keep_order(detector: YOLOv5, frames: list[Any]) -> None:
    alone = [detector(frame).data for frame in frames]
    for count in (1, 3, 4, 5, 9, 10):
        for found, expected in zip(detector(frames[:count]), alone, strict=False):
            same(found.data, expected)
    many = list(detector.stream(frames[i % 10] for i in range(60)))
    assert len(many) == 60
    for i, found in enumerate(many):
        same(found.data, alone[i % 10])


def test_auto_chooses_and_agrees(assets: Path, detector: YOLOv5, frames: list[Any]) -> None:
    path = assets / "models" / "yolov5n.onnx"
    expected = [found.data for found in detector(frames)]
    for where in ("host", "auto"):
        with YOLOv5(path, backend="tensorrt-rtx", max_batch=BATCH, preprocess=where, **STEADY) as model:
            for found, want in zip(model(frames), expected, strict=True):
                same(found.data, want)


def test_page_locked_and_strided_frames(detector: YOLOv5, frames: list[Any]) -> None:
    frame = frames[0]
    expected = detector(frame).data
    locked = pinned_empty(frame.shape)
    locked[:] = frame
    large = np.zeros((frame.shape[0] + 9, frame.shape[1] + 7, 3), np.uint8)
    region = large[4:-5, 3:-4]
    region[:] = frame
    for source in (locked, region):
        np.testing.assert_array_equal(detector(source).data, expected)


def test_frames_that_are_on_the_device(detector: YOLOv5, frames: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    expected = [detector(frame).data for frame in frames[:6]]
    theirs = [torch.from_numpy(frame).cuda() for frame in frames[:6]]
    for found, want in zip(detector(theirs), expected, strict=True):
        same(found.data, want)
    mixed = detector([frames[0], theirs[1], theirs[2], frames[3]])
    for found, want in zip(mixed, expected, strict=False):
        same(found.data, want)
    with pytest.raises(errors.ImageError, match="float32"):
        detector(theirs[0].float())
    same(detector(theirs[0]).data, expected[0])


def test_frames_that_another_stream_still_writes(assets: Path, detector: YOLOv5, frames: list[Any]) -> None:
    """The current stream of torch is that of the thread that gives the frame; other threads read it."""
    torch = pytest.importorskip("torch")
    people = max(frames, key=lambda frame: len(detector(frame)))
    theirs = torch.from_numpy(people).cuda()

    def count(result: Any) -> int:
        return len(result["one"] if isinstance(result, GroupResult) else result)

    ways: list[Any] = [
        detector.submit,
        lambda frame: detector.submit_many([frame])[0],
        ModelGroup(one=detector).submit,
        Tiled(detector, tile=600).submit,
    ]
    for way in ways:
        expected = count(way(people).result(60))
        assert expected
        for _ in range(5):
            with torch.cuda.stream(torch.cuda.Stream()):
                frame = torch.zeros_like(theirs)
                torch.cuda._sleep(50_000_000)
                frame.copy_(theirs)
                found = way(frame)
            assert count(found.result(60)) == expected


class HostDecoded(YOLOv5):
    """A wrapper without postprocessing on a device: its outputs are fetched, and decoded on the host."""

    def device_postprocess(self, infer: Any, capacity: int) -> None:
        return None


def test_no_image_is_kept_alive(detector: YOLOv5, frames: list[Any]) -> None:
    for _ in range(2):
        image = frames[0].copy()
        alive = weakref.ref(image)
        detector(image)
        del image
        gc.collect()
        assert alive() is None


def test_a_wrapper_without_postprocessing_on_the_device(detector: YOLOv5, frames: list[Any]) -> None:
    expected = [found.data for found in detector(frames)]
    path = detector.network.model
    with HostDecoded(path, backend="tensorrt-rtx", max_batch=BATCH, preprocess="device", **STEADY) as model:
        for results in (model(frames), list(model.stream(frames)), list(model.map(frames))):
            for found, want in zip(results, expected, strict=True):
                same(found.data, want)


def test_settings_of_one_call(detector: YOLOv5, frames: list[Any]) -> None:
    with detector.clone() as model:
        all_of_them = model(frames[:4])
        for count in (1, 4):
            for found, full in zip(model(frames[:count], conf=0.6), all_of_them, strict=False):
                assert len(found) == int((full.scores > 0.6).sum())
        for found, full in zip(model(frames[:4], classes=[0]), all_of_them, strict=True):
            same(found.data, full.data[full.class_ids == 0])
        thresholds = [0.25, 0.6, 0.4, 0.6, 0.25, 0.8, 0.4, 0.6]
        futures = [model.submit(frames[i % 4], conf=conf) for i, conf in enumerate(thresholds)]
        for i, (future, conf) in enumerate(zip(futures, thresholds, strict=True)):
            assert len(future.result(60)) == int((all_of_them[i % 4].scores > conf).sum())


def test_scores_are_looked_at_in_the_first_run(tmp_path: Path) -> None:
    from head_models import head_model

    output = np.zeros((56, 84), np.float32)
    output[5:] = 310
    path = head_model(tmp_path / "m.onnx", [output], {})
    with YOLOv8(path, backend="tensorrt-rtx") as model, pytest.raises(errors.UnsupportedModelError, match="310"):
        model(np.zeros((48, 64, 3), np.uint8))


def test_a_bad_image_leaves_the_model_usable(detector: YOLOv5, frames: list[Any], tmp_path: Path) -> None:
    expected = detector(frames[0]).data
    with pytest.raises(errors.ImageError, match="missing"):
        detector([*frames, tmp_path / "missing.jpg", *frames])
    same(detector(frames[0]).data, expected)
    early = detector.stream(frames)
    next(early)
    early.close()
    same(detector(frames[0]).data, expected)


def test_map(assets: Path) -> None:
    pytest.importorskip("pycocotools")
    from accuracy import coco_map

    path = assets / "models" / "yolov5n.onnx"
    for precision in (None, "fp16"):
        with YOLOv5(
            path, backend="tensorrt-rtx", precision=precision, max_batch=8, conf=0.001, iou=0.6, multi_label=True
        ) as model:
            assert coco_map(model, assets / "coco")[0] == pytest.approx(0.307, abs=0.002)


def test_classifier(assets: Path) -> None:
    from accuracy import imagenet_top

    path = assets / "models" / "squeezenet1.1.onnx"
    with Classifier(path, backend="tensorrt-rtx", max_batch=8, preset="caffe", resize=256, **STEADY) as model:
        first, _ = imagenet_top(model, assets / "imagenet")
    assert first == 64


@pytest.mark.parametrize(
    ("kind", "name", "given"), [(Classifier, "squeezenet1.1.onnx", {"preset": "caffe"}), (YOLOv5, "yolov5n.onnx", {})]
)
def test_pillow_filters_resize_images_of_the_device_on_the_host(
    kind: Any, name: str, given: dict[str, Any], assets: Path
) -> None:
    torch = pytest.importorskip("torch")
    path, file = assets / "models" / name, assets / "images" / "bus.jpg"
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "interpolation": "bilinear-antialias", **given}
    with kind(path, **settings, **STEADY) as model:
        frame = np.ascontiguousarray(read_image(file).pixels[..., ::-1])
        expected = model(frame).scores
        for source in (str(file), torch.from_numpy(frame).cuda()):
            np.testing.assert_array_equal(model(source).scores, expected)
            np.testing.assert_allclose(model.submit(source).result(60).scores, expected, atol=2e-3)
    with pytest.raises(errors.ConfigError, match="decode='gpu' is for interpolation='bilinear'"):
        kind(path, decode="gpu", **settings)


def test_submitted_from_many_threads(detector: YOLOv5, frames: list[Any]) -> None:
    """Frames of the host and of the device, in the same batches."""
    torch = pytest.importorskip("torch")
    expected = [detector(frame).data for frame in frames]
    on_device = [torch.from_numpy(frame).cuda() for frame in frames]
    detector.configure_pipeline(max_delay=0.01)
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        for i in range(seed, 80, 8):
            source = frames if i % 3 else on_device
            found[i] = detector.submit(source[i % len(frames)]).result(60)

    together(work, range(8))
    for i in range(80):
        same(found[i].data, expected[i % len(frames)])
    bad, good = detector.submit_many([b"no image", frames[0]])
    with pytest.raises(ImageError):
        bad.result(60)
    same(good.result(60).data, expected[0])
    assert max(detector.pipeline.stats().batch_sizes) > 1


def test_page_locked_frames_from_many_threads(assets: Path, frames: list[Any], detector: YOLOv5) -> None:
    """Some of their requests are cancelled or come too late."""
    expected = [detector(frame).data for frame in frames]
    locked = [pinned_empty(frame.shape) for frame in frames]
    for own, frame in zip(locked, frames, strict=True):
        own[:] = frame
    outcomes: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            which = rng.randrange(len(locked))
            future = model.submit(locked[which], deadline=rng.choice([None, None, None, 0.004]))
            if rng.random() < 0.2 and future.cancel():
                outcomes.append("cancelled")
                continue
            try:
                same(future.result(60).data, expected[which])
                outcomes.append("done")
            except errors.DeadlineExceeded:
                outcomes.append("expired")

    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, backend="tensorrt-rtx", max_batch=32, preprocess="device", **STEADY) as model:
        model.warm_up(example=locked[0])
        together(work, range(64))
    assert len(outcomes) == 64 * 25
    assert outcomes.count("done") > 500


@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
def test_two_devices_share_the_requests(assets: Path, frames: list[Any]) -> None:
    path = assets / "models" / "yolov5n.onnx"
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(YOLOv5(path, "tensorrt-rtx", device=f"cuda:{i}", max_batch=BATCH, **STEADY))
            for i in range(2)
        ]
        expected = [both[0](frame).data for frame in frames]
        pipeline = stack.enter_context(Pipeline(both, max_delay=0.01))
        for i, found in enumerate(pipeline.map(frames[i % 10] for i in range(100))):
            same(found.data, expected[i % 10])
        assert all(len(group.batches) > 0 for group in pipeline._core.groups)


def test_calls_streams_and_requests_share_three_instances(detector: YOLOv5, frames: list[Any]) -> None:
    """Also where streams are paused: whoever needs an instance ends their batches."""
    alone = [detector(frame).data for frame in frames]
    with detector.clone() as model:
        paused = [model.stream(frames[i % 10] for i in range(40)) for _ in range(4)]
        for stream in paused:
            same(next(stream).data, alone[0])
        for found, expected in zip(model(frames), alone, strict=True):
            same(found.data, expected)
        for found, expected in zip(model.map(frames), alone, strict=True):
            same(found.data, expected)
        for stream in paused:
            for i, found in enumerate(stream, 1):
                same(found.data, alone[i % 10])
        assert len(model._execution._instances._slots) == 3
        open_one = model.stream(frames * 4)
        same(next(open_one).data, alone[0])
    with pytest.raises(errors.ClosedError):
        list(open_one)


def test_warming_up_captures_the_graph_of_each_size_on_each_instance(assets: Path) -> None:
    path = assets / "models" / "yolov5n.onnx"
    example = np.zeros((1080, 1920, 3), np.uint8)
    with YOLOv5(path, backend="tensorrt-rtx", max_batch=8, cuda_graph=True) as model:
        model.warm_up(example=example)
        slots: list[Any] = model._execution._instances._slots
        captured = [list(slot.instance.infer._graphs.values()) for slot in slots]
        assert [len(graphs) for graphs in captured] == [len(model.network.scheduling.batch_sizes(8))] * 3
        assert all(graph is not None for graphs in captured for graph in graphs)
        measured = dict(model._stages.locations)
        assert measured
        for size in range(1, 9):
            for future in model.submit_many([example] * size):
                future.result(60)
        assert model._stages.locations == measured
        assert all(
            set(slot.instance.infer._graphs.values()) == set(graphs)
            for slot, graphs in zip(slots, captured, strict=True)
        )
