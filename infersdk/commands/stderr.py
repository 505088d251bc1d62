"""Lines for people on stderr."""

from __future__ import annotations

import os
import sys

from ..core.text import printable

__all__ = ["say"]


def say(message: str) -> None:
    """Prints a message as one line that begins with `infersdk: `. An error of stderr does not change the exit code."""
    try:
        print(f"infersdk: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except OSError:
        # The interpreter writes the line again at exit, and would end with the code 120 where that fails.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
