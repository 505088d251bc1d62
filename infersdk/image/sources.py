"""Images from files, addresses, bytes, streams, PIL images, NumPy arrays and tensors.

Images keep their size and the order of their channels; the preprocessing kernels read any of these orders.
"""

from __future__ import annotations

import functools
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from ..core.device import Device
from ..errors import ImageError, relative_to
from .jpeg import MAX_SCANS, PILLOW, SIDEWAYS, decode_jpeg, has_too_many_scans, is_jpeg, orientation_of, reduction
from .pillow import FORMATS, open_image, pixels_of
from .uploads import Upload, UploadPools
from .view import device_image_view

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

    from ..core.stream import Event

__all__ = ["DeviceImage", "HostImage", "ImageSource", "SharedImage", "image_size", "is_http", "read_image"]

#: Whether rows and columns are mirrored (after their exchange), by orientation.
_MIRRORED = {
    2: (False, True), 3: (True, True), 4: (True, False),
    5: (False, False), 6: (False, True), 7: (True, True), 8: (True, False),
}  # fmt: skip

#: The (width, height) that is needed of an image of (width, height).
SizeLimit: TypeAlias = Callable[[tuple[int, int]], tuple[int, int]]

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Image.Image | npt.NDArray[Any]"
)

_UINT8 = np.dtype(np.uint8)


class HostImage(NamedTuple):
    """Pixels with their order.

    Attributes:
        pixels: uint8, (height, width) or (height, width, channels); NV12 as (height * 3 / 2, width).
        format: `"bgr"`, `"rgb"`, `"bgra"`, `"rgba"`, `"gray"` or `"nv12"`.
        decoder: what decoded the file: `"simplejpeg"`, `"pillow"`, ...; None for pixels that came as an array.
        reduced_from: (width, height) of the file, where `read_image(at_least=...)` decoded it at a reduced size.
    """

    pixels: npt.NDArray[np.uint8]
    format: str
    decoder: str | None = None
    reduced_from: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, of the whole image: where it was decoded at a reduced size, that of the file."""
        if self.reduced_from is not None:
            return self.reduced_from
        height, width = self.pixels.shape[:2]
        return width, height * 2 // 3 if self.format == "nv12" else height

    @property
    def pixel_size(self) -> tuple[int, int]:
        """(width, height) of `pixels`."""
        height, width = self.pixels.shape[:2]
        return width, height * 2 // 3 if self.format == "nv12" else height

    def crop(self, edges: tuple[int, int, int, int]) -> HostImage:
        """A part of the image, by its left, top, right and bottom edge in pixels. It shares the pixels.

        Raises:
            ImageError: it is an NV12 frame, or the part lies outside the image or is empty.
        """
        left, top, right, bottom = check_crop(edges, self.pixel_size, self.format)
        return HostImage(self.pixels[top:bottom, left:right], self.format, self.decoder)


@dataclass(frozen=True)
class Planes:
    """The planes of an NV12 frame on a CUDA device. Nothing writes to them after `ready`, as long as this object lives.

    Attributes:
        address: of the first byte of Y.
        size: (width, height) in pixels.
        stride: bytes from a row to the next, in both planes.
        chroma: bytes from the first row of Y to that of U and V.
        device: the CUDA device.
        ready: the event after which the pixels are there.
        lender: keeps the memory.
    """

    address: int
    size: tuple[int, int]
    stride: int
    chroma: int
    device: Device
    ready: Event
    lender: object

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a dense array of this frame: (height * 3 / 2, width)."""
        return self.size[1] * 3 // 2, self.size[0]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.index  # kDLCUDA

    def to_host(self) -> npt.NDArray[np.uint8]:
        """A copy as a dense array of `shape`."""
        from ..core.tensor import Tensor

        self.ready.synchronize()
        width, height = self.size
        rows = height // 2
        memory = Tensor._over(self.address, (self.chroma + rows * self.stride,), "uint8", self.device, lender=self)
        array = memory.numpy()
        luma = array[: height * self.stride].reshape(height, self.stride)
        chroma = array[self.chroma :].reshape(rows, self.stride)
        return np.concatenate([luma[:, :width], chroma[:, :width]])


class DeviceImage:
    """An image on a CUDA device: an array of torch, CuPy or another library; uint8, (H, W), (H, W, 3 or 4) or NV12.

    Args:
        source: the array, an `Upload`, or `Planes`.
        channel_order, decoder: see `HostImage`.
        lender: is kept as long as the image, its parts and its twins.

    Attributes:
        size: (width, height) in pixels.
        format, decoder: as of `HostImage`.
        upload: that of an image of the host, which several models share; None for an array of another library.
    """

    def __init__(
        self, source: Any, channel_order: str = "bgr", decoder: str | None = None, lender: object = None
    ) -> None:
        self._source, self._lender = source, lender
        self.upload = source if isinstance(source, Upload) else None
        self.decoder = decoder
        self._tensor: Any = None
        shape = tuple(int(side) for side in source.shape)
        self.format = _format_of(shape, channel_order)
        self.size = (shape[1], shape[0] * 2 // 3 if self.format == "nv12" else shape[0])
        self._pixel = shape[2] if len(shape) == 3 else 1
        self._planes = source if isinstance(source, Planes) else None
        self._stride = shape[1] * self._pixel if self._planes is None else self._planes.stride
        self._corner = (0, 0)

    @property
    def device(self) -> Device:
        """The CUDA device that it lies on."""
        return Device("cuda", int(self._source.__dlpack_device__()[1]))

    def on(self, stream: Any) -> DeviceImage:
        """Borrows the memory for work on `stream`, which waits for what still writes to it. Returns itself.

        The caller keeps the image until that work is done.
        """
        x, y = self._corner
        corner = y * self._stride + x * self._pixel
        if self.upload is not None:
            self._at = self.upload.on(stream) + corner
            return self
        if self._planes is not None:
            if self._planes.device != stream.device:
                raise ImageError(f"the image is on {self._planes.device}, the model on {stream.device}; copy it there")
            stream.wait(self._planes.ready)
            self._tensor, self._at = self._planes, self._planes.address
            return self
        from ..core.tensor import Tensor

        tensor = Tensor.from_dlpack(self._source, stream=stream)
        if tensor.dtype != np.uint8:
            raise ImageError(f"an image has elements of uint8, not {tensor.dtype}; scale it to 0..255 and convert it")
        if tensor.device != stream.device:
            raise ImageError(f"the image is on {tensor.device}, the model on {stream.device}; copy it there")
        self._tensor, self._at = tensor, tensor.device_ptr(stream=stream) + corner
        return self

    def to_host(self) -> HostImage:
        """A copy of the image on the host."""
        from ..core.tensor import Tensor

        if self._planes is not None:
            return HostImage(self._planes.to_host(), self.format, self.decoder)
        pixels = Tensor.from_dlpack(self._source).numpy().copy()
        image = HostImage(
            pixels.reshape(pixels.shape[:2]) if self.format == "nv12" else pixels, self.format, self.decoder
        )
        (left, top), (width, height) = self._corner, self.size
        whole = (left, top) == (0, 0) and self.size == image.pixel_size
        return image if whole else image.crop((left, top, left + width, top + height))

    def view(self) -> Any:
        """The view for the kernels."""
        uv = None if self._planes is None else self._at + self._planes.chroma
        return device_image_view(self._at, self.size, self.format, stride=self._stride, uv=uv, lender=self._tensor)  # type: ignore[arg-type]

    def crop(self, edges: tuple[int, int, int, int]) -> DeviceImage:
        """A part of the image; see `HostImage.crop()`. It shares the memory."""
        left, top, right, bottom = check_crop(edges, self.size, self.format)
        part = self.twin()
        part._corner = (self._corner[0] + left, self._corner[1] + top)
        part.size = (right - left, bottom - top)
        return part

    def twin(self) -> DeviceImage:
        """The same image, to be borrowed by another one."""
        twin = DeviceImage.__new__(DeviceImage)
        twin.__dict__.update(self.__dict__)
        return twin

    @staticmethod
    def is_one(source: object) -> bool:
        """Whether `source` is on a CUDA device: a DeviceImage, or an array with DLPack on one."""
        if isinstance(source, DeviceImage):
            return True
        ask = getattr(source, "__dlpack_device__", None)
        if ask is None or isinstance(source, np.ndarray):
            return False
        try:
            return int(ask()[0]) == 2  # kDLCUDA
        except Exception:  # of a device that DLPack does not know, such as torch's "meta"
            return False


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
        if self._pools is None:
            self._pools = UploadPools()
        for (other, _), known in self._on_device.items():
            if other == device and known.format == image.format:  # the channel order is for arrays alone
                return known
        order = {"gray": "bgr", "nv12": "nv12"}.get(image.format, image.format[:3])
        return DeviceImage(Upload(image.pixels, self._pools.of(device)), order, image.decoder)


def check_crop(edges: tuple[int, int, int, int], size: tuple[int, int], pixel_format: str) -> tuple[int, int, int, int]:
    """The edges of a part of an image. Raises ImageError for one that cannot be cut out."""
    left, top, right, bottom = edges
    if pixel_format == "nv12":
        raise ImageError("a part of an NV12 frame cannot be cut out; convert the frame to BGR first")
    if not (0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]):
        raise ImageError(f"the part with edges {tuple(edges)} is empty, or outside the image of {size[0]} x {size[1]}")
    return left, top, right, bottom


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
        return _decode(Path(source), repr(os.fspath(source)), at_least)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), f"the {memoryview(source).nbytes:,} bytes given", at_least)
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
        return _upright_size(source.size, orientation_of(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = io.BytesIO(source)
    elif not isinstance(source, (str, os.PathLike)):
        if not source.seekable():
            return None
        source.seek(0)
    with open_image(source) as image:  # closes no stream that is given
        return _upright_size(image.size, orientation_of(image))


def _from_address(url: str, at_least: SizeLimit | None) -> HostImage:
    """The image at an address. The content type is checked before the body is read."""
    from .http import get, without_password

    answer = get(url, _may_be_image)
    if answer.body is None:
        raise ImageError(f"{without_password(url)}: its content is {answer.content_type}, and no image")
    return _decode(io.BytesIO(answer.body), without_password(url), at_least)


def _may_be_image(content_type: str) -> bool:
    """Servers use a generic type, or none, for files of unknown type."""
    return content_type.startswith("image/") or content_type in ("", "application/octet-stream", "binary/octet-stream")


def _from_stream(stream: Any, at_least: SizeLimit | None) -> HostImage:
    what = f"the {type(stream).__name__} given"
    try:
        if getattr(stream, "seekable", lambda: False)():
            stream.seek(0)
        data = stream.read()
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise ImageError(f"{what}: cannot be read: {error}") from None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what}: gives {type(data).__name__}, not bytes; open files in binary mode: open(path, 'rb')")
    return _decode(io.BytesIO(data), what, at_least)


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
    kind = _format_of(array.shape, channel_order)
    return HostImage(array.reshape(array.shape[:2]) if kind == "nv12" else array, kind)


def _format_of(shape: tuple[int, ...], channel_order: str) -> str:
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if channels not in (1, 3, 4) or 0 in shape:
        message = f"an image has shape (height, width) or (height, width, 1, 3 or 4), not {tuple(shape)}"
        if len(shape) == 3 and shape[0] in (1, 3, 4):
            message += "; its channels are first: move them to the end by .permute(1, 2, 0) or .transpose(1, 2, 0)"
        raise ImageError(message)
    if channel_order == "nv12":
        if channels != 1 or shape[0] % 3 or shape[1] % 2:
            raise ImageError(f"an NV12 frame has shape (height * 3 / 2, width), both even, not {shape}")
        return "nv12"
    if channel_order not in ("bgr", "rgb"):
        raise ImageError(f"unknown channel_order {channel_order!r}; use 'bgr', 'rgb' or 'nv12'")
    return "gray" if channels == 1 else channel_order if channels == 3 else f"{channel_order}a"


def _decode(file: Path | io.BytesIO, what: str, at_least: SizeLimit | None) -> HostImage:
    from PIL import UnidentifiedImageError

    try:
        with open(file, "rb") if isinstance(file, Path) else file as stream, open_image(stream) as image:
            return _from_jpeg(image, stream, at_least) or _from_pil(image, what, at_least)
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


@functools.cache
def _transpositions() -> dict[int, Image.Transpose]:
    """What sets an image upright, by its EXIF orientation."""
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }


def _reduction(image: Image.Image, orientation: int, at_least: SizeLimit | None) -> int:
    """By how much a JPEG file is reduced while it is decoded."""
    if at_least is None:
        return 1
    upright = _upright_size(image.size, orientation)
    return reduction(upright, at_least(upright))


def _upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
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
    if orientation != 1:
        pixels = _upright(pixels, orientation)
    reduced_from = _upright_size(image.size, orientation) if by > 1 else None
    return HostImage(pixels, "gray" if pixels.ndim == 2 else "rgb", decoder, reduced_from)


def _upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """As `Image.transpose()`: mirrored rows, mirrored columns, or both; with rows and columns exchanged before."""
    if orientation in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows, columns = _MIRRORED[orientation]
    return np.ascontiguousarray(pixels[:: -1 if rows else 1, :: -1 if columns else 1])


def _from_pil(image: Image.Image, what: str, at_least: SizeLimit | None = None) -> HostImage:
    decoder, reduced_from = None if image.format is None else PILLOW, None
    try:
        orientation = None
        if at_least is not None and is_jpeg(image):
            orientation = orientation_of(image)
            if (by := _reduction(image, orientation, at_least)) > 1:
                reduced_from = _upright_size(image.size, orientation)
                image.draft(None, (image.width // by, image.height // by))  # Pillow divides by whole numbers.
        image.load()  # some formats have their EXIF data after the pixels.
        # Not ImageOps.exif_transpose(): it rewrites the rest of the EXIF data, and fails where that is damaged.
        if (upright := _transpositions().get(orientation or orientation_of(image))) is not None:
            image = image.transpose(upright)
        if image.mode.startswith("I;16"):  # Pillow would clip at 255, and so make nearly all of it white
            return HostImage((np.asarray(image) >> 8).astype(np.uint8), "gray", decoder)
        if image.mode in ("I", "F"):
            raise ImageError(
                f"{what}: its pixels are numbers of 32 bits, which do not say what is black and what is white; scale "
                "it to 0..255 and give it as an array of uint8"
            )
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    except ImageError:
        raise
    except Exception as error:  # as in _decode: a file's pixels are decoded here
        raise ImageError(f"{what}: cannot be decoded: {_reason(error)}") from None
    kind = {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}[image.mode]
    return HostImage(pixels_of(image), kind, decoder, reduced_from)
