"""Importing PyAV, which is optional."""

from __future__ import annotations

from typing import Any

from ..errors import BackendUnavailableError

__all__ = ["MAX_FPS", "import_av", "reason"]

#: The highest rate of a video. FFmpeg takes the unit of times for the rate where a file has few frames, and its muxers
#: lose frames of higher rates (MP4) or refuse them (AVI).
MAX_FPS = 1000


def import_av() -> Any:
    """The module `av`.

    Raises:
        BackendUnavailableError: it is not installed, or fails to import.
    """
    try:
        import av
    except ImportError as error:
        raise BackendUnavailableError(f'videos need PyAV ({error}): pip install "infersdk[video]"') from None
    return av


def reason(error: BaseException) -> str:
    """FFmpeg's message, without the number and the file name."""
    return str(getattr(error, "strerror", None) or error)
