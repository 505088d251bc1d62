"""What older releases of Pillow resize in another order of rows and columns."""

from __future__ import annotations

import PIL

_OLD = int(PIL.__version__.partition(".")[0]) < 13


def order_differs(size: tuple[int, int], target: tuple[int, int]) -> bool:
    """Whether the installed Pillow resizes the rows first where Pillow 13, and so the core, begins with the columns."""
    (width, height), (w, h) = size, target
    return _OLD and height - h > max(0, 2 * (width - w))
