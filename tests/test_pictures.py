"""Reading pictures."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from infersdk.errors import ImageError
from infersdk.pictures import Picture, read_picture


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK", "1", "LA", "I;16"])
def test_modes(mode: str, tmp_path: Path) -> None:
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 255, (10, 12, 3), np.uint8))
    image = Image.new("I;16", (12, 10), 4000) if mode == "I;16" else rgb.convert(mode)
    picture = read_picture(image)
    assert picture.size == (12, 10)
    assert picture.pixels.dtype == np.uint8
    assert picture.format in ("gray", "rgb", "rgba")
    expected = {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}
    if mode in expected:
        assert picture.format == expected[mode]
        np.testing.assert_array_equal(picture.pixels, np.asarray(image))


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (20, 10))
    exif = image.getexif()
    exif[0x0112] = 6  # turned by a quarter
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif)
    assert read_picture(buffer.getvalue()).size == (10, 20)


def test_arrays_are_not_copied() -> None:
    big = np.zeros((20, 30, 3), np.uint8)
    region = big[3:9, 5:17]
    picture = read_picture(region)
    assert np.shares_memory(picture.pixels, big)
    assert picture.format == "bgr"
    assert read_picture(region, channel_order="rgb").format == "rgb"
    assert read_picture(np.zeros((4, 5, 4), np.uint8)).format == "bgra"
    assert read_picture(np.zeros((4, 5), np.uint8)).format == "gray"
    frame = read_picture(np.zeros((6, 4), np.uint8), channel_order="nv12")
    assert (frame.format, frame.size) == ("nv12", (4, 4))
    assert read_picture(frame) is frame
    with pytest.raises(ImageError, match="NV12"):
        read_picture(np.zeros((7, 4), np.uint8), channel_order="nv12")
    with pytest.raises(ImageError, match="'xyz'"):
        read_picture(region, channel_order="xyz")
    assert isinstance(picture, Picture)
