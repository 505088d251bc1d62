"""Fonts for labels: Pillow's own, or one of the system that has the characters.

Pillow's font has little beyond ASCII. For all other characters the system is asked through fontconfig's `fc-match`,
which knows the characters of each font.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from PIL import ImageFont

from ..errors import ConfigError

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["Font", "font_for", "load_font"]

Font: TypeAlias = "ImageFont.FreeTypeFont | ImageFont.ImageFont"

_NO_CHARACTER = "\U0010fffd"  # of a private plane: fonts draw their sign for a missing character
_warned: set[str] = set()
_guard = threading.Lock()


def load_font(font: str | os.PathLike[str], size: int) -> Font:
    """The font in a file, in pixels.

    Raises:
        ConfigError: there is no such file, or it is no font.
    """
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
    best = _own_font(size)
    lacking = _lacking(best, characters)
    result = _system_font(characters) if lacking else None
    if result is not None and len(result.lacking) < len(lacking):
        with contextlib.suppress(OSError):  # a font of bitmaps has none of this size
            best, lacking = ImageFont.truetype(result.path, size, result.position), result.lacking
    if lacking:
        _warn(lacking)
    return best


@functools.lru_cache(maxsize=32)
def _own_font(size: int) -> Font:
    return ImageFont.load_default(size)


def _lacking(font: Font, characters: frozenset[str]) -> str:
    """Those that the font draws by its sign for a missing character."""
    missing = _shape(font, _NO_CHARACTER)
    return "".join(sorted(c for c in characters if not c.isspace() and _shape(font, c) == missing))


def _shape(font: Font, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)


class _SystemFont(NamedTuple):
    path: str
    position: int  # of the font in a collection
    lacking: str


@functools.lru_cache(maxsize=1024)
def _system_font(characters: frozenset[str]) -> _SystemFont | None:
    """The font that fontconfig chooses for the characters, which may not have all of them."""
    matcher = shutil.which("fc-match")
    if matcher is None:
        return None
    wanted = sorted(ord(c) for c in characters if not c.isspace())
    pattern = "sans:charset=" + " ".join(f"{code:x}" for code in wanted)
    command = [matcher, "--format", "%{file}\n%{index}\n%{charset}\n", pattern]
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode("utf-8", "surrogateescape").splitlines()
    if done.returncode != 0 or len(lines) != 3:
        return None
    return _SystemFont(lines[0], int(lines[1] or 0), _outside(lines[2], wanted))


def _outside(charset: str, codes: Iterable[int]) -> str:
    """The characters that fontconfig's ranges, as `20-7e a0 1f600-1f64f`, do not hold."""
    ranges = [tuple(int(end, 16) for end in part.split("-")) for part in charset.split()]
    return "".join(chr(code) for code in codes if not any(ends[0] <= code <= ends[-1] for ends in ranges))


def _warn(lacking: str) -> None:
    with _guard:
        new = [c for c in lacking if c not in _warned]
        _warned.update(new)
    if new:
        warnings.warn(
            f"no font has the characters {''.join(new)!r}, and labels show them as empty boxes; install fontconfig "
            "and a font with them (apt install fontconfig fonts-noto-cjk), or give one: draw(image, font='font.ttf')",
            RuntimeWarning,
            stacklevel=2,
        )
