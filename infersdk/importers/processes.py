"""Frameworks in processes of their own: what crashes or hangs there does no harm here, and another Python may run
it.
"""

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
#: Seconds after which a framework counts as hanging.
_TIMEOUT = 1800.0
#: What the errors of a worker are here.
_ERRORS = {
    "missing": BackendUnavailableError,
    "config": ConfigError,
    "format": ModelFormatError,
    "unsupported": UnsupportedModelError,
}


class Work:
    """A folder to exchange files with a worker, and its run."""

    def __init__(self, name: str, folder: Path, python: str | None) -> None:
        self.name, self.folder = name, folder
        self.python = python or sys.executable

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Runs the worker on a request, and returns its answer.

        Raises:
            BackendUnavailableError: its framework is not installed.
            ConfigError, ModelFormatError, UnsupportedModelError: what the worker says of the model.
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
                f"the process that reads the model ({self.name}) {ended}: the file is damaged, or too much for it. "
                f"{last}"
            ) from None
        if "error" in answer:
            raise _ERRORS.get(str(answer.get("kind")), UnsupportedModelError)(str(answer["error"]))
        assert isinstance(answer, dict)
        return answer

    def export(self, request: Mapping[str, Any], *, rounds: int = ROUNDS) -> Imported:
        """Runs a worker that converts: it writes `model.onnx`, and what the source gives for random inputs.

        Args:
            rounds: how many sets of random inputs the request asks for.

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
    """A worker with a folder of its own, which is removed at the end.

    Args:
        name: of a script in `workers`.
        python: the interpreter that has the framework; None is this one.
    """
    with tempfile.TemporaryDirectory(prefix="infersdk-convert-") as folder:
        yield Work(name, Path(folder), python)
