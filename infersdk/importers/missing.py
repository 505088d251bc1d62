"""The error that lists all unsupported operators of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["missing_operators"]


def missing_operators(what: str, missing: Mapping[str, int]) -> UnsupportedModelError:
    """The error for operators that cannot be converted.

    Args:
        what: the converter.
        missing: the number of occurrences by operator name, to which a reason may be appended.
    """
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
    return UnsupportedModelError(f"{what}: {len(missing)} kinds of operators are not supported: {listed}")
