"""Python literals, as exporters write them into a model's metadata."""

from __future__ import annotations

import ast
import threading
from typing import Any

__all__ = ["python_literal"]

_lock = threading.Lock()


def python_literal(text: str) -> Any:
    """The value of a literal: a number, a string, a list, a dict.

    One thread at a time: CPython 3.11 counts how deep a tree is for all threads together, and raises SystemError in one
    of two that parse (its issue 106905).

    Raises:
        ValueError, SyntaxError, MemoryError, RecursionError: it is none.
    """
    with _lock:
        return ast.literal_eval(text)
