"""The error message for an import from a source checkout without the compiled core."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

__all__ = ["how_to_run"]


def how_to_run() -> str:
    """The message of the ImportError."""
    folder = Path(__file__).resolve().parent
    # A build leaves its metadata in the checkout, which is not an installed package.
    installed = [d for d in distributions(name="infersdk") if Path(str(d.locate_file(""))).resolve() != folder.parent]
    if not installed:
        return (
            f"{str(folder)!r} is source code without the compiled core of infersdk; build and install it: "
            "pip install -e ."
        )
    return (
        f"Python found {str(folder)!r}, source code without a compiled core, before the installed infersdk; run Python "
        "in another folder, or as python -P"
    )
