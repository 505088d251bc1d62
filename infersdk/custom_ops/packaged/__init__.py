"""The operators that come with infersdk, in the domain `infersdk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..declaration import CustomOp

__all__ = ["OPERATORS"]

OPERATORS: tuple[type[CustomOp], ...] = ()
