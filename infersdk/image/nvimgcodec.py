"""JPEG files decoded in batches on a CUDA device, by nvImageCodec.

The device has engines of its own for JPEG, which decode while its cores run a model. The pixels differ slightly from
those that the processor decodes: the colours are upsampled by another rule.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import threading
from collections import deque
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.files import open_regular
from ..core.stream import Event, Stream
from ..core.tensor import Tensor
from ..errors import BackendUnavailableError
from .images import DeviceImage, DevicePixels
from .sources import MAX_SEGMENTS, has_too_many_scans, is_http, open_image, orientation_of, read_image, upright_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.device import Device

__all__ = [
    "NAME", "DecodedBatch", "EncodedImage", "JpegDecoder", "encoded_image", "header_of", "is_installed",
    "shared_decoder",
]  # fmt: skip

#: The name of this decoder, in results.
NAME = "nvimgcodec"
_HINT = 'pip install "infersdk[gpu-decode]"'
#: Sets of images that are kept for batches to come: one is filled while models read the others.
_SPARE = 4

_MARKER, _APP1, _APP14, _END, _BITS = 0xFF, 0xE1, 0xEE, b"\xff\xd9", 8
#: Markers of frames that are coded with Huffman's code, baseline and progressive.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})


class EncodedImage(NamedTuple):
    """A JPEG file that is decoded on the device, with its whole batch.

    Attributes:
        data: the file.
        size: (width, height) of the image, upright.
        decoder: None: it is not decoded yet.
    """

    data: bytes
    size: tuple[int, int]
    decoder: str | None = None


def encoded_image(source: Any) -> EncodedImage | None:
    """A path or the bytes of a JPEG file that can be decoded on a device; None for every other source.

    Raises:
        ImageError: there is no such file, or it cannot be read.
    """
    if isinstance(source, (str, os.PathLike)) and not is_http(source):
        try:
            with open_regular(source) as file:
                data = file.read()
        except OSError:
            return None  # the reader on the processor raises the error
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    else:
        return None
    size = header_of(data)
    return None if size is None else EncodedImage(data, size)


def header_of(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG file, upright, from its markers alone; None for files that a device does not decode.

    A device decodes files of gray or of Y, Cb and Cr in 8 bits, within the limits of pixels and scans. Pillow decodes
    the other ones, and refuses files beyond the limits and those that are cut off, which a device fills up with gray.
    """
    if data[:2] != b"\xff\xd8":
        return None
    at, orientation, is_rgb = 2, 1, False
    for segments in range(MAX_SEGMENTS):
        if at + 9 >= len(data) or data[at] != _MARKER:
            return None
        kind = data[at + 1]
        if kind == _MARKER:  # a fill byte
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == _APP1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data)
        elif kind == _APP14 and data[at + 4 : at + 9] == b"Adobe":
            is_rgb = data[at + 15 : at + 16] == b"\0"  # no transform of colours
        elif kind in _FRAMES:
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            components, identifiers = data[at + 9], data[at + 10 : at + 19 : 3]
            if data[at + 4] != _BITS or components not in (1, 3) or not width or not height:
                return None
            if (components == 3 and (is_rgb or identifiers == b"RGB")) or data.rfind(_END, at) < 0:
                return None
            if _is_too_large((width, height)) or has_too_many_scans(data, at, segments):
                return None
            return upright_size((width, height), orientation)
        at += 2 + length
    return None


def _orientation(data: bytes) -> int:
    """The EXIF orientation, as Pillow reads it."""
    try:
        with open_image(io.BytesIO(data)) as image:
            return orientation_of(image)
    except Exception:  # decoding the file raises it again
        return 1


def _is_too_large(size: tuple[int, int]) -> bool:
    """Whether Pillow refuses an image of (width, height) as a decompression bomb."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return limit is not None and size[0] * size[1] > 2 * limit


class DecodedBatch(NamedTuple):
    """The images of a batch on the device, and the memory that they are in.

    Attributes:
        images: in the order of the files.
        memory: give it to `JpegDecoder.recycle()` when no work on the device reads the images any more.
    """

    images: list[DeviceImage]
    memory: list[Any]


class JpegDecoder:
    """Decodes batches of JPEG files on one device, one batch after another, on a stream of its own.

    Several threads may use it: they take turns. Two that decode at the same time would be slower than one.

    Args:
        device: a CUDA device.

    Raises:
        BackendUnavailableError: nvImageCodec is not installed, or finds no decoder on this device.
    """

    def __init__(self, device: Device) -> None:
        self._module = module = _nvimgcodec()
        self._stream = _stream_of(os.getpid(), device)
        self._device = device
        try:
            self._decoder = module.Decoder(device_id=device.index, options=":fancy_upsampling=1")
        except RuntimeError as error:
            raise BackendUnavailableError(
                f"decode='gpu': nvImageCodec finds no decoder on {device}: {error}; install nvidia-nvjpeg "
                f"({_HINT}), or use decode='cpu'"
            ) from None
        self._params = module.DecodeParams(
            apply_exif_orientation=True, color_spec=module.ColorSpec.SRGB, sample_format=module.SampleFormat.I_RGB
        )
        self._lock = threading.Lock()
        self._spare: deque[list[Any]] = deque(maxlen=_SPARE)

    def decode(self, files: Sequence[EncodedImage]) -> DecodedBatch:
        """The images on the device, in RGB. Other files are decoded on the processor, and copied.

        Each image names its decoder. Work on another stream waits for the decoding by `DeviceImage.on()`.

        Raises:
            ImageError: a file is damaged.
        """
        streams = [self._parsed(file) for file in files]
        with self._lock:
            decoded = self._decode(streams)
            ready = Event(self._device).record(self._stream)
        images = []
        for file, one in zip(files, decoded, strict=True):
            # The processor reads files again whose header is wrong.
            if one is None or tuple(one.shape) != (file.size[1], file.size[0], 3):
                images.append(self._by_processor(file))
            else:
                # Borrowing each image by DLPack slows the decoder down: a tenth fewer images a second.
                address = one.__cuda_array_interface__["data"][0]
                pixels = DevicePixels(address, file.size, 3 * file.size[0], self._device, ready, one)
                images.append(DeviceImage(pixels, "rgb", NAME))
        return DecodedBatch(images, [one for one in decoded if one is not None])

    def _parsed(self, file: EncodedImage) -> Any:
        """The parsed headers of a file; None where nvImageCodec does not take it for an image."""
        try:
            return self._module.CodeStream(file.data)
        except RuntimeError:
            return None

    def _decode(self, streams: Sequence[Any]) -> Sequence[Any]:
        known = [one for one in streams if one is not None]
        settings: dict[str, Any] = {"params": self._params, "cuda_stream": self._stream.handle}
        reused = self._reusable(len(known))
        if reused is not None:
            settings["images"] = reused
        result = iter(self._decoder.decode(known, **settings) if known else [])
        return [None if one is None else next(result) for one in streams]

    def _reusable(self, count: int) -> list[Any] | None:
        """Images of an earlier batch whose memory is free: allocating on a device would hold up its other work."""
        for _ in range(len(self._spare)):
            spare = self._spare.popleft()
            if len(spare) >= count > 0:
                return spare[:count]
            self._spare.append(spare)
        return None

    def recycle(self, batch: DecodedBatch) -> None:
        """The memory of this batch may be written again. It does not wait for a batch that is decoded."""
        if batch.memory:
            self._spare.append(batch.memory)

    def _by_processor(self, file: EncodedImage) -> DeviceImage:
        image = read_image(file.data)  # RGB or gray: those are the formats of JPEG files
        pixels = image.pixels if image.format == "rgb" else np.repeat(image.pixels[..., None], 3, axis=2)
        tensor = Tensor.wrap(np.ascontiguousarray(pixels), self._device)
        tensor.device_ptr()  # copies now
        return DeviceImage(tensor, "rgb", image.decoder)

    def close(self) -> None:
        """Frees the decoder and the memory that it keeps."""
        with self._lock:
            self._spare.clear()
            self._decoder = None


@cache
def _stream_of(process: int, device: Device) -> Stream:
    """The stream of all decoders on a device. An image frees its memory on the stream that decoded it, however late it
    is collected; so this stream is never destroyed, not even when the process ends."""
    stream = Stream(device)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
    return stream


@lru_cache(maxsize=16)
def _decoder_of(process: int, device: Device) -> JpegDecoder:
    return JpegDecoder(device)


def shared_decoder(device: Device) -> JpegDecoder:
    """The decoder that the models of this process share on a device. Errors are those of `JpegDecoder`."""
    return _decoder_of(os.getpid(), device)


def is_installed() -> bool:
    """Whether nvImageCodec is installed. Nothing is imported."""
    from importlib.util import find_spec

    try:
        return find_spec("nvidia.nvimgcodec") is not None
    except ModuleNotFoundError:
        return False


def _nvimgcodec() -> Any:
    # Fewer messages about formats whose libraries are not installed. It reads this when it is imported.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    try:
        return importlib.import_module("nvidia.nvimgcodec")
    except ImportError as error:
        raise BackendUnavailableError(
            f"decode='gpu' needs nvImageCodec, which is not installed ({error}): {_HINT}"
        ) from None
