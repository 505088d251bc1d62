"""A backend whose runs do next to nothing, so that what surrounds them can be tested and measured."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from infersdk.core.backend import BackendOptions
from infersdk.core.tensor_spec import TensorSpec
from infersdk.infer import BackendInfo, Declaration, Infer


class Options(BackendOptions, frozen=True, kw_only=True):
    """`seconds` that a run takes; `fail` every so many runs, counted over all clones (0: never)."""

    seconds: float = 0.0
    fail: int = 0
    side: int = 64


class IdleInfer(Infer):
    """Input `x` [batch, 3, side, side] float32; output `y` [batch] is the first element of each row."""

    backend = "idle"
    declaration = Declaration(probe=lambda: BackendInfo("1", ("cpu",)), options=Options)

    def _load(self) -> None:
        side = self.options.side
        self.input_specs = (TensorSpec("x", np.dtype(np.float32), ("batch", 3, side, side)),)
        self.output_specs = (TensorSpec("y", np.dtype(np.float32), ("batch",)),)
        self.runs = [0]

    def _bind(self) -> None:
        self._outputs["y"].resize(self._inputs["x"].shape[:1])

    def _enqueue(self) -> None:
        self.runs[0] += 1
        if self.options.fail and self.runs[0] % self.options.fail == 0:
            raise RuntimeError("the runtime says no")
        if self.options.seconds:
            time.sleep(self.options.seconds)
        self._outputs["y"].numpy(writable=True)[:] = self._inputs["x"].numpy()[:, 0, 0, 0]

    def _clone(self, twin: Any) -> None:
        pass

    def _close(self) -> None:
        pass

    @property
    def precision(self) -> str:
        return "fp32"


def idle(folder: Path, max_batch: int | None = None, **options: Any) -> IdleInfer:
    path = folder / "idle.model"
    path.write_bytes(b"idle")
    return IdleInfer(path, max_batch=max_batch, options=Options(**options))
