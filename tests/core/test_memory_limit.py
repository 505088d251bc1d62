"""`memory_limit=`: what is counted, what is refused, and by which numbers."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import together

import infersdk
from infersdk import Device, Tensor, device_count
from infersdk.core.backend import BackendOptions
from infersdk.core.memory_limit import MemoryBudget, charging
from infersdk.errors import ConfigError, DeviceUnavailableError, MemoryLimitError
from infersdk.models import YOLOv5


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget("net.onnx", 1000, "cuda:0")


def test_reservations_count_until_they_are_closed(budget: MemoryBudget) -> None:
    first, second = budget.reserve(600), budget.reserve(400)
    assert (budget.used, budget.peak) == (1000, 1000)
    with pytest.raises(MemoryLimitError, match=r"net.onnx is 1000 bytes: 1000 are in use, and 1 more are needed"):
        budget.reserve(1)
    second.close()
    del first
    gc.collect()
    assert (budget.used, budget.peak) == (0, 1000)
    with budget.reserve(1000):
        assert "1000 of 1000 bytes" in repr(budget)
    with pytest.raises(MemoryLimitError):
        budget.reserve(2**63)
    assert budget.used == 0


def test_threads_never_exceed_it() -> None:
    budget, most = MemoryBudget("net.onnx", 50, "cuda:0"), []

    def work(_: int) -> None:
        for _ in range(300):
            try:
                with budget.reserve(7):
                    most.append(budget.used)
            except MemoryLimitError:
                most.append(50)

    together(work, range(10))
    assert budget.used == 0
    assert max(most) <= 50
    assert budget.peak <= 49


def test_what_is_needed_is_checked_before_it_is_there(budget: MemoryBudget) -> None:
    budget.require({"weights": 600, "workspace": 400}, "use less")
    with budget.reserve(100), pytest.raises(MemoryLimitError) as caught:
        budget.require({"weights": 600, "workspace": 400, "nothing": 0}, "use less")
    assert str(caught.value) == (
        "net.onnx needs 1.0 kB on cuda:0 (weights 600 bytes, workspace 400 bytes), and 100 bytes are in use, and "
        "memory_limit is 1.0 kB; use less, or raise memory_limit to 1100 bytes"
    )


def test_tensors_belong_to_the_budget_that_was_in_use(budget: MemoryBudget) -> None:
    """The limit is looked at before the device: so this needs none."""
    with charging(budget):
        tensor = Tensor((2000,), "uint8", "cuda:0")
        with charging(None):
            other = tensor[:1]  # a view of the same memory
    with pytest.raises(MemoryLimitError, match="0 are in use, and 2048 more are needed"):
        tensor.device_ptr(read=False, write=True)
    with pytest.raises(MemoryLimitError):
        other.device_ptr(read=False, write=True)
    free = Tensor((2000,), "uint8", "cuda:0")  # it belongs to none
    if device_count() == 0:
        with pytest.raises(DeviceUnavailableError):
            free.device_ptr(read=False, write=True)
    assert budget.used == 0


def test_budgets_that_are_closed_while_they_are_in_use(budget: MemoryBudget) -> None:
    inner = MemoryBudget("inner", 1000, "cuda:0")
    with charging(budget):
        with charging(inner):
            inner.close()
            budget.close()
            tensor = Tensor((2000,), "uint8", "cuda:0")
            with pytest.raises(MemoryLimitError, match="the memory limit of inner is 1000 bytes"):
                tensor.device_ptr(read=False, write=True)
        outer = Tensor((200_000,), "uint8", "cuda:0")
    with pytest.raises(MemoryLimitError, match="200000 more are needed"):
        outer.device_ptr(read=False, write=True)


@pytest.mark.skipif(device_count() > 0, reason="this machine has a GPU")
def test_an_allocation_that_fails_is_not_counted(budget: MemoryBudget) -> None:
    with charging(budget):
        tensor = Tensor((100,), "uint8", "cuda:0")
    with pytest.raises(DeviceUnavailableError):
        tensor.device_ptr(read=False, write=True)
    assert budget.used == 0
    assert budget.peak == 128


def test_each_thread_charges_its_own(budget: MemoryBudget) -> None:
    def work() -> None:
        tensor = Tensor((2000,), "uint8", "cuda:0")
        with contextlib.suppress(DeviceUnavailableError):
            tensor.device_ptr(read=False, write=True)

    with charging(budget):
        together(work, [()])


class Limited(BackendOptions, frozen=True, kw_only=True):
    memory_limit: str | int | None = None


def test_whose_budget() -> None:
    cuda, cpu = Device.parse("cuda:0"), Device.parse("cpu")
    assert MemoryBudget.of(BackendOptions(), cuda, "m") is None
    assert MemoryBudget.of(Limited(), cuda, "m") is None
    made = MemoryBudget.of(Limited(memory_limit="1.5GB"), cuda, "m")
    assert made.limit == 1_500_000_000
    with charging(made):  # the parts of a model have the budget of the whole
        assert MemoryBudget.of(Limited(memory_limit="1GB"), cuda, "part") is made
        assert MemoryBudget.of(Limited(), cuda, "part") is made
        assert MemoryBudget.of(Limited(), cpu, "part") is None
    assert MemoryBudget.of(Limited(), cuda, "m") is None
    with pytest.raises(ConfigError, match="memory_limit is a number of bytes above 0"):
        MemoryBudget.of(Limited(memory_limit=0), cuda, "m")
    for limit in ("9999999999 GiB", 2**63):
        with pytest.raises(ConfigError, match=r"memory_limit is .*; a number of bytes is less than 2\*\*63"):
            MemoryBudget.of(Limited(memory_limit=limit), cuda, "m")
    with pytest.raises(ConfigError, match=r"memory_limit is a number of bytes, or a text such as .*not 'much'"):
        MemoryBudget.of(Limited(memory_limit="much"), cuda, "m")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_processor_has_no_such_limit(backend: str) -> None:
    pytest.importorskip(backend)
    from infersdk.data import DETECTOR

    with pytest.raises(ConfigError, match=r"memory_limit='1GB'.*limit the whole process there \(docker --memory"):
        infersdk.load(DETECTOR, backend, memory_limit="1GB")
    with pytest.raises(ConfigError, match="memory_limit"):
        YOLOv5(DETECTOR, backend, memory_limit="1GB")
    infersdk.load(DETECTOR, backend, **({"memory_limit": None} if backend == "onnxruntime" else {})).close()


# ---- engines ----


def test_the_builder_says_what_an_engine_takes(assets: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    onnx = pytest.importorskip("onnx")
    from infersdk.backends._trt.build import build_engine
    from infersdk.backends._trt.details import EngineMemory
    from infersdk.backends._trt.flavour import FLAVOURS
    from infersdk.backends._trt.options import Options

    model = onnx.load(assets / "models" / "squeezenet1.1.onnx")
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "classes"  # the file names it, and says no number
    onnx.save(model, path := tmp_path / "named.onnx")
    made: dict[int, Any] = {}
    for batch in (1, 4):
        data, details = build_engine(FLAVOURS["tensorrt-rtx"], path, precision=None, max_batch=batch, options=Options())
        assert details.workspace_nbytes is not None
        assert details.weights_nbytes >= 1_230_000 * 4  # its parameters
        made[batch] = EngineMemory.of(MemoryBudget("m", 10**9, "cuda:0"), data, details)
    assert made[1].weights <= made[4].weights
    assert made[1].workspace < made[4].workspace
    assert made[4].tensors == 4 * (3 * 227 * 227 + 1000) * 4
    small = EngineMemory.of(MemoryBudget("m", made[4].weights + 1000, "cuda:0"), data, details)
    with pytest.raises(MemoryLimitError, match=r"m needs .* on cuda:0 \(weights 4.9 MB, workspace .* MB, inputs and"):
        small.check()
    assert small.workspace_left == 1000 - small.tensors
    unknown = EngineMemory.of(small.budget, data, None)
    assert (unknown.weights, unknown.workspace, unknown.tensors) == (len(data), None, 0)


# ---- the arena of ONNX Runtime ----


def test_how_an_arena_shares_a_limit() -> None:
    pytest.importorskip("onnxruntime")
    from infersdk.backends._onnxruntime.cuda import Arena

    budget = MemoryBudget("net.onnx", 1000, "cuda:0")
    arena = Arena(budget, 100, 500, {})
    assert arena.settings == {"gpu_mem_limit": "750", "arena_extend_strategy": "kSameAsRequested"}
    assert Arena(budget, 400, 500, {}).limit == 600  # the tensors need more than a quarter
    assert Arena(budget, 100, 500, {"gpu_mem_limit": "900"}).limit == 900
    with pytest.raises(MemoryLimitError, match=r"weights 800 bytes, inputs and outputs 300 bytes.*to 1100 bytes"):
        Arena(budget, 300, 800, {})
    with pytest.raises(MemoryLimitError, match=r"arena has 750 bytes, and the weights alone are 800 bytes.*1067 bytes"):
        Arena(budget, 100, 800, {})
    with pytest.raises(ConfigError, match="gpu_mem_limit is a number of bytes, not 'all'"):
        Arena(budget, 100, 500, {"gpu_mem_limit": "all"})

    class Session:
        pass

    session = Session()
    arena.hold(session)
    assert budget.used == 750
    with pytest.raises(MemoryLimitError):
        arena.hold(Session())
    del session
    gc.collect()
    assert budget.used == 0
    full = "Available memory of 0 is smaller than requested bytes of 6553600"
    assert "net.onnx needs more than 750 bytes" in str(arena.error_of(RuntimeError(full)))
    assert arena.error_of(RuntimeError("a node failed")) is None


# ---- on a GPU ----

LIMITED = [("tensorrt-rtx", "tensorrt_rtx_bindings"), ("onnxruntime", "onnxruntime")]


@pytest.fixture(params=LIMITED, ids=[name for name, _ in LIMITED])
def on_gpu(request: pytest.FixtureRequest) -> dict[str, Any]:
    backend, package = request.param
    pytest.importorskip(package)
    if backend == "onnxruntime":
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            pytest.skip("needs onnxruntime-gpu")
    return {"backend": backend, "device": "cuda:0"}


@pytest.mark.gpu
def test_too_little_is_an_error_before_anything_is_allocated(on_gpu: dict[str, Any], assets: Path) -> None:
    path = assets / "models" / "yolov5n.onnx"
    infersdk.load(path, **on_gpu, max_batch=8).close()  # libraries, and the engine in the cache
    gc.collect()
    before = infersdk.memory_stats()["device_bytes"]
    with pytest.raises(MemoryLimitError, match=r"yolov5n.onnx needs .*weights.*raise memory_limit to \d+ bytes") as e:
        infersdk.load(path, **on_gpu, max_batch=8, memory_limit="20MB")
    assert infersdk.memory_stats()["device_bytes"] == before
    print(e.value)


@pytest.mark.gpu
def test_what_is_held_stays_within_the_limit(on_gpu: dict[str, Any], assets: Path) -> None:
    """By NVML as well: what the driver gave, without the context, is within the limit and what libraries take."""
    from infersdk.testing import device_memory_used

    path, limit = assets / "models" / "yolov5n.onnx", 2 << 30
    frames = [np.full((720, 1280, 3), number, np.uint8) for number in range(4)] * 8
    with YOLOv5(path, **on_gpu, max_batch=4) as plain:
        expected = list(plain.stream(frames))  # kernels and libraries are loaded
        plain.release()
        gc.collect()
        bare = device_memory_used("cuda:0")
        with YOLOv5(path, **on_gpu, max_batch=4, memory_limit=limit) as model:
            results = list(model.stream(frames))
            results = list(model.map(frames))
            budget = model.network.memory_budget
            taken = device_memory_used("cuda:0") - bare
            print(f"{on_gpu['backend']}: limit {limit >> 20} MiB, counted {budget.used >> 20} MiB, "
                  f"peak {budget.peak >> 20} MiB, by the driver {taken >> 20} MiB")  # fmt: skip
            assert 0 < budget.used <= budget.peak <= limit
            if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) == 1:  # it is what all processes hold
                assert taken <= limit + (128 << 20)  # and graphs, kernels, the driver's own pools
            model.release()
            gc.collect()
            assert budget.used == 0
            results = list(model.stream(frames))
    for mine, other in zip(results, expected, strict=True):
        np.testing.assert_array_equal(mine.data, other.data)


@pytest.mark.gpu
def test_clones_and_larger_images_are_refused_when_it_is_full(on_gpu: dict[str, Any], assets: Path) -> None:
    path = assets / "models" / "yolov5n.onnx"
    with infersdk.load(path, **on_gpu, max_batch=2, memory_limit="900MB") as infer:
        assert infer.memory_budget is not None
        x = np.zeros((2, 3, 640, 640), np.float32)
        want = infer(x)["output0"]
        clones = []

        def fill() -> None:
            while len(clones) < 1000:
                clones.append(infer.clone())

        with pytest.raises(MemoryLimitError, match=r"yolov5n.onnx needs .*are in use, and memory_limit is 900.0 MB"):
            fill()
        assert clones
        np.testing.assert_array_equal(infer(x)["output0"], want)  # what was there goes on
        np.testing.assert_array_equal(clones[0](x)["output0"], want)
        for _ in range(3):  # one that has not run yet has no outputs
            clones.pop().close()
        clones.append(infer.clone())  # there is room for one again
        for clone in clones:
            clone.close()
    on_device = {**on_gpu, "preprocess": "device"}
    with YOLOv5(path, **on_device, max_batch=2, memory_limit="600MB") as model, charging(model.network.memory_budget):
        holder = Tensor((model.network.memory_budget.limit - model.network.memory_budget.used - (8 << 20),), "uint8",
                        "cuda:0")  # fmt: skip
        holder.device_ptr(read=False, write=True)
        with pytest.raises(MemoryLimitError):
            model(np.zeros((4000, 6000, 3), np.uint8))
        holder.close()
        assert len(model(np.zeros((4000, 6000, 3), np.uint8))) == 0
