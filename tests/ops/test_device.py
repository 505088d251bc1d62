"""The kernels of the device: bit for bit what the host computes, over awkward sizes, formats and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from detection_cases import Case, random_output, some_classes

from infersdk import Tensor, errors
from infersdk.core._lib import ffi
from infersdk.core.stream import CudaGraph, Stream, device_count
from infersdk.image import Geometry, ImageView, PixelTransform, device_image_view, image_view
from infersdk.ops.detection import DetectionDecoder, DetectStats
from infersdk.ops.device import DeviceDetectionDecoder, preprocess_batch
from infersdk.ops.preprocessing import preprocess

if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICE = "cuda:0"
FORMATS = ("bgr", "rgb", "bgra", "rgba", "gray", "nv12")
PIXEL = {"bgr": 3, "rgb": 3, "bgra": 4, "rgba": 4, "gray": 1, "nv12": 1}


@pytest.fixture(name="stream")
def _stream() -> Iterator[Stream]:
    with Stream(DEVICE) as stream:
        yield stream


def on_device(array: np.ndarray) -> Tensor:
    tensor = Tensor.wrap(np.ascontiguousarray(array), DEVICE)
    assert tensor.device_ptr()
    return tensor


def poisoned(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A tensor on the device whose every byte is 0xa5."""
    tensor = Tensor(shape, dtype, DEVICE)
    tensor.numpy(writable=True).reshape(-1).view(np.uint8)[:] = 0xA5
    assert tensor.device_ptr()
    return tensor


# ---- preprocessing ----


class HostImage(NamedTuple):
    format: str
    view: ImageView  # on the host
    width: int
    height: int
    at: int  # where its bytes begin in the pile
    stride: int


class Pile:
    """Images one behind the other in one block, at any address, with rows any distance apart."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.size = 0
        self.images: list[HostImage] = []

    def add(self, rng: np.random.Generator, format: str, width: int, height: int) -> None:
        gap = np.full(int(rng.integers(0, 9)), 0xEE, np.uint8)
        stride = width * PIXEL[format] + int(rng.choice([0, 0, 1, 2, 3, 7, 64]))
        rows = height * 3 // 2 if format == "nv12" else height
        top = 256 if rng.random() < 0.5 else 2
        pixels = (rng.integers(0, top, (rows, stride)) * (255 // (top - 1))).astype(np.uint8)
        dense = np.ascontiguousarray(pixels[:, : width * PIXEL[format]])
        if PIXEL[format] > 1:
            dense = dense.reshape(height, width, PIXEL[format])
        last = pixels.reshape(-1)[: pixels.size - (stride - width * PIXEL[format])]  # nothing behind the last row
        at = self.size + len(gap)
        self.parts += [gap, last]
        self.size = at + len(last)
        self.images.append(HostImage(format, image_view(dense, format), width, height, at, stride))

    def upload(self) -> tuple[Tensor, list[ImageView]]:
        block = on_device(np.concatenate(self.parts))
        base = block.device_ptr()
        return block, [
            device_image_view(base + p.at, (p.width, p.height), p.format, stride=p.stride)  # type: ignore[arg-type]
            for p in self.images
        ]


def random_size(rng: np.random.Generator, format: str, most: int = 150) -> tuple[int, int]:
    width, height = (int(v) for v in rng.integers(1, rng.choice([8, most]), 2))
    return (2 * width, 2 * height) if format == "nv12" else (width, height)


def random_geometry(rng: np.random.Generator, source: tuple[int, int], canvas: tuple[int, int], kind: int) -> Geometry:
    width, height = source
    match kind % 7:
        case 0:
            return Geometry.letterbox(source, canvas)
        case 1:
            return Geometry.stretch(source, canvas)
        case 2:  # any size at any place, cropped or not covering at all
            resized = tuple(int(v) for v in rng.integers(1, 200, 2))
            return Geometry.resize(source, canvas, resized, tuple(int(v) for v in rng.integers(-120, 120, 2)))
        case 3 if width % 2 == 0 and height % 2 == 0:  # exactly half
            half = width // 2, height // 2
            return Geometry.resize(source, canvas, half, tuple(int(v) for v in rng.integers(-5, 9, 2)))
        case 4:  # half along one side only; whole factors
            return Geometry.resize(source, canvas, (max(1, width // 2), height * int(rng.integers(1, 4))), (1, -2))
        case 5:
            return Geometry.letterbox_warp(source, canvas)
        case _:
            turn = rng.normal(0, 1, (2, 2)) * [width / canvas[0], height / canvas[1]]
            shift = rng.uniform(-0.5, 1, (2, 1)) * [[width], [height]]
            return Geometry.affine(source, canvas, np.hstack([turn, shift]))


def random_transform(rng: np.random.Generator, order: Any, layout: Any, dtype: Any) -> PixelTransform:
    channels = 1 if order == "gray" else 3
    fill = [int(v) for v in rng.integers(0, 256, channels)]
    if rng.random() < 0.3:
        return PixelTransform(order, layout, dtype, fill=fill, scale=1 / 255)
    scale = [float(v) for v in rng.normal(0, 2, channels)]
    return PixelTransform(
        order, layout, dtype, fill=fill, scale=scale, bias=[float(v) for v in rng.normal(0, 60, channels)]
    )


def assert_same_batch(pile: Pile, geometries: list[Geometry], transform: PixelTransform, stream: Stream | None) -> None:
    n = len(geometries)
    shape = transform.shape(geometries[0])
    with poisoned((n + 1, *shape), transform.dtype) as out:
        block, images = pile.upload()
        preprocess_batch(images, geometries, transform, out, stream=stream)
        if stream is not None:
            stream.synchronize()
        got = out.numpy()
        for i, (image, geometry) in enumerate(zip(pile.images, geometries, strict=True)):
            expected = preprocess(image.view, geometry, transform)
            if got[i].tobytes() != expected.tobytes():
                wrong = np.argwhere(got[i].view(np.uint8) != expected.view(np.uint8))
                pytest.fail(f"{image.format} {geometry!r} {transform!r}: {len(wrong)} bytes differ, first {wrong[0]}")
        assert (got[n].reshape(-1).view(np.uint8) == 0xA5).all(), "written behind the batch"
        block.close()


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_a_batch_equals_its_images(
    rng: np.random.Generator, stream: Stream, order: str, layout: str, dtype: str
) -> None:
    for canvas in [
        (1, 1),
        (31, 17),
        (64, 40),
        (100, 33),
        (128, 64),
        (200, 9),
        *[rng.integers(1, 300, 2) for _ in range(3)],
    ]:
        pile, geometries = Pile(), []
        size = int(canvas[0]), int(canvas[1])
        for i in range(30):
            pixels = FORMATS[i % 6]
            source = random_size(rng, pixels)
            pile.add(rng, pixels, *source)
            geometries.append(random_geometry(rng, source, size, int(rng.integers(7))))
        assert_same_batch(pile, geometries, random_transform(rng, order, layout, dtype), stream)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8"])
def test_usual_sizes(rng: np.random.Generator, stream: Stream, dtype: str) -> None:
    pile, geometries = Pile(), []
    for pixels, size in zip(
        (*FORMATS, "bgr"),
        [(1920, 1080), (1280, 720), (810, 1080), (500, 375), (3840, 2160), (1280, 1280), (640, 640)],
        strict=True,
    ):
        pile.add(rng, pixels, *size)
        geometries.append(Geometry.letterbox(size, (640, 640)))
    assert_same_batch(pile, geometries, PixelTransform("rgb", "chw", dtype), stream)


@pytest.mark.gpu
def test_more_images_than_a_launch_takes(rng: np.random.Generator, stream: Stream) -> None:
    pile, geometries = Pile(), []
    for i in range(97):
        source = random_size(rng, "bgr", 60)
        pile.add(rng, "bgr", *source)
        geometries.append(random_geometry(rng, source, (40, 30), i))
    assert_same_batch(pile, geometries, PixelTransform(), None)  # on the default stream


@pytest.mark.gpu
def test_images_are_checked(rng: np.random.Generator, stream: Stream) -> None:
    pile = Pile()
    pile.add(rng, "bgr", 20, 10)
    pile.add(rng, "bgr", 20, 10)
    block, images = pile.upload()
    transform, geometry = PixelTransform(), Geometry.letterbox((20, 10), (8, 8))
    with block, Tensor((2, 3, 8, 8), "float32", DEVICE) as out:
        with pytest.raises(errors.ShapeError, match=r"image 1 of the batch: the image is 20 x 10, .*21 x 10"):
            preprocess_batch(images, [geometry, Geometry.letterbox((21, 10), (8, 8))], transform, out)
        with pytest.raises(errors.ShapeError, match=r"image 1 .*canvas is 9 x 8, .*8 x 8"):
            preprocess_batch(images, [geometry, Geometry.letterbox((20, 10), (9, 8))], transform, out)
        with pytest.raises(errors.ShapeError, match="a batch of 3 on a canvas of 8 x 8 needs 2304 bytes.*1536"):
            preprocess_batch([*images, images[0]], [geometry] * 3, transform, out)
        with pytest.raises(errors.DTypeError, match="float32.*float16"):
            preprocess_batch(images, [geometry] * 2, PixelTransform(dtype="float16"), out)
        with pytest.raises(errors.ShapeError, match="2 images and 1 geometries"):
            preprocess_batch(images, [geometry], transform, out)
        preprocess_batch([], [], transform, out)
        bad = device_image_view(block.device_ptr(), (20, 10), stride=3)
        with pytest.raises(errors.InputError, match="image 0 of the batch: the stride"):
            preprocess_batch([bad], [geometry], transform, out)


# ---- detection ----


def random_ways(rng: np.random.Generator, case: Case, n: int) -> list[Geometry]:
    canvas = (64, 64) if case.head == "yolox" else (640, 640)
    ways = []
    for _ in range(n):
        source = tuple(int(v) for v in rng.integers(1, 700, 2))
        way = Geometry.letterbox(source, canvas)
        if rng.random() < 0.3:
            way = Geometry.affine(source, canvas, rng.normal(0, 1, (2, 3)) * [[1, 1, 300]])
        ways.append(way)
    return ways


def compare(
    case: Case, outputs: np.ndarray, ways: list[Geometry], device: DeviceDetectionDecoder, stream: Stream
) -> list[DetectStats]:
    n = len(ways)
    with on_device(outputs) as output, poisoned((n, device.row.itemsize), "uint8") as block, case.detector() as host:
        device.run(output, ways, block, stream=stream)
        block.fetch(stream)
        home = block.numpy()
        found = []
        for i in range(n):
            boxes, stats = device.unpack(home, i)
            expected, expected_stats = host(outputs[i], ways[i])
            assert stats == expected_stats, (i, case)
            assert boxes.tobytes() == expected.tobytes(), (i, case, boxes[:5], expected[:5])
            row = home[i].view(device.row)[0]
            assert row["count"] == len(boxes)
            assert row["reserved"] == 0
            assert row["boxes"][: len(boxes)].tobytes() == expected.tobytes()
            assert (row["boxes"][len(boxes) :].view(np.uint8) == 0xA5).all(), "written behind the boxes"
            found.append(stats)
        return found


def assert_same(
    rng: np.random.Generator, case: Case, kinds: list[str], stream: Stream, repeat: int = 1
) -> list[DetectStats]:
    with case.detector() as host, DeviceDetectionDecoder(host, len(kinds), DEVICE) as device:
        for _ in range(repeat):  # the second time with counters that have to be zero again
            outputs = np.stack([random_output(rng, case, kind) for kind in kinds])
            stats = compare(case, outputs, random_ways(rng, case, len(kinds)), device, stream)
        return stats


YOLOX = {"head": "yolox", "strides": (8, 16, 32), "num_anchors": 84}
KINDS = ["plain", "ties", "degenerate", "odd", "none", "low", "equal", "heap"]


@pytest.mark.gpu
def test_chosen_classes_of_more_candidates_than_fit(rng: np.random.Generator, stream: Stream) -> None:
    """The kernel that looks for the best ones scans again, with the same mask."""
    case = Case("yolov8", 80, 8400, conf=0.0, multi_label=True, max_candidates=1000, classes=tuple(range(0, 80, 3)))
    assert assert_same(rng, case, ["plain", "ties"], stream)[0].dropped_candidates > 0


@pytest.mark.gpu
@pytest.mark.parametrize("head", [{"head": "yolov5"}, {"head": "yolov8"}, YOLOX], ids=lambda h: h["head"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("multi_label", [False, True], ids=["single", "multi"])
def test_detections_equal_the_hosts(
    rng: np.random.Generator, stream: Stream, head: dict[str, Any], dtype: str, multi_label: bool
) -> None:
    for num_classes in (1, 2, 17, 31, 32, 33, 80):
        for extra in (0, 0, int(rng.choice([1, 3, 32, 51, 97]))):
            case = Case(
                num_classes=num_classes,
                multi_label=multi_label,
                dtype=dtype,
                extra=extra,
                classes=some_classes(rng, num_classes) if rng.random() < 0.5 else None,
                **{"num_anchors": int(rng.integers(1, 3000)), **head},
            )._replace(
                class_agnostic=bool(rng.integers(2)),
                conf=float(rng.choice([0, 0.25, 0.6])),
                iou=float(rng.choice([0, 0.3, 0.45, 0.5, 1])),
                max_det=int(rng.choice([1, 2, 7, 299, 300])),  # odd numbers: the next image is aligned
                max_candidates=int(rng.choice([0, 1, 20, 700, 30000])),
            )
            assert_same(rng, case, KINDS, stream, repeat=2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "num_anchors", [1, 31, 32, 33, 255, 256, 257, 511, 512, 513, 1023, 1025, 2047, 2048, 2049, 4097]
)
def test_any_number_of_candidates(rng: np.random.Generator, stream: Stream, num_anchors: int) -> None:
    for head in ("yolov5", "yolov8"):
        case = Case(head, 2, num_anchors, conf=0.0, max_det=5000)
        stats = assert_same(rng, case, ["plain", "apart", "heap", "equal"], stream)
        assert stats[0].candidates >= num_anchors * 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("class_agnostic", [False, True], ids=["classes", "agnostic"])
@pytest.mark.parametrize("max_candidates", [0, 1500, 2048, 5000, 30000])
def test_many_candidates(rng: np.random.Generator, stream: Stream, class_agnostic: bool, max_candidates: int) -> None:
    """More than one block sorts."""
    for num_classes, dtype in ((1, "float32"), (13, "float16")):
        case = Case(
            "yolov5", num_classes, 9000, 0.05, max_candidates=max_candidates, multi_label=True, dtype=dtype,
            class_agnostic=class_agnostic, extra=35 if num_classes == 13 else 0,
        )  # fmt: skip
        stats = assert_same(rng, case, ["plain", "none", "apart", "ties", "heap"], stream, repeat=2)
        assert stats[0].candidates > 2048


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "apart", "heap", "equal", "ties"])
def test_thirty_thousand_of_one_class(rng: np.random.Generator, stream: Stream, kind: str) -> None:
    case = Case("yolov8", 1, 40000, 0.0, max_det=1000)
    (stats,) = assert_same(rng, case, [kind], stream)
    assert stats.candidates > 25_000
    assert stats.dropped_candidates == stats.candidates - 30000


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["yolov5", "yolov8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("max_candidates", [1, 1000, 8000, 40000])
def test_more_candidates_than_fit(
    rng: np.random.Generator, stream: Stream, head: str, dtype: str, max_candidates: int
) -> None:
    """2,000 anchors of 80 classes, nearly all above the threshold: the best are selected out of 160,000."""
    case = Case(head, 80, 2000, 0.001, max_candidates=max_candidates, multi_label=True, dtype=dtype, extra=3)
    stats = assert_same(rng, case, ["plain", "none", "equal", "low", "ties"], stream)
    assert stats[0].candidates > 80000 >= 2 * max_candidates
    assert stats[2].candidates == 160000


@pytest.mark.gpu
def test_more_images_than_the_workspace_takes(rng: np.random.Generator, stream: Stream) -> None:
    case = Case(num_anchors=90)
    assert_same(rng, case, KINDS * 13, stream, repeat=2)


@pytest.mark.gpu
def test_fewer_images_than_the_most(rng: np.random.Generator, stream: Stream) -> None:
    case = Case(num_anchors=90)
    with case.detector() as host, DeviceDetectionDecoder(host, 8, DEVICE) as device:
        for n in (1, 8, 3):
            outputs = np.stack([random_output(rng, case, "plain") for _ in range(n)])
            compare(case, outputs, random_ways(rng, case, n), device, stream)
        with Tensor((1, device.row.itemsize), "uint8", DEVICE) as block:
            device.run(256, [], block, stream=stream)


@pytest.mark.gpu
def test_calls_can_be_captured(rng: np.random.Generator, stream: Stream) -> None:
    case = Case(num_anchors=6000, conf=0.0)
    pile = Pile()
    pile.add(rng, "bgr", 50, 40)
    way, transform = Geometry.letterbox((50, 40), (64, 64)), PixelTransform()
    host = case.detector()
    with (
        host,
        DeviceDetectionDecoder(host, 2, DEVICE) as device,
        Tensor((2, *device.shape), "float32", DEVICE) as output,
        device.block(2) as block,
        poisoned((1, 3, 64, 64), "float32") as batch,
    ):
        pixels, images = pile.upload()
        ways = random_ways(rng, case, 2)
        at = output.device_ptr(read=False, write=True)
        for tensor in (block, batch):
            tensor.device_ptr(read=False, write=True, stream=stream)

        def queue() -> None:
            preprocess_batch(images, [way], transform, batch, stream=stream)
            device.run(at, ways, block, stream=stream)

        with CudaGraph(stream, queue) as graph:
            for kind in ("plain", "none", "apart"):
                outputs = np.stack([random_output(rng, case, kind), random_output(rng, case, "plain")])
                output.numpy(writable=True)[:] = outputs
                assert output.device_ptr() == at
                graph.launch(stream)
                stream.synchronize()
                for tensor in (block, batch):
                    tensor.device_ptr(write=True)
                for i in range(2):
                    boxes, stats = device.unpack(block.numpy(), i)
                    expected, expected_stats = host(outputs[i], ways[i])
                    assert stats == expected_stats
                    assert boxes.tobytes() == expected.tobytes()
        assert batch.numpy()[0].tobytes() == preprocess(pile.images[0].view, way, transform).tobytes()
        pixels.close()


@pytest.mark.gpu
def test_runs_are_checked(rng: np.random.Generator, stream: Stream) -> None:
    case = Case(**YOLOX)
    ways = random_ways(rng, case, 2)
    with case.detector() as host:
        with pytest.raises(errors.InputError, match="max_batch is 0"):
            DeviceDetectionDecoder(host, 0)
        with pytest.raises(errors.DeviceUnavailableError, match="cuda:99"):
            DeviceDetectionDecoder(host, 1, "cuda:99")
        device = DeviceDetectionDecoder(host, 2)
    assert device.nbytes > 0
    with Tensor((2, 84, 8), "float32", DEVICE) as output, device.block(2) as block:
        with pytest.raises(errors.InputError, match="3 images; the decoder was made for 0 to 2"):
            device.run(output.device_ptr(), [*ways, ways[0]], block)
        with pytest.raises(errors.ShapeError, match=r"\(2, 84, 8\)"):
            device.run(output, [*ways, ways[0]], block)
        with pytest.raises(errors.ShapeError, match="640 x 640 canvas have 8400 cells"):
            device.run(output, [ways[0], Geometry.letterbox((5, 5), (640, 640))], block)
        with device.block(1) as small, pytest.raises(errors.ShapeError, match="2 images of 300 detections need"):
            device.run(output, ways, small)
        with pytest.raises(errors.InputError, match="not aligned"):
            device.run(output.device_ptr() + 2, ways, block)
    device.close()
    device.close()
    with pytest.raises(errors.ClosedError):
        device.run(0, ways, block)


# ---- without a device ----


@pytest.mark.skipif(device_count() > 0, reason="there is one")
def test_says_that_there_is_no_device() -> None:
    with DetectionDecoder() as host, pytest.raises(errors.DeviceUnavailableError, match="no .*device"):
        DeviceDetectionDecoder(host, 4)


def test_device_images() -> None:
    image = device_image_view(1000, (6, 4), "nv12", stride=10)
    assert (image._c.stride, image._c.uv_stride, image.size) == (10, 10, (6, 4))
    assert int(ffi.cast("uintptr_t", image._c.uv)) == 1040
    assert device_image_view(1000, (6, 4), "rgba")._c.stride == 24
    with pytest.raises(errors.InputError, match="uv is for format"):
        device_image_view(1000, (6, 4), uv=5)
    with pytest.raises(errors.InputError, match="format is 'cmyk'"):
        device_image_view(1000, (6, 4), "cmyk")  # type: ignore[arg-type]


def test_images_of_the_other_side_are_refused() -> None:
    transform, geometry = PixelTransform(), Geometry.letterbox((6, 4), (8, 8))
    out = Tensor((1, 3, 8, 8), "float32", DEVICE)
    with pytest.raises(errors.InputError, match="<ImageView 6 x 4 bgr> is on the host; copy the image to cuda:0"):
        preprocess_batch([image_view(np.zeros((4, 6, 3), np.uint8))], [geometry], transform, out)
    with pytest.raises(errors.InputError, match="<ImageView 6 x 4 bgr> is on a device, .* on the host; pass an array"):
        preprocess(device_image_view(1000, (6, 4)), geometry, transform)
