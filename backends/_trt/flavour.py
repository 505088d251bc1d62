"""TensorRT and TensorRT-RTX: one API, and the differences between them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ...core.text import logger

__all__ = ["FLAVOURS", "Flavour"]

T = TypeVar("T")

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
        capability_targeting: builds for named compute capabilities, on any machine. Otherwise it builds for the present
            GPU only.
        checks_engines: checks the header of an engine for this machine.
        runtime_cache: compiles kernels when it runs, and has a cache of them.
        timing_cache: measures kernels when it builds, and has a cache of the times.
        builds_quickly: builds in seconds, since it compiles when it runs; more profiles cost little.
        int8_convolutions: has INT8 convolutions.
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
        """The vendor's module. The registry reports the exceptions of the import."""
        return _import(self)

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @functools.cached_property
    def logger(self) -> Any:
        """The logger of the process: the runtime keeps the first one."""
        return _make_logger(self.trt)

    def complaints(self) -> AbstractContextManager[list[str]]:
        """The errors that the runtime reports in this scope."""
        return self._heard("listeners", [])

    def layer_listings(self) -> AbstractContextManager[list[str]]:
        """The listings of layers that builds print in this scope, in the inspector's format of one line a layer.

        A build prints one if its configuration has `ProfilingVerbosity.DETAILED`.
        """
        return self._heard("listings", [])

    def memory_report(self) -> AbstractContextManager[dict[str, int]]:
        """The device memory of engines built in this scope, in bytes: the maximum under the names "Weights" and
        "Activation".
        """
        return self._heard("reports", {})

    @contextlib.contextmanager
    def _heard(self, kind: str, collected: T) -> Iterator[T]:
        """Lets the logger fill `collected` in this scope."""
        with self.logger.guard:
            getattr(self.logger, kind).append(collected)
        try:
            yield collected
        finally:
            with self.logger.guard:
                setattr(self.logger, kind, [other for other in getattr(self.logger, kind) if other is not collected])


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


#: The start of the listing of layers of a build.
_LISTING = "Layers:"
#: The message of a build about the memory of its engine.
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


#: The first version of TensorRT-RTX that parses plugin nodes.
_RTX = (1, 7)


def takes_plugins(flavour: Flavour) -> bool:
    """Whether the runtime parses custom nodes into plugins."""
    if not hasattr(flavour.trt, "IPluginV3"):
        return False
    major, minor = (int(part) for part in flavour.version.split(".")[:2])
    return not flavour.capability_targeting or (major, minor) >= _RTX
