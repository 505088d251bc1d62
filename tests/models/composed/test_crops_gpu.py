"""Parts that are cut out on a CUDA device: the pixels of the host, and results of two stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import models
from infersdk.core.device import Device
from infersdk.core.tensor import Tensor
from infersdk.errors import ClosedError, ImageError, InputError
from infersdk.image import DeviceImage, HostImage, SharedImage, read_image
from infersdk.image.uploads import UploadPools
from infersdk.models import Detections, Tiled, TwoStage
from infersdk.models.composed.base import whole_image
from infersdk.models.composed.crops import cutter

pytestmark = pytest.mark.gpu
SIZE = (320, 240)


def on_device(image: HostImage) -> DeviceImage:
    pixels = np.ascontiguousarray(image.pixels)
    return DeviceImage(Tensor(pixels.shape, "uint8", "cuda:0").copy_from(pixels), image.format, image.decoder)


def pixels(part: Any) -> np.ndarray:
    """Of a part on the device: by a map that leaves the pixels as they are."""
    from infersdk.core.stream import default_stream
    from infersdk.image import Geometry, PixelTransform
    from infersdk.ops.device import preprocess_batch

    stream = default_stream("cuda:0")
    width, height = part.size
    out = Tensor((1, height, width, 3), "uint8", "cuda:0")
    keep = PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)
    preprocess_batch([part.on(stream)], [Geometry.stretch(part.size, part.size)], keep, out, stream=stream)
    return out.numpy()[0]


@pytest.fixture
def image() -> HostImage:
    rng = np.random.default_rng(4)
    return HostImage(rng.integers(0, 255, (SIZE[1], SIZE[0], 3), np.uint8), "bgr")


def boxes(**columns: Any) -> Detections:
    corners = [[10, 20, 90, 80], [100, 50, 300, 230], [5, 5, 40, 60]]
    return Detections.of(corners, [0.9, 0.8, 0.7], names=("a",), size=SIZE, **columns)


@pytest.mark.parametrize("library", ["infersdk", "torch", "cupy"])
@pytest.mark.parametrize("kind", ["oriented", "landmarks", "box"])
def test_parts_have_the_pixels_of_the_host(kind: Any, library: str, image: HostImage) -> None:
    rng = np.random.default_rng(7)
    points = np.array([[30, 40], [70, 38], [50, 60], [35, 80], [66, 82]]) + rng.normal(size=(3, 5, 2)) * 3
    points[2] = 0  # all of them coincide
    oriented = np.float32([[50, 60, 80, 40, 0.4], [200, 120, 81, 41, -1.2], [20, 20, 0, 9, 0.1]])
    own = boxes(keypoints=points.astype(np.float32), oriented=oriented)
    device_image = on_device(image)
    if library != "infersdk":
        device_image = DeviceImage(pytest.importorskip(library).from_dlpack(device_image._source), "bgr")
    there, here = cutter(kind)(device_image, own), cutter(kind)(image, own)
    for index, (part, expected) in enumerate(zip(there, here, strict=True)):
        if isinstance(expected, Exception):
            assert (type(part), str(part)) == (type(expected), str(expected))
            assert index == 2
            assert isinstance(part, InputError)
            continue
        assert isinstance(part, DeviceImage)
        np.testing.assert_array_equal(pixels(part), expected.pixels)


def test_a_shared_image_is_uploaded_once(image: HostImage) -> None:
    shared = SharedImage(image)
    device = Device.parse("cuda:0")
    first, second = (whole_image(shared, "bgr", device) for _ in range(2))
    assert first._source is second._source
    np.testing.assert_array_equal(pixels(first), image.pixels)


@pytest.mark.parametrize("kind", ["oriented", "box"])
def test_parts_outlive_their_image(kind: Any, image: HostImage) -> None:
    """The memory of an upload is used again only when its parts are gone, too."""
    pools, device = UploadPools(), Device.parse("cuda:0")
    oriented = np.float32([[50, 60, 80, 40, 0.4], [200, 120, 81, 41, -1.2], [20, 20, 9, 9, 0.1]])
    own = boxes(oriented=oriented)
    expected = [part.pixels for part in cutter(kind)(image, own)]
    kept = [cutter(kind)(whole_image(image, "bgr", device, pools), own) for _ in range(4)]
    for value in range(20):  # others come and go
        other = HostImage(np.full_like(image.pixels, value), "bgr")
        first = cutter(kind)(whole_image(other, "bgr", device, pools), own)[0]
        if kind == "box":
            assert (pixels(first) == value).all()
    for parts in kept:
        for part, wanted in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(pixels(part), wanted)


@pytest.mark.assets
def test_two_stages_and_tiles_on_the_device(assets: Path) -> None:
    """Faces and vectors of them: on the device what the host gives."""
    pytest.importorskip("tensorrt_rtx_bindings")
    file = assets / "images" / "zidane.jpg"
    faces = models.YuNet(assets / "face" / "yunet_n_dynamic.onnx")
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "max_batch": 4}
    second = models.Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    detector = models.YOLOv5(assets / "models" / "yolov5n.onnx", **settings)
    with faces, second, detector:
        whole = read_image(file)
        upright = TwoStage(faces, second, crop="landmarks", column="vector")
        parts = cutter("landmarks")(whole, faces(whole))
        expected = [one.vector for one in second(list(parts))]
        for result in (upright(file), upright.submit(file).result(60)):
            np.testing.assert_allclose([one.vector for one in result.columns["vector"]], expected, atol=2e-2)
        tiled = Tiled(detector, tile=400)
        shared, alone = tiled(SharedImage(file)), tiled(file)
        np.testing.assert_allclose(shared.xyxy, alone.xyxy, atol=0.5)
        people = TwoStage(Tiled(detector, tile=400), second, column="vector")
        for one in people(SharedImage(file)).columns["vector"]:
            assert np.linalg.norm(one.vector) == pytest.approx(1, abs=1e-3)


@pytest.mark.assets
def test_map_drives_both_models(assets: Path) -> None:
    """Images that fail, requests of others meanwhile, an end before the end, and what the statistics count."""
    pytest.importorskip("tensorrt_rtx_bindings")
    files = sorted((assets / "coco" / "val").glob("*.jpg"))[:8]
    settings: dict[str, Any] = {"backend": "tensorrt-rtx", "max_batch": 4, "cuda_graph": True}
    detector = models.YOLOv8(assets / "models" / "yolov8n.onnx", classes=["person"], **settings)
    second = models.Embedder(assets / "models" / "osnet_x0_25_msmt17.onnx", **settings)
    with TwoStage(detector, second, column="vector") as two:
        expected = [two(file) for file in files]

        def check(result: Any, index: int) -> None:
            wanted = expected[index % len(files)]
            np.testing.assert_allclose(result.xyxy, wanted.xyxy, atol=0.5)
            for one, other in zip(result.columns["vector"], wanted.columns["vector"], strict=True):
                assert one.vector @ other.vector > 0.98  # a box may end a pixel further

        read: list[Any] = [on_device(read_image(files[0])), *map(read_image, files[1:])]
        two.warm_up(example=read[0])
        before = [model.details.pipelines[0].stats().done for model in two.models.values()]
        futures = []
        for index, result in enumerate(two.map(read * 10)):
            check(result, index)
            if index % 5 == 0:
                futures.append((index, two.submit(read[index % len(read)])))
        for index, future in futures:
            check(future.result(60), index)
        counted = [
            model.details.pipelines[0].stats().done - old
            for model, old in zip(two.models.values(), before, strict=True)
        ]
        images = [*range(80), *(index for index, _ in futures)]
        boxes = sum(len(expected[index % len(files)]) for index in images)
        assert counted[0] == len(images)
        assert counted[1] == pytest.approx(boxes, rel=0.05)

        first, unread, last = two.map([files[0], "missing.png", read[1]], return_exceptions=True)
        check(first, 0)
        check(last, 1)
        assert isinstance(unread, ImageError)
        with pytest.raises(ImageError, match="no image at"):
            list(two.map([read[0], "missing.png"]))
        results = two.map(iter(read * 100), in_flight=6)
        check(next(results), 0)
    with pytest.raises(ClosedError):
        list(results)
