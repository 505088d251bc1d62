"""Batches on a pool of threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from waiting import together

from infersdk import Stream, Tensor, errors, pinned_empty
from infersdk.image import Geometry, PixelTransform, image_view
from infersdk.image.batch import ImageBatch, Workers, shared_workers
from infersdk.ops import preprocess


def images(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    return [rng.integers(0, 256, (int(rng.integers(1, 90)), int(rng.integers(1, 90)), 3), np.uint8) for _ in range(n)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_image_is_what_it_is_alone(rng: np.random.Generator, threads: int) -> None:
    workers, transform, batch = Workers(threads), PixelTransform(), ImageBatch(13)
    assert workers.threads == threads
    for n in (0, 1, 2, 13):
        views = images(rng, n)
        geometries = [Geometry.letterbox((i.shape[1], i.shape[0]), (40, 24)) for i in views]
        batch.fill([image_view(i) for i in views], geometries)
        into = np.full((13, 3, 24, 40), np.nan, np.float32)
        batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
        for i, (image, geometry) in enumerate(zip(views, geometries, strict=True)):
            np.testing.assert_array_equal(into[i], preprocess(image, geometry, transform))
        assert np.isnan(into[n:]).all()
    workers.close()
    with pytest.raises(errors.ClosedError):
        workers.threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("end", ["del workers", "workers.close()", "sys.exit(0)"])
def test_a_fork_gives_its_copy_of_a_pool_back(end: str) -> None:
    code = f"""
import os, sys
from infersdk.image.batch import Workers
workers = Workers(4)
if (child := os.fork()) == 0:
    {end}
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert printed == b"0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_pool_has_no_threads_in_a_fork() -> None:
    code = """
import os
from infersdk.core._lib import lib
from infersdk.image.batch import Workers
pool = (workers := Workers(4))._open
if (child := os.fork()) == 0:
    os._exit(lib.ifs_workers_threads(pool))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), workers.threads)
"""
    # Python 3.12 and newer warn of forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("1 4\n", "")


def test_one_pool_serves_several_threads(rng: np.random.Generator) -> None:
    workers, transform = shared_workers(), PixelTransform(dtype="uint8", scale=1.0)
    assert shared_workers() is workers

    def work(seed: int) -> None:
        mine = np.random.default_rng(seed)
        batch = ImageBatch(6)
        for _ in range(30):
            views = images(mine, 6)
            geometries = [Geometry.stretch((i.shape[1], i.shape[0]), (16, 16)) for i in views]
            batch.fill([image_view(i) for i in views], geometries)
            into = np.zeros((6, 3, 16, 16), np.uint8)
            batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
            for row, image, geometry in zip(into, views, geometries, strict=True):
                np.testing.assert_array_equal(row, preprocess(image, geometry, transform))

    together(work, range(4))


def test_errors_come_out_of_the_threads(rng: np.random.Generator) -> None:
    workers, transform, batch = Workers(3), PixelTransform(), ImageBatch(4)
    images = [np.zeros((10, 10, 3), np.uint8) for _ in range(4)]
    geometries = [Geometry.letterbox((10, 10), (8, 8))] * 4
    into = np.zeros((4, 3, 8, 8), np.float32)
    batch.fill([image_view(i) for i in images], [*geometries[:3], Geometry.letterbox((9, 10), (8, 8))])
    with pytest.raises(errors.ShapeError, match="10 x 10"):
        batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    for other in ((8, 9), (4, 16)):
        batch.fill([image_view(i) for i in images], [*geometries[:3], Geometry.letterbox((10, 10), other)])
        with pytest.raises(errors.ShapeError, match="canvas of {} x {}".format(*other)):
            batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    for i in (0, 3):
        batch.fill([image_view(i) for i in images], geometries)
        batch._geometries[i].kind = 7
        with pytest.raises(errors.InputError, match="kind 7"):
            batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    batch.fill([image_view(i) for i in images], geometries)
    with pytest.raises(errors.ShapeError, match=str(into.nbytes - 1)):
        batch.preprocess(transform, into.ctypes.data, into.nbytes - 1, workers=workers)
    batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    with pytest.raises(errors.InputError, match="5 images do not fit a batch of 4"):
        batch.fill([image_view(images[0])] * 5, [geometries[0]] * 5)
    with pytest.raises(errors.InputError, match="4 images and 3 geometries; give one for each image"):
        batch.fill([image_view(i + 1) for i in images], geometries[:3])
    batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    assert not into.any(), "the batch is the one before"
    for wrong in (0, 257, -1, -(2**40), 2.5):
        with pytest.raises(errors.InputError, match=str(wrong)):
            Workers(wrong)  # type: ignore[arg-type]


def test_what_a_image_takes_on_a_device() -> None:
    batch = ImageBatch(2)

    def nbytes(image: np.ndarray, geometry: Geometry, form: str = "bgr") -> int:
        batch.fill([image_view(image, form)], [geometry])  # type: ignore[arg-type]
        return batch.upload_nbytes()

    frame, third = np.zeros((108, 192, 3), np.uint8), Geometry.letterbox((192, 108), (64, 64))
    whole = 108 * 192 * 3
    assert nbytes(frame, Geometry.letterbox((192, 108), (50, 50))) == whole
    assert nbytes(frame, third) == whole // 3
    wide = np.zeros((108, 200, 3), np.uint8)
    assert nbytes(wide[:, :192], third) == whole // 3
    sixth = Geometry.letterbox((192, 108), (32, 32))
    assert nbytes(frame, sixth) == whole // 3  # two rows in six
    assert nbytes(wide[:, :192], sixth) == whole  # pairs are taken of dense images only
    planes = 108 * 192, 54 * 192
    assert nbytes(np.zeros((162, 192), np.uint8), third, "nv12") == sum(-(-plane // 256) * 256 for plane in planes)
    with pytest.raises(errors.ShapeError, match="192 x 108.*made for 108 x 192"):
        nbytes(frame, Geometry.letterbox((108, 192), (64, 64)))


@pytest.mark.gpu
@pytest.mark.parametrize("locked", [False, True])
def test_on_a_device_it_is_what_it_is_on_the_host(rng: np.random.Generator, locked: bool) -> None:
    """By whole images and by the rows that are read, dense and not, page-locked and not."""
    capacity, transform = 24, PixelTransform(dtype="float16")
    batch, workers = ImageBatch(capacity), Workers(3)
    with Stream("cuda:0") as stream, Tensor((capacity, 3, 36, 64), "float16", "cuda:0") as out:
        for _ in range(6):
            images, geometries = [], []
            for i in range(capacity):
                factor, height, gap = (int(v) for v in rng.integers([1, 1, 0], [9, 60, 3]))
                form = ("bgr", "rgba", "gray", "nv12")[i % 4]
                width = 2 * int(rng.integers(1, 80))
                rows = 2 * factor * height if form == "nv12" else factor * height
                shape: tuple[int, ...] = (rows * 3 // 2 if form == "nv12" else rows, width + gap * (form != "nv12"))
                if form in ("bgr", "rgba"):
                    shape += (len(form),)
                pixels = pinned_empty(shape) if locked else np.empty(shape, np.uint8)
                pixels[:] = rng.integers(0, 256, shape, np.uint8)
                resized = (int(rng.integers(1, 100)), rows // factor)
                offset = tuple(int(v) for v in rng.integers(-9, 30, 2))
                geometries.append(Geometry.resize((width, rows), (64, 36), resized, offset))
                images.append(image_view(pixels[:, :width], form))  # type: ignore[arg-type]
            batch.fill(images, geometries)
            with Tensor((batch.upload_nbytes(),), "uint8", "cuda:0") as area:
                assert batch.needs_staging is not locked
                staging = area.host_ptr(read=False, write=True) if batch.needs_staging else 0
                at = area.device_ptr(read=False, write=True)
                batch.upload(staging, at, area.nbytes, stream, workers=workers)
                to = out.device_ptr(read=False, write=True, stream=stream)
                batch.preprocess_on_device(transform, to, out.nbytes, stream)
                stream.synchronize()
                got = out.numpy()
            for row, image, geometry in zip(got, images, geometries, strict=True):
                np.testing.assert_array_equal(row, preprocess(image, geometry, transform), str(geometry))
    workers.close()
