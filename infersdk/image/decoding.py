"""Decoding of image files on the processor, by Pillow and `simplejpeg`, and the pixels of PIL images without a copy.

Pillow reads some forty formats. Its decoder of EPS starts Ghostscript, which runs the program in the file, so files are
opened here, with the decoders of `FORMATS` and no others.

`simplejpeg`, where it is installed, decodes JPEG files in full or at a half, a quarter or an eighth of their size. Both
libraries are libjpeg-turbo with the same settings (exact DCT, smooth upsampling of the colours). They give the same
pixels bit for bit, and `simplejpeg` takes about three quarters of the time. Pillow reads the header in either case, and
decodes CMYK files and damaged files.

`np.asarray(image)` runs an encoder over the image, which takes about as long as decoding a JPEG file. Pillow (11.3 and
later) exports its memory by Arrow's C data interface, and nothing is copied. The modes are those of one byte ("L") or
four bytes a pixel ("RGB", whose fourth byte is padding, and "RGBA").
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from ..errors import ImageError, relative_to
from .images import HostImage

if TYPE_CHECKING:
    import os

    import numpy.typing as npt
    from PIL import Image

__all__ = [
    "FORMATS",
    "SizeLimit",
    "decode_file",
    "from_pil",
    "header_of",
    "open_image",
    "orientation_of",
    "pixels_of",
    "upright_size",
]

#: The formats of image files that are read, as Pillow names them. MPO, which cameras write, is opened as JPEG; PPM
#: includes PGM, PBM and PFM.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "PPM")
#: Modules of Pillow for the formats that it does not register by itself.
_PLUGINS = ("PIL.WebPImagePlugin", "PIL.TiffImagePlugin", "PIL.AvifImagePlugin")

_MODES = {"L": 1, "RGB": 4, "RGBA": 4}  # bytes a pixel in Pillow's memory
_STRIP = 4 << 20  # bytes; strips of 16 MB take longer, because the system maps new memory for each of them


def open_image(file: str | os.PathLike[str] | BinaryIO) -> Image.Image:
    """Opens an image file of one of `FORMATS`; its pixels are not decoded yet.

    Raises:
        PIL.UnidentifiedImageError: the file has another format, or is damaged.
    """
    from PIL import Image

    return Image.open(file, formats=_registered())


@functools.cache
def _registered() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow can read. `Image.open()` would import all plugins for a missing one."""
    from PIL import Image

    Image.preinit()
    for plugin in _PLUGINS:
        with contextlib.suppress(ImportError):  # AVIF came with Pillow 11.3
            importlib.import_module(plugin)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def is_too_large(size: tuple[int, int]) -> bool:
    """Whether Pillow refuses an image of (width, height) as a decompression bomb."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return limit is not None and size[0] * size[1] > 2 * limit


class _ArrowArray(ctypes.Structure):
    """struct ArrowArray of https://arrow.apache.org/docs/format/CDataInterface.html"""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

# A prototype of our own: all users of ctypes.pythonapi share its prototypes.
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Lent:
    """Memory of a capsule, with NumPy's array interface. The array keeps this object alive, this object the capsule,
    and the capsule Pillow's memory, even after the image has been deleted."""

    def __init__(self, capsule: object, address: int, shape: tuple[int, ...]) -> None:
        self._capsule = capsule
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": shape, "data": (address, True)}


def pixels_of(image: Image.Image) -> npt.NDArray[np.uint8]:
    """The pixels of a loaded image of mode "L", "RGB" or "RGBA": uint8, (H, W) or (H, W, 3 or 4), equal to
    `np.asarray(image)` and read-only.

    Usually they are Pillow's own memory, with three channels at a distance of four bytes, which `image_view` reads in
    place; a change of the image changes them too. They are copied if they are not in one block (Pillow starts a new one
    every 16 MB), or are mapped from a file.
    """
    pixels = _lent(image)
    if pixels is None:
        pixels = _copied(image)
    if pixels is None:
        return np.asarray(image)
    return pixels[:, :, :3] if image.mode == "RGB" else pixels


@functools.cache
def _pillow_lends() -> bool:
    """Whether Pillow exports its memory. 11.2 does too, but never frees it."""
    from PIL import __version__

    return tuple(int(part) for part in __version__.split(".")[:2]) >= (11, 3)


def _core() -> Any:
    """Pillow's C module, which knows the layout of its memory; environment variables can change the layout."""
    from PIL import Image

    return Image.core  # type: ignore[attr-defined]


def _lent(image: Image.Image) -> npt.NDArray[np.uint8] | None:
    """Pillow's own pixels, (H, W) or (H, W, 4); None unless Pillow exports them as one block without gaps."""
    size, channels = image.width * image.height, _MODES[image.mode]
    # A read-only image is in other memory, such as a mapped file. With an alignment there are gaps between rows.
    if not _pillow_lends() or not size or image.readonly or _core().get_alignment() != 1:
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # it is in several blocks
        return None
    array = _ArrowArray.from_address(_get_pointer(capsule, b"arrow_array"))
    values = array if channels == 1 else array.children[0].contents
    address = values.buffers[1]
    if not address or values.length != size * channels or values.offset or array.offset:
        return None
    shape = (image.height, image.width, channels)[: 2 if channels == 1 else 3]
    return np.asarray(_Lent(capsule, address, shape))


def _copied(image: Image.Image) -> npt.NDArray[np.uint8] | None:
    """A copy made strip by strip, each of which fits a block: in a third of the time of NumPy's conversion."""
    width, height = image.size
    if not _pillow_lends() or not width:
        return None
    rows = max(min(_core().get_block_size(), _STRIP) // (_MODES[image.mode] * width), 1)
    whole: npt.NDArray[np.uint8] | None = None
    for top in range(0, height, rows):
        strip = _lent(image.crop((0, top, width, min(top + rows, height))))
        if strip is None:
            return None
        if whole is None:
            whole = np.empty((height, *strip.shape[1:]), np.uint8)
        whole[top : top + rows] = strip
    if whole is not None:
        whole.flags.writeable = False
    return whole


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

#: Whether rows and columns are mirrored (after their exchange), by orientation.
_MIRRORED = {
    2: (False, True), 3: (True, True), 4: (True, False),
    5: (False, False), 6: (False, True), 7: (True, True), 8: (True, False),
}  # fmt: skip

#: The (width, height) that is needed of an image of (width, height).
SizeLimit: TypeAlias = Callable[[tuple[int, int]], tuple[int, int]]

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
    try:
        with open_image(io.BytesIO(data)) as image:
            return orientation_of(image)
    except Exception:  # decoding the file raises it again
        return 1


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an image that Pillow has opened: 1 to 8, 1 where there is none."""
    orientation = image.getexif().get(_ORIENTATION, 1)
    return orientation if orientation in range(1, 9) else 1


def decode_file(file: Path | io.BytesIO, what: str, at_least: SizeLimit | None) -> HostImage:
    """The image in a file; see `read_image()`.

    Args:
        what: names it in messages.
    """
    from PIL import UnidentifiedImageError

    try:
        with open(file, "rb") if isinstance(file, Path) else file as stream, open_image(stream) as image:
            return _from_jpeg(image, stream, at_least) or from_pil(image, what, at_least)
    except FileNotFoundError:
        raise ImageError(f"no image at {what}{relative_to(file) if isinstance(file, Path) else ''}") from None
    except IsADirectoryError:
        raise ImageError(f"{what} is a folder; name the images in it") from None
    except UnidentifiedImageError:
        raise ImageError(f"{what}: not an image of a format that is read: {', '.join(FORMATS)}") from None
    except ImageError:
        raise
    except Exception as error:  # damaged files take Pillow's decoders to errors of any type
        raise ImageError(f"{what}: cannot be decoded: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reduction(image: Image.Image, orientation: int, at_least: SizeLimit | None) -> int:
    """By how much a JPEG file is reduced while it is decoded."""
    if at_least is None:
        return 1
    upright = upright_size(image.size, orientation)
    return reduction(upright, at_least(upright))


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation in SIDEWAYS else size


def _from_jpeg(image: Image.Image, stream: BinaryIO, at_least: SizeLimit | None) -> HostImage | None:
    """A JPEG file decoded by another library than Pillow; None where Pillow is to do it."""
    if not is_jpeg(image):
        return None
    orientation = orientation_of(image)
    by = _reduction(image, orientation, at_least)
    if isinstance(stream, io.BytesIO):
        data = stream.getvalue()  # without a copy
    else:
        stream.seek(0)
        data = stream.read()
    if image.info.get("progressive") and has_too_many_scans(data):
        raise ImageError(
            f"the JPEG file has more than {MAX_SCANS} scans, which take too long to decode; encode it again"
        )
    decoded = decode_jpeg(image, data, by)
    if decoded is None:
        return None
    pixels, decoder = decoded
    reduced_from = upright_size(image.size, orientation) if by > 1 else None
    return HostImage(_upright(pixels, orientation), "gray" if pixels.ndim == 2 else "rgb", decoder, reduced_from)


def _upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """As `ImageOps.exif_transpose()`, which rewrites the rest of the EXIF data too, and fails where that is damaged."""
    if orientation == 1:
        return pixels
    if orientation in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _MIRRORED[orientation]
    return np.ascontiguousarray(pixels[:: -1 if rows else 1, :: -1 if columns else 1])


def from_pil(image: Image.Image, what: str, at_least: SizeLimit | None = None) -> HostImage:
    """A PIL image, set upright, in a mode that the kernels read. Arguments as of `decode_file()`."""
    decoder, reduced_from = None if image.format is None else PILLOW, None
    try:
        orientation = None
        if at_least is not None and is_jpeg(image):
            orientation = orientation_of(image)
            if (by := _reduction(image, orientation, at_least)) > 1:
                reduced_from = upright_size(image.size, orientation)
                image.draft(None, (image.width // by, image.height // by))  # Pillow divides by whole numbers.
        image.load()  # some formats have their EXIF data after the pixels.
        orientation = orientation or orientation_of(image)
        if image.mode.startswith("I;16"):  # Pillow would clip at 255, and so make nearly all of it white
            return HostImage(_upright((np.asarray(image) >> 8).astype(np.uint8), orientation), "gray", decoder)
        if image.mode in ("I", "F"):
            raise ImageError(
                f"{what}: its pixels are numbers of 32 bits, whose range is unknown; scale "
                "it to 0..255 and give it as an array of uint8"
            )
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    except ImageError:
        raise
    except Exception as error:  # as in _decode: a file's pixels are decoded here
        raise ImageError(f"{what}: cannot be decoded: {_reason(error)}") from None
    kind = {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}[image.mode]
    return HostImage(_upright(pixels_of(image), orientation), kind, decoder, reduced_from)
