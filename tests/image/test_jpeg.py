"""Two decoders of JPEG files give the same pixels, in full and at reduced sizes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.errors import ImageError
from infersdk.image import HostImage, read_image, sources

pytest.importorskip("simplejpeg")


def encoded(size: tuple[int, int], mode: str = "RGB", *, orientation: int = 1, **options: Any) -> bytes:
    """A JPEG file of smooth shapes and noise."""
    width, height = size
    rng = np.random.default_rng(width * height)
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], axis=2)
    pixels = np.clip(pixels + rng.integers(-20, 20, pixels.shape), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    exif = image.getexif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif, **options)
    return buffer.getvalue()


@pytest.fixture
def by_pillow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads as `read_image()`, with Pillow alone."""

    def read(source: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sources, "_simplejpeg", lambda: None)
            return read_image(source, **options)

    return read


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(64, 48), (97, 61), (1, 1), (333, 8)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_pillows(
    mode: str, size: tuple[int, int], progressive: bool, subsampling: int, by_pillow: Any
) -> None:
    data = encoded(
        size, mode, progressive=progressive, quality=80, **({"subsampling": subsampling} if mode == "RGB" else {})
    )
    image, expected = read_image(data), by_pillow(data)
    assert (image.decoder, expected.decoder) == ("simplejpeg", "pillow")
    assert (image.format, image.size) == (expected.format, expected.size)
    np.testing.assert_array_equal(image.pixels, expected.pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("at_least", [None, (30, 20), (20, 30)])
def test_orientation_and_reduction_together(orientation: int, at_least: tuple[int, int] | None, by_pillow: Any) -> None:
    data = encoded((181, 122), orientation=orientation)
    limit = None if at_least is None else (lambda size: at_least)
    image, expected = read_image(data, at_least=limit), by_pillow(data, at_least=limit)
    np.testing.assert_array_equal(image.pixels, expected.pixels)
    whole = (122, 181) if orientation >= 5 else (181, 122)
    assert image.size == expected.size == whole
    assert image.reduced_from == expected.reduced_from == (None if at_least is None else whole)
    if at_least is not None:
        assert all(side >= wanted for side, wanted in zip(image.pixel_size, at_least, strict=True))
        assert image.pixel_size[0] < whole[0] / 2 + 1


def test_no_part_is_cut_out_of_a_reduced_image() -> None:
    data = encoded((160, 120))
    assert read_image(data).crop((0, 0, 60, 50)).size == (60, 50)
    with pytest.raises(ImageError, match="read the image without at_least"):
        read_image(data, at_least=lambda size: (80, 60)).crop((0, 0, 60, 50))


def test_other_files_go_to_pillow(by_pillow: Any) -> None:
    cmyk = encoded((40, 30), "CMYK")
    assert read_image(cmyk).decoder == "pillow"
    png = io.BytesIO()
    Image.new("RGB", (5, 4)).save(png, "PNG")
    assert read_image(png.getvalue()).decoder == "pillow"
    assert read_image(np.zeros((4, 5, 3), np.uint8)).decoder is None
    assert read_image(Image.new("RGB", (5, 4))).decoder is None


def test_damaged_files_end_as_with_pillow(by_pillow: Any) -> None:
    """Cut off: an error. With wrong bytes in the middle: what Pillow makes of them."""
    data = encoded((200, 160), quality=95)
    with pytest.raises(ImageError, match="cannot be decoded"):
        read_image(data[: len(data) // 2])
    outcomes = set()
    for at in range(700, len(data) - 2, 997):
        hurt = data[:at] + b"\xff\x00\x55" + data[at + 3 :]
        expected, image = outcome(by_pillow, hurt), outcome(read_image, hurt)
        outcomes.add(type(expected))
        if isinstance(expected, str):
            assert image == expected
        else:
            np.testing.assert_array_equal(image.pixels, expected.pixels)
    assert HostImage in outcomes


def outcome(read: Any, data: bytes) -> HostImage | str:
    """The image, or the message of the error."""
    try:
        return read(data)  # type: ignore[no-any-return]
    except ImageError as error:
        return str(error)


@pytest.mark.assets
def test_pixels_are_pillows_on_photographs(assets: Path, by_pillow: Any) -> None:
    files = [*sorted((assets / "coco" / "val").glob("*.jpg"))[:20], *sorted((assets / "images").glob("*.jpg"))]
    assert files
    for file in files:
        image = read_image(file)
        assert image.decoder == "simplejpeg", file
        np.testing.assert_array_equal(image.pixels, by_pillow(file).pixels, err_msg=str(file))
