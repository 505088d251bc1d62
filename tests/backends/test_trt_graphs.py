"""When runs on TensorRT are captured as CUDA graphs, and what follows a capture that fails.

Contexts and graphs are stood in for, so that it is seen without a GPU; test_tensorrt_gpu.py has the real ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infersdk.backends._trt import infer as trt_infer
from infersdk.errors import CudaError, InferenceError, OutOfMemoryError


class Graphs:
    """Stands in for `CudaGraph`: captures as long as `failing` is empty, and tells what was done."""

    def __init__(self) -> None:
        self.failing: list[Exception] = []
        self.log: list[str] = []

    def __call__(self, stream: Any, queue: Callable[[], object]) -> Any:
        if self.failing:
            self.log.append("failed")
            raise self.failing.pop(0)
        self.log.append("captured")
        queue()
        return SimpleNamespace(launch=lambda stream: self.log.append("launched"))


class Runs(trt_infer.TensorRtRtxInfer):
    """The part of the Infer that decides; its contexts take any shape."""

    def __init__(self, log: list[str]) -> None:
        self._closed = True  # nothing to free
        self.model: Any = SimpleNamespace(name="model.onnx")
        self.stream: Any = SimpleNamespace(handle=0)
        self._engine = SimpleNamespace(guard=threading.Lock())  # type: ignore[assignment]
        self._grown, self._graphs, self._contexts = {}, OrderedDict(), {}
        self._log, self.out_of_memory, self.made = log, False, 0
        self.batch = 1
        self._bound: Any = None

    def _generations(self) -> list[int]:
        return [self.batch]

    def _bind(self) -> None:
        if 0 not in self._contexts:
            if self.out_of_memory:
                raise OutOfMemoryError("no room for a context")
            raw: Any = SimpleNamespace(
                is_stream_capturable=lambda handle: True,
                execute_async_v3=lambda handle: self._log.append("ran") or True,
            )
            self._contexts[0] = trt_infer._Context(raw, 0)
            self.made += 1
        self._context = self._contexts[0]
        self._context.shapes["x"] = (self.batch, 3)

    def _update_addresses(self) -> None:
        self._context.addresses["x"] = 4096

    def run(self, batch: int = 1) -> None:
        self.batch = batch
        if self._bound != self._generations():
            self._bind()
            self._bound = self._generations()
        self._update_addresses()
        self._launch()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()
    monkeypatch.setattr(trt_infer, "CudaGraph", found)
    return found


def test_the_second_run_of_each_batch_is_captured(graphs: Graphs) -> None:
    infer = Runs(graphs.log)
    for batch in (1, 4, 1, 4, 1, 4):
        infer.run(batch)
    assert graphs.log == [
        "ran",
        "ran",
        "captured",
        "ran",
        "launched",
        "captured",
        "ran",
        "launched",
        "launched",
        "launched",
    ]
    assert infer.made == 1


@pytest.mark.parametrize("error", [CudaError("ended"), InferenceError("the runtime failed"), OutOfMemoryError("none")])
def test_a_capture_that_fails_is_tried_again_later(graphs: Graphs, error: Exception) -> None:
    infer = Runs(graphs.log)
    infer.run()
    infer.run()
    infer.run(4)
    graphs.log.clear()
    graphs.failing = [error, error]
    for _ in range(8):
        infer.run(4)
    # Two runs without after the first failure, four after the second; each run is made all the same.
    assert graphs.log == ["failed", "ran", "ran", "ran", "failed", *["ran"] * 5]
    assert infer.made == 3  # a new context each time
    infer.run(4)
    assert graphs.log[-3:] == ["captured", "ran", "launched"]
    graphs.log.clear()
    infer.run(1)  # its graph used what was the old context's
    infer.run(1)
    assert graphs.log == ["ran", "captured", "ran", "launched"]


def test_without_room_for_another_context_the_next_run_tries(graphs: Graphs) -> None:
    infer = Runs(graphs.log)
    infer.run()
    graphs.failing = [CudaError("ended")]
    infer.out_of_memory = True
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match="no room"):
            infer.run()
    infer.out_of_memory = False
    graphs.log.clear()
    for _ in range(3):
        infer.run()
    assert graphs.log == ["ran", "ran", "captured", "ran", "launched"]


def test_shapes_that_look_alike_have_graphs_of_their_own() -> None:
    def key(**batches: int) -> tuple[Any, ...]:
        context = trt_infer._Context(None, 0)
        context.shapes = {name: (batch, 4) for name, batch in batches.items()}
        return context.key

    # The order is that in which they were set last.
    assert len({key(a=2, b=3), key(b=2, a=3), key(a=2, b=2)}) == 3
