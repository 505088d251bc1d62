"""Runs frameworks in separate processes, which isolates crashes and allows another Python interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.interpreter import own_interpreter
from ..errors import BackendUnavailableError, ConfigError, ModelFormatError, UnsupportedModelError
from .conversion import Imported, Reference, Sample
from .workers.exchange import RefusedError, load_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..core.model_source import ModelSource
    from .conversion import Request

__all__ = ["Work", "opened_archive", "read_result", "refusals", "worker"]

_WORKERS = Path(__file__).resolve().parent / "workers"
#: The time limit of a worker in seconds.
_TIMEOUT = 1800.0
#: The exceptions for the error kinds of workers.
_ERRORS = {
    "missing": BackendUnavailableError,
    "config": ConfigError,
    "format": ModelFormatError,
    "unsupported": UnsupportedModelError,
}


#: The maximum ratio of the uncompressed to the compressed size of an archive.
_LARGEST_RATIO = 100


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raises the `RefusedError` of worker functions that are called in this process as the typed error."""
    try:
        yield
    except RefusedError as error:
        raise _ERRORS[error.kind](error.message) from None


@contextlib.contextmanager
def opened_archive(source: ModelSource, what: str) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive; `what` names it in messages.

    Raises:
        ModelFormatError: it is damaged, also if this appears in the block, or it expands too much.
    """
    try:
        with source.open() as stream, zipfile.ZipFile(stream) as archive:
            if sum(info.file_size for info in archive.infolist()) > max(stream.seek(0, 2), 1 << 20) * _LARGEST_RATIO:
                raise ModelFormatError(f"{str(source)!r} expands to more than {_LARGEST_RATIO} times its size")
            yield archive
    except (
        zipfile.BadZipFile, OSError, ValueError, KeyError, NotImplementedError, RuntimeError, OverflowError, EOFError,
    ) as error:  # fmt: skip
        raise ModelFormatError(f"{str(source)!r} is not {what}, or is damaged: {error}") from None


class Work:
    """A worker and the folder for the exchange of files with it."""

    def __init__(self, name: str, folder: Path, python: str | None) -> None:
        self.name, self.folder = name, folder
        self.python = python or own_interpreter()

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the worker with a request; returns its answer."""
        (self.folder / "request.json").write_text(json.dumps(dict(request)), "utf-8")
        quiet = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore",
        }
        command = [self.python, str(_WORKERS / "__main__.py"), self.name, str(self.folder)]
        try:
            with open(self.folder / "log.txt", "wb") as log:
                done = subprocess.run(
                    command, check=False, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=_TIMEOUT,
                    env=os.environ | quiet,
                )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"the Python interpreter {self.python!r} cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise UnsupportedModelError(f"{self.name} was stopped: it ran for more than {_TIMEOUT:g} s") from None
        return self._answer(done.returncode)

    def _answer(self, code: int) -> dict[str, Any]:
        text = (self.folder / "log.txt").read_text("utf-8", "replace").strip()
        try:
            answer = json.loads((self.folder / "answer.json").read_text("utf-8"))
        except (OSError, ValueError):
            ended = f"ended with signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            last = " ".join(text.splitlines()[-3:])[-400:]
            if not (self.folder / "started").exists():
                raise ConfigError(
                    f"{self.python!r} {ended} and ran no code; give the path of a Python interpreter. {last}".rstrip()
                ) from None
            raise ModelFormatError(
                f"the process that reads the model ({self.name}) {ended}: the file is damaged or too large. {last}"
            ) from None
        if "error" in answer:
            raise _ERRORS[answer["kind"]](str(answer["error"]))
        assert isinstance(answer, dict)
        return answer

    def export(self, request: Request, **more: Any) -> Imported:
        """Runs a worker that writes `model.onnx` and results of the source for random inputs.

        Args:
            request: the request, whose shapes and samples are sent.
            more: further entries for the worker.
        """
        answer = self.run({**request.order, **more})
        runtime, notes = str(answer["runtime"]), [str(note) for note in answer.get("notes", ())]
        return read_result(self.folder, runtime, notes, str(answer.get("unchecked", "")))

    def model_file(self, source: ModelSource, suffix: str) -> str:
        """The path of a model. One in memory is written to the folder."""
        if source.path is not None:
            return str(source.path.absolute())
        path = self.folder / f"model{source.suffix or suffix}"
        path.write_bytes(source.read())
        return str(path)


def read_result(folder: Path, runtime: str, notes: list[str], unchecked: str = "") -> Imported:
    """Reads `model.onnx` and the results of the source from a folder.

    Args:
        unchecked: the reason why there are no results.
    """
    files = sorted(folder.glob("inputs*.npz"))
    samples = tuple(Sample(load_arrays(f), load_arrays(f.with_name(f"out{f.name[2:]}"))) for f in files)
    return Imported((folder / "model.onnx").read_bytes(), unchecked or Reference(runtime, samples), notes)


@contextlib.contextmanager
def worker(name: str, python: str | None = None) -> Iterator[Work]:
    """A worker with a temporary folder.

    Args:
        name: the name of a script in `workers`.
        python: the interpreter with the framework; None means the present one.
    """
    with tempfile.TemporaryDirectory(prefix="infersdk-convert-") as folder:
        yield Work(name, Path(folder), python)
