"""For PyInstaller, which finds this by the entry point `pyinstaller40`: the hooks for frozen applications."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_folders"]


def hook_folders() -> list[str]:
    """Where PyInstaller finds the hooks of this folder."""
    return [str(Path(__file__).resolve().parent)]
