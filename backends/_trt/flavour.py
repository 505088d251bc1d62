"""TensorRT and TensorRT-RTX: one API, and the little in which they differ."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..._text import logger

__all__ = ["FLAVOURS", "Flavour"]

_log = logger("infersdk.tensorrt")
_log.addHandler(logging.NullHandler())  # errors of the runtime are raised; without a handler they would be printed too


@dataclass(frozen=True)
class Flavour:
    """One of the runtimes.

    Attributes:
        backend: the name of the backend.
        title: what it is called in messages.
        modules: the names that its package may be imported by.
        oldest: the first major version that has the API used here.
        capability_targeting: builds for named compute capabilities, on any machine. Otherwise it builds for the GPU
            that is there, and only for that.
        checks_engines: can tell from an engine's header whether it will run here.
        runtime_cache: compiles kernels when it runs, and can keep them.
        timing_cache: measures kernels when it builds, and can keep the figures.
        builds_quickly: in seconds, since it compiles only when it runs: more profiles cost little.
        int8_convolutions: has kernels for them.
    """

    backend: str
    title: str
    modules: tuple[str, ...]
    oldest: int
    capability_targeting: bool
    checks_engines: bool
    runtime_cache: bool
    timing_cache: bool
    builds_quickly: bool
    int8_convolutions: bool

    @functools.cached_property
    def trt(self) -> Any:
        """The vendor's module. What it raises on import is for the registry to tell the user."""
        return _import(self)

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @functools.cached_property
    def logger(self) -> Any:
        """The one logger of the process: the runtime keeps the first that it is given."""
        return _make_logger(self.trt)

    @contextlib.contextmanager
    def complaints(self) -> Iterator[list[str]]:
        """What the runtime complains of in this scope."""
        lines: list[str] = []
        with self.logger.guard:
            self.logger.listeners.append(lines)
        try:
            yield lines
        finally:
            with self.logger.guard:
                self.logger.listeners = [other for other in self.logger.listeners if other is not lines]

    @contextlib.contextmanager
    def layer_listings(self) -> Iterator[list[str]]:
        """The listings of layers that builds print in this scope, in the inspector's format of one line a layer.

        A build prints one where its configuration has `ProfilingVerbosity.DETAILED`.
        """
        listings: list[str] = []
        with self.logger.guard:
            self.logger.listings.append(listings)
        try:
            yield listings
        finally:
            with self.logger.guard:
                self.logger.listings = [other for other in self.logger.listings if other is not listings]

    @contextlib.contextmanager
    def memory_report(self) -> Iterator[dict[str, int]]:
        """The device memory that engines built in this scope take, in bytes: the most that a build reports under the
        names "Weights" and "Activation".
        """
        report: dict[str, int] = {}
        with self.logger.guard:
            self.logger.reports.append(report)
        try:
            yield report
        finally:
            with self.logger.guard:
                self.logger.reports = [other for other in self.logger.reports if other is not report]


FLAVOURS = {
    flavour.backend: flavour
    for flavour in (
        Flavour(
            backend="tensorrt", title="TensorRT", modules=("tensorrt",), oldest=10, capability_targeting=False,
            checks_engines=False, runtime_cache=False, timing_cache=True, builds_quickly=False,
            int8_convolutions=True,
        ),
        Flavour(
            backend="tensorrt-rtx", title="TensorRT-RTX", modules=("tensorrt_rtx_bindings", "tensorrt_rtx"), oldest=1,
            capability_targeting=True, checks_engines=True, runtime_cache=True, timing_cache=False, builds_quickly=True,
            int8_convolutions=False,
        ),
    )
}  # fmt: skip


#: How a build begins its listing of layers.
_LISTING = "Layers:"
#: How a build says what memory its engine takes.
_MEMORY = re.compile(r"Total (Weights|Activation) Memory: (\d+) bytes")


def _import(flavour: Flavour) -> Any:
    for name in flavour.modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        if not hasattr(module, "__version__"):
            continue  # a folder of stubs
        major = int(str(module.__version__).partition(".")[0])
        if major < flavour.oldest:
            raise ImportError(f"{flavour.title} {module.__version__} is too old; {flavour.oldest} or later is needed")
        return module
    raise ModuleNotFoundError(f"No module named {flavour.modules[0]!r}", name=flavour.modules[0])


def _make_logger(trt: Any) -> Any:
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.ERROR,
        trt.ILogger.Severity.WARNING: logging.WARNING,
        trt.ILogger.Severity.INFO: logging.DEBUG,
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        """Passes messages to `logging`, and errors to the listeners."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.guard = threading.Lock()
            self.listeners: list[list[str]] = []
            self.listings: list[list[str]] = []
            self.reports: list[dict[str, int]] = []

        def log(self, severity: Any, message: str) -> None:
            level = levels.get(severity)
            if level is None:
                if message.startswith(_LISTING):
                    with self.guard:
                        for texts in self.listings:
                            texts.append(message)
                return
            if level == logging.ERROR:
                with self.guard:
                    for lines in self.listeners:
                        lines.append(message)
            if level == logging.DEBUG and (found := _MEMORY.search(message)) is not None:
                with self.guard:
                    for report in self.reports:
                        report[found[1]] = max(report.get(found[1], 0), int(found[2]))
            _log.log(level, "%s", message)

    return Logger()
