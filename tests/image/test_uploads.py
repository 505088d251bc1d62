"""Images that several models read on a device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from waiting import together

from infersdk import device_count, memory_stats, pinned_empty
from infersdk.core.device import Device
from infersdk.core.memory_limit import MemoryBudget, charging
from infersdk.core.stream import Stream
from infersdk.core.tensor import Tensor
from infersdk.errors import InputError, MemoryLimitError
from infersdk.image import Geometry, PixelTransform, SharedImage
from infersdk.image.uploads import UploadPools, bring_in
from infersdk.ops.device import preprocess_batch

DEVICE = Device("cuda", 0)
SHAPES = [((36, 64, 3), "bgr"), ((30, 7, 4), "rgb"), ((5, 5), "bgr"), ((48, 8), "nv12"), ((1, 1, 3), "bgr")]


def images_of(shape: tuple[int, ...], count: int = 5) -> list[np.ndarray[Any, Any]]:
    """Of all kinds of memory: one is page-locked, one read-only, one not dense."""
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 256, shape, np.uint8) for _ in range(count)]
    images[1].setflags(write=False)
    images[2] = rng.integers(0, 256, (2 * shape[0], *shape[1:]), np.uint8)[::2]
    if device_count():
        locked = pinned_empty(shape)
        locked[:] = images[3]
        images[3] = locked
    return images


def test_nothing_is_copied_before_it_is_used() -> None:
    pools = UploadPools()
    shared = SharedImage(images_of((6, 8, 3))[0], pools)
    assert shared.is_decoded
    first, second = shared.on_device("cuda:0"), shared.on_device(DEVICE)
    assert first.upload is second.upload
    assert first.upload._lease is None
    assert first.device == DEVICE
    assert shared.on_device(DEVICE, "rgb").upload is not first.upload
    assert not SharedImage(b"a file").is_decoded


@pytest.mark.parametrize(("shape", "order"), SHAPES)
def test_the_host_reads_its_own_pixels(shape: tuple[int, ...], order: str) -> None:
    image = images_of(shape)[2]
    on_device = SharedImage(image, UploadPools()).on_device(DEVICE, order)
    pixels = on_device.to_host().pixels
    np.testing.assert_array_equal(pixels, image)
    assert not np.may_share_memory(pixels, on_device.upload.pixels)
    assert on_device.upload._lease is None  # nothing was copied to the device for it


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "order"), SHAPES)
def test_two_streams_read_the_same_copies(shape: tuple[int, ...], order: str) -> None:
    """Each brings in what the other one has not."""
    images, pools = images_of(shape), UploadPools()
    shared = [SharedImage(image, pools) for image in images]
    one, other = Stream("cuda:0"), Stream("cuda:0")
    uploads = [image.on_device("cuda:0", order).upload for image in shared]
    bring_in(uploads[:3], one)
    bring_in(uploads, other)
    bring_in(uploads[3:], one)
    addresses = [[upload.on(stream) for upload in uploads] for stream in (one, other)]
    assert addresses[0] == addresses[1]
    for upload, image in zip(uploads, images, strict=True):
        np.testing.assert_array_equal(Tensor.from_dlpack(upload).numpy(), image)
    for image, pixels in zip(shared, images, strict=True):
        np.testing.assert_array_equal(image.on_device("cuda:0", order).to_host().pixels, pixels)


@pytest.mark.gpu
def test_threads_use_the_memory_again_and_again() -> None:
    """Kernels on the streams of two threads read 200 groups of images, out of memory that does not grow."""
    pools, rounds = UploadPools(), 200
    rng = np.random.default_rng(5)
    sources = [rng.integers(0, 256, (90, 160, 3), np.uint8) for _ in range(16)]
    keep = PixelTransform("bgr", "hwc", "uint8", fill=0, scale=1.0)
    same = Geometry.stretch((160, 90), (160, 90))
    groups = [[SharedImage(sources[(i + k) % 16], pools) for k in range(4)] for i in range(rounds)]
    grown: list[int] = []
    barrier = threading.Barrier(2)

    def read(first: bool) -> None:
        stream = Stream("cuda:0")
        to = Tensor((4, 90, 160, 3), "uint8", "cuda:0")
        for i in range(rounds):
            barrier.wait(60)
            images = [image.on_device("cuda:0") for image in groups[i]]
            bring_in([image.upload for image in images if image.upload is not None], stream)
            views = [image.on(stream) for image in images]
            preprocess_batch(views, [same] * 4, keep, to, stream=stream)
            stream.synchronize()
            expected = np.stack([sources[(i + k) % 16] for k in range(4)])
            np.testing.assert_array_equal(to.numpy(), expected)
            del images, views
            barrier.wait(60)
            if first:
                groups[i] = []
                if i in (5, rounds - 1):
                    grown.append(memory_stats()["device_bytes"])

    together(read, (True, False))
    assert len(grown) == 2
    assert grown[1] <= grown[0]


@pytest.mark.gpu
def test_an_error_leaves_the_image_to_the_next_one() -> None:
    class Closed:
        @property
        def _open(self) -> Any:
            raise InputError("no threads")

    pixels = images_of((36, 64, 3))[0]
    upload = SharedImage(pixels).on_device("cuda:0").upload
    with pytest.raises(InputError, match="no threads"):
        bring_in([upload], Stream("cuda:0"), Closed())
    assert upload._lease is None
    bring_in([upload], Stream("cuda:0"))
    np.testing.assert_array_equal(Tensor.from_dlpack(upload).numpy(), pixels)


@pytest.mark.gpu
def test_an_upload_that_does_not_fit_leaves_the_next_ones() -> None:
    pools, stream = UploadPools(), Stream("cuda:0")
    with charging(MemoryBudget("small", 1 << 20, "cuda:0")):
        for side, fits in ((100, True), (2000, False), (200, True), (2000, False), (100, True)):
            pixels = np.full((side, side, 3), side % 251, np.uint8)
            kept = [SharedImage(pixels, pools).on_device(DEVICE).upload for _ in range(2)]
            if fits:
                bring_in(kept, stream)
                np.testing.assert_array_equal(Tensor.from_dlpack(kept[1]).numpy(), pixels)
            else:
                with pytest.raises(MemoryLimitError):
                    bring_in(kept, stream)
