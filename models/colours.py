"""Colours that stay apart, for classes, tracks and keypoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["colour", "heat", "ink"]

#: Bright, saturated colours of sRGB in steps of 15. Each is the farthest from all before it in OKLab, with a weight of
#: 0.8 for lightness. Two of the first 20 are at least 0.12 apart, two of all at least 0.06.
_HEX = """
ff3c3c00ff001e3cff00783ca5c3ffe100ffffc32d874b875ac3870087c3ff87d2a5690f00ffff9678ffe10f968700e1
e19678a5ff96b41e3c00a500b4a500c369875a5ac3a500a5ffc3ff87d20000c3e1c35ad22d96878796d21e78ff78870f
ff5af0c3d287e16900d296ff2da5ffe1f00000f0b4694bffffc396ff5a96ff9600964b3cb43cffffa5b4b42d78e1005a
0078879669c3c387c378e1ffd200c3d23c0f873cb4ff787869691ec3871e87a56996f0d269d2c300ff87a5ff0078b42d
6978b4005ad2ff00c3ffe1872d964b0069a5c3d22d00d269c3785a6987f0e15ab41eb4a54ba5c3a5a5ff00e11e87e187
b45aa5d2b45aa51ed2e1a5e1874be1c34b5ae178e1d25affd2f0a5e187a500c300a587e16900ff69b4f0695a96ff0ff0
"""
_PALETTE = [tuple(bytes.fromhex(_HEX)[i : i + 3]) for i in range(0, len(bytes.fromhex(_HEX)), 3)]


def colour(number: int) -> tuple[int, int, int]:
    """(red, green, blue) for a number, always the same one; they repeat after 96 numbers."""
    red, green, blue = _PALETTE[number % len(_PALETTE)]
    return red, green, blue


def ink(background: tuple[int, int, int]) -> str:
    """The colour of letters that one can read on this background."""
    red, green, blue = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


#: The colours of `heat()` at equal steps from 0 to 1: black, violet, red, orange, yellow, white.
_HEAT = np.array([(0, 0, 0), (80, 18, 123), (182, 54, 121), (251, 136, 97), (254, 210, 120), (255, 255, 240)])


def heat(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Colours (..., 3) for values from 0 to 1: the higher, the brighter."""
    steps = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(values, steps, _HEAT[:, channel]) for channel in range(3)]
    colours: npt.NDArray[np.uint8] = np.rint(np.stack(channels, -1)).astype(np.uint8)
    return colours
