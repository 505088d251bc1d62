"""The Python interpreter for further processes."""

from __future__ import annotations

import sys

from ..errors import ConfigError

__all__ = ["own_interpreter"]


def own_interpreter() -> str:
    """The path of the interpreter that runs this process.

    Raises:
        ConfigError: the process is an application that contains Python, as PyInstaller makes it. To start its program
            would start the application again.
    """
    if getattr(sys, "frozen", False) or not sys.executable:
        raise ConfigError(
            f"this needs a process of a Python interpreter, and {sys.executable!r} is an application that contains "
            "Python; run it with an installed Python. A conversion also takes the path of one, `python`"
        )
    return sys.executable
