"""Batches whose rows run one by one on the cores of the processor."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squares import LONG

import infersdk
from infersdk import Infer, Pipeline, Tensor
from infersdk.backends._row_runs import REVIEW, Choice, RowRuns, _Threads
from infersdk.data import DETECTOR
from infersdk.errors import ShapeError
from infersdk.models import YOLOv8Seg
from infersdk.ops.batch import available_processors
from infersdk.pipeline import TensorBatchBuffer

models = pytest.importorskip("onnx_models")

BACKENDS = ["onnxruntime", "openvino"]
CORES = 2
pytestmark = pytest.mark.skipif(available_processors() < CORES, reason="batches are split over two cores or more")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows at a time, however many cores there are."""
    for backend in BACKENDS:
        monkeypatch.setattr(f"infersdk.backends.{backend}.available_processors", lambda: CORES)


def settled(infer: Any, split: bool) -> Any:
    """An Infer whose trial is over."""
    assert infer._rows is not None
    for _ in range(Choice.TRIAL + 1):
        infer.forward_rows()
    (choice,) = infer._rows._choices.values()
    assert choice.settled
    assert not choice._refused
    choice.splits = split
    return choice


def fill(infer: Infer, array: np.ndarray[Any, Any]) -> None:
    infer.inputs[infer.input_specs[0].name].resize(array.shape).numpy(writable=True)[:] = array


def weighted(path: Path, outputs: str = "batch") -> Path:
    """y = x @ w, z = the sum of each row of y."""
    w = np.random.default_rng(5).normal(size=(16, 8)).astype(np.float32)
    return models.save(
        path,
        [models.node("MatMul", "x w", "y"), models.node("ReduceSum", "y axes", "z", keepdims=1)],
        [models.value("x", ("batch", 16))],
        [models.value("y", ("batch", 8)), models.value("z", (outputs, None if outputs == "n" else 1))],
        {"w": w, "axes": np.array([1], np.int64)},
    )


# ---- the same results ----


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("named", ["batch", "n"])
def test_all_batches_give_what_a_whole_run_gives(tmp_path: Path, backend: str, named: str) -> None:
    """Odd batches have a row left over; outputs of unknown sizes are the runtime's where a batch runs whole."""
    rng = np.random.default_rng(0)
    with infersdk.load(weighted(tmp_path / "m.onnx", named), backend) as infer:
        fill(infer, rng.normal(size=(8, 16)).astype(np.float32))
        choice = settled(infer, True)
        for step, batch in enumerate((8, 3, 5, 1, 2, 7, 4, 8, 8, 6, 9, 16, 3) * 2):
            choice.splits = step % 5 != 4
            x = rng.normal(size=(batch, 16)).astype(np.float32)
            fill(infer, x)
            outputs = {name: tensor.numpy().copy() for name, tensor in infer.forward_rows().items()}
            expected = infer(x)
            for name, array in expected.items():
                assert outputs[name].shape == array.shape
                np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("two_cores")
def test_real_models_find_the_same(backend: str, assets: Path) -> None:
    images = sorted((assets / "coco" / "val").glob("*.jpg"))[:5]
    with YOLOv8Seg(assets / "models" / "yolov8n-seg.onnx", backend) as model:
        first = model(images)  # whole: nothing is known of the outputs
        settled(model.network, True)
        for results in (model(images), list(model.map(images)), [f.result() for f in model.submit_many(images)]):
            for one, other in zip(results, first, strict=True):
                assert len(one) == len(other)
                np.testing.assert_allclose(one.xyxy, other.xyxy, atol=0.05)
                np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


@pytest.mark.usefixtures("two_cores")
def test_clones_in_many_threads(tmp_path: Path, backend: str) -> None:
    with infersdk.load(weighted(tmp_path / "m.onnx"), backend) as infer:
        fill(infer, np.ones((4, 16), np.float32))
        settled(infer, True)
        whole = infersdk.load(weighted(tmp_path / "m.onnx"), backend, split_batches=False)

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            with infer.clone() as own, whole.clone() as reference:
                for _ in range(40):
                    x = rng.normal(size=(rng.integers(1, 9), 16)).astype(np.float32)
                    fill(own, x)
                    y = own.forward_rows()["y"].numpy()
                    np.testing.assert_allclose(y, reference(x)["y"], rtol=1e-5, atol=1e-5)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        whole.close()


@pytest.mark.usefixtures("two_cores")
def test_tensors_of_the_caller(tmp_path: Path, backend: str) -> None:
    x = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
    y, z = np.zeros((6, 8), np.float32), np.zeros((6, 1), np.float32)
    with infersdk.load(weighted(tmp_path / "m.onnx"), backend) as infer:
        infer.bind("x", Tensor.wrap(x))
        infer.bind("y", Tensor.wrap(y))
        infer.bind("z", Tensor.wrap(z))
        settled(infer, True)
        expected, y[:] = y.copy(), 0
        infer.forward_rows()
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_run_of_ones_own_is_called(tmp_path: Path) -> None:
    """A buffer that derives from the one for tensors knows nothing of cores."""
    pytest.importorskip("onnxruntime")
    counts = list[int]()

    class Counting(TensorBatchBuffer):
        def run(self, count: int) -> None:
            counts.append(count)
            super().run(count)

    class Served:
        concurrency, serializes_runs = 1, False

        def __init__(self, infer: Infer) -> None:
            self.infer = infer

        def batch_buffer(self, capacity: int | None) -> TensorBatchBuffer:
            return Counting(self.infer.clone(), capacity or 4)

    with infersdk.load(weighted(tmp_path / "m.onnx"), "onnxruntime") as infer, Pipeline(Served(infer)) as pipeline:
        list(pipeline.map([np.ones(16, np.float32)] * 8))
    assert sum(counts) == 8


# ---- what is not split ----


@pytest.mark.usefixtures("two_cores")
def test_settings_of_the_user_win(tmp_path: Path, backend: str) -> None:
    path = weighted(tmp_path / "m.onnx")
    given: list[dict[str, Any]] = [{"threads": 2}, {"split_batches": False}, {"max_batch": 1}]
    given += {
        "onnxruntime": [{"execution_mode": "parallel"}, {"profiling": True}],
        "openvino": [{"streams": 2}, {"performance_hint": "throughput"}, {"profiling": True}],
    }[backend]
    for options in given:
        with infersdk.load(path, backend, **options) as infer:
            assert infer._rows is None, options
    fixed = models.double(tmp_path / "fixed.onnx", (4, 16))
    with infersdk.load(fixed, backend) as infer:
        assert infer._rows is None
        assert infer.forward_rows()["y"].shape == (4, 16)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("found", [(4, 0, 0, 0), (2, 2, 0, 0), (0, 0, 3, 1), (0, 0, 0, 4)])
def test_outputs_that_are_no_rows(tmp_path: Path, backend: str, found: tuple[int, ...]) -> None:
    """An output with as many rows as there are values is not split, also where both numbers happen to be equal: here
    four values are found in four rows.
    """
    path = models.save(
        tmp_path / "m.onnx",
        [models.node("NonZero", "x", "found"), models.node("Transpose", "found", "y", perm=[1, 0])],
        [models.value("x", ("batch", 4))],
        [models.value("y", (None, 2), "int64")],
    )
    x = np.zeros((4, 4), np.float32)
    for row, values in enumerate(found):
        x[row, :values] = 1
    with infersdk.load(path, backend) as infer:
        for _ in range(2 * Choice.TRIAL):
            fill(infer, x)
            np.testing.assert_array_equal(infer.forward_rows()["y"].numpy(), np.argwhere(x))


@pytest.mark.usefixtures("two_cores")
def test_a_shape_that_does_not_fit(tmp_path: Path, backend: str) -> None:
    with infersdk.load(weighted(tmp_path / "m.onnx"), backend, max_batch=4) as infer:
        fill(infer, np.ones((4, 16), np.float32))
        settled(infer, True)
        infer.inputs["x"].resize((6, 16))
        with pytest.raises(ShapeError, match="6"):
            infer.forward_rows()
        fill(infer, np.ones((3, 16), np.float32))
        assert infer.forward_rows()["y"].shape == (3, 8)


def test_a_file_that_has_changed_is_not_loaded_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("infersdk.backends.onnxruntime.available_processors", lambda: CORES)
    path = weighted(tmp_path / "m.onnx")
    with infersdk.load(path, "onnxruntime") as infer:
        x = np.ones((4, 16), np.float32)
        expected = infer(x)["y"]
        models.double(path, ("batch", 16))
        fill(infer, x)
        with caplog.at_level(logging.WARNING, "infersdk.row_runs"):
            for _ in range(Choice.TRIAL + 2):
                np.testing.assert_allclose(infer.forward_rows()["y"].numpy(), expected)
        assert len(caplog.records) == 1
        assert "has changed since it was loaded" in caplog.text


# ---- memory ----


@pytest.mark.usefixtures("two_cores")
def test_release_and_close_free_it(tmp_path: Path, backend: str) -> None:
    with infersdk.load(weighted(tmp_path / "m.onnx"), backend) as infer:
        assert infer._rows is not None
        x = np.ones((4, 16), np.float32)
        fill(infer, x)
        settled(infer, True)
        expected = infer.forward_rows()["y"].numpy().copy()
        rows, twin = infer._rows, infer.clone()
        fill(twin, x)
        np.testing.assert_allclose(twin.forward_rows()["y"].numpy(), expected)
        infer.release()
        assert rows._alive() is not None, "the clone has it"
        twin.release()
        gc.collect()
        assert rows._alive() is None
        fill(infer, x)
        np.testing.assert_allclose(infer.forward_rows()["y"].numpy(), expected)
        assert rows._alive() is not None
        twin.close()
    gc.collect()
    assert rows._alive() is None


@pytest.mark.usefixtures("two_cores")
def test_warming_up_decides(backend: str) -> None:
    with infersdk.models.load(DETECTOR, backend) as model:
        model.warm_up()
        rows = model.network._rows
        assert rows is not None
        assert rows.settled
        (choice,) = rows._choices.values()
        before = choice._runs
        list(model.map([np.full((64, 64, 3), 114, np.uint8)] * 16))
        assert before <= choice._runs < REVIEW


def test_a_pipeline_of_tensors(tmp_path: Path, backend: str) -> None:
    rng = np.random.default_rng(3)
    with infersdk.load(weighted(tmp_path / "m.onnx"), backend) as infer, Pipeline(infer, max_batch=8) as pipeline:
        arrays = [rng.normal(size=16).astype(np.float32) for _ in range(200)]
        for array, result in zip(arrays, pipeline.map(arrays), strict=True):
            np.testing.assert_allclose(result["y"], infer(array[None])["y"][0], rtol=1e-4, atol=1e-5)


# ---- the choice ----


def measured(choice: Choice, whole: float, rows: float, runs: int) -> list[bool]:
    """Which runs were split, of so many that take these times."""
    taken = []
    for _ in range(runs):
        split, counts = choice.next_splits()
        taken.append(split)
        if counts:
            choice.add(split, rows if split else whole)
    return taken


def test_the_faster_one_is_chosen_and_looked_at_again() -> None:
    choice = Choice("m")
    assert choice.next_splits() == (False, False), "no shapes are known yet"
    choice.learn({"y": (4, 2)}, 4)
    trial = measured(choice, 0.02, 0.03, Choice.TRIAL)
    assert trial == [False, True] * (Choice.TRIAL // 2)
    assert choice.settled
    assert not any(measured(choice, 0.02, 0.03, REVIEW - Choice.TRIAL - 1))
    again = measured(choice, 0.02, 0.01, REVIEW)
    assert again.count(False) < 5, "the other one is faster now"
    assert measured(choice, 0.02, 0.01, REVIEW).count(False) == 3


def test_shapes_that_are_not_those_of_the_batch_refuse() -> None:
    choice = Choice("m")
    choice.learn({"y": (4, 2), "count": (1,)}, 4)
    assert choice.settled
    assert measured(choice, 0.02, 0.01, 20) == [False] * 20


def test_rows_run_once_each_side_by_side() -> None:
    rows, seen, lock = RowRuns("m", 3, object), list[tuple[int, int]](), threading.Lock()
    barrier = threading.Barrier(3)

    def run(row: int, worker: int) -> None:
        if row < 3:
            barrier.wait(20)  # passes if three threads are here at once
        with lock:
            seen.append((row, worker))

    rows.side_by_side(12, run)
    assert sorted(row for row, _ in seen) == list(range(12))
    assert {worker for _, worker in seen} <= {0, 1, 2}


@pytest.mark.parametrize("failing", [0, 5, 11])
def test_the_first_error_ends_the_others(failing: int) -> None:
    rows, ran = RowRuns("m", 2, object), []

    def run(row: int, worker: int) -> None:
        if row == failing:
            raise IndexError(f"row {row}")  # as an empty queue raises
        ran.append(row)
        time.sleep(0.002)

    with pytest.raises(IndexError, match=f"row {failing}"):
        rows.side_by_side(12, run)
    assert failing not in ran


def test_rows_do_not_wait_for_those_of_another_clone() -> None:
    rows, begun, go_on = RowRuns("m", 2, object), threading.Barrier(3), threading.Event()

    def slow(row: int, worker: int) -> None:
        begun.wait(20)
        assert go_on.wait(20)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(rows.side_by_side, 2, slow)
        begun.wait(20)  # both threads are busy
        ran: list[int] = []
        rows.side_by_side(4, lambda row, worker: ran.append(row))
        assert ran == [0, 1, 2, 3]
        assert not first.done()
        go_on.set()
        first.result(20)


def test_an_interrupt_waits_for_the_rows_that_run() -> None:
    """They write into memory that the caller may free. Ctrl-C comes twice, also while they are waited for."""
    rows, running, begun = RowRuns("m", 3, object), set[int](), threading.Barrier(3)

    def run(row: int, worker: int) -> None:
        if worker:
            running.add(row)
        begun.wait(20)
        if not worker:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not interrupted")
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        running.discard(row)

    with pytest.raises(KeyboardInterrupt):
        rows.side_by_side(30, run)
    assert not running


def test_an_interrupt_while_threads_begin_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, ran = RowRuns("m", 2, object), list[int]()
    call = _Threads.call

    def interrupted(threads: _Threads, *work: Any) -> None:
        call(threads, *work)
        raise KeyboardInterrupt

    def run(row: int, worker: int) -> None:
        time.sleep(0.01)
        ran.append(row)

    monkeypatch.setattr(_Threads, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rows.side_by_side(40, run)
    count = len(ran)
    time.sleep(0.05)
    assert len(ran) == count < 3


def test_interrupts_at_any_moment() -> None:
    """Later batches run, and no row outlives the call that it belongs to."""
    rows, rng, running, hits = RowRuns("m", 2, object), random.Random(0), set[tuple[int, int]](), 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def run(row: int, worker: int) -> None:
        running.add((count, row))
        end = time.perf_counter() + 60e-6
        while time.perf_counter() < end:
            pass
        running.discard((count, row))

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for count in range(1500):
            running.clear()
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(5e-6, 5e-4))
                rows.side_by_side(4, run)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hits += 1
                left = {key for key in running if key[0] == count}
                time.sleep(0.002 if left else 0)
                # One that the interrupt has ended in this thread stays listed; one that still ran would go.
                assert left == {key for key in running if key[0] == count}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 100
    ran = list[int]()
    rows.side_by_side(4, lambda row, worker: ran.append(row))
    assert sorted(ran) == [0, 1, 2, 3]


# ---- the threads ----


def test_an_error_keeps_nothing() -> None:
    """What the rows work on is freed at once, without the garbage collector."""

    class Kept:
        pass

    def split() -> weakref.ref[Kept]:
        kept = Kept()
        begun = threading.Barrier(2)

        def run(row: int, worker: int) -> None:
            begun.wait(LONG)
            if worker:
                raise ValueError(repr(kept))

        rows = RowRuns("m", 2, object)
        with pytest.raises(ValueError, match="Kept") as raised:
            rows.side_by_side(2, run)
        del raised
        return weakref.ref(kept)

    gc.collect()
    gc.disable()
    try:
        freed = split()
        end = time.monotonic() + LONG
        while freed() is not None:
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        gc.enable()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list threads")
def test_they_end_with_what_they_are_for() -> None:
    rows, begun, threads = RowRuns("m", 4, object), threading.Barrier(4), dict[int, int]()

    def run(row: int, worker: int) -> None:
        threads[worker] = threading.get_native_id()
        begun.wait(LONG)

    rows.side_by_side(4, run)
    own = [Path(f"/proc/self/task/{threads[worker]}") for worker in (1, 2, 3)]
    assert len(set(own)) == 3
    assert all(thread.exists() for thread in own)
    del rows
    end = time.monotonic() + LONG
    while any(thread.exists() for thread in own):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("infersdk.backends._row_runs.start_new_thread", refused)
    rows, ran = RowRuns("m", 3, object), list[tuple[int, int]]()
    for _ in range(2):
        ran.clear()
        rows.side_by_side(5, lambda row, worker: ran.append((row, worker)))
        assert ran == [(row, 0) for row in range(5)]
    assert "0 of 2 threads" in caplog.text
    assert rows._threads._calls.empty()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_threads_of_its_own() -> None:
    code = """
import os, threading
from infersdk.backends._row_runs import RowRuns

rows = RowRuns("m", 2, object)
rows.side_by_side(4, lambda row, worker: None)

def both():
    begun = threading.Barrier(2)
    rows.side_by_side(2, lambda row, worker: begun.wait(20))

child = os.fork()
if not child:
    both()
    os._exit(0 if rows._threads._calls.empty() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
both()
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=LONG)
