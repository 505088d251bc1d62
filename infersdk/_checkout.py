"""What to do where Python imports the package from a source checkout, which has no compiled core."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

__all__ = ["how_to_run"]


def how_to_run() -> str:
    """The message of the ImportError."""
    folder = Path(__file__).resolve().parent
    try:
        distribution("infersdk")
    except PackageNotFoundError:
        return (
            f"{str(folder)!r} is source code without the compiled core of infersdk; build and install it: "
            "pip install -e . --config-settings editable_mode=strict"
        )
    return (
        f"Python found {str(folder)!r}, source code without a compiled core, before the installed infersdk; run Python "
        "in another folder, or as python -P"
    )
