"""Ctrl-C and SIGTERM while compiled modules are being initialised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from infersdk.commands.interrupts import Terminated, interrupts, sigterm_interrupts

ONE_CALL = """
import os, signal, sys
loading = 0
left = int(sys.argv[2])
def watch(frame, event, called):
    global loading, left
    if event.startswith("c_") and called.__name__ in ("create_dynamic", "exec_dynamic"):
        loading += 1 if event == "c_call" else -1
    elif event == "call" and loading:
        left -= 1
        if not left:
            sys.setprofile(None)
            for name in sys.argv[3:]:
                os.kill(os.getpid(), getattr(signal, name))
def work(*_):
    with interrupts.sigterm_interrupts():
        sys.setprofile(watch)
        __import__(sys.argv[1])
    return 0
from infersdk import cli
from infersdk.commands import interrupts
cli._main = work
code = cli.main([])
sys.setprofile(None)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("module", "call"), [("onnx", 300), ("onnx", 500), ("numpy", 100), ("onnxruntime", 10), ("onnxruntime", 20_000)]
)
@pytest.mark.parametrize(
    ("signals", "code", "word"),
    [(["SIGINT"], 130, "interrupted"), (["SIGTERM"], 143, "terminated"), (["SIGTERM", "SIGTERM"], 143, "terminated")],
)
def test_a_signal_in_a_function_that_a_real_module_calls(
    module: str, call: int, signals: list[str], code: int, word: str, tmp_path: Path
) -> None:
    """Without the command line's handler ONNX ends the process there, and NumPy raises an ImportError."""
    pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ONE_CALL, module, str(call), *signals], check=False, capture_output=True,
        text=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, f"infersdk: {word}\n")


# ---- in this process ----


def test_all_is_as_before_at_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupted() -> None:
        with interrupts():
            assert signal.getsignal(signal.SIGINT) is not before
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_that_is_there_stays(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_sigterm_ends_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    kinds = []

    def work() -> None:
        with sigterm_interrupts() as interruption:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.pause()
            finally:
                kinds.append(interruption.kind)

    with pytest.raises(Terminated):
        work()
    assert kinds == [Terminated]
    assert signal.getsignal(signal.SIGTERM) is before
    assert issubclass(Terminated, KeyboardInterrupt)


def test_elsewhere_than_in_the_main_thread_signals_stay() -> None:
    seen = []

    def work() -> None:
        with interrupts(), sigterm_interrupts():
            seen.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
