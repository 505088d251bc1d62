"""The versions of packages in the interpreter of a process."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MISSING = "{name} is not installed"


def versions(names: Iterable[str]) -> dict[str, str | None]:
    """The version of each package; None if it is not installed."""
    result: dict[str, str | None] = dict.fromkeys(names)
    for name in result:
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result


def run(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    return versions(request["packages"])
