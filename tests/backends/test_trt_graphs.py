"""The contexts that instances of an engine share, and when their runs are captured as CUDA graphs.

Contexts, streams and graphs are stood in for, so that it is seen without a GPU; test_tensorrt_gpu.py has the real ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from infersdk.backends._trt import contexts as trt_contexts
from infersdk.backends._trt import engine as trt_engine
from infersdk.backends._trt import infer as trt_infer
from infersdk.errors import CudaError, InferenceError, OutOfMemoryError

Log = list[Any]


class RawContext:
    """Stands in for the context of the runtime."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.auxiliary: list[int] = []

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        return True

    def set_device_memory(self, address: int, nbytes: int) -> None:
        self.log.append(("memory", address))

    def set_aux_streams(self, handles: list[int]) -> None:
        self.auxiliary = handles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.log.append((name, shape))
        return shape[0] <= 8

    def set_tensor_address(self, name: str, address: int) -> None:
        self.log.append((name, address))

    def is_stream_capturable(self, stream: int) -> bool:
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self.log.append(f"ran on {stream}")
        return True


class FakeStream:
    made = 0

    def __init__(self, device: str) -> None:
        FakeStream.made += 1
        self.handle, self.open, self.log = FakeStream.made, True, Log()

    def wait(self, event: Any) -> None:
        self.log.append("waits")

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


class FakeEvent:
    def __init__(self, device: str) -> None:
        pass

    def record(self, stream: FakeStream) -> None:
        stream.log.append("recorded")

    def close(self) -> None:
        pass


class FakeTensor:
    made: list[FakeTensor] = []

    def __init__(self, shape: tuple[int, ...], dtype: str, device: str) -> None:
        self.open = True
        FakeTensor.made.append(self)

    def device_ptr(self, **access: bool) -> int:
        return 4096 * (1 + FakeTensor.made.index(self))

    def close(self) -> None:
        self.open = False


class FakeEngine(trt_engine.Engine):
    """An engine of the real bookkeeping, whose contexts take batches up to 8."""

    scratch_nbytes = 1024  # type: ignore[assignment]
    auxiliary_streams = 2  # type: ignore[assignment]

    def __init__(self, log: Log) -> None:
        self.name, self.device, self.guard = "model.onnx", "cuda:0", threading.Lock()  # type: ignore[assignment]
        self._sets = []
        self.log, self.made, self.out_of_memory = log, 0, False

    def context(self, options: Any) -> Any:
        if self.out_of_memory:
            raise OutOfMemoryError("no room for a context")
        self.made += 1
        return RawContext(self.log)


class Runs(trt_infer.TensorRtRtxInfer):
    """The part of the Infer that runs."""

    def __init__(self, engine: FakeEngine) -> None:
        self._closed = True  # nothing to free
        self.model: Any = SimpleNamespace(name="model.onnx")
        self.options = SimpleNamespace(cuda_graph=True)
        self._engine, self._cuda = engine, contextlib.nullcontext()
        self.stream: Any = FakeStream("cuda:0")
        self._grown, self._graphs = {}, OrderedDict()
        self._captures, self._failed_captures, self._first, self._copied = True, 0, False, False
        self._use_contexts(engine.join(self.options))

    def _update_addresses(self) -> None:
        self._addresses = {"x": 4096 * self.stream.handle}

    def run(self, batch: int = 1) -> None:
        self._shapes = {"x": (batch, 3)}
        self._enqueue()


class Graphs:
    """Stands in for `CudaGraph`: captures as long as `failing` is empty."""

    def __init__(self, log: Log) -> None:
        self.failing: list[Exception] = []
        self.log = log

    def __call__(self, stream: Any, queue: Callable[[], object]) -> Any:
        if self.failing:
            self.log.append("failed")
            raise self.failing.pop(0)
        self.log.append("captured")
        queue()
        return SimpleNamespace(launch=lambda stream: self.log.append("launched"))


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, log: Log) -> Graphs:
    found = Graphs(log)
    monkeypatch.setattr(trt_infer, "CudaGraph", found)
    return found


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, log: Log) -> FakeEngine:
    monkeypatch.setattr(trt_contexts, "Stream", FakeStream)
    monkeypatch.setattr(trt_contexts, "Event", FakeEvent)
    monkeypatch.setattr(trt_contexts, "Tensor", FakeTensor)
    monkeypatch.setattr(FakeTensor, "made", [])
    return FakeEngine(log)


def actions(log: Log) -> list[str]:
    """Runs and graphs, without what was set."""
    return [entry.partition(" on")[0] for entry in log if isinstance(entry, str)]


# ---- graphs ----


def test_the_second_run_of_each_batch_is_captured(engine: FakeEngine, graphs: Graphs, log: Log) -> None:
    infer = Runs(engine)
    for batch in (1, 4, 1, 4, 1, 4):
        infer.run(batch)
    captured = ["captured", "ran", "launched"]
    assert actions(log) == ["ran", "ran", *captured, *captured, "launched", "launched"]


@pytest.mark.parametrize("error", [CudaError("ended"), InferenceError("the runtime failed"), OutOfMemoryError("none")])
def test_a_capture_that_fails_is_tried_again(engine: FakeEngine, graphs: Graphs, log: Log, error: Exception) -> None:
    infer = Runs(engine)
    graphs.failing = [error]
    for _ in range(5):
        infer.run()
    assert actions(log) == ["ran", "failed", "ran", "captured", "ran", "launched", "launched", "launched"]
    assert engine.made == 2  # the state of the first context is unknown after the error


def test_captures_that_always_fail_are_an_error_with_the_remedy(engine: FakeEngine, graphs: Graphs, log: Log) -> None:
    infer = Runs(engine)
    graphs.failing = [CudaError("not permitted")] * trt_infer.CAPTURES
    for _ in range(trt_infer.CAPTURES):
        infer.run()
    with pytest.raises(InferenceError, match=r"cannot run model.onnx as a CUDA graph.*permitted; load it with cuda_gr"):
        infer.run()
    assert actions(log).count("failed") == trt_infer.CAPTURES


def test_without_room_for_another_context_the_next_run_tries(engine: FakeEngine, graphs: Graphs, log: Log) -> None:
    infer = Runs(engine)
    infer.run()
    graphs.failing, engine.out_of_memory = [CudaError("ended")], True
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match="no room"):
            infer.run()
    engine.out_of_memory = False
    log.clear()
    for _ in range(3):
        infer.run()
    assert actions(log) == ["ran", "captured", "ran", "launched", "launched"]


def test_shapes_that_look_alike_have_graphs_of_their_own(engine: FakeEngine) -> None:
    infer = Runs(engine)
    infer._addresses = {}

    def key(**batches: int) -> tuple[Any, ...]:
        infer._shapes = {name: (batch, 4) for name, batch in batches.items()}
        return infer._graph_key()

    assert len({key(a=2, b=3), key(b=2, a=3), key(a=2, b=2)}) == 3


# ---- contexts ----


def test_streams_that_a_run_uses_beside_its_own_are_not_blocking_ones(engine: FakeEngine) -> None:
    """Streams of ours do not block on the default stream; those that the runtime creates by itself do."""
    infer = Runs(engine)
    assert infer._context.raw.auxiliary == [stream.handle for stream in infer._contexts._auxiliary]
    assert len(set(infer._context.raw.auxiliary)) == engine.auxiliary_streams


@pytest.mark.parametrize(("nbytes", "users"), [(1 << 20, [1, 2, 2]), (500 << 20, [2, 3])])
def test_instances_share_contexts_and_the_memory_of_runs(engine: FakeEngine, nbytes: int, users: list[int]) -> None:
    engine.scratch_nbytes = nbytes  # type: ignore[misc]
    instances = [Runs(engine) for _ in range(5)]
    assert engine.made == len(FakeTensor.made) == len(users)
    assert sorted(contexts.users for contexts in engine._sets) == users
    assert engine.next_scratch_nbytes == 0
    for infer in instances:
        engine.leave(infer._contexts)
    assert engine._sets == []
    assert not any(tensor.open for tensor in FakeTensor.made)
    assert not any(stream.open for infer in instances for stream in infer._contexts._auxiliary)
    assert engine.next_scratch_nbytes == engine.scratch_nbytes


def test_a_run_waits_for_the_last_run_on_the_same_contexts(
    engine: FakeEngine, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "_most_sets", 1)
    first, second = Runs(engine), Runs(engine)
    for _ in range(3):
        first.run()
        first.run()
        second.run()
    assert first.stream.log == ["recorded", "recorded"] + 2 * ["waits", "recorded", "recorded"]
    assert second.stream.log == 3 * ["waits", "recorded"]


def test_an_instance_sets_the_context_again_after_another_one(
    engine: FakeEngine, graphs: Graphs, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeEngine, "_most_sets", 1)
    first, second = Runs(engine), Runs(engine)
    for infer, batch in ((first, 1), (second, 4)):
        log.clear()
        infer.run(batch)
        at = 4096 * infer.stream.handle
        assert log[-3:] == [("x", (batch, 3)), ("x", at), f"ran on {infer.stream.handle}"]
    log.clear()
    first.run(1)
    assert log == [("x", (1, 3)), ("x", 4096 * first.stream.handle), "captured", f"ran on {first.stream.handle}",
                   "launched"]  # fmt: skip
    second.run(4)
    second.run(1)  # the kernels of this size are compiled
    assert actions(log)[-3:] == ["captured", "ran", "launched"]
    log.clear()
    first.run(1)  # its graph has the shapes and addresses
    assert log == ["launched"]


def test_a_shape_that_is_refused_is_named(engine: FakeEngine) -> None:
    context = Runs(engine)._context
    assert context.set_shapes({"x": (8, 3)}) is None
    assert context.set_shapes({"x": (9, 3)}) == "x"
    assert context.set_shapes({"x": (9, 3)}) == "x"  # it is not remembered as set
