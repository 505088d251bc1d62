"""Infer: what it does on its own account, whatever the backend. What all backends share stands in InferContract."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pytest
from waiting import interrupted

import infersdk
from infersdk import Head, Infer, Tensor, memory_stats
from infersdk.errors import (
    ClosedError,
    DTypeError,
    InputError,
    InUseError,
    ReadOnlyError,
    ShapeError,
)
from infersdk.infer import Scheduling
from infersdk.testing import contract_model

pytest.importorskip("onnxruntime")
models = pytest.importorskip("onnx_models")


@pytest.fixture
def infer(tmp_path: Path) -> Infer:
    return infersdk.load(models.double(tmp_path / "double.onnx"))


# ---- the convenient call ----


def test_an_array_in_and_a_dict_of_arrays_out(infer: Infer) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    got = infer(x)
    assert list(got) == ["y"]
    np.testing.assert_array_equal(got["y"], 2 * x)
    np.testing.assert_array_equal(infer({"x": x})["y"], 2 * x)
    np.testing.assert_array_equal(infer(Tensor.wrap(x))["y"], 2 * x)
    np.testing.assert_array_equal(infer(np.asfortranarray(x))["y"], 2 * x)
    np.testing.assert_array_equal(infer(np.repeat(x, 2, axis=1)[:, ::2])["y"], 2 * x)


def test_outputs_are_copied_under_the_guard_of_the_stream(infer: Infer) -> None:
    """While another thread holds it, since a run of its captures the stream, none copies an output home."""
    guard = RLock()
    infer.scheduling = Scheduling(stream_guard=guard)
    x = np.ones((2, 4), np.float32)
    with infer.clone() as twin, infersdk.Pipeline(infer) as pipeline, ThreadPoolExecutor(1) as thread:
        for results in (lambda: twin(x)["y"], lambda: pipeline.submit(x[0]).result(60)["y"]):
            with guard:
                running = thread.submit(results)
                with pytest.raises(FutureTimeoutError):
                    running.result(0.1)
            assert (running.result(60) == 2).all()


def test_a_second_thread_gets_an_error_that_says_what_to_do(infer: Infer) -> None:
    guard = RLock()
    infer.scheduling = Scheduling(stream_guard=guard)
    x = np.ones((2, 4), np.float32)
    infer(x)
    with ThreadPoolExecutor(1) as thread:
        with guard:  # the call in the thread waits for it before it copies the outputs
            running = thread.submit(infer, x)
            with pytest.raises(FutureTimeoutError):
                running.result(0.1)
            uses = (infer.forward, infer.enqueue, infer.wait, infer.release, infer.close, lambda: infer(x))
            for use in (*uses, lambda: infer.bind("x", Tensor((1, 4)))):
                with pytest.raises(InUseError, match=r"double\.onnx at the same time; give each thread a clone\(\)"):
                    use()
            grown = infer.inputs["x"].resize((100_000, 4))  # while the runtime may read the memory that it outgrows
        assert (running.result(60)["y"] == 2).all()
    assert grown.shape == (100_000, 4)
    assert (infer(x)["y"] == 2).all()
    infer.close()


@pytest.mark.posix
def test_the_exception_of_a_signal_handler_leaves_it_usable(infer: Infer) -> None:
    x = np.ones((2, 4), np.float32)
    infer(x)
    assert interrupted(infer.forward, 300e-6, 0.3) > 5
    assert interrupted(lambda: infer(x), 300e-6, 0.3) > 5

    def interrupted_in_a_block() -> None:
        with infer.clone() as twin:
            while True:
                twin(x)

    assert interrupted(interrupted_in_a_block, 300e-6, 0.3) > 5
    assert (infer(x)["y"] == 2).all()
    infer.close()


def test_a_batch_of_none(infer: Infer) -> None:
    assert infer(np.zeros((0, 4), np.float32))["y"].shape == (0, 4)
    assert (infer(np.ones((3, 4), np.float32))["y"] == 2).all()


# ---- bound tensors ----


def test_tensors_stand_ready_before_the_first_run(infer: Infer) -> None:
    assert list(infer.inputs) == ["x"]
    assert infer.inputs["x"].shape == (1, 4)
    assert infer.inputs["x"].dtype == np.float32
    assert infer.inputs["x"].head is Head.UNINITIALIZED
    with pytest.raises(TypeError):
        infer.inputs["x"] = Tensor((1, 4))  # type: ignore[index]


def test_an_output_that_the_user_bound_grows_with_the_batch_or_says_why_not(infer: Infer) -> None:
    own = Tensor((1, 4))
    infer.bind("y", own)
    infer(np.ones((3, 4), np.float32))
    assert own.shape == (3, 4)
    lent = np.zeros((2, 4), np.float32)
    infer.bind("y", Tensor.wrap(lent))
    with pytest.raises(ShapeError, match="32 bytes cannot grow to 48"):
        infer.forward()
    infer(np.ones((2, 4), np.float32))
    assert (lent == 2).all()


def test_an_output_that_is_read_only_is_refused(infer: Infer) -> None:
    lent = np.zeros((1, 4), np.float32)
    lent.flags.writeable = False
    infer.bind("y", Tensor.wrap(lent))
    with pytest.raises(ReadOnlyError, match="wrapped as read-only"):
        infer.forward()
    assert not lent.any()


def test_a_bound_tensor_that_was_closed_says_so(infer: Infer) -> None:
    own = Tensor((1, 4))
    infer.bind("x", own)
    infer.forward()
    own.close()
    with pytest.raises(ClosedError, match="this Tensor was closed"):
        infer.forward()
    infer.bind("x", Tensor((1, 4)).copy_from([[1, 2, 3, 4]]))
    np.testing.assert_array_equal(infer.forward()["y"].numpy(), [[2, 4, 6, 8]])


def test_one_model_feeds_the_next_without_a_copy(tmp_path: Path, infer: Infer) -> None:
    second = infersdk.load(models.double(tmp_path / "second.onnx"))
    second.bind("x", infer.outputs["y"])
    for count in (1, 3, 2):
        infer(np.ones((count, 4), np.float32))
        assert (second.forward()["y"].numpy() == np.full((count, 4), 4)).all()


# ---- max_batch ----


def test_max_batch_sets_memory_aside_and_is_the_limit(tmp_path: Path) -> None:
    infer = infersdk.load(models.double(tmp_path / "double.onnx"), max_batch=8)
    held = memory_stats()["host_bytes"]
    source, result = infer.inputs["x"], infer.outputs["y"]
    places = source.host_ptr(), result.host_ptr()
    for count in (8, 1, 5, 8):
        source.resize((count, 4)).numpy(writable=True)[:] = count
        infer.forward()
        assert (source.host_ptr(), result.host_ptr()) == places
        assert (result.numpy() == np.full((count, 4), 2 * count)).all()
    assert memory_stats()["host_bytes"] == held
    with pytest.raises(ShapeError, match=r"a batch of 9 for input 'x' is more than max_batch=8; split it, or load the"):
        infer(np.ones((9, 4), np.float32))
    assert (infer(np.ones((8, 4), np.float32))["y"] == 2).all()


def test_max_batch_is_the_limit_of_inputs_that_no_tensor_holds(tmp_path: Path, backend: str) -> None:
    bits = models.save(tmp_path / "m.onnx", [models.node("Cast", "x", "y", to=1)], "bfloat16[n] x", "float[n] y")
    with infersdk.load(bits, backend, max_batch=2) as infer:
        assert infer(np.uint16([0x3F80, 0x4000]))["y"].tolist() == [1, 2]
        with pytest.raises(ShapeError, match="a batch of 3 for input 'x' is more than max_batch=2"):
            infer(np.zeros(3, np.uint16))


def test_max_batch_is_the_limit_of_strings(tmp_path: Path) -> None:
    sides = [models.value(name, ("n",), "string") for name in ("x", "y")]
    path = models.save(tmp_path / "m.onnx", [models.node("Identity", "x", "y")], sides[:1], sides[1:])
    with infersdk.load(path, "onnxruntime", max_batch=2) as infer:
        assert infer(["a", "b"])["y"].tolist() == ["a", "b"]
        with pytest.raises(ShapeError, match="a batch of 3 for input 'x' is more than max_batch=2"):
            infer(["a", "b", "c"])


# ---- life ----


def test_clones_have_tensors_of_their_own(infer: Infer) -> None:
    infer(np.ones((2, 4), np.float32))
    own = Tensor((2, 4)).copy_from(np.full((2, 4), 9))
    infer.bind("x", own)
    twin = infer.clone()
    assert twin.inputs["x"] is not own  # what was bound to one is not bound to the other
    twin(np.zeros((5, 4), np.float32))
    infer.forward()
    assert (infer.outputs["y"].numpy() == 18).all()
    assert twin.outputs["y"].shape == (5, 4)
    twin.close()
    infer.forward()


def test_it_is_neither_copied_nor_pickled(infer: Infer) -> None:
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"OnnxRuntimeInfer can be neither copied nor pickled: clone\(\) it"):
            make(infer)
    infer.forward()


def test_a_forgotten_infer_is_collected_with_its_memory(tmp_path: Path) -> None:
    path = models.double(tmp_path / "double.onnx", ("batch", 4096))
    gc.collect()
    before = memory_stats()
    infer = infersdk.load(path, max_batch=16)
    infer.forward()
    gone = weakref.ref(infer)
    del infer
    assert gone() is None  # by its count: no cycle has to be found
    after = memory_stats()
    assert (after["host_bytes"], after["memories"]) == (before["host_bytes"], before["memories"])


def test_close_frees_all_but_what_was_lent(infer: Infer) -> None:
    gc.collect()
    own = Tensor((1, 4)).copy_from(np.ones((1, 4)))
    infer.bind("x", own)
    view = infer.forward()["y"].numpy()
    infer.close()
    assert (view == 2).all()
    assert (own.numpy() == 1).all()
    with pytest.raises(ClosedError, match=r"the onnxruntime model double.onnx was closed; load it again"):
        infer.forward()
    assert repr(infer) == "<OnnxRuntimeInfer double.onnx, closed>"


#: In a process of its own, whose allocator has nothing else to keep.
KEPT_BY_CLOSED = """
import sys, infersdk
from infersdk.bench.machine import resident_bytes
def closed():
    infer = infersdk.load(sys.argv[1], backend=sys.argv[2])
    if sys.argv[3] == "True":
        infer.release()
    infer.close()
    return infer
kept = [closed() for _ in range(2)]
before = resident_bytes()
kept += [closed() for _ in range(10)]
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_an_infer_that_was_closed_keeps_no_weights(tmp_path: Path, backend: str, released: bool) -> None:
    pytest.importorskip(backend)
    weights = np.random.default_rng(0).random((2048, 2048), np.float32)
    inputs, outputs = [models.value("x", [1, 2048])], [models.value("y", [1, 2048])]
    path = models.save(tmp_path / "large.onnx", [models.node("MatMul", "x w", "y")], inputs, outputs, {"w": weights})
    command = [sys.executable, "-c", KEPT_BY_CLOSED, str(path), backend, str(released)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert int(done.stdout) < 6 * weights.nbytes  # the allocator may keep the memory of a few


# ---- on several backends ----

BACKENDS = ["onnxruntime", "openvino"]


def parsed(graph: str) -> bytes:
    import onnx

    return bytes(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}').SerializeToString())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def test_views_of_outputs_that_the_runtime_allocates_stay_as_they_are(backend: str) -> None:
    with infersdk.load(contract_model("nonzero"), backend) as infer:
        x = infer.inputs["x"].resize((100_000, 4)).numpy(writable=True)
        views = []
        for count in (50_000, 100_000, 1, 75_000):
            x[:] = 0
            x[:count] = 1
            views.append(infer.forward()["y"].numpy()[:])
            assert all(view.shape[1] == 4 * n for view, n in zip(views, (50_000, 100_000, 1, 75_000), strict=False))
            for view in views:
                np.testing.assert_array_equal(view[0], np.repeat(np.arange(view.shape[1] // 4), 4))


def test_each_run_has_its_results_where_a_file_leaves_the_shape_of_an_output_open(backend: str) -> None:
    with infersdk.load(parsed("(float[N] x) => (float[M] y) { y = Neg(x) }"), backend) as infer:
        for x in np.float32([1, 2]), np.float32([3, 4]), np.float32([5, 6]), np.float32([7, 8, 9]):
            assert infer(x)["y"].tolist() == (-x).tolist()
            infer.inputs["x"].numpy(writable=True)[:] *= 2
            assert infer.forward()["y"].numpy().tolist() == (-2 * x).tolist()


def test_one_input_is_a_view_of_another(backend: str) -> None:
    """As with two frames, of which the earlier one was the later one before."""
    graph = "(float[N] cur, float[N] prev) => (float[N] y) { y = Sub(cur, prev) }"
    with infersdk.load(parsed(graph), backend) as infer:
        infer({"cur": np.float32([1, 1]), "prev": np.float32([0, 0])})
        before = infer.inputs["cur"].numpy()
        assert infer({"cur": np.float32([5, 7]), "prev": before[::-1]})["y"].tolist() == [4, 6]
        lent = np.float32([1, 2])
        infer.bind("cur", Tensor.wrap(lent))
        assert infer({"cur": np.float32([5, 7]), "prev": lent})["y"].tolist() == [4, 5]
        with pytest.raises(DTypeError):
            infer({"cur": np.float32([0, 0]), "prev": np.zeros(2)})
        assert infer.forward()["y"].numpy().tolist() == [4, 5], "a call that is refused writes no input"


@pytest.mark.parametrize("of", [np.from_dlpack, lambda t: np.asarray(memoryview(t.numpy()))], ids=["DLPack", "buffer"])
def test_inputs_change_places_through_another_view(backend: str, of: Any) -> None:
    graph = "(float[N] cur, float[N] prev) => (float[N] y) { y = Sub(cur, prev) }"
    with infersdk.load(parsed(graph), backend) as infer:
        infer({"cur": np.float32([1, 2]), "prev": np.float32([5, 5])})
        cur, prev = of(infer.inputs["cur"]), of(infer.inputs["prev"])
        assert infer({"cur": prev, "prev": cur})["y"].tolist() == [4, 3]


def test_inputs_that_share_memory_are_not_called(backend: str) -> None:
    graph = "(float[N] cur, float[N] prev) => (float[N] y) { y = Sub(cur, prev) }"
    with infersdk.load(parsed(graph), backend) as infer:
        both = Tensor.wrap(np.float32([1, 2, 4]))
        values = {"cur": np.float32([9, 9]), "prev": np.float32([5, 5])}
        infer.bind("cur", both[0:2])
        infer.bind("prev", both[1:3].resize((1,)))
        with pytest.raises(InputError, match=r"'prev' shares memory with that of 'cur'; .* call forward\(\)"):
            infer(values)
        assert both.numpy().tolist() == [1, 2, 4], "a call that is refused writes no input"
        assert infer.forward()["y"].numpy().tolist() == [-1, -2]
        infer.bind("prev", infer.inputs["cur"])
        with pytest.raises(InputError, match="the tensor of input 'prev' is bound twice; bind another Tensor"):
            infer(values)


def test_a_tensor_is_bound_to_two_names(backend: str) -> None:
    with infersdk.load(parsed("(float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }"), backend) as infer:
        first, second = Tensor.wrap(np.float32([1, -2])), Tensor((2,))
        infer.bind("x", first)
        infer.bind("y", first)
        with pytest.raises(InputError, match="the tensor of output 'y' is bound twice; bind another Tensor"):
            infer.forward()
        infer.bind("y", second)
        infer.bind("z", second)
        with pytest.raises(InputError, match="bound twice"):
            infer.forward()
        infer.bind("z", Tensor((2,)))
        infer.bind("x", second)  # the two change places
        infer.bind("y", first)
        second.numpy(writable=True)[:] = 3, -4
        assert {name: t.numpy().tolist() for name, t in infer.forward().items()} == {"y": [-3, 4], "z": [3, 4]}


def test_an_output_that_shares_memory_with_another_tensor(backend: str) -> None:
    with infersdk.load(parsed("(float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }"), backend) as infer:
        both = Tensor.wrap(np.float32([1, -2, 3, -4]))
        infer.bind("x", both[0:2])
        infer.bind("y", both[1:3])
        with pytest.raises(InputError, match="output 'y' shares memory with that of 'x'; bind another Tensor to it"):
            infer.forward()
        infer.bind("y", both[2:4])
        assert {name: t.numpy().tolist() for name, t in infer.forward().items()} == {"y": [-1, 2], "z": [1, 2]}
        infer.bind("z", Tensor.wrap(both.numpy(writable=True)[1:]))
        with pytest.raises(InputError, match="output 'z' shares memory with that of '[xy]'"):
            infer.forward()


def test_outputs_that_share_memory_when_they_grow(backend: str) -> None:
    with infersdk.load(parsed("(float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }"), backend) as infer:
        both = Tensor((3,))
        views = both[0:2], both[1:3]
        infer.bind("y", views[0].resize((1,)))
        infer.bind("z", views[1].resize((1,)))
        assert [array.tolist() for array in infer(np.float32([5])).values()] == [[-5], [5]]
        with pytest.raises(InputError, match="output 'z' shares memory with that of 'y'"):
            infer(np.float32([5, 6]))


def test_tensors_of_the_user_are_bound_after_a_release(backend: str) -> None:
    graph = "(float s, float[N, 2] x) => (float[N, 2] y) { y = Mul(x, s) }"
    with infersdk.load(parsed(graph), backend) as infer:
        scale, rows = Tensor.wrap(np.float32(3)), Tensor((0, 2))
        infer.bind("s", scale)
        infer.bind("x", rows)
        infer.release()
        assert infer.forward()["y"].shape == (0, 2)
        assert infer.inputs["s"] is scale
        assert infer.inputs["x"] is rows
        infer.release()
        rows.close()
        with pytest.raises(ClosedError, match="this Tensor was closed"):
            infer.forward()
        infer.bind("x", Tensor.wrap(np.float32([[1, 2]])))
        assert infer.forward()["y"].numpy().tolist() == [[3, 6]]


def test_a_model_that_was_released_is_cloned_beside_a_call(backend: str) -> None:
    z = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    with infersdk.load(contract_model("wide"), backend) as infer, ThreadPoolExecutor(2) as threads:
        expected = infer(z)["y"]

        def cloned() -> np.ndarray:
            with infer.clone() as twin:
                return twin(z)["y"]

        for _ in range(20):
            infer.release()
            for result in [threads.submit(lambda: infer(z)["y"]), threads.submit(cloned)]:
                np.testing.assert_array_equal(result.result(60), expected)
