"""JPEG files for a device: what their headers say, and decoding by nvImageCodec."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk import Device
from infersdk.errors import ImageError
from infersdk.image import read_image
from infersdk.image.nvimgcodec import NAME, EncodedImage, JpegDecoder, encoded_image, header_of, is_installed


def encoded(size: tuple[int, int], mode: str = "RGB", *, orientation: int = 1, **options: Any) -> bytes:
    width, height = size
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], axis=2)
    image = Image.fromarray(pixels.astype(np.uint8)).convert(mode)
    exif = image.getexif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif, **{"quality": 95, **options})
    return buffer.getvalue()


# ---- headers ----


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_header_is_that_of_the_image(orientation: int, mode: str, progressive: bool) -> None:
    data = encoded((50, 30), mode, orientation=orientation, progressive=progressive)
    assert header_of(data) == read_image(data).size == ((30, 50) if orientation >= 5 else (50, 30))


def test_headers_that_a_device_is_not_given() -> None:
    png = io.BytesIO()
    Image.new("RGB", (5, 4)).save(png, "PNG")
    whole = encoded((20, 10))
    for data in (encoded((20, 10), "CMYK"), png.getvalue(), b"", b"\xff\xd8", whole[:30], b"\xff\xd8" + bytes(40)):
        assert header_of(data) is None
    frame = whole.index(b"\xff\xc0")
    assert header_of(whole[: frame + 4] + b"\x0c" + whole[frame + 5 :]) is None  # 12 bits
    assert header_of(whole[:2] + b"\xff" + whole[2:]) == (20, 10)  # a fill byte
    assert header_of(whole[:-2]) is None  # cut off
    assert header_of(encoded((20, 10), "L")[:-2]) is None


def test_a_device_is_not_given_colours_without_a_transform() -> None:
    """It would take red, green and blue for Y, Cb and Cr."""
    data = encoded((20, 10), keep_rgb=True)
    assert header_of(data) is None
    adobe = data.index(b"\xff\xee\0\x0eAdobe")
    assert header_of(data[:adobe] + data[adobe + 16 :]) is None, "its components are named R, G and B"
    frame = data.index(b"\xff\xc0")
    named = bytearray(data)
    named[frame + 10 : frame + 19 : 3] = b"\1\2\3"
    assert header_of(bytes(named)) is None
    named[adobe + 15] = 1
    assert header_of(bytes(named)) == (20, 10)
    gray = encoded((20, 10), "L")
    assert header_of(gray[:2] + data[adobe : adobe + 16] + gray[2:]) == (20, 10)


def test_sources_of_encoded_images(tmp_path: Path) -> None:
    data = encoded((20, 10))
    (tmp_path / "a.jpg").write_bytes(data)
    for source in (data, bytearray(data), memoryview(data), tmp_path / "a.jpg", str(tmp_path / "a.jpg")):
        assert encoded_image(source) == EncodedImage(data, (20, 10))
    for source in (np.zeros((4, 5, 3), np.uint8), "https://host/a.jpg", tmp_path / "none.jpg", io.BytesIO(data)):
        assert encoded_image(source) is None


# ---- nvImageCodec ----


def test_the_module_has_what_is_used() -> None:
    """Its classes work without a GPU, apart from the decoder."""
    if not is_installed():
        pytest.skip("nvImageCodec is not installed")
    from infersdk.image import nvimgcodec as ours

    module = ours._nvimgcodec()
    stream = module.CodeStream(encoded((20, 10)))
    assert (stream.width, stream.height, stream.codec_name) == (20, 10, "jpeg")
    params = module.DecodeParams(
        apply_exif_orientation=True, color_spec=module.ColorSpec.SRGB, sample_format=module.SampleFormat.I_RGB
    )
    assert params.apply_exif_orientation


@pytest.fixture(scope="module")
def decoder() -> Any:
    if not is_installed():
        pytest.skip("nvImageCodec is not installed")
    made = JpegDecoder(Device("cuda", 0))
    yield made
    made.close()


def on_host(image: Any) -> np.ndarray[Any, Any]:
    """The pixels of a `DeviceImage`, in RGB."""
    pixels = image.to_host().pixels
    return pixels if image.format == "rgb" else pixels[..., ::-1]


@pytest.mark.gpu
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_on_a_device(decoder: JpegDecoder, orientation: int) -> None:
    data = encoded((180, 120), orientation=orientation)
    file = encoded_image(data)
    (image,) = decoder.decode([file]).images
    assert image.size == file.size
    difference = np.abs(on_host(image).astype(int) - read_image(data).pixels.astype(int))
    assert difference.mean() < 1.5
    assert difference.max() <= 24


@pytest.mark.gpu
@pytest.mark.assets
def test_photographs_on_a_device(decoder: JpegDecoder, assets: Path) -> None:
    """The pixels differ by the upsampling of the colours alone; memory is used again without mixing images up."""
    files = [encoded_image(file) for file in sorted((assets / "coco" / "val").glob("*.jpg"))[:24]]
    assert None not in files
    for start in range(0, 24, 8):
        batch = decoder.decode([file for file in files[start : start + 8] if file is not None])
        assert {image.decoder for image in batch.images} == {NAME}
        for image, file in zip(batch.images, files[start : start + 8], strict=True):
            difference = np.abs(on_host(image).astype(int) - read_image(file.data).pixels.astype(int))
            print(f"{file.size}: mean {difference.mean():.3f}, largest {difference.max()}")
            assert difference.mean() < 1.0
        decoder.recycle(batch)


@pytest.mark.gpu
def test_what_the_device_cannot_decode_is_decoded_on_the_processor(decoder: JpegDecoder) -> None:
    good = encoded((64, 48))
    cmyk = EncodedImage(encoded((64, 48), "CMYK"), (64, 48))  # as if its header had not told
    files = [EncodedImage(good, (64, 48)), cmyk, EncodedImage(encoded((64, 48), "L"), (64, 48))]
    batch = decoder.decode(files)
    assert batch.images[0].decoder == NAME
    for file, image in zip(files, batch.images, strict=True):
        assert image.decoder is not None
        expected = read_image(file.data).pixels
        expected = expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, axis=2)
        assert np.abs(on_host(image).astype(int) - expected[..., :3].astype(int)).mean() < 3
    with pytest.raises(ImageError):
        decoder.decode([EncodedImage(good[: len(good) // 3], (64, 48))])
