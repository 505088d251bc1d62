"""Images from wherever they come: files, bytes, PIL images, NumPy arrays.

Nothing is resized or scaled here. An image stays as it was decoded, with a word on how its channels are ordered; the
preprocessing kernels read any of these orders directly.
"""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .._pillow import pixels_of
from ..errors import ImageError, relative_to
from .view import device_image_view

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

__all__ = ["DeviceImage", "HostImage", "ImageSource", "read_image"]

_ORIENTATION = 0x0112  # the tag of EXIF

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | npt.NDArray[Any]"


class HostImage(NamedTuple):
    """Pixels with their order.

    Attributes:
        pixels: uint8, (height, width) or (height, width, channels); NV12 as (height * 3 / 2, width).
        format: `"bgr"`, `"rgb"`, `"bgra"`, `"rgba"`, `"gray"` or `"nv12"`.
    """

    pixels: npt.NDArray[np.uint8]
    format: str

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        height, width = self.pixels.shape[:2]
        return width, height * 2 // 3 if self.format == "nv12" else height


class DeviceImage:
    """An image on a CUDA device: a torch, CuPy or other array of uint8, (H, W), (H, W, 3 or 4) or NV12.

    Attributes:
        size: (width, height) in pixels.
        format: as of `HostImage`.
    """

    def __init__(self, source: Any, channel_order: str = "bgr") -> None:
        self._source = source
        self._tensor: Any = None
        shape = tuple(int(side) for side in source.shape)
        self.format = _format_of(shape, channel_order)
        self.size = (shape[1], shape[0] * 2 // 3 if self.format == "nv12" else shape[0])

    def on(self, stream: Any) -> DeviceImage:
        """Borrowed for work on `stream`, which waits for whatever still writes it; returns the image itself."""
        from ..tensor import Tensor

        tensor = Tensor.from_dlpack(self._source, stream=stream)
        if tensor.dtype != np.uint8:
            raise ImageError(f"an image has elements of uint8, not {tensor.dtype}; scale it to 0..255 and convert it")
        if tensor.device != stream.device:
            raise ImageError(f"the image lies on {tensor.device}, the model on {stream.device}; bring them together")
        self._tensor, self._at = tensor, tensor.device_ptr(stream=stream)
        return self

    def view(self) -> Any:
        """What the kernels take."""
        return device_image_view(self._at, self.size, self.format, lender=self._tensor)  # type: ignore[arg-type]

    @staticmethod
    def is_one(source: object) -> bool:
        """Whether `source` lies on a CUDA device and says so through DLPack."""
        ask = getattr(source, "__dlpack_device__", None)
        return ask is not None and not isinstance(source, np.ndarray) and int(ask()[0]) == 2  # kDLCUDA


def read_image(source: ImageSource | HostImage, *, channel_order: str = "bgr") -> HostImage:
    """The image that `source` is or names.

    Args:
        source: a path, the bytes of an encoded file, a PIL image, or a uint8 array: (H, W) or (H, W, 1) is gray,
            (H, W, 3) and (H, W, 4) are in `channel_order`.
        channel_order: of arrays, `"bgr"` (as OpenCV gives them) or `"rgb"`; `"nv12"` for frames of a video decoder.

    The EXIF orientation of files is applied, as image viewers do; of 16 bits the upper 8 are taken. Arrays are not
    copied, nor are most PIL images: the image changes with them.

    Raises:
        ImageError: there is no such file, it is truncated or no image, or the array is none.
    """
    if isinstance(source, HostImage):
        return source
    if isinstance(source, np.ndarray):
        return _from_array(source, channel_order)
    if isinstance(source, (str, os.PathLike)):
        return _decode(Path(source), repr(os.fspath(source)))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), f"the {len(source)} bytes given")
    from PIL import Image

    if isinstance(source, Image.Image):
        return _from_pil(source, "the PIL image given")
    if DeviceImage.is_one(source):
        raise ImageError(
            f"the {type(source).__name__} lies on a GPU; load the model with device='cuda:0', or copy it home"
        )
    if hasattr(source, "__dlpack__"):  # a torch tensor on the host, say
        return _from_array(np.from_dlpack(source), channel_order)
    raise ImageError(f"an image is a path, bytes, a PIL image or a NumPy array, not {type(source).__name__}")


def _from_array(array: npt.NDArray[Any], channel_order: str) -> HostImage:
    if array.dtype != np.uint8:
        raise ImageError(
            f"an image has elements of uint8, not {array.dtype}; scale it to 0..255 and use .astype('uint8')"
        )
    kind = _format_of(array.shape, channel_order)
    return HostImage(array.reshape(array.shape[:2]) if kind == "nv12" else array, kind)


def _format_of(shape: tuple[int, ...], channel_order: str) -> str:
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if channels not in (1, 3, 4) or 0 in shape:
        raise ImageError(f"an image has shape (height, width) or (height, width, 1, 3 or 4), not {shape}")
    if channel_order == "nv12":
        if channels != 1 or shape[0] % 3 or shape[1] % 2:
            raise ImageError(f"an NV12 frame has shape (height * 3 / 2, width), both even, not {shape}")
        return "nv12"
    if channel_order not in ("bgr", "rgb"):
        raise ImageError(f"channel_order {channel_order!r} is none of 'bgr', 'rgb', 'nv12'")
    return {1: "gray", 3: channel_order, 4: f"{channel_order}a"}[channels]


def _decode(file: Path | io.BytesIO, what: str) -> HostImage:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _from_pil(image, what)
    except FileNotFoundError:
        raise ImageError(f"no image at {what}{relative_to(file) if isinstance(file, Path) else ''}") from None
    except IsADirectoryError:
        raise ImageError(f"{what} is a folder; name the images in it") from None
    except UnidentifiedImageError:
        raise ImageError(f"{what}: not an image of a kind that can be read") from None
    except ImageError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow's decoders raise
        raise ImageError(f"{what}: cannot be decoded: {error}") from None


@functools.cache
def _turns() -> dict[int, Image.Transpose]:
    """What sets an image upright, by its orientation."""
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


def _from_pil(image: Image.Image, what: str) -> HostImage:
    try:
        image.load()
        # Not ImageOps.exif_transpose(): it writes the rest of the EXIF data anew, and fails where that is damaged.
        if (turn := _turns().get(image.getexif().get(_ORIENTATION, 1))) is not None:
            image = image.transpose(turn)
        if image.mode.startswith("I;16"):  # Pillow would clip at 255, and so make nearly all of it white
            return HostImage((np.asarray(image) >> 8).astype(np.uint8), "gray")
        if image.mode in ("I", "F"):
            raise ImageError(
                f"{what}: its pixels are numbers of 32 bits, which do not say what is black and what is white; scale "
                "it to 0..255 and give it as an array of uint8"
            )
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    except ImageError:
        raise
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"{what}: cannot be decoded: {error}") from None
    return HostImage(pixels_of(image), {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}[image.mode])
