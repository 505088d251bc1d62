"""The client of `worker.py`: starts a worker process and requests its steps."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StepError", "TimeUpError", "WorkerProcess"]

#: A worker uses the `sys.path` of this process, even if the current folder has another `infersdk`.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from infersdk.bench.worker import main; main()"


class StepError(Exception):
    """A step of a combination failed; the message is the reason."""


class TimeUpError(Exception):
    """The time for all steps of all processes is up."""


class WorkerProcess:
    """A worker process in a separate process group, which does not receive Ctrl-C.

    Args:
        folder: for temporary files. It is removed when the worker has ended.
        timeout: seconds that a step may take.
        end_time: of all processes, by `time.monotonic()`; None: they have all the time.
    """

    def __init__(self, folder: Path, timeout: float, end_time: float | None = None) -> None:
        self._timeout, self._end_time = timeout, end_time
        self._errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},  # removed with the folder, also after a kill
        )  # fmt: skip
        self._rest = b""

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Requests a step, and returns its response.

        Raises:
            StepError: the step failed, the process died, or it took too long.
            TimeUpError: the time for all steps was up before it ended. The process is ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            raise self._death() from None
        answer: dict[str, Any] = json.loads(self._line(do))
        if not answer.pop("ok"):
            raise StepError(answer["reason"])
        return answer

    def _line(self, do: str) -> bytes:
        assert self._process.stdout is not None
        until, channel = monotonic() + self._timeout, self._process.stdout.fileno()
        all_until = until if self._end_time is None else self._end_time
        while b"\n" not in self._rest:
            if not select.select([channel], [], [], max(min(until, all_until) - monotonic(), 0.0))[0]:
                self.end()
                if all_until < until:
                    raise TimeUpError
                raise StepError(f"{do} took longer than {self._timeout:g} s, and was stopped")
            part = os.read(channel, 1 << 20)
            if not part:
                raise self._death()
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _death(self) -> StepError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if code == -signal.SIGKILL:
            how += " (out of memory?)"
        return StepError(f"its process {how}" + (f": {said[-1][:300]}" if said else ""))

    def leave(self, patience: float = 30.0) -> None:
        """Lets the process exit normally, because a runtime may write its cache at exit."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
