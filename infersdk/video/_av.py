"""Importing PyAV, which is optional."""

from __future__ import annotations

from typing import Any

from ..errors import BackendUnavailableError

__all__ = ["import_av", "reason"]


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
