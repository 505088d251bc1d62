"""Importing PyAV, which is optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BackendUnavailableError, ConfigError

__all__ = ["MAX_FPS", "import_av", "option_texts", "reason"]

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


def option_texts(options: Any) -> dict[str, str]:
    """Options of FFmpeg as text; raises ConfigError if they are no mapping with texts as names."""
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(name, str) for name in options)):
        raise ConfigError(f"options is a mapping of names to values, such as a dict, not {options!r}")
    return {name: str(value) for name, value in (options or {}).items()}


def reason(error: BaseException) -> str:
    """FFmpeg's message, without the number and the file name."""
    return str(getattr(error, "strerror", None) or error)
