"""Conversions whose results were compared with those of the framework."""

from __future__ import annotations

from typing import Any

from infersdk.importers import convert


def converted(model: Any, **options: Any) -> Any:
    """`convert()`; the results are the same."""
    conversion = convert(model, **options)
    assert conversion.check is not None, conversion.unchecked
    assert conversion.check.passed, conversion.verdict
    return conversion
