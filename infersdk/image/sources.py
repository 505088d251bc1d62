"""Images from files, addresses, bytes, streams, PIL images, NumPy arrays and tensors.

Images keep their size and the order of their channels; the preprocessing kernels read any of these orders.
"""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeGuard

import numpy as np

from ..core.device import Device
from ..errors import ImageError
from .decoding import SizeLimit, decode_file, from_pil, open_image, orientation_of, upright_size
from .images import DeviceImage, HostImage, format_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

    from .uploads import UploadPools

__all__ = ["ImageSource", "SharedImage", "image_size", "is_http", "read_image"]

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Image.Image | npt.NDArray[Any]"
)

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
        return known.twin()  # each model borrows it for work on its own stream

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


def read_image(
    source: ImageSource | HostImage | SharedImage, *, channel_order: str = "bgr", at_least: SizeLimit | None = None
) -> HostImage:
    """Reads an image.

    Args:
        source: one of the following.

            - A path, or an address that begins with `http://` or `https://` (at most 100 MB, within 30 s).
            - The bytes of an encoded file (JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF or PPM). Its first image is read.
            - A file opened in binary mode, or another stream of bytes. It is read from its start where it can seek.
            - A PIL image.
            - An array or a tensor of uint8 on the host, of NumPy or with DLPack. (H, W) or (H, W, 1) is gray; (H, W, 3)
              and (H, W, 4) are in `channel_order`.
        channel_order: of arrays and tensors, `"bgr"` (as OpenCV gives them) or `"rgb"`; `"nv12"` for frames of a video
            decoder.
        at_least: for JPEG files: returns the (width, height) that is needed of an image whose (width, height) it is
            given. The file is then decoded at 1/2, 1/4 or 1/8 of its size, if that is no less. None decodes in full.

    The EXIF orientation of files is applied, as image viewers do; of 16 bits the upper 8 are taken. Arrays are not
    copied, nor are most PIL images: the image changes with them.

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
        return decode_file(Path(source), repr(os.fspath(source)), at_least)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return decode_file(io.BytesIO(source), f"the {memoryview(source).nbytes:,} bytes given", at_least)
    from PIL import Image

    if isinstance(source, Image.Image):
        return from_pil(source, "the PIL image given")
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
        return upright_size(source.size, orientation_of(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = io.BytesIO(source)
    elif not isinstance(source, (str, os.PathLike)):
        if not _seekable(source):
            return None
        source.seek(0)
    with open_image(source) as image:  # closes no stream that is given
        return upright_size(image.size, orientation_of(image))


def _from_address(url: str, at_least: SizeLimit | None) -> HostImage:
    """The image at an address. The content type is checked before the body is read."""
    from .http import get, without_password

    answer = get(url, _may_be_image)
    if answer.body is None:
        raise ImageError(f"{without_password(url)}: its content type is {answer.content_type}, not an image")
    return decode_file(io.BytesIO(answer.body), without_password(url), at_least)


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
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise ImageError(f"{what}: cannot be read: {error}") from None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what}: gives {type(data).__name__}, not bytes; open files in binary mode: open(path, 'rb')")
    return decode_file(io.BytesIO(data), what, at_least)


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
