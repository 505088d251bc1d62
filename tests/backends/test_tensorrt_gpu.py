"""Engines at work, on an NVIDIA GPU."""

from __future__ import annotations

import contextlib
import mmap
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from waiting import together

import infersdk
from infersdk.backends._trt import compiled
from infersdk.backends._trt import infer as trt_infer
from infersdk.backends._trt.engine import manifest_path
from infersdk.backends._trt.gpu import cuda_device
from infersdk.backends.tensorrt import build
from infersdk.core.cache import Cache
from infersdk.core.memory import memory_stats
from infersdk.core.stream import CudaGraph
from infersdk.data import DETECTOR
from infersdk.errors import ConfigError, CudaError, EngineError, InferenceError, PrecisionUnavailableError, ShapeError

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("tensorrt_rtx_bindings")
testing = pytest.importorskip("infersdk.testing")

pytestmark = pytest.mark.gpu

RTX = "tensorrt-rtx"

# TensorRT-RTX rounds factors to TF32 whatever its flag says, seen on compute capability 9.0. NVIDIA_TF32_OVERRIDE=0 in
# the environment makes it keep to 1e-4.
RTOL, ATOL = 3e-3, 1e-3


class TestTensorRtx(testing.InferContract):  # type: ignore[misc,name-defined]
    backend = RTX
    options = {"tf32": False, "kernel_specialization": "eager"}
    dtypes = ("float32", "float16", "bool", "int32", "int64")
    dynamic_shape = False  # without a range for them
    data_dependent = False  # TensorRT-RTX 1.6 has no NonZero
    rtol, atol, batch_atol = RTOL, ATOL, ATOL
    precision_atol = {"fp32": 5e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 2e-1}


def images(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 3, 12, 10), dtype=np.float32)


def reference(path: Path, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    result: npt.NDArray[Any] = session.run(None, {session.get_inputs()[0].name: x})[0]
    return result


# ---- the cache ----


def test_the_second_load_builds_and_compiles_nothing(net: Path, tmp_path: Path) -> None:
    told: list[str] = []
    options: dict[str, Any] = {
        "max_batch": 3, "cache_dir": str(tmp_path / "own"), "kernel_specialization": "eager",
        "progress": lambda phase, fraction: told.append(phase),
    }  # fmt: skip
    with infersdk.load(net, RTX, **options) as infer:
        want = infer(images(3))["y"]
    assert told
    kinds = {entry.kind: entry for entry in Cache(tmp_path / "own").entries()}
    assert set(kinds) == {"engine", "compiled"}
    told.clear()
    compiled._held.clear()  # as in another process
    with infersdk.load(net, RTX, **options) as infer:
        assert infer._engine.compiled.nbytes == kinds["compiled"].nbytes  # type: ignore[attr-defined]  # taken by the runtime
        np.testing.assert_array_equal(infer(images(3))["y"], want)
    assert told == []
    after = {entry.kind: entry for entry in Cache(tmp_path / "own").entries()}
    assert after["engine"].sha256 == kinds["engine"].sha256
    assert after["compiled"].nbytes == kinds["compiled"].nbytes  # nothing new was compiled; its order is not fixed


def test_a_damaged_entry_is_made_anew(net: Path, tmp_path: Path) -> None:
    infersdk.load(net, RTX, cache_dir=str(tmp_path / "own")).close()
    cache = Cache(tmp_path / "own")
    for entry in cache.entries():
        data = bytearray(cache.path(entry.key).read_bytes())
        data[len(data) // 2] ^= 1
        cache.path(entry.key).write_bytes(data)
    with infersdk.load(net, RTX, cache_dir=str(tmp_path / "own"), tf32=True) as infer:
        np.testing.assert_allclose(infer(images(1))["y"], reference(net, images(1)), atol=1e-2)


def test_a_cache_that_cannot_be_written(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="cannot be written"), infersdk.load(net, RTX) as infer:
        assert infer(images(1))["y"].shape == (1, 7)
    with pytest.raises(infersdk.errors.OutputError, match="cannot be written"):
        infersdk.load(net, RTX, cache_dir=str(tmp_path / "file" / "cache"))
    infersdk.load(net, RTX, cache=False).close()


def test_two_processes_build_once(net: Path, tmp_path: Path) -> None:
    code = """
        import sys, time, infersdk
        built = []
        def progress(phase, fraction):
            if not built and fraction == 0 and not phase.startswith("Waiting"):
                time.sleep(1)
            built.append(phase)
        infersdk.load(sys.argv[1], "tensorrt-rtx", cache_dir=sys.argv[2], progress=progress).close()
        print(sum(not phase.startswith("Waiting") for phase in built) > 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(net), str(tmp_path / "own")]
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate(timeout=200)[0].strip() for process in several]
    assert sorted(said) == ["False", "False", "True"]


# ---- engine files ----


def test_an_engine_file_runs_and_keeps_its_metadata(net: Path, tmp_path: Path) -> None:
    model = onnx.load(str(net))
    onnx.helper.set_model_props(model, {"names": "{0: 'person'}"})
    onnx.save(model, str(net))
    engine = tmp_path / "net.engine"
    build(net, engine, backend=RTX, max_batch=4, tf32=False)
    with infersdk.load(engine, RTX) as infer:
        assert infer.metadata["names"] == "{0: 'person'}"
        assert infer.max_batch == 4
        assert infer.precision == "fp32"
        assert infer.input_specs[0].shape == ("batch", 3, 12, 10)
        np.testing.assert_allclose(infer(images(4))["y"], reference(net, images(4)), rtol=RTOL, atol=ATOL)
    with pytest.raises(ConfigError, match=r"max_batch=8, but net\.engine was built for batches up to 4"):
        infersdk.load(engine, RTX, max_batch=8)
    with pytest.raises(ConfigError, match="tf32 is for building"):
        infersdk.load(engine, RTX, tf32=False)
    with pytest.raises(PrecisionUnavailableError, match="'fp16': the engine"):
        infersdk.load(engine, RTX, precision="fp16")


def test_an_engine_file_without_its_manifest_runs(net: Path, tmp_path: Path) -> None:
    engine = tmp_path / "net.plan"
    build(net, engine, backend=RTX, max_batch=4)
    manifest_path(engine).unlink()
    with infersdk.load(engine, RTX) as infer:
        assert dict(infer.metadata) == {}
        assert infer.precision == "unknown"
        assert infer.input_specs[0].shape == (None, 3, 12, 10)
        np.testing.assert_allclose(infer(images(3))["y"], reference(net, images(3)), atol=1e-2)
    with pytest.raises(PrecisionUnavailableError):
        infersdk.load(engine, RTX, precision="fp32")


@pytest.mark.parametrize("manifest", [True, False])
def test_an_engine_for_another_gpu(net: Path, tmp_path: Path, manifest: bool) -> None:
    mine = cuda_device(0).capability
    other = next(c for c in ("7.5", "12.0") if c.partition(".")[0] != mine.partition(".")[0])
    engine = tmp_path / "net.engine"
    build(net, engine, compute_capabilities=(other,))
    if not manifest:
        manifest_path(engine).unlink()
    if manifest:
        with pytest.raises(EngineError, match=mine):
            infersdk.load(engine, RTX)
        return
    # Without its manifest the runtime decides: it refuses, or it runs the engine rightly (by compiling it anew).
    with contextlib.suppress(EngineError), infersdk.load(engine, RTX) as infer:
        np.testing.assert_allclose(infer(images(1))["y"], reference(net, images(1)), atol=1e-2)


def test_a_truncated_engine(net: Path, tmp_path: Path) -> None:
    engine = tmp_path / "net.engine"
    build(net, engine, backend=RTX)
    engine.write_bytes(engine.read_bytes()[:-100])
    for _ in range(2):
        with pytest.raises(EngineError, match="is damaged"):
            infersdk.load(engine, RTX)
        manifest_path(engine).unlink(missing_ok=True)


# ---- running ----


def test_a_shape_outside_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "any_size.onnx"
    path.write_bytes(testing.contract_model("any_size"))
    profiles = {"x": {"min": [1, 3, 8, 8], "opt": [1, 3, 16, 16], "max": [2, 3, 32, 32]}}
    with infersdk.load(path, RTX, profiles=profiles, tf32=False) as infer:
        assert infer.max_batch == 2
        for shape in ((1, 3, 8, 8), (2, 3, 32, 32), (1, 3, 9, 31)):
            x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
            np.testing.assert_allclose(infer(x)["y"], reference(path, x), rtol=RTOL, atol=ATOL)
        for shape in ((1, 3, 7, 8), (1, 3, 8, 33)):
            with pytest.raises(ShapeError) as caught:
                infer(np.zeros(shape, np.float32))
            for words in (str(shape), "(1, 3, 8, 8)", "(2, 3, 32, 32)"):
                assert words in str(caught.value)
            assert infer(np.zeros((1, 3, 8, 8), np.float32))["y"].shape == (1, 4, 4, 4)


@pytest.mark.parametrize("options", [{"cuda_graph": True}, {"kernel_specialization": "none"}, {"workspace": "64MiB"}])
def test_options_do_not_change_results(net: Path, options: dict[str, Any]) -> None:
    with infersdk.load(net, RTX, max_batch=4, tf32=False, **options) as infer:
        for count in (1, 4, 1, 3, 3):
            x = images(count, seed=count)
            np.testing.assert_allclose(infer(x)["y"], reference(net, x), rtol=RTOL, atol=ATOL)


def test_cuda_graphs_give_the_same(net: Path) -> None:
    with (
        infersdk.load(net, RTX, max_batch=4, kernel_specialization="eager") as plain,
        infersdk.load(net, RTX, max_batch=4, cuda_graph=True) as graphed,
    ):
        x = graphed.inputs[graphed.input_specs[0].name]
        for seed in range(3):
            for batch in (1, 3, 4, 3, 1):
                images_ = images(batch, seed)
                x.resize(images_.shape).numpy(writable=True)[:] = images_
                got = graphed.forward()["y"].numpy()
                np.testing.assert_allclose(got, plain(images_)["y"], RTOL, ATOL)
        captured = graphed._graphs  # type: ignore[attr-defined]
        assert [graph is not None for graph in captured.values()] == [True] * 3  # one for each batch size
        moved = infersdk.Tensor((3, *x.shape[1:]), "float32", graphed.device)  # another address: captured anew
        moved.numpy(writable=True)[:] = images(3, 9)
        graphed.bind(graphed.input_specs[0].name, moved)
        for _ in range(3):
            np.testing.assert_allclose(graphed.forward()["y"].numpy(), plain(images(3, 9))["y"], RTOL, ATOL)
        assert len(captured) == 4


def test_captures_that_fail(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is tried again; if they always fail, that is an error with the remedy."""
    real, failing = trt_infer.CudaGraph, [CudaError("ended")]

    def capture(*arguments: Any) -> Any:
        if failing:
            raise failing.pop()
        return real(*arguments)

    monkeypatch.setattr(trt_infer, "CudaGraph", capture)
    with infersdk.load(net, RTX, max_batch=4, tf32=False, cuda_graph=True) as infer:
        for _ in range(5):
            np.testing.assert_allclose(infer(images(2))["y"], reference(net, images(2)), rtol=RTOL, atol=ATOL)
        assert not failing
        assert None not in infer._graphs.values()  # type: ignore[attr-defined]
        failing += [CudaError("not permitted")] * 100
        for _ in range(trt_infer.CAPTURES):  # the first run is no capture
            infer(images(3))
        with pytest.raises(InferenceError, match=r"as a CUDA graph.*permitted; load it with cuda_gr"):
            infer(images(3))


def test_capturing_beside_the_default_stream(assets: Path) -> None:
    """torch and CuPy work on it in other threads, and our own memory comes and goes, while graphs are captured: neither
    the captures nor the work of others fail.
    """
    torch = pytest.importorskip("torch")
    stop, did, failed = threading.Event(), [0, 0], []

    def default_stream() -> None:
        while not stop.is_set():
            assert torch.ones(8, device="cuda").add_(1).cpu()[0] == 2
            did[0] += 1

    def memory() -> None:
        while not stop.is_set():
            tensor = infersdk.Tensor((1 << 16,), "uint8", "cuda:0")
            tensor.numpy(writable=True)[:] = 7
            assert tensor.device_ptr(stream=stream)
            tensor.close()
            did[1] += 1

    def work(todo: Any) -> None:
        try:
            todo()
        except BaseException as error:
            failed.append(error)
            raise

    stream = infersdk.Stream("cuda:0")
    threads = [threading.Thread(target=work, args=(todo,)) for todo in (default_stream, memory)]
    model = assets / "models" / "yolov5n.onnx"
    with infersdk.load(model, RTX, precision="fp16", max_batch=4, cuda_graph=True) as infer:
        rng = np.random.default_rng(0)
        given = [rng.random((batch, 3, 640, 640), np.float32) for batch in (1, 3, 4)]
        expected = [infer(x)["output0"] for x in given]  # compiled, and not captured yet
        captured = infer._graphs  # type: ignore[attr-defined]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                captured.clear()
                for x, y in zip(given, expected, strict=True):
                    for _ in range(3):
                        np.testing.assert_allclose(infer(x)["output0"], y, rtol=1e-2, atol=1e-2)
                assert len(captured) == 3
                assert None not in captured.values()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert failed == []
    assert min(did) > 0


def test_work_on_the_default_stream_does_not_end_a_capture(assets: Path) -> None:
    """All streams of a run are non-blocking ones."""
    torch = pytest.importorskip("torch")
    with infersdk.load(assets / "models" / "yolov5n.onnx", RTX, precision="fp16", max_batch=4) as infer:
        expected = infer(np.random.default_rng(0).random((4, 3, 640, 640), np.float32))["output0"]

        def queue() -> None:
            infer.enqueue()
            assert torch.ones(8, device="cuda").add_(1).cpu()[0] == 2

        with CudaGraph(infer.stream, queue) as graph:
            infer.outputs["output0"].numpy(writable=True)[:] = 0
            infer.outputs["output0"].device_ptr(read=False, write=True)
            graph.launch(infer.stream)
            infer.stream.synchronize()
            np.testing.assert_allclose(infer.outputs["output0"].numpy(), expected, rtol=1e-2, atol=1e-2)


def test_instances_share_the_memory_of_runs(assets: Path) -> None:
    """The fourth instance and later ones take the memory of their inputs and outputs alone."""
    path = assets / "models" / "yolov5n.onnx"
    with infersdk.load(path, RTX, precision="fp16", max_batch=8, cuda_graph=True) as infer:
        x = np.random.default_rng(0).random((8, 3, 640, 640), np.float32)
        expected = infer(x)["output0"]
        tensors = sum(infer.inputs[n].nbytes for n in infer.inputs) + sum(
            infer.outputs[n].nbytes for n in infer.outputs
        )
        clones, taken = [], []
        for _ in range(4):
            before = memory_stats()["device_bytes"]
            clones.append(infer.clone())
            for _ in range(3):
                np.testing.assert_allclose(clones[-1](x)["output0"], expected, rtol=1e-2, atol=1e-2)
            taken.append(memory_stats()["device_bytes"] - before)
        assert min(taken[:2]) > tensors * 1.1  # they run beside the first one, and so need the memory of a run
        assert max(taken[2:]) <= tensors * 1.01
        before = memory_stats()["device_bytes"]
        for clone in clones:
            clone.close()
        assert before - memory_stats()["device_bytes"] >= 4 * tensors


def test_each_batch_size_runs_on_the_first_profile_that_takes_it(net: Path) -> None:
    with infersdk.load(net, RTX, max_batch=4) as infer:
        for batch, profile in ((2, 2), (4, 0), (1, 1), (3, 2), (4, 0)):
            np.testing.assert_allclose(infer(images(batch))["y"], reference(net, images(batch)), RTOL, ATOL)
            assert infer._context.profile == profile  # type: ignore[attr-defined]
    with infersdk.load(net, RTX, max_batch=4, exact_batches=[3]) as infer:
        for batch, profile in ((3, 0), (4, 1), (1, 1)):
            np.testing.assert_allclose(infer(images(batch))["y"], reference(net, images(batch)), RTOL, ATOL)
            assert infer._context.profile == profile  # type: ignore[attr-defined]


def test_batches_are_padded_to_sizes_that_are_compiled_once(net: Path) -> None:
    with infersdk.load(net, RTX, max_batch=8) as infer, infersdk.Pipeline(infer, max_delay=0.02) as pipeline:
        for count in (1, 5, 7, 8, 3):
            x = images(count, count)
            found = [future.result(60)["y"] for future in pipeline.submit_many(list(x))]
            np.testing.assert_allclose(np.stack(found), reference(net, x), RTOL, ATOL)
        assert [infer.scheduling.bucket_batch(n) for n in (1, 5, 7, 8)] == [1, 6, 8, 8]


def test_host_memory_does_not_grow_as_batch_sizes_alternate() -> None:
    """TensorRT-RTX keeps memory after each change of the shapes of a context."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    with infersdk.load(DETECTOR, RTX, max_batch=8) as infer:
        shape = infer.inputs[infer.input_specs[0].name].shape
        batches = [np.zeros((count, *shape[1:]), np.float32) for count in (2, 3, 6, 2, 4)]

        def run(rounds: int) -> int:
            for _ in range(rounds):
                for batch in batches:
                    infer(batch)
            return resident()

        before = run(20)
        assert run(400) - before < 16 << 20


def test_clones_run_side_by_side(net: Path) -> None:
    """Threads with new batch sizes, each for its own context: kernels are compiled and graphs captured meanwhile."""
    with infersdk.load(net, RTX, max_batch=16, cuda_graph=True) as infer:
        clones = [infer.clone() for _ in range(4)]

        def work(seed: int) -> None:
            order = np.random.default_rng(seed).permutation(16) + 1
            for batch in [*order, *order]:
                x = images(int(batch), seed)
                np.testing.assert_allclose(clones[seed](x)["y"], reference(net, x), RTOL, ATOL)

        together(work, range(4))
        for clone in clones:
            clone.close()


def test_tensors_of_the_host_alone(net: Path) -> None:
    with infersdk.load(net, RTX, max_batch=4, tf32=False) as infer:
        for count in (2, 4, 1):
            x = images(count, seed=count)
            source, result = infersdk.Tensor.wrap(x), infersdk.Tensor((count, 7))
            infer.bind("x", source)
            infer.bind("y", result)
            infer.forward()
            np.testing.assert_allclose(result.numpy(), reference(net, x), rtol=RTOL, atol=ATOL)


def test_pageable_memory_is_there_before_the_run(net: Path) -> None:
    """A large copy out of memory that is not page-locked may still be under way when its call returns."""
    with infersdk.load(net, RTX, max_batch=512, tf32=False) as infer:
        for seed in range(20):
            x = images(512, seed)
            infer.bind("x", infersdk.Tensor.wrap(x, "cuda:0"))
            np.testing.assert_allclose(infer.forward()["y"].numpy()[-4:], reference(net, x[-4:]), rtol=RTOL, atol=ATOL)


@pytest.mark.assets
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 5e-3), (None, 1e-2), ("fp16", 2e-2)])
@pytest.mark.parametrize("name", ["yolov5n", "yolov8n", "squeezenet1.1"])
def test_real_models_agree(assets: Path, name: str, precision: str | None, tolerance: float) -> None:
    path = assets / "models" / f"{name}.onnx"
    with infersdk.load(path, RTX, max_batch=2, precision=precision) as infer:
        assert infer.precision == (precision or "fp32")
        side = infer.input_specs[0].shape[-1]
        x = np.random.default_rng(0).random((2, 3, side, side), dtype=np.float32)
        (got,) = infer(x).values()
        want = reference(path, x)
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
