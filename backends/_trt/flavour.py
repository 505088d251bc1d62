"""TensorRT and TensorRT-RTX: one API, and the differences between them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...core.text import logger

__all__ = ["FLAVOURS", "Flavour"]

_log = logger("infersdk.tensorrt")
_log.addHandler(logging.NullHandler())  # without a handler Python prints errors, which are raised, too


@dataclass(frozen=True)
class Flavour:
    """One of the runtimes.

    Attributes:
        backend: the name of the backend.
        title: the name in messages.
        modules: the names of its module.
        oldest: the first major version with the API used here.
        rtx: builds in seconds for named compute capabilities on any machine, since it compiles kernels when it runs;
            these are kept in a cache. It checks engines for this machine, and has no INT8 convolutions. Otherwise it
            builds for the present GPU only, by the times of kernels, which are kept in a cache.
    """

    backend: str
    title: str
    modules: tuple[str, ...]
    oldest: int
    rtx: bool

    @functools.cached_property
    def trt(self) -> Any:
        """The vendor's module. The registry reports the exceptions of the import."""
        for name in self.modules:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name:
                    raise
                continue
            if not hasattr(module, "__version__"):
                continue  # a folder of stubs
            major = int(str(module.__version__).partition(".")[0])
            if major < self.oldest:
                raise ImportError(f"{self.title} {module.__version__} is too old; {self.oldest} or later is needed")
            return module
        raise ModuleNotFoundError(f"No module named {self.modules[0]!r}", name=self.modules[0])

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @functools.cached_property
    def logger(self) -> Any:
        """The logger of the process: the runtime keeps the first one."""
        return _make_logger(self.trt)

    @contextlib.contextmanager
    def messages(self) -> Iterator[Messages]:
        """The messages of the runtime in this scope, without those of other threads, which have other contexts."""
        collected = Messages()
        token = _listeners.set((*_listeners.get(), collected))
        try:
            yield collected
        finally:
            _listeners.reset(token)


class Messages:
    """Messages of a runtime.

    Attributes:
        errors: the errors.
        listings: the listings of layers that builds print, in the inspector's format of one line a layer. A build
            prints one if its configuration has `ProfilingVerbosity.DETAILED`.
        memory: the device memory of built engines in bytes: the maximum under the names "Weights" and "Activation".
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.listings: list[str] = []
        self.memory: dict[str, int] = {}

    def add(self, level: int | None, text: str) -> None:
        """Adds a message; its level is None if it is verbose."""
        if level == logging.ERROR:
            self.errors.append(text)
        elif level is None and text.startswith(_LISTING):
            self.listings.append(text)
        elif level == logging.DEBUG and (found := _MEMORY.search(text)) is not None:
            self.memory[found[1]] = max(self.memory.get(found[1], 0), int(found[2]))

    def last_error(self, nothing: str = "it does not say why") -> str:
        return " ".join(self.errors[-1].split()) if self.errors else nothing


#: The listeners of a context, since all threads share a logger.
_listeners: contextvars.ContextVar[tuple[Messages, ...]] = contextvars.ContextVar("listeners", default=())

FLAVOURS = {
    "tensorrt": Flavour("tensorrt", "TensorRT", ("tensorrt",), oldest=10, rtx=False),
    "tensorrt-rtx": Flavour(
        "tensorrt-rtx", "TensorRT-RTX", ("tensorrt_rtx_bindings", "tensorrt_rtx"), oldest=1, rtx=True
    ),
}


#: The start of the listing of layers of a build.
_LISTING = "Layers:"
#: The message of a build about the memory of its engine.
_MEMORY = re.compile(r"Total (Weights|Activation) Memory: (\d+) bytes")


def _make_logger(trt: Any) -> Any:
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.ERROR,
        trt.ILogger.Severity.WARNING: logging.WARNING,
        trt.ILogger.Severity.INFO: logging.DEBUG,
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        """Passes messages to `logging` and to the listeners of the context."""

        def log(self, severity: Any, message: str) -> None:
            level = levels.get(severity)
            for listener in _listeners.get():
                listener.add(level, message)
            if level is not None:
                _log.log(level, "%s", message)

    return Logger()
