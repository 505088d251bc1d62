"""Ctrl-C and SIGTERM while compiled modules are being initialised."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest

from infersdk.commands.interrupts import Terminated, interrupts, sigterm_interrupts

#: It calls `probe.during()` while it is initialised, and ends the process by an exception there, as pybind11 does.
STAND_IN = r"""
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <stdlib.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "stand_in", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_stand_in(void) {
    PyObject *probe = PyImport_ImportModule("probe");
    PyObject *result = probe ? PyObject_CallMethod(probe, "during", NULL) : NULL;
    if (!result)
        abort();
    return PyModule_Create(&definition);
}
"""
PROBE = """
import os, signal
def during():
    for name in os.environ["SIGNALS"].split():
        os.kill(os.getpid(), getattr(signal, name))
        for _ in range(1000):
            pass
    print("initialised", flush=True)
"""
COMMAND = """
import sys, time
from infersdk import cli
from infersdk.commands import interrupts
def work(*_):
    with interrupts.sigterm_interrupts():
        import stand_in
        time.sleep(30)
    print("not interrupted")
    return 0
cli._main = work
sys.exit(cli.main([]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the modules above."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or pytest.skip("no C compiler")
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        pytest.skip("no headers of Python")
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "stand_in.c").write_text(STAND_IN)
    (folder / "probe.py").write_text(PROBE)
    (folder / "command.py").write_text(COMMAND)
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-I{include}", "stand_in.c", "-o", "stand_in.abi3.so"], check=True, cwd=folder
    )
    return folder


def start(folder: Path, signals: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "command.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "SIGNALS": signals},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("signals", "code", "message"),
    [
        ("SIGINT", 130, "infersdk: interrupted\n"),
        ("SIGTERM", 143, "infersdk: terminated\n"),
        ("SIGTERM SIGTERM", 143, "infersdk: terminated\n"),
    ],
)
def test_an_interrupt_while_a_module_is_initialised(folder: Path, signals: str, code: int, message: str) -> None:
    """It is raised when the module is initialised, and the process does not end within."""
    process = start(folder, signals)
    assert process.communicate(timeout=60) == ("initialised\n", message)
    assert process.returncode == code


def test_an_interrupt_before_a_command_that_ends_at_once(folder: Path) -> None:
    (folder / "command.py").write_text(COMMAND.replace("time.sleep(30)", "pass"))
    process = start(folder, "SIGTERM")
    assert process.communicate(timeout=60) == ("initialised\n", "infersdk: terminated\n")
    assert process.returncode == 143
    (folder / "command.py").write_text(COMMAND)


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
            os.kill(os.getpid(), signal.SIGINT)
def work(*_):
    sys.setprofile(watch)
    __import__(sys.argv[1])
    return 0
from infersdk import cli
cli._main = work
code = cli.main([])
sys.setprofile(None)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("module", "call"), [("onnx", 300), ("onnx", 500), ("numpy", 100), ("onnxruntime", 10), ("onnxruntime", 20_000)]
)
def test_ctrl_c_in_a_function_that_a_real_module_calls(module: str, call: int, tmp_path: Path) -> None:
    """Without the command line's handler ONNX ends the process there, and NumPy raises an ImportError."""
    pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ONE_CALL, module, str(call)], check=False, capture_output=True, text=True,
        cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "infersdk: interrupted\n")


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
