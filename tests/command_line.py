"""Runs the command line in this process."""

from __future__ import annotations

from typing import Any

from infersdk.cli import main


def run(*arguments: Any) -> int:
    """The exit code of `infersdk ARGUMENTS`."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)
