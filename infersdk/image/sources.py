"""Images from files, addresses, bytes, streams, PIL images, NumPy arrays and tensors.

Images keep their size and the order of their channels; the preprocessing kernels read any of these orders.

Pillow reads some forty formats. Its decoder of EPS starts Ghostscript, which runs the program in the file, so files are
opened here, with the decoders of `FORMATS` and no others.

`simplejpeg`, where it is installed, decodes JPEG files in full or at a half, a quarter or an eighth of their size. Both
libraries are libjpeg-turbo with the same settings (exact DCT, smooth upsampling of the colours). They give the same
pixels bit for bit, and `simplejpeg` takes about three quarters of the time. Pillow reads the header in either case, and
decodes CMYK files and damaged files.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeGuard

import numpy as np

from ..core.device import Device
from ..core.files import open_regular
from ..core.text import without_password
from ..errors import ImageError, InputError, relative_to
from .images import DeviceImage, HostImage, format_of
from .pillow import pixels_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

    from .uploads import UploadPools

__all__ = [
    "FORMATS", "ImageSource", "SharedImage", "check_several", "has_too_many_scans", "image_size", "is_http",
    "open_image", "orientation_of", "read_image", "upright_size",
]  # fmt: skip

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Image.Image | npt.NDArray[Any]"
)

#: The (width, height) that is needed of an image of (width, height).
SizeLimit: TypeAlias = Callable[[tuple[int, int]], tuple[int, int]]

#: The formats of image files that are read, as Pillow names them. MPO, which cameras write, is opened as JPEG; PPM
#: includes PGM, PBM and PFM.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "PPM")
#: Modules of Pillow for the formats that it does not register by itself.
_PLUGINS = ("PIL.WebPImagePlugin", "PIL.TiffImagePlugin", "PIL.AvifImagePlugin")

_UINT8 = np.dtype(np.uint8)


class SharedImage:
    """An image for several models: it is decoded once, and copied to each CUDA device once.

    The first model that needs it decodes it, in its own thread; others wait for that. Nothing happens before.

    Args:
        source: what `read_image()` takes, on the host.
        pools: memory on the devices, which images share one after the other; None is memory of its own.
    """

    __slots__ = ("_decoded", "_error", "_lock", "_on_device", "_pools", "_source", "is_decoded")

    def __init__(self, source: ImageSource | HostImage, pools: UploadPools | None = None) -> None:
        self._source, self._pools = source, pools
        self._lock = threading.Lock()
        self._decoded: HostImage | None = None
        self._error: ImageError | None = None
        #: Whether its pixels are available, so that reading takes no time.
        self.is_decoded = isinstance(source, (np.ndarray, HostImage))
        #: By device and channel order: two models may take an array in different ones.
        self._on_device: dict[tuple[Device, str], DeviceImage] = {}

    def read(self, channel_order: str = "bgr") -> HostImage:
        """The image on the host; see `read_image()`. Raises ImageError each time, where it cannot be read."""
        if self.is_decoded or hasattr(self._source, "__dlpack__"):
            return read_image(self._source, channel_order=channel_order)  # there is nothing to decode
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._decoded is None:
                try:
                    self._decoded = read_image(self._source)
                except ImageError as error:
                    self._error = error
                    raise
            return self._decoded

    def on_device(self, device: str | Device, channel_order: str = "bgr") -> DeviceImage:
        """The image on a CUDA device. It is copied there when the first model uses it; see `uploads`."""
        key = Device.parse(device), channel_order
        known = self._on_device.get(key)
        if known is None:
            image = self.read(channel_order)
            with self._lock:
                known = self._on_device.get(key) or self._to_upload(image, key[0])
                self._on_device[key] = known
        return known

    def _to_upload(self, image: HostImage, device: Device) -> DeviceImage:
        """An image on a device that nothing has used yet. Under the lock."""
        from .uploads import Upload, UploadPools

        for (other, _), known in self._on_device.items():
            if other == device and known.format == image.format:  # the channel order is for arrays alone
                return known
        order = {"gray": "bgr", "nv12": "nv12"}.get(image.format, image.format[:3])
        if self._pools is None:
            self._pools = UploadPools()
        upload = Upload(image.pixels, self._pools.of(device))
        result = DeviceImage(upload, order, image.decoder)
        result.upload = upload
        return result


def is_http(source: object) -> TypeGuard[str]:
    """Whether it is an address that is requested by HTTP."""
    return isinstance(source, str) and source[:8].lower().startswith(("http://", "https://"))


def check_several(items: Any, *, arrays: bool = True) -> None:
    """Raises InputError for one image in place of an iterable of images. Text would be iterated by its characters, and
    an array by its rows.

    Args:
        arrays: whether an array may be one image; the items of a network are arrays of any shape.
    """
    one = isinstance(items, (str, bytes, bytearray, memoryview, os.PathLike, HostImage)) or hasattr(items, "read")
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):  # such as a PIL image
        one = True
    elif arrays and isinstance(items, np.ndarray):
        one = items.ndim < 3 or (items.ndim == 3 and items.shape[-1] in (1, 3, 4))
    if one:
        shown = repr(os.fspath(items)) if isinstance(items, (str, os.PathLike)) else "image"
        raise InputError(
            f"an iterable of images is expected, not one image ({type(items).__name__}); give a list: [{shown}]"
        )


def read_image(
    source: ImageSource | HostImage | SharedImage, *, channel_order: str = "bgr", at_least: SizeLimit | None = None
) -> HostImage:
    """Reads an image.

    Args:
        source: one of the following.

            - The path of a regular file, or an address that begins with `http://` or `https://` (at most 100 MB, within
              30 s).
            - The bytes of an encoded file (JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF or PPM). Its first image is read.
            - A file opened in binary mode, or another stream of bytes. It is read from its start where it can seek.
            - A PIL image.
            - An array or a tensor of uint8 on the host, of NumPy or with DLPack. (H, W) or (H, W, 1) is gray; (H, W, 3)
              and (H, W, 4) are in `channel_order`.
        channel_order: of arrays and tensors, `"bgr"` (as OpenCV gives them) or `"rgb"`; `"nv12"` for frames of a video
            decoder.
        at_least: for JPEG files: returns the (width, height) that is needed of an image whose (width, height) it is
            given. The file is then decoded at 1/2, 1/4 or 1/8 of its size, if that is no less. None decodes in full.

    The EXIF orientation of files is applied, as image viewers do. That of PIL images is applied, too: copies that
    Pillow turns or crops keep the tag. Of 12 and 16 bits the upper 8 are taken. Arrays are not copied, nor are most PIL
    images: the image changes with them.

    Raises:
        ImageError: there is no such file or address, or it is no image or a damaged one, or the array has another type
            or shape.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, channel_order)
    if isinstance(source, HostImage):
        return source
    if isinstance(source, SharedImage):
        return source.read(channel_order)
    if isinstance(source, (str, os.PathLike)):
        if is_http(source):
            return _from_address(source, at_least)
        if not os.fspath(source):
            raise ImageError("the path of the image is empty; give that of a file")
        return _decode_file(Path(os.fsdecode(source)), repr(os.fspath(source)), at_least)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode_file(io.BytesIO(bytes(source)), f"the {memoryview(source).nbytes:,} bytes given", at_least)
    from PIL import Image

    if isinstance(source, Image.Image):
        return _from_pil(source, "the PIL image given")
    if DeviceImage.is_one(source):
        copying = "by to_host()" if isinstance(source, DeviceImage) else "to the host"
        raise ImageError(
            f"the {type(source).__name__} is on a GPU; load the model with device='cuda:0', or copy it {copying}"
        )
    if hasattr(source, "__dlpack__"):
        return _from_array(_from_dlpack(source), channel_order)
    if hasattr(source, "read"):
        return _from_stream(source, at_least)
    raise ImageError(
        "an image is a path, an address, bytes, a file opened in binary mode, a PIL image or an array, "
        f"not {type(source).__name__}"
    )


def image_size(source: Any, channel_order: str = "bgr") -> tuple[int, int] | None:
    """(width, height) of an image as `read_image()` would return it, without decoding it.

    None for addresses, for streams that cannot seek, and for other sources than images.
    """
    try:
        if isinstance(source, SharedImage):
            return image_size(source._source, channel_order)
        if isinstance(source, HostImage):
            return source.size
        if hasattr(source, "shape") and not isinstance(source, memoryview):
            height, width = (int(side) for side in source.shape[:2])
            return width, height * 2 // 3 if channel_order == "nv12" else height
        if is_http(source):
            return None
        return _size_of_file(source)
    except Exception:  # of a decoder; reading the image raises it again
        return None


def _size_of_file(source: Any) -> tuple[int, int] | None:
    from PIL import Image

    if isinstance(source, Image.Image):
        return _size_of_pil(source)
    if isinstance(source, (str, os.PathLike)):
        with open_regular(source) as stream:
            return _size_of_file(stream)
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = io.BytesIO(bytes(source))
    elif not _seekable(source):
        return None
    source.seek(0)
    with open_image(source) as image:  # closes no stream that is given
        return _size_of_pil(image)


def _size_of_pil(image: Image.Image) -> tuple[int, int]:
    # Pillow gives the upright size of a TIFF file, and keeps its orientation until it loads the pixels.
    return image.size if image.format == "TIFF" else upright_size(image.size, orientation_of(image))


def _from_address(url: str, at_least: SizeLimit | None) -> HostImage:
    """The image at an address. The content type is checked before the body is read."""
    from .http import get

    answer = get(url, _may_be_image)
    if answer.body is None:
        raise ImageError(f"{without_password(url)}: its content type is {answer.content_type}, not an image")
    return _decode_file(io.BytesIO(answer.body), without_password(url), at_least)


def _may_be_image(content_type: str) -> bool:
    """Servers use a generic type, or none, for files of unknown type."""
    return content_type.startswith("image/") or content_type in ("", "application/octet-stream", "binary/octet-stream")


def _seekable(stream: Any) -> bool:
    """The SpooledTemporaryFile of Python 3.10 has `seek()` without `seekable()`."""
    return bool(stream.seekable()) if hasattr(stream, "seekable") else hasattr(stream, "seek")


def _from_stream(stream: Any, at_least: SizeLimit | None) -> HostImage:
    what = f"the {type(stream).__name__} given"
    try:
        if _seekable(stream):
            stream.seek(0)
        data = stream.read()
    except UnicodeDecodeError:  # it is open in text mode
        data = ""
    except Exception as error:  # a stream that unpacks or downloads its data has errors of any type
        raise ImageError(f"{what}: cannot be read: {_reason(error)}") from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what}: gives {type(data).__name__}, not bytes; open files in binary mode: open(path, 'rb')")
    return _decode_file(io.BytesIO(data), what, at_least)


def _from_dlpack(source: Any) -> npt.NDArray[Any]:
    """An array of another library on the host, such as a torch tensor."""
    try:
        return np.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ImageError(f"the {type(source).__name__} given cannot be read as an array: {error}") from None


def _from_array(array: npt.NDArray[Any], channel_order: str) -> HostImage:
    if array.dtype != _UINT8:
        raise ImageError(
            f"an image has elements of uint8, not {array.dtype}; scale it to 0..255 and use .astype('uint8')"
        )
    kind = format_of(array.shape, channel_order)
    return HostImage(array.reshape(array.shape[:2]) if kind == "nv12" else array, kind)


# ---- files ----


#: EXIF orientations that exchange width and height.
_SIDEWAYS = frozenset({5, 6, 7, 8})

_ORIENTATION = 0x0112  # the tag of EXIF
_BITS, _PHOTOMETRIC = 0x0102, 0x0106  # tags of TIFF
#: Maximum number of scans of a JPEG file. Encoders write about ten. A scan of 200 bytes takes 0.35 s for 144 million
#: pixels: a file of 1 MB could occupy a processor for half an hour.
MAX_SCANS = 100
#: Maximum number of segments of a JPEG file. The profiles and previews of a large photo take some hundreds.
MAX_SEGMENTS = 10_000
#: The marker of a segment, or of the end of the image. Decoders skip all others, which have no length.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_SEQUENTIAL, _END, _SCAN = frozenset({0xC0, 0xC1, 0xC9}), 0xD9, 0xDA
_JPEG = frozenset({"JPEG", "MPO"})  # the second one is JPEG with further images behind the first
_COLORSPACES = {"RGB": "RGB", "L": "GRAY"}
#: By how much libjpeg can divide the sides of an image at little cost.
_REDUCTIONS = (8, 4, 2)

#: Whether rows and columns are mirrored (after their exchange), by orientation.
_MIRRORED = {
    2: (False, True), 3: (True, True), 4: (True, False),
    5: (False, False), 6: (False, True), 7: (True, True), 8: (True, False),
}  # fmt: skip


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
        importlib.import_module(plugin)
    return tuple(name for name in FORMATS if name in Image.OPEN)


@functools.cache
def _simplejpeg() -> Any:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def has_too_many_scans(data: bytes, at: int = 2, segments: int = 0) -> bool:
    """Whether a JPEG file has more than `MAX_SCANS` scans, or more than `MAX_SEGMENTS` segments.

    A preview in a segment does not count, nor does data behind the end of the image. Of a sequential file whose first
    scan has all components, decoders read that scan alone.

    Args:
        at: the position of a marker that no frame header or scan precedes.
        segments: the number of segments before it.
    """
    scans, components = 0, b""
    for _ in range(segments, MAX_SEGMENTS):
        found = _MARKER.search(data, at)
        if found is None:
            return False
        at = found.end()
        kind, head = data[at - 1], data[at : at + 8]
        if kind == _END:
            return False
        if kind in _SEQUENTIAL:
            components = head[7:8]
        elif kind == _SCAN:
            if not scans and head[2:3] == components:
                return False
            scans += 1
            if scans > MAX_SCANS:
                return True
        at += int.from_bytes(head[:2], "big")
    return True


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an image that Pillow has opened: 1 to 8, 1 where there is none or it cannot be read."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow's parser fails for damaged EXIF data with errors of several types
        return 1
    return orientation if orientation in range(1, 9) else 1


def _decode_file(file: Path | io.BytesIO, what: str, at_least: SizeLimit | None) -> HostImage:
    """The image in a file; see `read_image()`.

    Args:
        what: names it in messages.
    """
    from PIL import UnidentifiedImageError

    try:
        with open_regular(file) if isinstance(file, Path) else file as stream, open_image(stream) as image:
            by = _reduction(image, at_least)
            return _from_jpeg(image, stream, by) or _from_pil(image, what, by)
    except FileNotFoundError:
        raise ImageError(f"no image at {what}{relative_to(file) if isinstance(file, Path) else ''}") from None
    except UnidentifiedImageError:
        raise ImageError(f"{what}: not an image of a format that is read: {', '.join(FORMATS)}") from None
    except IsADirectoryError:
        raise ImageError(f"{what} is a folder; name the images in it") from None
    except ImageError:
        raise
    except Exception as error:  # damaged files take Pillow's decoders to errors of any type
        if isinstance(error, OSError) and error.strerror:  # of the system
            raise ImageError(f"{what}: cannot be read: {error.strerror}; give a regular file, or its bytes") from None
        raise ImageError(f"{what}: cannot be decoded: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _reduction(image: Image.Image, at_least: SizeLimit | None) -> int:
    """By how much (8, 4, 2 or 1) the sides of an image are divided while it is decoded."""
    if at_least is None or image.format not in _JPEG:
        return 1
    size = upright_size(image.size, orientation_of(image))
    least = at_least(size)
    return next(
        (by for by in _REDUCTIONS if all(-(-side // by) >= wanted for side, wanted in zip(size, least, strict=True))), 1
    )


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation in _SIDEWAYS else size


def _from_jpeg(image: Image.Image, stream: BinaryIO, by: int) -> HostImage | None:
    """A JPEG file by `simplejpeg`; None where Pillow decodes it: without `simplejpeg`, and for other colour spaces and
    damaged files.

    Args:
        image: the file as Pillow has opened it, and not loaded.
        by: see `_reduction()`.
    """
    if image.format not in _JPEG:
        return None
    if isinstance(stream, io.BytesIO):
        data = stream.getvalue()  # without a copy
    else:
        stream.seek(0)
        data = stream.read()
    if has_too_many_scans(data):
        raise ImageError(
            f"the JPEG file has more than {MAX_SCANS} scans or {MAX_SEGMENTS:,} segments, which take too long to "
            "decode; encode it again"
        )
    module, colorspace = _simplejpeg(), _COLORSPACES.get(image.mode)
    if module is None or colorspace is None:
        return None
    width, height = (-(-side // by) for side in image.size)
    try:
        pixels = module.decode_jpeg(data, colorspace, min_width=width, min_height=height, min_factor=by)
    except (ValueError, RuntimeError):  # damaged: Pillow repairs it, or has the words for it
        return None
    if pixels.shape[:2] != (height, width):
        return None
    orientation = orientation_of(image)
    reduced_from = upright_size(image.size, orientation) if by > 1 else None
    kind, pixels = ("gray", pixels[:, :, 0]) if colorspace == "GRAY" else ("rgb", pixels)
    return HostImage(_upright(pixels, orientation), kind, "simplejpeg", reduced_from)


def _upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """As `ImageOps.exif_transpose()`, which rewrites the rest of the EXIF data too, and fails where that is damaged."""
    if orientation == 1:
        return pixels
    if orientation in _SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _MIRRORED[orientation]
    return np.ascontiguousarray(pixels[:: -1 if rows else 1, :: -1 if columns else 1])


def _from_pil(image: Image.Image, what: str, by: int = 1) -> HostImage:
    """A PIL image, set upright, in a mode that the kernels read. `by`: see `_reduction()`."""
    decoder, size = None if image.format is None else "pillow", image.size
    if 0 in size:
        raise ImageError(f"{what} is {size[0]} x {size[1]} and has no pixel; give an image with at least one")
    try:
        if by > 1:
            image.draft(None, (size[0] // by, size[1] // by))  # Pillow divides by whole numbers.
        image.load()  # some formats have their EXIF data after the pixels.
        orientation = orientation_of(image)
        reduced_from = upright_size(size, orientation) if by > 1 else None
        deep = image.mode == "I" and image.format == "PPM"  # of PGM, whose numbers Pillow scales to 16 bits
        if deep or image.mode.startswith("I;16"):  # Pillow would clip at 255, and so make nearly all of it white
            tags = getattr(image, "tag_v2", {})
            gray = (np.asarray(image) >> (tags.get(_BITS, (16,))[0] - 8)).astype(np.uint8)  # a TIFF file may have 12
            if tags.get(_PHOTOMETRIC) == 0:  # white is 0, which Pillow inverts in 8 bits only
                gray = ~gray
            return HostImage(_upright(gray, orientation), "gray", decoder)
        if image.mode in ("I", "F"):
            raise ImageError(
                f"{what}: its pixels are numbers of 32 bits or signed ones, whose range is unknown; scale "
                "it to 0..255 and give it as an array of uint8"
            )
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    except ImageError:
        raise
    except Exception as error:  # as in _decode_file: the pixels of a file are decoded here
        raise ImageError(f"{what}: cannot be decoded: {_reason(error)}") from error
    kind = {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}[image.mode]
    return HostImage(_upright(pixels_of(image), orientation), kind, decoder, reduced_from)
