"""For PyInstaller, which finds this by the entry point `pyinstaller40`: the hook for frozen applications."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Where PyInstaller finds `hook-infersdk.py`."""
    return [str(Path(__file__).resolve().parent)]
