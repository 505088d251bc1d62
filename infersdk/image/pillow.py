"""The pixels of PIL images without a copy.

`np.asarray(image)` runs an encoder over the image, which takes about as long as decoding a JPEG file. Pillow
exports its memory by Arrow's C data interface, and nothing is copied. The modes are those of one byte ("L") or
four bytes a pixel ("RGB", whose fourth byte is padding, and "RGBA").
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.exchange import pointer_of

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image

__all__ = ["pixels_of"]

_MODES = {"L": 1, "RGB": 4, "RGBA": 4}  # bytes a pixel in Pillow's memory
_STRIP = 4 << 20  # bytes; strips of 16 MB take longer, because the system maps new memory for each of them


class _ArrowArray(ctypes.Structure):
    """struct ArrowArray of https://arrow.apache.org/docs/format/CDataInterface.html, as far as it is read."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.POINTER(ctypes.c_void_p)),
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


def _core() -> Any:
    """Pillow's C module, which knows the layout of its memory; environment variables can change the layout."""
    from PIL import Image

    return Image.core  # type: ignore[attr-defined]


def _lent(image: Image.Image) -> npt.NDArray[np.uint8] | None:
    """Pillow's own pixels, (H, W) or (H, W, 4); None unless Pillow exports them as one block without gaps."""
    size, channels = image.width * image.height, _MODES[image.mode]
    # A read-only image is in other memory, such as a mapped file. With an alignment there are gaps between rows.
    if not size or image.readonly or _core().get_alignment() != 1:
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except ValueError:  # it is in several blocks
        return None
    array = _ArrowArray.from_address(pointer_of(id(capsule), b"arrow_array"))
    values = array if channels == 1 else _ArrowArray.from_address(array.children[0])
    address = values.buffers[1]
    if not address or values.length != size * channels or values.offset or array.offset:
        return None
    shape = (image.height, image.width, channels)[: 2 if channels == 1 else 3]
    return np.asarray(_Lent(capsule, address, shape))


def _copied(image: Image.Image) -> npt.NDArray[np.uint8] | None:
    """A copy made strip by strip, each of which fits a block: in a third of the time of NumPy's conversion."""
    width, height = image.size
    if not width:
        return None
    channels = _MODES[image.mode]
    rows = max(min(_core().get_block_size(), _STRIP) // (channels * width), 1)
    whole = np.empty((height, width) if channels == 1 else (height, width, channels), np.uint8)
    for top in range(0, height, rows):
        strip = _lent(image.crop((0, top, width, min(top + rows, height))))
        if strip is None:
            return None
        whole[top : top + rows] = strip
    whole.flags.writeable = False
    return whole
