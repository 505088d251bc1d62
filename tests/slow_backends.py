"""Backends that take as long to load as a test wants; otherwise they are the real OpenVINO."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import msgspec

from infersdk import Infer  # noqa: TC001
from infersdk.backends.openvino import OpenVinoInfer, Options
from infersdk.core.model_source import ModelSource

#: Those that were loaded.
made: weakref.WeakSet[Infer] = weakref.WeakSet()


class SlowOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gate` is an event that the load waits for; `instead` another model that it reads."""

    gate: Any = None
    fail: str = ""
    instead: Any = None


class SlowOpenVino(OpenVinoInfer):
    backend = "slow"
    declaration = msgspec.structs.replace(OpenVinoInfer.declaration, options=SlowOptions)

    def _load(self) -> None:
        if self.options.gate is not None:
            assert self.options.gate.wait(60)
        if self.options.fail:
            raise RuntimeError(self.options.fail)
        if self.options.instead is not None:
            self.model = ModelSource.of(self.options.instead)
        super()._load()
        made.add(self)


class BuildingOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As those of a backend that builds engines."""

    progress: Any = None
    steps: int = 1000


class BuildingOpenVino(OpenVinoInfer):
    """Builds for 10 ms a step, and tells of it."""

    backend = "builder"
    declaration = msgspec.structs.replace(OpenVinoInfer.declaration, options=BuildingOptions)
    building = threading.Event()

    def _load(self) -> None:
        for step in range(self.options.steps):
            self.building.set()
            if self.options.progress is not None:
                self.options.progress("step", step / self.options.steps)
            time.sleep(0.01)
        super()._load()
        made.add(self)
