"""Which image files are read: those of an allow-list, and nothing that starts a process."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from infersdk.data import IMAGE
from infersdk.errors import ImageError
from infersdk.image import image_size, read_image
from infersdk.image.nvimgcodec import header_of
from infersdk.image.sources import FORMATS, open_image

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
{} loop
%%EOF
"""


def encoded(kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.open(IMAGE).convert("RGB").resize((16, 12)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_of_the_list_is_read(kind: str) -> None:
    data = encoded(kind)
    assert open_image(io.BytesIO(data)).format == kind
    assert read_image(data).size == image_size(data) == (16, 12)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "JPEG2000", "TGA", "PCX", "SGI", "DDS"])
def test_no_other_format_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(kind))
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(ImageError, match="not an image of a format that is read: JPEG, PNG, WEBP"):
            read_image(source)
    assert image_size(path) is None
    with pytest.raises(UnidentifiedImageError):
        open_image(path)


@pytest.mark.skipif(os.name != "posix", reason="a program of the shell")
def test_a_file_of_eps_starts_no_program(tmp_path: Path) -> None:
    """Pillow would start `gs`, the Ghostscript of this machine, with the program of the file."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\n")
    program.chmod(0o755)
    code = (
        "import sys\n"
        "from infersdk.errors import ImageError\n"
        "from infersdk.image import read_image\n"
        "try:\n    read_image(sys.stdin.buffer.read())\n"
        "except ImageError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=EPS, capture_output=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ.get('PATH', '')}"},
    )  # fmt: skip
    assert done.stdout == b"refused\n", done.stderr
    assert not (tmp_path / "started").exists()


def test_the_limit_of_pixels_holds_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded("JPEG")
    assert header_of(data) == (16, 12)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16 * 12 // 2 - 1)
    assert header_of(data) is None, "a device does not decode it"
    with pytest.raises(ImageError, match="DecompressionBombError"):
        read_image(data)


def test_a_progressive_file_of_many_scans_is_refused() -> None:
    """Each scan goes over all pixels, so that a small file could take an hour."""
    data = encoded("JPEG", progressive=True)
    assert read_image(data).size == header_of(data) == (16, 12)
    start = data.rindex(b"\xff\xda")
    many = data[:start] + data[start:-2] * 200 + data[-2:]
    assert header_of(many) is None
    with pytest.raises(ImageError, match="more than 100 scans"):
        read_image(many)


def sequential(scans: int) -> bytes:
    """A JPEG file with the scans of one component each."""
    data = encoded("JPEG", subsampling=0)
    start = data.index(b"\xff\xda")
    one = [b"\xff\xda\0\x08\x01" + bytes((1 + i, 0x11 * (i > 0))) + b"\0\x3f\0\0" for i in range(3)]
    return data[:start] + b"".join(one) + one[0] * (scans - 3) + b"\xff\xd9"


def test_a_sequential_file_of_many_scans_is_refused() -> None:
    assert read_image(sequential(100)).size == header_of(sequential(100)) == (16, 12)
    for hidden in (b"", b"\xff\x30\xff\xff"):  # decoders skip this marker, and read no length behind it
        many = sequential(101).replace(b"\0\x3f\0\0", b"\0\x3f\0\0" + hidden)
        assert header_of(many) is None
        with pytest.raises(ImageError, match="more than 100 scans"):
            read_image(many)


@pytest.mark.parametrize(("before", "behind"), [(10_000, 0), (5_000, 5_000), (0, 10_000)])
def test_a_file_of_many_segments_is_refused(before: int, behind: int) -> None:
    """They count before the frame header and behind it."""
    data, segment = sequential(4), b"\xff\xfe\0\x02"
    many = data[:2] + segment * before + data[2:-2] + segment * behind + data[-2:]
    assert header_of(many) is None
    with pytest.raises(ImageError, match="10,000 segments"):
        read_image(many)


@pytest.mark.parametrize("progressive", [False, True])
def test_only_the_scans_of_the_image_count(progressive: bool) -> None:
    """A preview is a JPEG file in a segment. A motion photo has a video behind the image."""
    scans = b"\xff\xda" * 200
    data = encoded("JPEG", progressive=progressive, comment=scans + b"\xff\xd9") + scans
    assert read_image(data).size == header_of(data) == (16, 12)


def test_a_label_map_is_opened_in_the_same_way(tmp_path: Path) -> None:
    from infersdk.accuracy.segmentation import MappedImage
    from infersdk.errors import ConfigError

    for name, kind in (("a.png", "PNG"), ("a.ico", "ICO")):
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(tmp_path / name, kind)
    maps = MappedImage(IMAGE, {"": tmp_path / "a.png", "other": tmp_path / "a.ico"})
    assert maps.label_map("").shape == (16, 16)
    with pytest.raises(ConfigError, match="cannot read the label map"):
        maps.label_map("other")
