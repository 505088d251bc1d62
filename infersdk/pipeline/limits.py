"""Bounds of the numbers that are given to a pipeline."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..errors import InputError

__all__ = ["MOST_SECONDS", "check_seconds"]

#: The longest time that a request or a batch can be given, in seconds. Every system can wait for so long.
MOST_SECONDS = 1_000_000.0


def check_seconds(name: str, value: Any) -> float | None:
    """A time in seconds as a float; None stays None.

    Raises:
        InputError: it is no number, or is not between 0 and `MOST_SECONDS`.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is a number of seconds or None, not {value!r}")
    if not 0 <= value <= MOST_SECONDS:  # type: ignore[operator]
        raise InputError(f"{name} is from 0 to {MOST_SECONDS:,.0f} seconds, not {value!r}; leave it out for no limit")
    return float(value)
