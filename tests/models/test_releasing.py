"""Models that give their memory back, and come back with the same results."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import together, until

import infersdk
from infersdk.data import DETECTOR, IMAGE
from infersdk.errors import ClosedError, ConfigError, InferenceError, InputError, OutOfMemoryError
from infersdk.models import YOLOv5

BACKENDS = ["onnxruntime", "openvino"]
LONG = 30.0


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def feed(infer: Any, seed: int) -> np.ndarray[Any, Any]:
    shape = [side if isinstance(side, int) else 1 for side in infer.input_specs[0].shape]
    return np.random.default_rng(seed).random(shape, np.float32)


# ---- an Infer ----


def test_the_same_results_again(backend: str) -> None:
    with infersdk.load(DETECTOR, backend) as infer:
        x = feed(infer, 0)
        expected = infer(x)
        for _ in range(3):
            infer.release()
            infer.release()  # a second time does nothing
            assert infer.is_released
            assert "released" in repr(infer)
            for name, array in infer(x).items():
                np.testing.assert_array_equal(array, expected[name])
            assert not infer.is_released
        infer.release()
    with pytest.raises(ClosedError):
        infer.release()


def test_a_device_that_exports_no_compiled_models() -> None:
    pytest.importorskip("openvino")
    with infersdk.load(DETECTOR, "openvino", device="auto") as infer:
        x = feed(infer, 0)
        (expected,) = infer(x).values()
        infer.release()
        np.testing.assert_array_equal(next(iter(infer(x).values())), expected)


def test_bound_tensors(backend: str) -> None:
    with infersdk.load(DETECTOR, backend) as infer:
        x, (spec,) = feed(infer, 1), infer.input_specs
        expected = next(iter(infer(x).values()))
        own = infer.inputs[spec.name]
        lent = infersdk.Tensor.wrap(next(iter(infer(x).values())).copy())
        output = infer.output_specs[0].name
        infer.bind(output, lent)
        infer.release()
        with pytest.raises(ClosedError):
            own.numpy()
        infer.inputs[spec.name].resize(x.shape).numpy(writable=True)[:] = x
        assert infer.outputs[output] is lent  # a caller's tensor stays bound
        lent.numpy(writable=True)[:] = 0
        infer.forward()
        np.testing.assert_array_equal(lent.numpy(), expected)


def test_clones_share_what_is_loaded_again(backend: str) -> None:
    with infersdk.load(DETECTOR, backend) as infer, infer.clone() as twin:
        x = feed(infer, 2)
        expected = next(iter(infer(x).values()))
        infer.release()
        np.testing.assert_array_equal(next(iter(twin(x).values())), expected)  # it is not released
        twin.release()
        third = infer.clone()  # takes both up again
        for one in (twin, infer, third):
            np.testing.assert_array_equal(next(iter(one(x).values())), expected)
        third.close()
        infer.release()
        twin.release()
        infer.close()  # a released one
        np.testing.assert_array_equal(next(iter(twin(x).values())), expected)


# ---- wrappers ----


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.data, other.data)


def test_calls_streams_and_requests(backend: str) -> None:
    with YOLOv5(DETECTOR, backend, max_batch=2) as model:
        model.configure_pipeline(max_delay=0)
        expected = model(IMAGE)
        assert len(expected)
        for _ in range(2):
            same(model.submit(IMAGE).result(LONG), expected)
            model.release()
            assert model.network.is_released
            same(model.submit(IMAGE).result(LONG), expected)
            assert model.pipeline.settings.max_delay == 0  # as it was configured
            model.release()
            same(model(IMAGE), expected)
            model.release()
            for found in model.stream([IMAGE] * 3):
                same(found, expected)
            model.release()
            for found in model.map([IMAGE] * 3):
                same(found, expected)
        model.release()
    with pytest.raises(ClosedError):
        model(IMAGE)


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    (tmp_path / "m.onnx").write_bytes(DETECTOR.read_bytes())
    monkeypatch.chdir(tmp_path)
    with infersdk.load("m.onnx", backend) as infer:
        monkeypatch.chdir("/")
        infer.release()
        assert infer(feed(infer, 0))["output0"].shape == (1, 6300, 15)


def test_a_model_in_use_is_not_released() -> None:
    pytest.importorskip("onnxruntime")
    with YOLOv5(DETECTOR, max_batch=2) as model:
        stream = model.stream([IMAGE] * 8)
        next(stream)
        with pytest.raises(InferenceError, match="1 calls or streams and 0 requests are running"):
            model.release()
        list(stream)
        model.release()
        with pytest.raises(ConfigError, match="after is a number of seconds above 0, not 0"):
            model.release(after=0)


@pytest.mark.parametrize("after", [float("inf"), float("nan"), 1e10, -1, "x", True])
def test_a_time_that_no_system_can_wait(after: Any) -> None:
    pytest.importorskip("onnxruntime")
    with YOLOv5(DETECTOR) as model, pytest.raises(InputError, match=r"after is .* seconds"):
        model.release(after=after)


def test_a_release_without_a_further_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with YOLOv5(DETECTOR) as model:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(OutOfMemoryError, match="can't start new thread"):
                model.release(after=0.01)
        model.release(after=0.01)
        until(lambda: model.network.is_released)


def test_a_closed_model_is_not_released_later() -> None:
    pytest.importorskip("onnxruntime")
    model = YOLOv5(DETECTOR)
    model.close()
    with pytest.raises(ClosedError, match="load it again"):
        model.release(after=1)


def test_a_release_that_fails_is_tried_again_on_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("onnxruntime")

    def fail() -> None:
        raise InferenceError("mine")

    with YOLOv5(DETECTOR) as model:
        with monkeypatch.context() as patch:
            patch.setattr(model.network, "release", fail)
            model.release(after=0.01)
            until(lambda: "could not be released: mine" in caplog.text)
            until(lambda: "infersdk-release" not in [thread.name for thread in threading.enumerate()])
        model(IMAGE)
        model.release(after=0.01)
        until(lambda: model.network.is_released)


def test_a_release_between_a_map_and_its_first_result() -> None:
    pytest.importorskip("onnxruntime")
    with YOLOv5(DETECTOR, max_batch=2) as model:
        results = model.map([IMAGE] * 3)
        model.release()
        assert len(list(results)) == 3


def test_a_release_while_requests_are_submitted() -> None:
    """`submit()` reads its timeout when it has the pipeline."""
    pytest.importorskip("onnxruntime")

    class Releasing(float):
        def __ge__(self, other: float) -> bool:
            with contextlib.suppress(InferenceError):
                model.release()
            return super().__ge__(other)

    with YOLOv5(DETECTOR, max_batch=2) as model:
        model.submit(IMAGE, timeout=Releasing(LONG)).result(LONG)


def test_release_after_a_while(backend: str) -> None:
    with YOLOv5(DETECTOR, backend, max_batch=2) as model:
        expected = model(IMAGE)
        model.release(after=0.05)
        for _ in range(2):
            until(lambda: model.network.is_released)
            same(model.submit(IMAGE).result(LONG), expected)
            until(lambda: model.network.is_released)
            same(model(IMAGE), expected)
        stream = model.stream([IMAGE] * 4)
        next(stream)
        time.sleep(0.2)
        assert not model.network.is_released  # the stream has not ended
        assert len(list(stream)) == 3
        until(lambda: model.network.is_released)
    until(lambda: "infersdk-release" not in [thread.name for thread in threading.enumerate()])


def test_many_threads_while_it_comes_and_goes() -> None:
    pytest.importorskip("onnxruntime")
    with YOLOv5(DETECTOR, max_batch=2) as model:
        expected = model(IMAGE)
        model.release(after=0.001)

        def caller(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(12):
                same(model.submit(IMAGE).result(LONG), expected)
                time.sleep(float(rng.random()) * 0.02)

        together(caller, range(4))


@pytest.mark.gpu
@pytest.mark.assets
def test_memory_of_a_device(assets: Path) -> None:
    """By NVML: after a release at most 64 MiB more than the bare context; the next use takes milliseconds."""
    pytest.importorskip("tensorrt_rtx_bindings")
    pynvml = pytest.importorskip("pynvml")
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("NVML tells what all processes hold: run this test by itself, with -n 0")
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)

    def used() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(device).used)

    with infersdk.Stream("cuda:0"):
        bare, held = used(), infersdk.memory_stats()["device_bytes"]
        path = assets / "models" / "yolov5n.onnx"
        start = time.perf_counter()
        with YOLOv5(path, backend="tensorrt-rtx", max_batch=8) as model:
            frames = [np.zeros((480, 640, 3), np.uint8)] * 32
            first = model(frames[0])
            cold = time.perf_counter() - start
            expected = list(model.stream(frames))
            list(model.map(frames))
            loaded, again = used(), []
            for _ in range(3):
                model.release()
                released = used()
                assert infersdk.memory_stats()["device_bytes"] == held
                start = time.perf_counter()
                same(model(frames[0]), first)
                again.append(time.perf_counter() - start)
            print(f"loaded +{(loaded - bare) >> 20} MiB, released +{(released - bare) >> 20} MiB; the first result "
                  f"took {cold:.2f} s, after a release {', '.join(f'{1000 * s:.0f}' for s in again)} ms")  # fmt: skip
            for found, before in zip(model.stream(frames), expected, strict=True):
                same(found, before)
            assert released - bare <= 64 << 20
            assert min(again) < max(0.5, cold / 10)
