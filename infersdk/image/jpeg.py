"""Decoding JPEG files on the processor, in full or at a half, a quarter or an eighth of their size.

Two libraries decode: `simplejpeg` where it is installed, and Pillow. Both are libjpeg-turbo with the same settings
(exact DCT, smooth upsampling of the colours), and give the same pixels bit for bit. `simplejpeg` takes about three
quarters of the time. Pillow reads the header in either case, and decodes CMYK files and damaged files.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from .pillow import is_too_large, open_image

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

__all__ = [
    "PILLOW",
    "SIDEWAYS",
    "decode_jpeg",
    "has_too_many_scans",
    "header_of",
    "is_jpeg",
    "orientation_of",
    "reduction",
]

#: The name of the decoder that reads all formats.
PILLOW = "pillow"

#: EXIF orientations that exchange width and height.
SIDEWAYS = frozenset({5, 6, 7, 8})

_ORIENTATION = 0x0112  # the tag of EXIF
_MARKER, _APP1, _BITS = 0xFF, 0xE1, 8
#: Markers of frames that are coded with Huffman's code, baseline and progressive.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_PROGRESSIVE, _SCAN = 0xC2, b"\xff\xda"
#: Maximum number of scans of a progressive file. Encoders write about ten. A scan of 200 bytes takes 0.35 s for 144
#: million pixels: a file of 1 MB could occupy a processor for half an hour.
MAX_SCANS = 100
_FORMATS = frozenset({"JPEG", "MPO"})  # the second one is JPEG with further images behind the first
_COLORSPACES = {"RGB": "RGB", "L": "GRAY"}
#: By how much libjpeg can divide the sides of an image at little cost.
_REDUCTIONS = (8, 4, 2)

Size = tuple[int, int]


@functools.cache
def _simplejpeg() -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def is_jpeg(image: Image.Image) -> bool:
    """Whether an image that Pillow has opened, and not loaded, is a JPEG file."""
    return image.format in _FORMATS


def reduction(size: Size, least: Size) -> int:
    """By how much (8, 4, 2 or 1) the sides of a JPEG file can be divided, so that at least `least` remains."""
    return next(
        (by for by in _REDUCTIONS if all(-(-side // by) >= wanted for side, wanted in zip(size, least, strict=True))), 1
    )


def decode_jpeg(image: Image.Image, data: bytes, by: int = 1) -> tuple[npt.NDArray[np.uint8], str] | None:
    """The pixels of a JPEG file by `simplejpeg`: (H, W) or (H, W, 3) in the order red, green, blue; and its name.

    Args:
        image: the file as Pillow has opened it, and not loaded.
        data: its bytes.
        by: what `reduction()` has returned.

    Returns:
        None where Pillow is to decode the file: without `simplejpeg`, for other colour spaces, and for damaged files.
    """
    module, colorspace = _simplejpeg(), _COLORSPACES.get(image.mode)
    if module is None or colorspace is None:
        return None
    width, height = image.size
    try:
        pixels = module.decode_jpeg(
            data, colorspace, min_width=-(-width // by), min_height=-(-height // by), min_factor=by
        )
    except (ValueError, RuntimeError):  # damaged: Pillow repairs it, or has the words for it
        return None
    if pixels.shape[:2] != (-(-height // by), -(-width // by)):
        return None
    return (pixels[:, :, 0] if colorspace == "GRAY" else pixels), module.__name__


def has_too_many_scans(data: bytes) -> bool:
    """Whether a JPEG file has more than `MAX_SCANS` scans."""
    return data.count(_SCAN) > MAX_SCANS


def header_of(data: bytes) -> Size | None:
    """(width, height) of a JPEG file, upright, from its markers alone; None for files that a device does not decode.

    A device decodes files of one or three components of 8 bits, within the limits of pixels and scans. Pillow decodes
    CMYK files and those of 12 bits, and refuses files beyond the limits.
    """
    if data[:2] != b"\xff\xd8":
        return None
    at, orientation = 2, 1
    while at + 9 < len(data) and data[at] == _MARKER:
        kind = data[at + 1]
        if kind == _MARKER:  # a fill byte
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _APP1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data)
        elif kind in _FRAMES:
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            if data[at + 4] != _BITS or data[at + 9] not in (1, 3) or not width or not height:
                return None
            if is_too_large((width, height)) or (kind == _PROGRESSIVE and has_too_many_scans(data)):
                return None
            return (height, width) if orientation in SIDEWAYS else (width, height)
        at += 2 + length
    return None


def _orientation(data: bytes) -> int:
    """The EXIF orientation, as Pillow reads it."""
    import io

    try:
        with open_image(io.BytesIO(data)) as image:
            return orientation_of(image)
    except Exception:  # decoding the file raises it again
        return 1


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an image that Pillow has opened: 1 to 8, 1 where there is none."""
    orientation = image.getexif().get(_ORIENTATION, 1)
    return orientation if orientation in range(1, 9) else 1
