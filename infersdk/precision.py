"""The precisions a model can run in: the one list of them."""

from __future__ import annotations

from .errors import ConfigError

__all__ = ["PRECISIONS", "check_precision"]

#: From the widest to the narrowest.
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


def check_precision(name: object, what: str = "precision") -> None:
    """Raises ConfigError unless `name` is a precision; None is one, and means that the model runs as it was written."""
    if name is not None and name not in PRECISIONS:
        raise ConfigError(f"unknown {what} {name!r}; use one of {', '.join(PRECISIONS)}")
