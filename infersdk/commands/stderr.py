"""Lines for people on stderr."""

from __future__ import annotations

import contextlib
import sys

from .._text import printable

__all__ = ["say"]


def say(message: str) -> None:
    """Prints a message as one line that begins with `infersdk: `."""
    with contextlib.suppress(OSError):  # stderr cannot be written either; the exit code remains
        print(f"infersdk: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
