"""Pictures from wherever they come: files, bytes, PIL images, NumPy arrays.

Nothing is resized or scaled here. A picture stays as it was decoded, with a word on how its channels are ordered; the
preprocessing kernels read any of these orders directly.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .errors import ImageError

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

__all__ = ["Picture", "PictureSource", "read_picture"]

PictureSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | npt.NDArray[Any]"


class Picture(NamedTuple):
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


def read_picture(source: PictureSource | Picture, *, channel_order: str = "bgr") -> Picture:
    """The picture that `source` is or names.

    Args:
        source: a path, the bytes of an encoded file, a PIL image, or a uint8 array: (H, W) or (H, W, 1) is gray,
            (H, W, 3) and (H, W, 4) are in `channel_order`.
        channel_order: of arrays, `"bgr"` (as OpenCV gives them) or `"rgb"`; `"nv12"` for frames of a video decoder.

    The EXIF orientation of files is applied, as image viewers do.

    Raises:
        ImageError: there is no such file, it is truncated or no picture, or the array is none.
    """
    if isinstance(source, Picture):
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
    raise ImageError(f"a picture is a path, bytes, a PIL image or a NumPy array, not {type(source).__name__}")


def _from_array(array: npt.NDArray[Any], channel_order: str) -> Picture:
    if array.dtype != np.uint8:
        raise ImageError(
            f"a picture has elements of uint8, not {array.dtype}; scale it to 0..255 and use .astype('uint8')"
        )
    channels = 1 if array.ndim == 2 else array.shape[2] if array.ndim == 3 else 0
    if channels not in (1, 3, 4) or 0 in array.shape:
        raise ImageError(f"a picture has shape (height, width) or (height, width, 1, 3 or 4), not {array.shape}")
    if channel_order == "nv12":
        if channels != 1 or array.shape[0] % 3 or array.shape[1] % 2:
            raise ImageError(f"an NV12 frame has shape (height * 3 / 2, width), both even, not {array.shape}")
        return Picture(array.reshape(array.shape[:2]), "nv12")
    if channel_order not in ("bgr", "rgb"):
        raise ImageError(f"channel_order {channel_order!r} is none of 'bgr', 'rgb', 'nv12'")
    return Picture(array, {1: "gray", 3: channel_order, 4: f"{channel_order}a"}[channels])


def _decode(file: Path | io.BytesIO, what: str) -> Picture:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _from_pil(image, what)
    except FileNotFoundError:
        raise ImageError(f"no picture at {what}; the path is relative to {os.getcwd()}") from None
    except UnidentifiedImageError:
        raise ImageError(f"{what}: not a picture of a kind that can be read") from None
    except ImageError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow's decoders raise
        raise ImageError(f"{what}: cannot be decoded: {error}") from None


def _from_pil(image: Image.Image, what: str) -> Picture:
    from PIL import ImageOps

    try:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"{what}: cannot be decoded: {error}") from None
    return Picture(np.asarray(image), {"L": "gray", "RGB": "rgb", "RGBA": "rgba"}[image.mode])
