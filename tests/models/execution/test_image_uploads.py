"""Images that are copied to a device while their batch fills: what comes out is what it is without."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import Stream, Tensor, device_count, pinned_empty
from infersdk._lib import check, ffi, lib
from infersdk.errors import ClosedError, ConfigError, DeadlineExceeded, DTypeError, ImageError, InputError, ShapeError
from infersdk.image import Geometry, HostImage, PixelTransform, image_view, read_image
from infersdk.models import YOLOv5
from infersdk.models.execution.image_uploads import ImageUploads
from infersdk.models.preprocessor import view_of
from infersdk.ops import preprocess
from infersdk.ops.batch import ImageBatch

on_gpu = pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")
BATCH = 8
#: All kernels are compiled before the first run, and each batch size runs the same ones: later runs give the same bits.
STEADY: dict[str, Any] = {"kernel_specialization": "eager", "tf32": False, "exact_batches": []}


# ---- the copies alone ----


def locked(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy in page-locked memory."""
    copy = pinned_empty(pixels.shape)
    copy[:] = pixels
    return copy


def frame(rng: np.random.Generator, height: int = 90, width: int = 160) -> HostImage:
    return HostImage(locked(rng.integers(0, 256, (height, width, 3), np.uint8)), "bgr")


def geometry(image: HostImage) -> Geometry:
    return Geometry.letterbox(image.size, (64, 64))


def on_the_device(uploads: ImageUploads, images: list[HostImage], stream: Stream) -> list[np.ndarray[Any, Any]]:
    """The batch of these images, preprocessed there and brought home."""
    batch = ImageBatch(len(images))
    batch.fill(*uploads.begin(images, [geometry(image) for image in images]))
    uploads.upload(batch)
    with Tensor((len(images), 3, 64, 64), "float32", stream.device) as tensor:
        at = tensor.device_ptr(read=False, write=True, stream=stream)
        batch.preprocess_on_device(PixelTransform(), at, tensor.nbytes, stream)
        stream.synchronize()
        result = list(tensor.numpy().copy())
    uploads.end(uploaded=True)
    return result


def on_the_host(images: list[HostImage]) -> list[np.ndarray[Any, Any]]:
    return [preprocess(image.pixels, geometry(image), PixelTransform()) for image in images]


@pytest.fixture
def stream() -> Iterator[Stream]:
    with Stream("cuda:0") as stream:
        yield stream


@pytest.fixture
def uploads(stream: Stream) -> Iterator[ImageUploads]:
    uploads = ImageUploads(BATCH, stream, None, ahead=True)
    yield uploads
    uploads.close()


def copied(uploads: ImageUploads) -> int:
    """The images that are copied ahead now."""
    return len(uploads._copies)


@pytest.mark.gpu
@on_gpu
def test_images_that_are_copied_ahead(rng: np.random.Generator, stream: Stream, uploads: ImageUploads) -> None:
    images = [frame(rng) for _ in range(BATCH)]
    np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))
    for count in (BATCH, 3, 1, BATCH):
        images = [frame(rng) for _ in range(count)]
        for image in images:
            uploads.add(image, geometry(image))
        assert copied(uploads) == count
        random.Random(count).shuffle(images)
        np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))
        assert not copied(uploads)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("ahead", [0, 1, 4, 7, 8])
def test_some_are_copied_ahead(rng: np.random.Generator, stream: Stream, uploads: ImageUploads, ahead: int) -> None:
    """The others lie in ordinary memory, or come late."""
    on_the_device(uploads, [frame(rng) for _ in range(BATCH)], stream)
    images = [frame(rng) for _ in range(BATCH)]
    chosen = random.Random(ahead).sample(range(BATCH), ahead)
    for row in range(BATCH):
        if row not in chosen and row % 2:
            images[row] = HostImage(images[row].pixels.copy(), "bgr")
            uploads.add(images[row], geometry(images[row]))
    for row in chosen:
        uploads.add(images[row], geometry(images[row]))
    assert copied(uploads) == ahead
    np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))


@pytest.mark.gpu
@on_gpu
def test_larger_images_than_before(rng: np.random.Generator, stream: Stream, uploads: ImageUploads) -> None:
    """Some of them find no memory; then it grows, and all are copied once more."""
    on_the_device(uploads, [frame(rng) for _ in range(2)], stream)
    for height in (90, 135, 271, 50):
        images = [frame(rng, height, 160 + height) for _ in range(BATCH)]
        for image in images:
            uploads.add(image, geometry(image))
        assert copied(uploads) < BATCH or height == 50
        np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))


@pytest.mark.gpu
@on_gpu
def test_requests_that_are_cancelled_leave_their_copies(
    rng: np.random.Generator, stream: Stream, uploads: ImageUploads
) -> None:
    on_the_device(uploads, [frame(rng) for _ in range(BATCH)], stream)
    for _ in range(3 * BATCH):
        image = frame(rng)
        uploads.add(image, geometry(image))
    assert copied(uploads) == BATCH  # there is no more memory
    images = [frame(rng) for _ in range(BATCH)]
    for image in images:
        uploads.add(image, geometry(image))
    np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))
    images = [frame(rng) for _ in range(BATCH)]
    for image in images:
        uploads.add(image, geometry(image))
    assert copied(uploads) == BATCH
    np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))


@pytest.mark.gpu
@on_gpu
def test_many_small_requests_that_are_cancelled(
    rng: np.random.Generator, stream: Stream, uploads: ImageUploads
) -> None:
    """Fewer images are copied ahead than would fit."""
    on_the_device(uploads, [frame(rng, 512, 512) for _ in range(BATCH)], stream)
    images = [frame(rng, 8, 8) for _ in range(5 * BATCH)]
    for image in images:
        uploads.add(image, geometry(image))
    assert copied(uploads) == 2 * BATCH
    np.testing.assert_array_equal(on_the_device(uploads, images[-BATCH:], stream), on_the_host(images[-BATCH:]))


@pytest.mark.gpu
@on_gpu
def test_the_same_image_in_several_rows(rng: np.random.Generator, stream: Stream, uploads: ImageUploads) -> None:
    on_the_device(uploads, [frame(rng) for _ in range(BATCH)], stream)
    image = frame(rng)
    for _ in range(3):
        uploads.add(image, geometry(image))
    image.pixels[:] = 255 - image.pixels  # after the first requests were cancelled
    stream.synchronize()
    uploads.add(image, geometry(image))
    np.testing.assert_array_equal(on_the_device(uploads, [image] * 4, stream), on_the_host([image] * 4))


@pytest.mark.gpu
@on_gpu
def test_memory_that_is_used_for_something_else(
    rng: np.random.Generator, stream: Stream, uploads: ImageUploads
) -> None:
    """As where it is measured on which side images are preprocessed."""
    on_the_device(uploads, [frame(rng) for _ in range(BATCH)], stream)
    images = [frame(rng) for _ in range(BATCH)]
    for image in images:
        uploads.add(image, geometry(image))
    batch, transform = ImageBatch(BATCH), PixelTransform()
    _, geometries = uploads.begin(images, [geometry(image) for image in images])
    others = [frame(rng) for _ in range(BATCH)]
    with Tensor((BATCH, 3, 64, 64), "float32", stream.device) as tensor:
        for some in (others, images):
            uploads.discard()
            batch.fill([view_of(image) for image in some], geometries)
            uploads.upload(batch)
            at = tensor.device_ptr(read=False, write=True, stream=stream)
            batch.preprocess_on_device(transform, at, tensor.nbytes, stream)
            stream.synchronize()
            np.testing.assert_array_equal(tensor.numpy(), on_the_host(some))
    uploads.end(uploaded=True)


@pytest.mark.gpu
@on_gpu
def test_when_images_are_copied_ahead(rng: np.random.Generator, stream: Stream, uploads: ImageUploads) -> None:
    image = frame(rng)
    uploads.add(image, geometry(image))
    assert (uploads.is_open, copied(uploads)) == (False, 0)  # there is no memory before the first batch
    on_the_device(uploads, [image], stream)
    assert uploads.is_open
    on_the_device(uploads, [HostImage(image.pixels.copy(), "bgr")], stream)
    assert not uploads.is_open  # its images came from ordinary memory
    on_the_device(uploads, [image], stream)
    uploads.begin([image], [geometry(image)])
    uploads.end(uploaded=False)
    assert not uploads.is_open  # it was preprocessed on the host
    on_the_device(uploads, [image], stream)
    uploads.add(image, geometry(image))
    uploads.abandon()
    assert (uploads.is_open, copied(uploads)) == (False, 0)
    on_the_device(uploads, [image], stream)
    with pytest.raises(DTypeError, match="float32"):
        uploads.add(HostImage(image.pixels.astype(np.float32), "bgr"), geometry(image))  # type: ignore[arg-type]
    assert uploads.is_open
    shared = ImageUploads(BATCH, stream, None, ahead=False)
    on_the_device(shared, [image], stream)
    assert not shared.is_open
    shared.close()


@pytest.mark.gpu
@on_gpu
def test_threads_add_images_at_the_same_time(rng: np.random.Generator, stream: Stream, uploads: ImageUploads) -> None:
    on_the_device(uploads, [frame(rng) for _ in range(BATCH)], stream)
    for _ in range(50):
        images = [frame(rng, 30 + i, 40) for i in range(BATCH)]
        start = threading.Barrier(BATCH)

        def add(image: HostImage, start: threading.Barrier = start) -> None:
            start.wait()
            uploads.add(image, geometry(image))

        threads = [threading.Thread(target=add, args=(image,)) for image in images]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert copied(uploads) == BATCH
        np.testing.assert_array_equal(on_the_device(uploads, images, stream), on_the_host(images))


# ---- in a pipeline ----


@pytest.fixture(scope="module")
def detector(request: pytest.FixtureRequest) -> Iterator[YOLOv5]:
    pytest.importorskip("tensorrt_rtx_bindings")
    pytest.importorskip("onnx")
    assets: Path = request.getfixturevalue("assets")
    path = assets / "models" / "yolov5n.onnx"
    with YOLOv5(path, backend="tensorrt-rtx", max_batch=BATCH, preprocess="device", **STEADY) as model:
        yield model


@pytest.fixture(scope="module")
def images(request: pytest.FixtureRequest) -> list[np.ndarray[Any, Any]]:
    """Images of several sizes, in BGR and page-locked; every third is in ordinary memory."""
    assets: Path = request.getfixturevalue("assets")
    files = [*sorted((assets / "coco" / "val").glob("*.jpg"))[:12], assets / "images" / "bus.jpg"]
    arrays = [np.ascontiguousarray(read_image(file).pixels[..., ::-1]) for file in files]
    return [array if i % 3 == 2 else locked(array) for i, array in enumerate(arrays)]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each image that pipelines copy ahead its `id()`."""
    found: list[int] = []
    add: Callable[..., None] = ImageUploads.add

    def counted(self: ImageUploads, image: HostImage, geometry: Geometry) -> None:
        add(self, image, geometry)
        if id(image) in self._copies:
            found.append(id(image))

    monkeypatch.setattr(ImageUploads, "add", counted)
    return found


def same(found: Any, expected: Any) -> None:
    """The same boxes: another batch size runs other kernels, which round otherwise."""
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found["class_id"], expected["class_id"])
    np.testing.assert_allclose(found["xyxy"], expected["xyxy"], atol=0.3)
    np.testing.assert_allclose(found["score"], expected["score"], atol=2e-3)


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Runs `work(i)` in so many threads; raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


pipelines = [pytest.mark.gpu, on_gpu, pytest.mark.assets, pytest.mark.usefixtures("own_cache")]


class TestPipelines:
    """Each caller has its own result."""

    pytestmark = pipelines

    def test_many_callers(self, detector: YOLOv5, images: list[Any], added: list[int]) -> None:
        """Of all sizes and memories, with wrong parameters and images among them."""
        expected = [detector(image).data for image in images]
        before = detector.pipeline.stats().done

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(40):
                i, kind = rng.randrange(len(images)), rng.random()
                if kind < 0.05:
                    with pytest.raises(ImageError):
                        detector.submit(images[i].astype(np.float32)).result(60)
                elif kind < 0.1:
                    with pytest.raises(ConfigError, match="no_such"):
                        detector.submit(images[i], no_such=1).result(60)
                else:
                    same(detector.submit(images[i]).result(60).data, expected[i])

        in_threads(work, 3 * BATCH)
        done = detector.pipeline.stats().done - before
        assert len(added) > done / 4
        assert max(detector.pipeline.stats().batch_sizes) > 1

    def some_end_early(self, model: YOLOv5, images: list[Any], expected: list[Any]) -> int:
        """How many requests did."""
        ended = 0
        for seed in range(60):
            rng = random.Random(seed)
            rows = [rng.randrange(len(images)) for _ in range(rng.randint(1, 2 * BATCH))]
            futures: list[tuple[int, Future[Any]]] = []
            for i in rows:
                deadline = 1e-4 if rng.random() < 0.1 else None
                futures.append((i, model.submit(images[i], deadline=deadline)))
                if rng.random() < 0.3:
                    rng.choice(futures)[1].cancel()
            for i, future in futures:
                try:
                    same(future.result(60).data, expected[i])
                except (CancelledError, DeadlineExceeded):
                    ended += 1
        return ended

    def test_requests_that_end_early(self, detector: YOLOv5, images: list[Any], added: list[int]) -> None:
        """Cancelled ones and those past their deadline: rows are empty, and others move there."""
        expected = [detector(image).data for image in images]
        with detector.clone() as model:
            model.configure_pipeline(max_delay=0.02)
            ended = self.some_end_early(model, images, expected)
        assert ended > 20
        assert added

    @pytest.mark.parametrize("drain", [True, False])
    def test_the_end(self, detector: YOLOv5, images: list[Any], drain: bool) -> None:
        expected = [detector(image).data for image in images]
        served: list[int] = []
        with detector.clone() as model:
            running = threading.Semaphore(0)

            def work(seed: int) -> None:
                rng = random.Random(seed)
                while True:
                    i = rng.randrange(len(images))
                    try:
                        found = model.submit(images[i]).result(60)
                    except (ClosedError, CancelledError):
                        return
                    same(found.data, expected[i])
                    served.append(i)
                    running.release()

            def close() -> None:
                for _ in range(10 * BATCH):
                    running.acquire()
                model.pipeline.close(drain=drain)

            in_threads(lambda i: close() if i == 0 else work(i), 2 * BATCH)
        assert len(served) >= 10 * BATCH

    def test_while_graphs_are_captured(self, assets: Path, images: list[Any]) -> None:
        """Callers of all batch sizes come before any graph is there."""
        path = assets / "models" / "yolov5n.onnx"
        with YOLOv5(
            path, backend="tensorrt-rtx", max_batch=BATCH, preprocess="device", cuda_graph=True, **STEADY
        ) as model:
            expected = [model(image).data for image in images]

            def work(seed: int) -> None:
                rng = random.Random(seed)
                for _ in range(60):
                    i = rng.randrange(len(images))
                    same(model.submit(images[i]).result(60).data, expected[i])

            for count in (1, 3, 8, 24):
                in_threads(work, count)

    def test_coroutines_and_one_thread(self, detector: YOLOv5, images: list[Any], added: list[int]) -> None:
        expected = [detector(image).data for image in images]
        order = [i % len(images) for i in range(200)]

        async def every() -> list[Any]:
            return await asyncio.gather(*(detector.pipeline.infer(images[i]) for i in order))

        for results in (asyncio.run(every()), list(detector.pipeline.map(images[i] for i in order))):
            for i, found in zip(order, results, strict=True):
                same(found.data, expected[i])
        assert added


# ---- without a GPU ----


def test_what_the_native_core_refuses() -> None:
    pixels = np.zeros((90, 160, 3), np.uint8)
    view, fits = image_view(pixels), Geometry.letterbox((160, 90), (64, 64))
    memory = np.zeros(1 << 20, np.uint8)
    image, sampled, used, queued = (
        ffi.new(kind) for kind in ("ifs_image *", "ifs_geometry *", "int64_t *", "int32_t *")
    )
    stream = ffi.cast("ifs_stream *", 1)  # it is not used: nothing is copied

    def upload(geometry: Geometry, stream: Any = stream) -> None:
        at = ffi.cast("void *", memory.ctypes.data)
        check(lib.ifs_upload_ahead(view._c, geometry._c, at, memory.nbytes, used, stream, image, sampled, queued))

    queued[0] = 7
    upload(fits)
    assert (queued[0], used[0]) == (0, 0)  # the image is not page-locked
    with pytest.raises(InputError, match="NULL"):
        upload(fits, ffi.NULL)
    with pytest.raises(ShapeError, match="160 x 90.*made for 90 x 160"):
        upload(Geometry.letterbox((90, 160), (64, 64)))
    assert not memory.any()
