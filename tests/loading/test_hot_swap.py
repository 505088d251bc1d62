"""Serving on one backend while another builds: real runtimes on both sides, the second one held back by a gate."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

import infersdk
from infersdk import Tensor
from infersdk.core.target import PRECISIONS
from infersdk.errors import (
    BackendNotFoundError,
    ClosedError,
    ConfigError,
    DeviceUnavailableError,
    InferenceError,
    ModelFormatError,
    ModelNotFoundError,
    ShapeError,
    UnsupportedModelError,
)
from infersdk.loading import registry
from infersdk.loading.hot_swap import HotSwap
from infersdk.testing import InferContract

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
models = pytest.importorskip("onnx_models")
import slow_backends  # noqa: E402
from waiting import meanwhile, until  # noqa: E402


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("slow", "SlowOpenVino"), ("builder", "BuildingOpenVino")):
        monkeypatch.setitem(registry._BUILT_IN, name, registry._Backend(f"slow_backends:{kind}", "pip install it"))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def load(path: Path, gate: threading.Event | None = None, **options: Any) -> HotSwap:
    infer = infersdk.load(path, "slow", while_building="onnxruntime", gate=gate, **options)
    assert isinstance(infer, HotSwap)
    return infer


def until_closed(count: int = 0) -> None:
    """Waits until all that the slow backends loaded is closed, but for `count`."""
    until(lambda: sum(not infer._closed for infer in slow_backends.made) <= count)


class Contract(InferContract):
    """All that an Infer promises, but for what is said of the backend's own class."""

    def test_is_an_infer(self, net: infersdk.Infer) -> None:
        assert isinstance(net, HotSwap)
        assert net.backend == self.backend


class TestBefore(Contract):
    """It holds while the other backend still builds."""

    backend = "slow"
    leak_cycles = 20
    gates: ClassVar[list[threading.Event]] = []

    def load(self, path: Path, **changes: Any) -> infersdk.Infer:
        event = threading.Event()
        infer = super().load(path, while_building="onnxruntime", gate=event, **changes)
        assert infer.active_backend == "onnxruntime"
        self.gates.append(event)
        return infer

    @pytest.mark.parametrize("precision", PRECISIONS)
    def test_gives_the_precision_asked_for_or_says_why_not(self, precision: str, **_: Any) -> None:
        """It is asked of the other: the stand-in takes the model as it is written, and says so."""
        from infersdk.data import DETECTOR

        with self.load(DETECTOR, precision=precision) as infer:
            assert infer.precision == "fp32"

    @pytest.fixture(autouse=True)
    def _open_the_gates(self) -> Iterator[None]:
        yield
        for event in self.gates:
            event.set()
        self.gates.clear()


class TestAfter(Contract):
    """And it holds with the change made in the first run."""

    backend = "openvino"
    options: ClassVar[dict[str, Any]] = {"while_building": "onnxruntime"}
    leak_cycles = 20

    def load(self, path: Path, **changes: Any) -> infersdk.Infer:
        infer = super().load(path, **changes)
        assert isinstance(infer, HotSwap)
        infer.wait_ready()
        if "precision" in changes:
            infer.current()
        return infer


def test_it_serves_at_once_and_goes_over_when_the_other_is_ready(tmp_path: Path, gate: threading.Event) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with load(models.double(tmp_path / "m.onnx"), gate) as infer:
        first = weakref.ref(infer.current())
        assert (infer.backend, infer.active_backend) == ("slow", "onnxruntime")
        assert (infer(x)["y"] == 2 * x).all()
        assert not infer.wait_ready(0.01)
        assert infer.current() is first()
        y = infer.outputs["y"]
        gate.set()
        assert infer.wait_ready(30)
        assert infer.active_backend == "onnxruntime"  # the change is the next run's
        assert (y.numpy() == 2 * x).all()
        assert (infer(x + 1)["y"] == 2 * x + 2).all()
        assert infer.active_backend == infer.current().backend == "slow"
        assert first() is None  # freed
        assert infer.outputs["y"] is y
        assert infer.current().outputs["y"] is y
        assert (y.numpy() == 2 * x + 2).all()
        assert infer.building_error is None
        assert infer.wait_ready(0)
    until_closed()
    with pytest.raises(ClosedError):
        infer(x)
    for use in (infer.wait_ready, infer.current, infer.forward, infer.clone):
        with pytest.raises(ClosedError):
            use()


def test_without_while_building_an_infer_serves_itself(tmp_path: Path) -> None:
    with infersdk.load(models.double(tmp_path / "m.onnx")) as infer:
        assert infer.current() is infer
        assert infer.active_backend == "onnxruntime"
    with pytest.raises(ClosedError):
        infer.current()


def test_who_prepared_something_for_the_stand_in_may_finish_with_it(tmp_path: Path, gate: threading.Event) -> None:
    x = np.ones((2, 4), np.float32)
    with load(models.double(tmp_path / "m.onnx"), gate) as infer:
        first = infer.current()
        prepared = first.clone()
        gate.set()
        infer.wait_ready(30)
        second = infer.current()
        assert second is not first
        assert (first(x)["y"] == 2).all()
        assert (prepared(3 * x)["y"] == 6).all()
        assert (infer(5 * x)["y"] == 10).all()
        assert infer.current() is second


def test_a_tensor_that_was_closed_does_not_end_the_change(tmp_path: Path, gate: threading.Event) -> None:
    own = Tensor((1, 4))
    with load(models.double(tmp_path / "m.onnx"), gate) as infer:
        infer.bind("x", own)
        gate.set()
        infer.wait_ready(30)
        own.close()
        with pytest.raises(ClosedError, match="this Tensor was closed"):
            infer.forward()
        infer.bind("x", Tensor((1, 4)).copy_from([[1, 2, 3, 4]]))
        np.testing.assert_array_equal(infer.forward()["y"].numpy(), [[2, 4, 6, 8]])
        assert infer.active_backend == "slow"
    until_closed()


def test_tensors_of_the_users_stay_bound(tmp_path: Path, gate: threading.Event) -> None:
    source, target = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    x, y = Tensor.wrap(source), Tensor.wrap(target)
    with load(models.double(tmp_path / "m.onnx"), gate) as infer:
        infer.bind("x", x)
        infer.bind("y", y)
        infer.forward()
        assert (target == 2).all()
        gate.set()
        infer.wait_ready()
        source[:] = 7
        infer.forward()
        assert infer.active_backend == "slow"
        assert infer.outputs["y"] is y
        assert (target == 14).all()
        infer.bind("x", Tensor.wrap(np.full((2, 4), 3, np.float32)))
        infer.forward()
        assert (target == 6).all()
    assert y.numpy()[0, 0] == 6  # closed with the Infer it was not


def test_outputs_that_the_runtime_allocates_go_along(tmp_path: Path, gate: threading.Event) -> None:
    with load(models.nonzero(tmp_path / "m.onnx"), gate) as infer:
        x = np.eye(4, dtype=np.float32)
        assert infer(x)["y"].shape == (2, 4)
        tensor = infer.outputs["y"]
        view = tensor.numpy()
        gate.set()
        infer.wait_ready()
        infer.current()
        assert infer.active_backend == "slow"
        gc.collect()
        assert (tensor.numpy() == [[0, 1, 2, 3]] * 2).all()
        assert (view == [[0, 1, 2, 3]] * 2).all()  # its memory outlives the runtime that allocated it
        for rows in (1, 9, 3):
            assert infer(np.ones((rows, 4), np.float32))["y"].shape == (2, 4 * rows)
        assert infer.outputs["y"] is tensor


def test_no_request_is_lost_or_doubled_or_answered_with_anothers_result(
    tmp_path: Path, gate: threading.Event, rng: np.random.Generator
) -> None:
    weights = rng.random((4, 3), np.float32)
    x, y = models.value("x", ("batch", 4)), models.value("y", ("batch", 3))
    path = models.save(tmp_path / "m.onnx", [models.node("MatMul", "x w", "y")], [x], [y], {"w": weights})
    served: dict[int, list[str]] = {number: [] for number in range(4)}
    stop = threading.Event()
    half = threading.Barrier(5)

    def work(number: int, infer: infersdk.Infer) -> None:
        random = np.random.default_rng(number)
        runs = after = 0
        while after < 20 and not stop.is_set():
            batch = random.random((int(random.integers(1, 6)), 4), np.float32)
            result = infer(batch)["y"]
            served[number].append(infer.active_backend)
            np.testing.assert_allclose(result, batch @ weights, rtol=1e-4, atol=1e-8)
            runs += 1
            after += infer.active_backend == "slow"
            if runs == 20:
                half.wait(30)

    with load(path, gate) as infer:
        clones = [infer.clone() for _ in range(4)]
        with meanwhile(work, enumerate(clones)) as running:
            try:
                half.wait(30)
                gate.set()
                wait(running, 60)
            finally:
                stop.set()
        for backends in served.values():
            # Each goes over once, and not back.
            change = backends.index("slow")
            assert change >= 20
            assert backends == ["onnxruntime"] * change + ["slow"] * (len(backends) - change)
        for one in clones:
            one.close()
        assert (infer(np.ones((1, 4), np.float32))["y"].shape) == (1, 3)  # the last one goes over, too
    until_closed()


def test_clones_before_in_between_and_after(tmp_path: Path, gate: threading.Event) -> None:
    x = np.ones((1, 4), np.float32)
    infer = load(models.double(tmp_path / "m.onnx"), gate)
    before = infer.clone()
    gate.set()
    infer.wait_ready()
    between = before.clone()  # which leaves the one that it is cloned from as it is: another thread may run it
    assert {one.active_backend for one in (infer, before, between)} == {"onnxruntime"}
    infer.close()
    before(x)
    after = before.clone()
    assert (before.active_backend, between.active_backend, after.active_backend) == ("slow", "onnxruntime", "slow")
    for one in (before, between, after):
        assert (one(x)["y"] == 2).all()
        assert one.active_backend == "slow"
        assert isinstance(one, HotSwap)
        one.close()
    until_closed()


def test_requests_of_a_pipeline_go_over(gate: threading.Event) -> None:
    from infersdk.data import DETECTOR, IMAGE
    from infersdk.models import YOLOv5

    with YOLOv5(DETECTOR, "openvino") as plain:
        want = plain(IMAGE)

    def alive() -> list[Any]:
        return [item for item in gc.get_objects() if type(item).__name__ == "OnnxRuntimeInfer"]

    of_other_tests = alive()
    with YOLOv5(DETECTOR, "slow", while_building="onnxruntime", gate=gate) as model:
        futures = model.submit_many([IMAGE] * 10)
        found = [future.result(30) for future in futures]
        stand_ins = [weakref.ref(item) for item in alive() if not any(item is other for other in of_other_tests)]
        assert stand_ins
        gate.set()
        assert model.network.wait_ready(30)  # type: ignore[attr-defined]

        def freed() -> bool:
            found.extend([*model.map([IMAGE] * 20), model(IMAGE)])
            gc.collect()
            return not any(stand_in() for stand_in in stand_ins)

        until(freed)
    for one in found:
        assert one.labels == want.labels
        np.testing.assert_allclose(one.xyxy, want.xyxy, atol=0.1)
    until_closed()


def test_a_build_that_fails_leaves_the_stand_in_serving(
    tmp_path: Path, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.ones((1, 4), np.float32)
    with load(models.double(tmp_path / "m.onnx"), gate, fail="no tactic") as infer, infer.clone() as clone:
        assert (infer(x)["y"] == 2).all()
        with caplog.at_level(logging.ERROR, "infersdk.loading.hot_swap"):
            gate.set()
            with pytest.raises(RuntimeError, match="no tactic"):
                infer.wait_ready(30)
        assert [r.getMessage() for r in caplog.records] == ["loading m.onnx on slow failed: RuntimeError: no tactic"]
        with pytest.warns(RuntimeWarning, match="loading m.onnx on slow failed, and the model stays .*: no tactic"):
            assert (infer(x)["y"] == 2).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for one in (infer, clone, infer.clone()):
                assert (one(x)["y"] == 2).all()
                assert str(one.building_error) == "no tactic"
                assert one.active_backend == one.current().backend == "onnxruntime"
            one.close()


def test_a_build_that_exits(tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: Any) -> None:
        assert gate.wait(30)
        sys.exit(3)

    monkeypatch.setattr(slow_backends.SlowOpenVino, "_load", leave)
    with load(models.double(tmp_path / "m.onnx"), gate) as infer:
        gate.set()
        with pytest.raises(InferenceError, match=r"loading m.onnx on slow was ended by SystemExit\(3\); load"):
            infer.wait_ready(30)
        assert isinstance(infer.building_error, InferenceError)


def test_a_model_that_came_out_different_does_not_take_over(tmp_path: Path, gate: threading.Event) -> None:
    other = models.double(tmp_path / "other.onnx", dtype="float64")
    with load(models.double(tmp_path / "m.onnx"), gate, instead=other) as infer:
        gate.set()
        assert infer.wait_ready()
        with pytest.warns(RuntimeWarning, match="are not the same"):
            assert (infer(np.ones((1, 4), np.float32))["y"] == 2).all()
        assert isinstance(infer.building_error, UnsupportedModelError)
        assert infer.active_backend == "onnxruntime"
    until_closed()


@pytest.mark.parametrize("max_batch", [None, 3])
def test_shapes_that_only_the_other_backend_knows_before_a_run(
    tmp_path: Path, gate: threading.Event, max_batch: int | None
) -> None:
    x = np.ones((3, 4), np.float32)
    # The shape is computed in float, which shape inference does not follow.
    nodes = [
        models.node("Shape", "x", "s"), models.node("Cast", "s", "f", to=1), models.node("Cast", "f", "i", to=7),
        models.node("Reshape", "x i", "y"),
    ]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, [models.value("x", ("batch", 4))], [models.value("y", ("b", "n"))])
    known = models.identity(tmp_path / "known.onnx", ("batch", 4))
    with load(path, gate, max_batch=max_batch, instead=known) as ran, ran.clone() as fresh:
        assert ran.output_specs[0].shape == ("b", "n")
        y = ran(x)["y"]
        gate.set()
        assert fresh.wait_ready(30)
        for infer in (fresh, ran):
            output = infer.outputs["y"]
            infer.current()
            assert infer is fresh or (output.numpy() == y).all()
            assert (infer(x)["y"] == x).all()
            assert infer.outputs["y"] is output
            assert (infer.active_backend, infer.building_error) == ("slow", None)


def test_the_largest_batch_is_the_same_before_and_after(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = msgspec.structs.replace(slow_backends.SlowOpenVino.declaration, default_max_batch=2)
    monkeypatch.setattr(slow_backends.SlowOpenVino, "declaration", declared)
    path = models.double(tmp_path / "m.onnx")
    for asked, largest in ((None, 2), (3, 3)):
        with load(path, gate, max_batch=asked) as infer:
            assert (infer(np.ones((largest, 4), np.float32))["y"] == 2).all()
            with pytest.raises(ShapeError, match=f"max_batch={largest}"):
                infer(np.ones((largest + 1, 4), np.float32))


def test_closing_stops_a_build_that_can_be_stopped(tmp_path: Path) -> None:
    path, told = models.double(tmp_path / "m.onnx"), []
    infer = infersdk.load(
        path, "builder", while_building="onnxruntime", progress=lambda phase, fraction: told.append(fraction)
    )
    twin = infer.clone()
    thread = infer._building.thread  # type: ignore[attr-defined]
    infer.close()
    count = len(told)
    time.sleep(0.1)
    assert thread.is_alive()  # for the clone
    assert len(told) > count
    start = time.monotonic()
    twin.close()
    assert time.monotonic() - start < 5
    thread.join(5)
    assert not thread.is_alive()
    assert len(told) < 1000


def test_a_build_ends_with_the_last_one_that_waited_for_it(tmp_path: Path) -> None:
    infer = infersdk.load(models.double(tmp_path / "m.onnx"), "builder", while_building="onnxruntime")
    thread = infer._building.thread  # type: ignore[attr-defined]
    del infer
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_what_comes_after_close_is_dropped(tmp_path: Path, gate: threading.Event) -> None:
    infer = load(models.double(tmp_path / "m.onnx"), gate)
    thread = infer._building.thread
    start = time.monotonic()
    infer.close()
    infer.close()
    assert time.monotonic() - start < 10  # the gate is closed for 60 s
    gate.set()
    thread.join(30)
    until_closed()


def test_the_process_ends_while_it_builds() -> None:
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import infersdk, time, slow_backends
from infersdk.loading import registry
from infersdk.data import DETECTOR
registry._BUILT_IN["builder"] = registry._Backend("slow_backends:BuildingOpenVino", "")
infer = infersdk.load(DETECTOR, "builder", while_building="onnxruntime", steps=3000)
assert slow_backends.BuildingOpenVino.building.wait(20)
print(infer.active_backend, time.monotonic())
"""
    folder = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, timeout=25)
    name, at = done.stdout.split()
    assert name == "onnxruntime"
    assert time.monotonic() - float(at) < 10
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"while_building": "onnxruntme"}, BackendNotFoundError, "no backend 'onnxruntme'"),
        ({"while_building": "onnxruntime@cuda:99"}, DeviceUnavailableError, "cuda:99"),
        ({"while_building": "@cpu"}, ConfigError, "'@cpu' does not name a backend; write backend, backend@device"),
        ({"while_building": True}, ConfigError, "True does not name a backend"),
        ({"backend": "nonesuch"}, BackendNotFoundError, "no backend 'nonesuch'"),
        ({"device": "cuda:99"}, DeviceUnavailableError, "device 'cuda:99' is not supported; slow runs here on: cpu"),
        ({"precision": "fp61"}, ConfigError, "precision 'fp61'"),
        ({"threads": -1}, ConfigError, "threads"),
    ],
)
def test_what_can_be_known_at_once_is_said_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    arguments = {"backend": "slow", "while_building": "onnxruntime", **arguments}
    before = {*threading.enumerate()}  # those of earlier tests may end meanwhile
    with pytest.raises(error, match=message):
        infersdk.load(models.double(tmp_path / "m.onnx"), **arguments)
    assert not {*threading.enumerate()} - before


def test_files_that_are_no_models_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        load(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_text("not a model")
    with pytest.raises(ModelFormatError):
        load(tmp_path / "bad.onnx")


def test_a_wrapper_goes_over_in_the_middle_of_a_stream(gate: threading.Event) -> None:
    from infersdk.data import DETECTOR, IMAGE
    from infersdk.models import YOLOv5

    with YOLOv5(DETECTOR) as plain:
        want = plain(IMAGE)

    def images() -> Iterator[Path]:
        for number in range(40):
            if number == 20:
                gate.set()
                model.network.wait_ready(30)  # type: ignore[attr-defined]
            yield IMAGE

    with YOLOv5(DETECTOR, "slow", while_building="onnxruntime", options={"gate": gate}) as model:
        assert "onnxruntime" in repr(model)
        results = list(model.stream(images()))
        assert model.network.active_backend == "slow"
        assert "slow" in repr(model)
        results.append(model(IMAGE))
    assert len(results) == 41
    for found in results:
        assert found.labels == want.labels
        np.testing.assert_allclose(found.xyxy, want.xyxy, atol=0.1)
