"""Copies of images to a device, all at once and the first ones ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infersdk import Stream, device_count, pinned_empty
from infersdk.image import Geometry, HostImage, image_view
from infersdk.models.execution.executor import BatchItem
from infersdk.models.execution.image_uploads import ImageUploads
from infersdk.ops.batch import ImageBatch, Workers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(device_count() == 0, reason="needs an NVIDIA GPU")]
CAPACITY = 12


class Uploads:
    """`ImageUploads` with what it works on, and random images."""

    def __init__(self, rng: np.random.Generator, stream: Stream, workers: Workers, may_copy_ahead: bool = True) -> None:
        self.batch = ImageBatch(CAPACITY)
        self.uploads = ImageUploads(self.batch, stream, workers, may_copy_ahead=may_copy_ahead)
        self._rng, self._stream = rng, stream

    def image(self, height: int = 0, width: int = 0, *, locked: bool = True) -> tuple[HostImage, Geometry]:
        """Of a random size below 90; every third row is read where the height is a multiple of 3."""
        height, width = height or int(self._rng.integers(20, 90)), width or int(self._rng.integers(20, 90))
        pixels = pinned_empty((height, width, 3)) if locked else np.empty((height, width, 3), np.uint8)
        pixels[:] = self._rng.integers(0, 256, pixels.shape, np.uint8)
        return HostImage(pixels, "bgr"), Geometry.resize((width, height), (32, 32), (32, max(height // 3, 1)), (0, 0))

    def ahead(self, rows: list[tuple[HostImage, Geometry] | None]) -> None:
        self.uploads.copy_ahead(
            [None if row is None else BatchItem(row[0]) for row in rows],
            [None if row is None else row[1] for row in rows],
        )

    def all(self, rows: list[tuple[HostImage, Geometry]]) -> list[np.ndarray[Any, Any]]:
        """Uploads the batch; what is on the device then, image by image."""
        self.batch.fill([image_view(image.pixels, "bgr") for image, _ in rows], [geometry for _, geometry in rows])
        self.uploads.upload(*zip(*rows, strict=True))
        self._stream.synchronize()
        self.uploads.ended()
        memory, at, found = self.uploads._memory.numpy(), 0, []
        for image, geometry in rows:
            step = 3 if image.pixels.shape[0] // geometry.resized[1] == 3 and not image.pixels.shape[0] % 3 else 1
            seen = image.pixels[step // 2 :: step]
            found.append(memory[at : at + seen.nbytes].reshape(seen.shape))
            at += -(-seen.nbytes // 256) * 256
        return found


def expected(rows: list[tuple[HostImage, Geometry]]) -> list[np.ndarray[Any, Any]]:
    return [image.pixels[1::3] if not image.pixels.shape[0] % 3 else image.pixels for image, _ in rows]


def same(found: list[np.ndarray[Any, Any]], rows: list[tuple[HostImage, Geometry]]) -> None:
    for got, want in zip(found, expected(rows), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.fixture
def made(rng: np.random.Generator) -> Iterator[Uploads]:
    """The last batch was page-locked, and as large as any."""
    with Stream("cuda:0") as stream, Workers(2) as workers:
        made = Uploads(rng, stream, workers)
        made.all([made.image(89, 90) for _ in range(CAPACITY)])  # all rows are read
        yield made
        made.uploads.close()


def test_in_parts_it_is_what_it_is_at_once(made: Uploads) -> None:
    for counts in ((4, 8), (1, 2, 3, 4, 5), (11,), (12,), ()):
        rows = [made.image() for _ in range(CAPACITY)]
        for count in counts:
            made.ahead(rows[:count])
            assert len(made.uploads._ahead) == count
        same(made.all(rows), rows)
        assert not made.uploads._ahead


def test_what_was_copied_ahead_is_not_copied_again(made: Uploads) -> None:
    rows = [made.image() for _ in range(CAPACITY)]
    made.ahead(rows[:7])
    made._stream.synchronize()
    before = expected(rows)[6].copy()
    for image, _ in rows:
        image.pixels[:] = 255 - image.pixels
    found = made.all(rows)
    np.testing.assert_array_equal(found[6], before)
    np.testing.assert_array_equal(found[7], expected(rows)[7])


def test_it_stops_at_what_is_not_there_or_not_page_locked(made: Uploads) -> None:
    rows = [made.image() for _ in range(CAPACITY)]
    made.ahead([*rows[:3], None, *rows[4:8]])
    assert len(made.uploads._ahead) == 3
    rows[5] = made.image(locked=False)
    made.ahead(rows[:8])
    assert len(made.uploads._ahead) == 5
    same(made.all(rows), rows)


def test_requests_that_were_cancelled(made: Uploads) -> None:
    """Another image has the row, or the rows behind it have moved up."""
    rows = [made.image() for _ in range(CAPACITY)]
    made.ahead(rows[:8])
    rows[2] = made.image()
    same(made.all(rows), rows)
    made.ahead(rows[:8])
    rows[2] = made.image()
    made.ahead(rows[:10])
    assert len(made.uploads._ahead) == 10
    same(made.all(rows), rows)
    made.ahead(rows[:8])
    rows[1] = rows.pop()
    same(made.all(rows[:5]), rows[:5])
    # The very same image with another geometry takes other rows of it.
    made.ahead(rows[:4])
    image, _ = rows[0]
    height, width = image.pixels.shape[:2]
    rows[0] = image, Geometry.resize((width, height), (32, 32), (32, max(height // 3, 1)), (0, 1))
    same(made.all(rows[:4]), rows[:4])


def test_images_for_which_the_memory_is_too_small(made: Uploads) -> None:
    larger = [made.image(400, 90) for _ in range(CAPACITY)]
    made.ahead(larger)
    assert not made.uploads._ahead
    made.ahead(larger[:2])
    assert len(made.uploads._ahead) == 2
    same(made.all(larger), larger)


def test_when_nothing_is_copied_ahead(rng: np.random.Generator) -> None:
    with Stream("cuda:0") as stream, Workers(2) as workers:
        for may, locked in ((True, False), (False, True)):
            made = Uploads(rng, stream, workers, may_copy_ahead=may)
            rows = [made.image(90) for _ in range(CAPACITY)]
            made.ahead(rows)
            assert not made.uploads._ahead  # the first batch: where its images come from is not known
            ordinary = [made.image(90, locked=locked) for _ in range(CAPACITY)]
            same(made.all(ordinary), ordinary)
            made.ahead(rows)
            assert not made.uploads._ahead
            made.uploads.close()
