"""The native numbers of named choices."""

from __future__ import annotations

from ..errors import InputError

__all__ = ["choice"]


def choice(what: str, value: str, table: dict[str, int]) -> int:
    """The number of `value` in `table`.

    Raises:
        InputError: `value` is not in `table`; `what` names the parameter.
    """
    try:
        return table[value]
    except (KeyError, TypeError):
        raise InputError(f"{what} is {value!r}; use one of {', '.join(map(repr, table))}") from None
