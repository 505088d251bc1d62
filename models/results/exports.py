"""Helpers of results in the form that other programs take."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import BackendUnavailableError, InputError
from .rows import class_label

__all__ = ["category_of", "import_supervision"]


def category_of(category_ids: Sequence[int] | Mapping[int, int], class_id: int, names: Sequence[str]) -> int:
    """The category of a class in COCO's annotations."""
    try:
        if class_id < 0 and not isinstance(category_ids, Mapping):  # a sequence counts from its end
            raise LookupError
        category = category_ids[class_id]
    except (LookupError, TypeError):
        raise InputError(
            f"category_ids has no category for class {class_id} ({class_label(names, class_id)}); give one for each "
            "class of the model, or filter the rows before"
        ) from None
    try:
        return operator.index(category)
    except TypeError:
        raise InputError(f"category_ids has {category!r} for class {class_id}; give a whole number") from None


def import_supervision() -> Any:
    """The package `supervision`; raises BackendUnavailableError where it is not installed."""
    try:
        import supervision
    except ImportError:
        raise BackendUnavailableError(
            'to_supervision() needs the supervision package: pip install "infersdk[supervision]"'
        ) from None
    return supervision
