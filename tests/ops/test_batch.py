"""Batches on a pool of threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from infersdk import errors
from infersdk.ops import Geometry, PixelTransform, as_image, preprocess
from infersdk.ops.batch import PictureBatch, Workers, shared_workers


def pictures(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    return [rng.integers(0, 256, (int(rng.integers(1, 90)), int(rng.integers(1, 90)), 3), np.uint8) for _ in range(n)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_picture_is_what_it_is_alone(rng: np.random.Generator, threads: int) -> None:
    workers, transform, batch = Workers(threads), PixelTransform(), PictureBatch(13)
    assert workers.threads == threads
    for n in (0, 1, 2, 13):
        images = pictures(rng, n)
        geometries = [Geometry.letterbox((i.shape[1], i.shape[0]), (40, 24)) for i in images]
        batch.fill([as_image(i) for i in images], geometries)
        into = np.full((13, 3, 24, 40), np.nan, np.float32)
        batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
        for i, (image, geometry) in enumerate(zip(images, geometries, strict=True)):
            np.testing.assert_array_equal(into[i], preprocess(image, geometry, transform))
        assert np.isnan(into[n:]).all()
    workers.close()
    with pytest.raises(errors.ClosedError):
        workers.threads


def test_one_pool_serves_several_threads(rng: np.random.Generator) -> None:
    workers, transform = shared_workers(), PixelTransform(dtype="uint8", scale=1.0)
    assert shared_workers() is workers
    failures = []

    def work(seed: int) -> None:
        mine = np.random.default_rng(seed)
        batch = PictureBatch(6)
        for _ in range(30):
            images = pictures(mine, 6)
            geometries = [Geometry.stretch((i.shape[1], i.shape[0]), (16, 16)) for i in images]
            batch.fill([as_image(i) for i in images], geometries)
            into = np.zeros((6, 3, 16, 16), np.uint8)
            batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
            for row, image, geometry in zip(into, images, geometries, strict=True):
                if not np.array_equal(row, preprocess(image, geometry, transform)):
                    failures.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_errors_come_out_of_the_threads(rng: np.random.Generator) -> None:
    workers, transform, batch = Workers(3), PixelTransform(), PictureBatch(4)
    images = [np.zeros((10, 10, 3), np.uint8) for _ in range(4)]
    geometries = [Geometry.letterbox((10, 10), (8, 8))] * 4
    into = np.zeros((4, 3, 8, 8), np.float32)
    batch.fill([as_image(i) for i in images], [*geometries[:3], Geometry.letterbox((9, 10), (8, 8))])
    with pytest.raises(errors.ShapeError, match="10 x 10"):
        batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    batch.fill([as_image(i) for i in images], [*geometries[:3], Geometry.letterbox((10, 10), (8, 9))])
    with pytest.raises(errors.ShapeError, match="canvas of 8 x 9"):
        batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    batch.fill([as_image(i) for i in images], geometries)
    with pytest.raises(errors.ShapeError, match=str(into.nbytes - 1)):
        batch.preprocess(transform, into.ctypes.data, into.nbytes - 1, workers=workers)
    batch.preprocess(transform, into.ctypes.data, into.nbytes, workers=workers)
    with pytest.raises(errors.InputError, match="made for 4"):
        batch.fill([as_image(images[0])] * 5, [geometries[0]] * 5)
    for wrong in (0, 257, -1):
        with pytest.raises(errors.InputError, match=str(wrong)):
            Workers(wrong)
