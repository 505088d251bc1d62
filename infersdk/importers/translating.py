"""What the translators of PNNX operators and of Keras layers share."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..errors import ModelFormatError

    Translator = TypeVar("Translator", bound=Callable[..., Any])

__all__ = ["constant_size", "registers"]

#: Elements of a constant that follows from numbers in the file, and not from the weights.
LARGEST_CONSTANT = 1 << 24


def registers(table: dict[str, Translator], *names: str) -> Callable[[Translator], Translator]:
    """A decorator that enters a translator into a table under these names."""

    def register(function: Translator) -> Translator:
        table.update(dict.fromkeys(names, function))
        return function

    return register


def constant_size(sizes: tuple[int, ...], damaged: Callable[[str], ModelFormatError]) -> int:
    """The number of elements of a constant of these sizes.

    Raises:
        ModelFormatError: of `damaged`, if a size is negative, or the constant is larger than any of a network that is
            not in its weights.
    """
    count = prod(sizes)
    if min(sizes, default=0) < 0 or count > LARGEST_CONSTANT:
        raise damaged(f"it needs a constant of {' x '.join(map(str, sizes))} elements")
    return count
