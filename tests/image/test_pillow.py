"""Pixels of PIL images, in place or copied: the same as NumPy gets from Pillow."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.image.pillow import pixels_of


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, *channels), np.uint8)
    return Image.fromarray(pixels).copy()  # else it borrows the array's memory


def is_lent(pixels: np.ndarray[Any, Any]) -> bool:
    while isinstance(pixels.base, np.ndarray):
        pixels = pixels.base
    return type(pixels.base).__module__ == "infersdk.image.pillow"


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (3, 5), (17, 13), (641, 479)])
def test_the_same_as_from_numpy(mode: str, size: tuple[int, int]) -> None:
    image = noise(*size, mode)
    pixels = pixels_of(image)
    assert is_lent(pixels)
    assert not pixels.flags.writeable
    assert (pixels.shape, pixels.dtype) == (np.asarray(image).shape, np.uint8)
    np.testing.assert_array_equal(pixels, np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(4001, 1301), (4300, 4100), (3, 1500001)])
def test_larger_than_a_block(mode: str, size: tuple[int, int]) -> None:
    image = noise(*size, mode)
    pixels = pixels_of(image)
    several = size[0] * size[1] * (1 if mode == "L" else 4) > 16 << 20
    assert is_lent(pixels) != several
    assert not pixels.flags.writeable
    np.testing.assert_array_equal(pixels, np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_a_borrowed_array_is_copied(mode: str) -> None:
    array = np.asarray(noise(31, 17, mode)).copy()
    image = Image.fromarray(array)
    assert image.readonly  # else this tests nothing
    expected, pixels = array.copy(), pixels_of(image)
    array[:] = 0
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.posix
def test_a_mapped_file_is_copied(tmp_path: Path) -> None:
    image = noise(31, 17, "L")
    image.save(tmp_path / "mapped.pgm")
    with Image.open(tmp_path / "mapped.pgm") as mapped:
        mapped.load()
        assert mapped.readonly  # else this tests nothing
        pixels = pixels_of(mapped)
    (tmp_path / "mapped.pgm").write_bytes(bytes(31 * 17 + 20))
    np.testing.assert_array_equal(pixels, np.asarray(image))


def test_an_image_without_pixels() -> None:
    for mode, size in itertools.product(("L", "RGB", "RGBA"), ((0, 0), (0, 5), (5, 0))):
        image = Image.new(mode, size)
        assert pixels_of(image).shape == np.asarray(image).shape


def test_rows_that_are_aligned() -> None:
    """Pillow can be told to put gaps between rows, by the environment."""
    code = (
        "import numpy as np; from PIL import Image; from infersdk.image.pillow import pixels_of\n"
        "for shape in ((7, 13), (7, 13, 3), (7, 13, 4)):\n"
        "    a = np.random.default_rng(0).integers(0, 256, shape, np.uint8)\n"
        "    np.testing.assert_array_equal(pixels_of(Image.fromarray(a).copy()), a)\n"
    )
    environment = {**os.environ, "PILLOW_ALIGNMENT": "64"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_pixels_outlive_the_image() -> None:
    image = noise(640, 480)
    expected = np.asarray(image).copy()
    pixels = pixels_of(image)[7:, 5:]
    image.close()
    del image
    gc.collect()
    others = [noise(640, 480) for _ in range(20)]  # what was freed would be written anew
    np.testing.assert_array_equal(pixels, expected[7:, 5:])
    del others
