"""The command line: `infersdk demo`, `infersdk detect bus.jpg`, `infersdk doctor`, ...

Thin: each subcommand is a module of `infersdk.commands` with a `register(subparsers)`; its work is in the library.

Exit codes: 0 done; 1 a check failed (two backends differ, say); 2 wrong usage or input; 3 a backend, device or
precision that is not to be had here; 4 failed while running; 130 interrupted; 143 terminated by SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from . import __version__
from .commands.progress import Terminated
from .errors import (
    BackendError,
    ConfigError,
    ImageError,
    InferSDKError,
    InputError,
    ModelError,
    OutputError,
    VideoError,
)

__all__ = ["main"]

COMMANDS = ("demo", "detect", "classify", "info", "compare", "bench", "tune", "quantize", "build", "cache", "doctor")

_CODES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], int], ...] = (
    ((ConfigError, InputError, ImageError, VideoError, ModelError, OutputError), 2),
    (BackendError, 3),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line's parser."""
    top = argparse.ArgumentParser(
        prog="infersdk",
        description="Runs vision models on ONNX Runtime, OpenVINO and TensorRT.",
        epilog="Exit codes: 0 done, 1 a check failed, 2 wrong usage or input, 3 not available here, 4 failed, "
        "130 interrupted.",
    )
    top.add_argument("--version", action="version", version=f"infersdk {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f".commands.{name}", __package__).register(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors are one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that is not in UTF-8, or a file name that is not, is no reason to lose a result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = parser().parse_args(argv)
    try:
        code = int(arguments.func(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stop:
        terminated = isinstance(stop, Terminated)
        print(f"infersdk: {'terminated' if terminated else 'interrupted'}", file=sys.stderr)
        return 143 if terminated else 130
    except BrokenPipeError:  # the reader of our output went away: `infersdk info m.onnx | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InferSDKError as error:
        print(f"infersdk: {' '.join(str(error).split())}", file=sys.stderr)
        return next((code for kinds, code in _CODES if isinstance(error, kinds)), 4)


if __name__ == "__main__":
    sys.exit(main())
