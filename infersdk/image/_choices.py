"""Names of enum values in, numbers of the native core out."""

from __future__ import annotations

from ..errors import InputError

__all__ = ["choice"]


def choice(what: str, value: str, table: dict[str, int]) -> int:
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InputError(f"{what} is {value!r}; choose one of {', '.join(map(repr, table))}") from None
