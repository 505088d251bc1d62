"""The command line: `infersdk demo`, `infersdk predict bus.jpg --model yolov5s.onnx`, `infersdk doctor`, ...

Thin: each subcommand is a module of `infersdk.commands` with a `DESCRIPTION`, `add_arguments(parser)` and
`run(arguments)`; its work is in the library. Only the module of the given command is imported.

Exit code 0 is success. 1: a check failed, for example two backends differ, or some of several sources could not be
read. 2: wrong usage or input, or output that cannot be written. 3: a backend, device or precision is not available.
4: failed while running. 130: interrupted. 143: terminated.
"""

# Besides `interrupts`, only modules that `import infersdk` imports are imported here, so that main() handles Ctrl-C and
# SIGTERM early.
from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from . import errors
from .commands.interrupts import sigterm_interrupts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from .commands.wrapper_options import WrapperOptions

__all__ = ["main"]

#: The help of each command. The module of its name in `infersdk.commands` has the rest.
COMMANDS = {
    "demo": "detect in a packaged image, and draw the result",
    "predict": "run a model on images, videos and cameras",
    "info": "inputs, outputs, precision and metadata of a model",
    "pack": "write a bundle: a model, its wrapper, settings and golden samples in one file",
    "unpack": "write the parts of a bundle to a folder",
    "diff": "compare two bundles",
    "fetch": "download the model files that a configuration names by addresses",
    "convert": "convert a PNNX, Keras, PyTorch, TensorFlow or PaddlePaddle model to ONNX",
    "graph": "look into an ONNX model, lint it, and change it",
    "compare": "compare backends, precisions and files: by their outputs, or by their accuracy",
    "layers": "show the layers of a model in a runtime: fused nodes, precisions, formats and times",
    "bench": "throughput, latency, accuracy, memory and energy of models on backends",
    "tune": "find the best settings for a model here, and write them as a configuration",
    "quantize": "make an INT8 model with images of yours",
    "build": "build a TensorRT engine file from an ONNX model",
    "serve": "serve the models of a configuration over HTTP and gRPC",
    "export-triton": "write a model repository for Triton Inference Server",
    "cache": "list or clear the stored engines and models",
    "doctor": "which backends work here, and how to get the others",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors are one line on stderr."""
    with sigterm_interrupts() as terminated:
        try:
            with _printable_warnings():
                return _main(argv)
        except KeyboardInterrupt:
            from .commands.stderr import say

            say("terminated" if terminated.is_set() else "interrupted")
            # CPython remembers an interrupt that leaves the exec() of a text (dataclasses), and would end by the signal
            # although this caught it; the next exec() of a text clears that.
            exec("")
            return 143 if terminated.is_set() else 130


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line.

    Args:
        only: the command whose module is imported and whose arguments are added; None is all.
    """
    import importlib

    from . import __version__

    top = _parser_class()(
        prog="infersdk",
        description="Runs vision models on ONNX Runtime, OpenVINO and TensorRT.",
        epilog="Exit codes: 0 done, 1 a check failed or some sources could not be read, 2 wrong usage or input, "
        "3 not available here, 4 failed, 130 interrupted, 143 terminated.",
    )
    top.add_argument("--version", action="version", version=f"infersdk {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = subparsers.add_parser(name, help=text)
        if only in (None, name):
            module = importlib.import_module(f".commands.{name.replace('-', '_')}", __package__)
            command.description = module.DESCRIPTION
            command.set_defaults(func=module.run)
            module.add_arguments(command)
    return top


def _main(argv: Sequence[str] | None) -> int:
    from .commands.stderr import say

    _prepare_streams()
    if sys.stdout is None:
        say("the standard output is closed; redirect it, to /dev/null for instance")
        return 2
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except OSError as error:
        if error is not getattr(sys.stdout, "error", None):
            say(str(error))
            return 4
        _discard_output()
        if isinstance(error, BrokenPipeError):  # its reader has gone: `infersdk predict 0 | head -1`
            return 0
        say(f"cannot write the output: {error.strerror or error}")
        return 2


def _run(argv: Sequence[str] | None) -> int:
    """The command's exit code. An OSError goes to the caller: it may be the output that cannot be written."""
    from .commands.stderr import say
    from .core.text import printable

    names: set[str] = set()
    try:
        argv = sys.argv[1:] if argv is None else argv
        # The options in front of a command take no values, and end without it.
        arguments = parser(next(iter(argv), "")).parse_args(argv)
        names = set(vars(arguments))
        if isinstance(sys.stdout, _Stdout):
            sys.stdout.ends_work = arguments.command == "predict"  # which may print without an end
        return int(arguments.func(arguments))
    except SystemExit as stop:  # argparse: a usage error, or --help and --version, which print
        sys.stdout.flush()
        return stop.code if isinstance(stop.code, int) else 0
    except errors.InferSDKError as error:
        say(f"{_with_options(str(error), names)} [{error.code}]")
        return _code_of(error)
    except OSError:
        raise
    except Exception as error:
        import traceback

        print(printable(traceback.format_exc(), lines=True), end="", file=sys.stderr)
        place = _line_of_others(error)
        say(
            f"{place} failed, which is not part of infersdk; the lines above show where"
            if place is not None
            else "this is a fault of infersdk; please report it with the lines above"
        )
        return 4


def _with_options(text: str, names: set[str]) -> str:
    """A message whose settings are written as options of the command: `type="yolov8"` as `--type yolov8`, and
    `mean=(0.5, 0.4)` as `--mean 0.5,0.4`.

    Args:
        names: the parsed arguments; with a `type` the command has the settings of wrappers, too.
    """
    if "type" in names:
        from .models.registry import TYPES

        names = names.union(*(kind.Settings.__struct_fields__ for kind in TYPES.values()))

    def option(match: re.Match[str]) -> str:
        name, value = match[1], match[2].strip("\"'")
        if value.startswith("("):
            value = ",".join(re.findall(r"[^(), ]+", value))
        return f"--{name.replace('_', '-')} {value}" if name in names else match[0]

    return re.sub(r"""(?<![\w(.'"])([a-z_]+)=("[^"]*"|'[^']*'|\([-+.,\w ]+\)|[\w.]+)""", option, text)


def _line_of_others(error: BaseException) -> str | None:
    """The line of a user's module (a wrapper, a custom operator) that an error comes from; None where only infersdk,
    installed packages and the standard library are involved.
    """
    import sysconfig
    import traceback

    installed = tuple({os.path.join(path, "") for path in sysconfig.get_paths().values()})
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != __package__ and not file.startswith(("<", *installed)):
            return f"{frame.f_code.co_name}() in {file}, line {line},"
    return None


def _code_of(error: Exception) -> int:
    if isinstance(error, errors.BackendError):
        return 3
    wrong = ValueError, errors.ModelError, errors.OutputError  # the classes of wrong input are ValueErrors
    return 2 if isinstance(error, wrong) else 4


def _parser_class() -> type[argparse.ArgumentParser]:
    import argparse

    from .core.text import printable

    class Parser(argparse.ArgumentParser):
        """An unknown flag is an error of the subcommand that it was given to, with that subcommand's usage."""

        #: Adds the settings of the wrapper as options; see `commands.wrapper_options`.
        wrapper_options: WrapperOptions | None = None

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._negative_number_matcher = re.compile(r"-\.?\d")  # a list may begin with one: --mean -0.5,0.5,0.5

        def _print_message(self, message: str, file: Any = None) -> None:
            """Names of files come by patterns of the shell, too."""
            super()._print_message(printable(message, lines=True), file)

        def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
            if self.wrapper_options is not None:
                self.wrapper_options.add(args)
            known, unknown = super().parse_known_args(args, namespace)
            if unknown:
                self._refuse(unknown)
            return known, unknown

        def _refuse(self, unknown: list[str]) -> NoReturn:
            flag = next((text for text in unknown if text.startswith("-")), None)
            if flag is not None and self.wrapper_options is not None:
                self.wrapper_options.refuse(flag.partition("=")[0])
            known = {name.lstrip("-"): name for name in self._option_string_actions}
            close = errors.nearest_name(flag.partition("=")[0].lstrip("-"), known) if flag else None
            hint = f"; did you mean {known[close]}?" if close else ""
            if flag is None and (several := [one for one in self._get_positional_actions() if one.nargs in ("*", "+")]):
                hint = f"; give each {several[0].metavar} before the options"
            self.error(f"unknown argument{'s' * (len(unknown) > 1)}: {' '.join(unknown)}{hint}")

        def _check_value(self, action, value):  # type: ignore[no-untyped-def]
            try:
                super()._check_value(action, value)
            except argparse.ArgumentError as error:
                raise argparse.ArgumentError(
                    action, error.message + errors.nearest(str(value), map(str, action.choices))
                ) from None

    return Parser


class _Stdout(io.TextIOWrapper):
    """Stdout, with the error of its last write.

    If its reader has gone, the rest of the output is discarded, and the command runs to its exit code; with `ends_work`
    it ends with BrokenPipeError.

    Errors are recorded here, not in the file below. An interrupt there, after the bytes were written, would leave them
    in the buffer, and they would be written a second time.
    """

    error: OSError | None = None
    ends_work = False

    def write(self, text: str, /) -> int:
        self._noting(super().write, text)
        return len(text)

    def flush(self) -> None:
        self._noting(super().flush)

    def _noting(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except OSError as error:
            self.error = error
            if self.ends_work or not isinstance(error, BrokenPipeError):
                raise
            _discard_output()


def _prepare_streams() -> None:
    """Makes stdout and stderr accept all characters, records errors of stdout, and replaces a closed stderr."""
    if sys.stderr is None:  # closed; print() would write to stdout in its place
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):  # not a test's, or a caller's own
        sys.stdout.flush()
        buffered = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False))
        sys.stdout = _Stdout(buffered, sys.stdout.encoding, line_buffering=sys.stdout.line_buffering)
    for stream in (sys.stdout, sys.stderr):
        # A terminal or pipe that is not in UTF-8, or a file name that is not, is no reason to lose a result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _printable_warnings() -> Iterator[None]:
    """Warnings of libraries quote files, too."""
    from .core.text import printable

    before = warnings.formatwarning
    warnings.formatwarning = lambda *what, **more: printable(before(*what, **more), lines=True)
    try:
        yield
    finally:
        warnings.formatwarning = before


def _discard_output() -> None:
    """Redirects stdout, because Python would write it again at exit and change the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
