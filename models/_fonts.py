"""Fonts for labels: Pillow's own, or one of the system that has the characters.

Pillow's font has little beyond ASCII. For all other characters the system is asked through fontconfig's `fc-match`,
which knows the characters of each font.
"""

from __future__ import annotations

import functools
import os
import subprocess
import warnings
from typing import TYPE_CHECKING

from PIL import ImageFont

from ..errors import ConfigError

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["Font", "font_for", "load_font"]

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

_NO_CHARACTER = "\U0010fffd"  # of a private plane: fonts draw their sign for a missing character
_warned: set[str] = set()


def load_font(font: str | os.PathLike[str] | ImageFont.FreeTypeFont, size: int) -> ImageFont.FreeTypeFont:
    """The font in a file, in pixels; a loaded font as it is."""
    if isinstance(font, ImageFont.FreeTypeFont):
        return font
    if not isinstance(font, (str, os.PathLike)):
        raise ConfigError(f"font is {font!r}; give a font file, or a font that ImageFont.truetype() has loaded")
    try:
        return ImageFont.truetype(os.fspath(font), size)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the font {os.fspath(font)!r}: {error}") from None


def font_for(text: str, size: int) -> Font:
    """The font for `text`: Pillow's own where that has all characters, or else the font of the system that has most.

    A RuntimeWarning names the characters that the font lacks, each once.
    """
    return _font_for(frozenset(text), size)


@functools.lru_cache(maxsize=1024)
def _font_for(characters: frozenset[str], size: int) -> Font:
    best: Font = ImageFont.load_default(size)
    lacking = _lacking(best, characters)
    if lacking and (other := _system_font(characters, size)) is not None:
        best, lacking = min((best, lacking), (other, _lacking(other, characters)), key=lambda font: len(font[1]))
    if new := [c for c in lacking if c not in _warned]:
        _warned.update(new)
        warnings.warn(
            f"no font has the characters {''.join(new)!r}, and labels show them as empty boxes; install fontconfig "
            "and a font with them (apt install fontconfig fonts-noto-cjk), or give one: draw(image, font='font.ttf')",
            RuntimeWarning,
            stacklevel=2,
        )
    return best


def _lacking(font: Font, characters: frozenset[str]) -> str:
    """Those that the font draws by its sign for a missing character."""
    missing = _shape(font, _NO_CHARACTER)
    return "".join(sorted(c for c in characters if not c.isspace() and _shape(font, c) == missing))


def _shape(font: Font, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


def _system_font(characters: frozenset[str], size: int) -> Font | None:
    """The font that fontconfig chooses for the characters, which may not have all of them; None without one."""
    pattern = "sans:charset=" + " ".join(f"{ord(c):x}" for c in sorted(characters) if not c.isspace())
    command = ["fc-match", "--format", "%{file}\n%{index}", pattern]
    try:
        done = subprocess.run(command, check=True, capture_output=True, timeout=30)
        path, position = os.fsdecode(done.stdout).split("\n")
        return ImageFont.truetype(path, size, int(position or 0))
    except (OSError, ValueError, subprocess.SubprocessError):  # a font of bitmaps does not have the size
        return None
