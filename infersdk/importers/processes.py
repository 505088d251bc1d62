"""Runs frameworks in separate processes, which isolates crashes and allows another Python interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, ConfigError, ModelFormatError, UnsupportedModelError
from .conversion import Imported, Reference, Sample
from .workers.exchange import ROUNDS, load_arrays, save_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Work", "worker"]

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


class Work:
    """A worker and the folder for the exchange of files with it."""

    def __init__(self, name: str, folder: Path, python: str | None) -> None:
        self.name, self.folder = name, folder
        self.python = python or sys.executable

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the worker with a request; returns its answer.

        Raises:
            BackendUnavailableError: the framework is not installed.
            ConfigError, ModelFormatError, UnsupportedModelError: the worker reports an error.
        """
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
            raise ModelFormatError(
                f"the process that reads the model ({self.name}) {ended}: the file is damaged or too large. {last}"
            ) from None
        if "error" in answer:
            raise _ERRORS.get(str(answer.get("kind")), UnsupportedModelError)(str(answer["error"]))
        assert isinstance(answer, dict)
        return answer

    def export(self, request: Mapping[str, Any], *, rounds: int = ROUNDS) -> Imported:
        """Runs a worker that writes `model.onnx` and results of the source for random inputs.

        Args:
            rounds: the number of sets of random inputs.

        Raises:
            as `run()`.
        """
        answer = self.run(request)
        samples = tuple(
            Sample(self.read_arrays(f"inputs{number}.npz"), self.read_arrays(f"outputs{number}.npz"))
            for number in range(rounds)
        )
        return Imported(
            (self.folder / "model.onnx").read_bytes(),
            Reference(str(answer["runtime"]), samples=samples),
            [str(note) for note in answer.get("notes", ())],
        )

    def write_arrays(self, name: str, arrays: list[Any]) -> None:
        save_arrays(self.folder / name, arrays)

    def read_arrays(self, name: str) -> list[Any]:
        return load_arrays(self.folder / name)


@contextlib.contextmanager
def worker(name: str, python: str | None = None) -> Iterator[Work]:
    """A worker with a temporary folder.

    Args:
        name: the name of a script in `workers`.
        python: the interpreter with the framework; None means the present one.
    """
    with tempfile.TemporaryDirectory(prefix="infersdk-convert-") as folder:
        yield Work(name, Path(folder), python)
