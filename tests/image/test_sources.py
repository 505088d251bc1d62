"""Reading images."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from web import content, served

from infersdk.errors import ImageError
from infersdk.image import HostImage, image_size, read_image
from infersdk.image.nvimgcodec import encoded_image
from infersdk.image.sources import FORMATS


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


def test_damaged_exif_data_does_not_keep_an_image_from_being_set_upright() -> None:
    # Orientation 6, and a width that is text: Pillow cannot write such data again.
    entries = [(0x0100, 2, 4, b"abc\0"), (0x0112, 3, 1, b"\6\0\0\0")]
    table = b"".join(struct.pack("<HHI4s", *entry) for entry in entries)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + table + bytes(4)
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10)).save(buffer, "JPEG", exif=exif)
    with Image.open(buffer) as image, pytest.raises(struct.error):
        ImageOps.exif_transpose(image)
    assert read_image(buffer.getvalue()).size == (10, 20)


def test_a_pil_image_without_a_pixel() -> None:
    with pytest.raises(ImageError, match="the PIL image given is 0 x 5 and has no pixel"):
        read_image(Image.new("L", (0, 5)))


@pytest.mark.parametrize("edges", [(0, 0, 2.5, 3), (0, 0), 5, "abcd"])
def test_a_part_has_four_whole_edges(edges: Any) -> None:
    with pytest.raises(ImageError, match="use four whole numbers: left, top, right, bottom"):
        read_image(np.zeros((9, 9, 3), np.uint8)).crop(edges)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_exif_data_that_cannot_be_read_has_no_orientation(format: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10)).save(buffer, format, exif=b"Exif\0\0garbage!garbage!")
    assert (read_image(buffer.getvalue()).size, image_size(buffer.getvalue())) == ((20, 10), (20, 10))
    assert read_image(Image.open(buffer)).size == (20, 10)


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


def tiff(pixels: bytes, bits: int, further: dict[int, int]) -> bytes:
    """A TIFF file of one gray row: its header, the pixels, and the tags."""
    width = 8 * len(pixels) // bits
    tags = {256: width, 257: 1, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(pixels), **further}
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(pixels)) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_twelve_bits_keep_their_upper_eight() -> None:
    """Pixels of 0x000, 0x7ff, 0xfff and 0x3e8."""
    file = tiff(bytes.fromhex("0007fffff3e8"), 12, {})
    np.testing.assert_array_equal(read_image(file).pixels, [[0x00, 0x7F, 0xFF, 0x3E]])


@pytest.mark.parametrize("bits", [8, 16])
def test_tiff_files_whose_white_is_zero(bits: int) -> None:
    pixels = np.array([0, 0x3FFF], "<u2") if bits == 16 else np.array([0, 0x3F], np.uint8)
    file = tiff(pixels.tobytes(), bits, {262: 0})
    np.testing.assert_array_equal(read_image(file).pixels, [[0xFF, 0xC0]])


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_pgm_files_keep_their_upper_eight(bits: int) -> None:
    white = 2**bits - 1
    file = b"P5\n4 1\n%d\n" % white + np.array([0, white // 4, white // 2, white], ">u2").tobytes()
    for data in (file, b"P2\n4 1\n%d\n0 %d %d %d\n" % (white, white // 4, white // 2, white)):
        image = read_image(data)
        assert (image.format, image.decoder, image.pixels.dtype) == ("gray", "pillow", np.uint8)
        np.testing.assert_array_equal(image.pixels, [[0x00, 0x3F, 0x7F, 0xFF]])


def test_bytes_that_are_not_adjacent() -> None:
    file = io.BytesIO()
    Image.new("L", (3, 2), 7).save(file, "PNG")
    every_second = memoryview(file.getvalue().replace(b"", b"-"))[1::2]
    assert not every_second.contiguous
    assert image_size(every_second) == read_image(every_second).size == (3, 2)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_known_white_are_refused(dtype: type) -> None:
    with pytest.raises(ImageError, match=r"^the PIL image given: its pixels are numbers of 32 bits.*0\.\.255"):
        read_image(Image.fromarray(np.full((4, 4), 300, dtype)))


def test_signed_pixels_are_refused() -> None:
    with pytest.raises(ImageError, match="of 32 bits or signed ones, whose range is unknown"):
        read_image(tiff(struct.pack("<h", -9), 16, {339: 2}))


# ---- damaged files ----


@pytest.mark.parametrize("kind", FORMATS)
def test_any_failure_of_a_decoder_is_an_image_error(kind: str) -> None:
    """Pillow's own: some raise RuntimeError, NotImplementedError, or errors of their own."""
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8))
    buffer = io.BytesIO()
    try:
        (image.convert("P") if kind == "GIF" else image).save(buffer, kind)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow does not write {kind}")
    whole = np.frombuffer(buffer.getvalue(), np.uint8)
    read_image(whole.tobytes())
    refused = 0
    for _ in range(100):
        damaged = whole[: rng.integers(1, len(whole) + 1)].copy()
        for at in rng.integers(0, min(len(damaged), 200), rng.integers(0, 6)):
            damaged[at] = rng.integers(0, 256)
        try:
            read_image(damaged.tobytes())
        except ImageError:
            refused += 1
    assert refused > 15


@pytest.mark.parametrize("step", ["PIL.Image.open", "PIL.PngImagePlugin.PngImageFile.load"])
def test_the_error_of_a_decoder_is_the_cause(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = EOFError("the end")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(step, fail)
    with pytest.raises(ImageError, match="cannot be decoded: EOFError: the end") as caught:
        read_image(png())
    assert caught.value.__cause__ is error


# ---- streams, tensors, addresses ----


def png(size: tuple[int, int] = (5, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 255, (size[1], size[0], 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_streams_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    expected = read_image(png()).pixels
    with (tmp_path / "a.png").open("rb") as file:
        np.testing.assert_array_equal(read_image(file).pixels, expected)
        np.testing.assert_array_equal(read_image(file).pixels, expected)  # from its start once more
    written = io.BytesIO()
    written.write(png())
    np.testing.assert_array_equal(read_image(written).pixels, expected)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.png", png())
    with zipfile.ZipFile(tmp_path / "a.zip") as archive, archive.open("a.png") as member:
        np.testing.assert_array_equal(read_image(member).pixels, expected)
    with tempfile.SpooledTemporaryFile() as upload:  # what web frameworks give
        upload.write(png())
        np.testing.assert_array_equal(read_image(upload).pixels, expected)

    class Socket:
        """It can be read, and nothing else."""

        def read(self) -> bytes:
            return png()

    np.testing.assert_array_equal(read_image(Socket()).pixels, expected)


def test_streams_that_give_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    for encoding in ("utf-8", "latin-1"):
        with (tmp_path / "a.png").open(encoding=encoding) as text, pytest.raises(ImageError, match="binary mode"):
            read_image(text)
    with pytest.raises(ImageError, match="closed"):
        read_image(text)
    with pytest.raises(ImageError, match="not an image"):
        read_image(io.BytesIO())
    packed = gzip.compress(png((50, 40)))
    with gzip.open(io.BytesIO(packed[: len(packed) // 2])) as cut, pytest.raises(ImageError, match="EOFError"):
        read_image(cut)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        archive.writestr("a.png", png())
    damaged = stored.getvalue().replace(b"IDAT", b"XDAT")
    message = "the ZipExtFile given: cannot be read: BadZipFile: Bad CRC-32"
    with zipfile.ZipFile(io.BytesIO(damaged)).open("a.png") as member, pytest.raises(ImageError, match=message):
        read_image(member)


def test_tensors_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    array = np.random.default_rng(4).integers(0, 255, (6, 8, 3), np.uint8)
    image = read_image(torch.from_numpy(array), channel_order="rgb")
    assert image.format == "rgb"
    np.testing.assert_array_equal(image.pixels, array)
    assert np.shares_memory(image.pixels, array)
    planar = torch.from_numpy(array).permute(2, 0, 1)
    np.testing.assert_array_equal(read_image(planar.permute(1, 2, 0)).pixels, array)
    for wrong, words in (
        (planar, r"not \(3, 6, 8\); its channels are first: move them to the end"),
        (torch.zeros(4, 4, dtype=torch.bfloat16), "cannot be read as an array"),
        (torch.zeros(4, 4), "uint8, not float32"),
        (torch.zeros(4, 4, requires_grad=True), "cannot be read as an array"),
        (torch.zeros(4, 4, device="meta"), "cannot be read as an array"),
    ):
        with pytest.raises(ImageError, match=words):
            read_image(wrong)


def test_addresses() -> None:
    pages = {
        "/a.png": content(png(), "image/png"), "/bytes": content(png(), "application/octet-stream"),
        "/page": content(b"<html>", "text/html"), "/film": content(bytes(9), "video/mp4"),
        "/broken": content(png()[:40], "image/png"),
    }  # fmt: skip
    with served(pages) as address:
        for path in ("/a.png", "/bytes"):
            np.testing.assert_array_equal(read_image(address + path).pixels, read_image(png()).pixels)
        for path, words in (
            ("/page", "its content type is text/html, not an image"), ("/film", "its content type is video/mp4"),
            ("/broken", r"/broken: (cannot be decoded|not an image)"), ("/none", "404"),
        ):  # fmt: skip
            with pytest.raises(ImageError, match=words):
                read_image(address + path)


def test_what_is_no_source() -> None:
    for wrong in (None, 7, object(), ["a.jpg"]):
        with pytest.raises(ImageError, match=f"not {type(wrong).__name__}"):
            read_image(wrong)


def test_a_folder_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is a folder; name the images in it"):
        read_image(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jpg"
    os.mkfifo(path)
    with pytest.raises(ImageError, match="pipe.jpg': cannot be read: it is not a regular file; give a regular file"):
        read_image(path)
    assert image_size(path) is None
    assert encoded_image(path) is None


def test_paths_of_bytes(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    with os.scandir(os.fsencode(tmp_path)) as entries:
        assert [read_image(entry).size for entry in entries] == [(3, 2)]  # type: ignore[arg-type]


def test_an_empty_path_is_called_empty() -> None:
    with pytest.raises(ImageError, match="the path of the image is empty; give that of a file"):
        read_image("")
