"""The error that lists everything that stands in the way of a conversion, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["missing_operators"]


def missing_operators(what: str, missing: Mapping[str, int]) -> UnsupportedModelError:
    """The error for operators that cannot be converted.

    Args:
        what: what does not know them.
        missing: how often each one occurs, by its name; a name may have its reason behind it.
    """
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
    return UnsupportedModelError(f"{what}: {len(missing)} kinds of operators are not supported: {listed}")
