"""The client of `worker.py`: starts a worker process and requests its steps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..core.interpreter import own_interpreter

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StepError", "TimeUpError", "WorkerProcess", "import_path"]

#: A worker uses the `sys.path` of this process, even if the current folder has another `infersdk`.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from infersdk.bench.worker import main; "
    "main(int(sys.argv[2]))"
)


def import_path() -> list[str]:
    """`sys.path` for another process. Python ignores entries that are not text, such as pathlib's."""
    return [entry for entry in sys.path if isinstance(entry, str)]


class StepError(Exception):
    """A step of a combination failed; the message is the reason. The code of other errors than InferSDKError is ""."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


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
        python = own_interpreter()
        self._errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the process
        self._connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [python, "-c", _START, json.dumps(import_path()), str(other.fileno())],
                stdin=subprocess.DEVNULL, stdout=self._errors, stderr=subprocess.STDOUT, **_passing(other.fileno()),
                env={**os.environ, "TMPDIR": str(folder)},  # removed with the folder, also after a kill
            )  # fmt: skip

    def ask(self, do: str, **order: Any) -> Any:
        """Requests a step, and returns its response.

        Raises:
            StepError: the step failed, the process died, or it took too long.
            TimeUpError: the time for all steps was up before it ended. The process is ended.
        """
        until = monotonic() + self._timeout
        all_until = until if self._end_time is None else self._end_time
        try:
            self._connection.send((do, order))
            if not self._connection.poll(max(min(until, all_until) - monotonic(), 0.0)):
                self.end()
                if all_until < until:
                    raise TimeUpError
                raise StepError(f"{do} took longer than {self._timeout:g} s, and was stopped")
            done, response = self._connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if not done:
            raise StepError(*response)
        return response

    def _death(self) -> StepError:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        name = signal.Signals(-code).name if code < 0 else ""
        how = f"was ended by {name}" if name else f"ended with code {code}"
        if name == "SIGKILL":  # which Windows does not have
            how += " (out of memory?)"
        return StepError(f"its process {how}" + (f": {said[-1][:300]}" if said else ""))

    def leave(self) -> None:
        """Lets the process exit normally, because a runtime may write its cache at exit."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30.0)
        self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._connection.close()
        self._errors.close()


def _passing(channel: int) -> dict[str, Any]:
    """The arguments of `Popen` for a process that gets a channel, and no Ctrl-C."""
    if sys.platform != "win32":
        return {"pass_fds": [channel], "start_new_session": True}
    os.set_handle_inheritable(channel, True)
    start = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [channel]})
    return {"startupinfo": start, "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
