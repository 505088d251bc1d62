"""Ctrl-C and SIGTERM in the command line.

The initialisation of a compiled module calls Python functions: it makes enumerations, it imports other modules. An
interrupt that is raised in one of these functions goes through C++ code that may not expect it. pybind11 and nanobind
end the process then (`terminate called after throwing an instance of 'pybind11::error_already_set'`), and NumPy turns
the interrupt into an ImportError. So an interrupt that comes meanwhile is raised when the module is initialised.

The library does nothing of this: signals belong to the process, and the process to the product that it runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Interruption", "Interrupts", "Terminated", "deferred_interrupts", "sigterm_interrupts"]


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What Ctrl-C ends, and what is written then, it ends and writes alike; the exit code is 143."""


class _Deferral:
    """Of the main thread: only there does Python run handlers of signals."""

    def __init__(self) -> None:
        self.depth = 0  # of `deferred_interrupts()`, one within another
        self.pending: type[KeyboardInterrupt] | None = None
        self.handler: Any = None  # of SIGINT, until `pending` is raised


_deferral = _Deferral()


def _interrupt(kind: type[KeyboardInterrupt]) -> None:
    """Raises an interrupt, now or at the end of `deferred_interrupts()`. Called by handlers of signals."""
    if not _deferral.depth:
        raise kind
    if _deferral.pending is None:
        _deferral.pending = kind
        # The next Ctrl-C ends the process at once, even in compiled code that does not return.
        _deferral.handler = signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """An interrupt that comes within the block is raised at its end. A second Ctrl-C ends the process at once.

    Elsewhere than in the main thread nothing changes: Python raises interrupts there alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _deferral.depth += 1
    try:
        yield
    finally:
        _deferral.depth -= 1
        if not _deferral.depth and _deferral.pending is not None:
            kind, _deferral.pending = _deferral.pending, None
            signal.signal(signal.SIGINT, _deferral.handler)
            raise kind


@contextlib.contextmanager
def _deferred_while_modules_initialise() -> Iterator[None]:
    """All compiled modules that are imported within the block are initialised with `deferred_interrupts()`."""
    create, execute = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module

    def create_module(self: ExtensionFileLoader, spec: Any) -> Any:
        with deferred_interrupts():
            return create(self, spec)

    def exec_module(self: ExtensionFileLoader, module: Any) -> None:
        with deferred_interrupts():
            execute(self, module)

    # A finder of our own would not do: programs that are frozen, and editable installs, have their own finders.
    ExtensionFileLoader.create_module = create_module  # type: ignore[method-assign]
    ExtensionFileLoader.exec_module = exec_module  # type: ignore[method-assign]
    try:
        yield
    finally:
        ExtensionFileLoader.create_module = create  # type: ignore[method-assign]
        ExtensionFileLoader.exec_module = execute  # type: ignore[method-assign]


class Interrupts:
    """Ctrl-C while the command line runs. A handler that a caller of `main()` has installed stays.

    Attributes:
        came: Ctrl-C came. Libraries turn it into other exceptions: NumPy, for one, into an ImportError.
    """

    def __init__(self) -> None:
        self.came = False
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._undo.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGINT, self._handle)
        self._undo.enter_context(_deferred_while_modules_initialise())
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        _interrupt(KeyboardInterrupt)

    def __exit__(self, *_: object) -> None:
        self._undo.close()


class Interruption:
    """What to raise after the results of an interrupted command are written: `Terminated` once SIGTERM came."""

    def __init__(self) -> None:
        self.kind: type[KeyboardInterrupt] = KeyboardInterrupt


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[Interruption]:
    """SIGTERM raises `Terminated` in the main thread, so that what was measured so far is written.

    Elsewhere than in the main thread nothing changes: Python has signals there alone.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the writing
        interruption.kind = Terminated
        _interrupt(Terminated)

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGTERM, before)
