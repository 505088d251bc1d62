"""Reading images."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from infersdk.errors import ImageError
from infersdk.image.sources import HostImage, read_image


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "CMYK", "1", "LA"])
def test_modes(mode: str, tmp_path: Path) -> None:
    rgb = Image.fromarray(np.random.default_rng(0).integers(0, 255, (10, 12, 3), np.uint8))
    pil = rgb.convert(mode)
    image = read_image(pil)
    assert image.size == (12, 10)
    assert image.pixels.dtype == np.uint8
    assert image.format in ("gray", "rgb", "rgba")
    expected = {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}
    assert image.format == expected.get(mode, "rgb")
    np.testing.assert_array_equal(image.pixels, np.asarray(pil if mode in expected else pil.convert("RGB")))


def test_damaged_exif_data_does_not_keep_a_image_from_being_set_upright() -> None:
    # Orientation 6, and a width that is text: Pillow cannot write such data again.
    entries = [(0x0100, 2, 4, b"abc\0"), (0x0112, 3, 1, b"\6\0\0\0")]
    table = b"".join(struct.pack("<HHI4s", *entry) for entry in entries)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10)).save(buffer, "JPEG", exif=exif)
    with Image.open(buffer) as image, pytest.raises(struct.error):
        ImageOps.exif_transpose(image)
    assert read_image(buffer.getvalue()).size == (10, 20)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("orientation", range(9))
def test_exif_orientation_is_applied(mode: str, orientation: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (10, 20, 3), np.uint8)
    pil = Image.fromarray(pixels).convert(mode)
    exif = pil.getexif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    pil.save(buffer, "JPEG", exif=exif)
    image = read_image(buffer.getvalue())
    assert image.size == ((10, 20) if orientation >= 5 else (20, 10))
    turned = ImageOps.exif_transpose(Image.open(buffer))
    np.testing.assert_array_equal(image.pixels, np.asarray(turned if mode == "L" else turned.convert("RGB")))


def test_a_pil_image_is_left_as_it_is() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (10, 20, 3), np.uint8))
    image.getexif()[0x0112] = 6
    before = image.tobytes()
    assert read_image(image).size == (10, 20)
    assert (image.size, image.getexif()[0x0112], image.tobytes()) == ((20, 10), 6, before)


def test_transparency_of_a_palette() -> None:
    pil = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 7), np.uint8)).convert("P")
    buffer = io.BytesIO()
    pil.save(buffer, "PNG", transparency=0)
    image = read_image(buffer.getvalue())
    assert image.format == "rgba"
    np.testing.assert_array_equal(image.pixels, np.asarray(Image.open(buffer).convert("RGBA")))


def test_arrays_are_not_copied() -> None:
    big = np.zeros((20, 30, 3), np.uint8)
    region = big[3:9, 5:17]
    image = read_image(region)
    assert np.shares_memory(image.pixels, big)
    assert image.format == "bgr"
    assert read_image(region, channel_order="rgb").format == "rgb"
    assert read_image(np.zeros((4, 5, 4), np.uint8)).format == "bgra"
    assert read_image(np.zeros((4, 5), np.uint8)).format == "gray"
    frame = read_image(np.zeros((6, 4), np.uint8), channel_order="nv12")
    assert (frame.format, frame.size) == ("nv12", (4, 4))
    assert read_image(frame) is frame
    with pytest.raises(ImageError, match="NV12"):
        read_image(np.zeros((7, 4), np.uint8), channel_order="nv12")
    with pytest.raises(ImageError, match="'xyz'"):
        read_image(region, channel_order="xyz")
    assert isinstance(image, HostImage)


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    deep = np.linspace(0, 65535, 64 * 48).astype(np.uint16).reshape(48, 64)
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(deep).save(tmp_path / name)
        image = read_image(tmp_path / name)
        assert image.format == "gray"
        np.testing.assert_array_equal(image.pixels, deep >> 8)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_known_white_are_refused(dtype: type) -> None:
    with pytest.raises(ImageError, match=r"^the PIL image given: its pixels are numbers of 32 bits.*0\.\.255"):
        read_image(Image.fromarray(np.full((4, 4), 300, dtype)))


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is a folder; name the images in it"):
        read_image(tmp_path)
