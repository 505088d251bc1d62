"""From the processor to an engine on the GPU in the middle of the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import infersdk
from infersdk import Tensor
from infersdk.loading.hot_swap import HotSwap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.gpu
pytest.importorskip("tensorrt_rtx_bindings")
pytest.importorskip("onnxruntime")
models = pytest.importorskip("onnx_models")


def load(path: Path, **options: object) -> HotSwap:
    infer = infersdk.load(path, "tensorrt-rtx", max_batch=4, while_building="onnxruntime@cpu", **options)
    assert isinstance(infer, HotSwap)
    return infer


def test_tensors_go_from_the_processor_to_the_gpu(tmp_path: Path) -> None:
    with load(models.double(tmp_path / "m.onnx")) as infer:
        x, y = infer.inputs["x"].resize((3, 4)), infer.outputs["y"]
        x.numpy(writable=True)[:] = 3
        infer.forward()
        assert (y.numpy() == 6).all()
        infer.wait_ready(120)
        infer.forward()  # what was filled before
        assert (infer.active_backend, infer.device) == ("tensorrt-rtx", "cuda:0")
        assert infer.stream is not None
        assert infer.inputs["x"] is x
        assert infer.outputs["y"] is y
        assert (y.numpy() == 6).all()
        x.numpy(writable=True)[:] = 4
        infer.forward()
        assert (y.numpy() == 8).all()


def test_host_tensors_of_the_users_stay_bound(tmp_path: Path) -> None:
    source, target = np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)
    x, y = Tensor.wrap(source), Tensor.wrap(target)
    with load(models.double(tmp_path / "m.onnx")) as infer:
        infer.bind("x", x)
        infer.bind("y", y)
        infer.forward()
        assert (y.numpy() == 2).all()
        infer.wait_ready(120)
        x.numpy(writable=True)[:] = 7
        infer.forward()
        assert infer.active_backend == "tensorrt-rtx"
        assert (y.numpy() == 14).all()


def test_a_wrapper_takes_the_path_on_the_device_after_it() -> None:
    from infersdk.data import DETECTOR, IMAGE
    from infersdk.models import YOLOv5
    from infersdk.models.execution.buffer import HostBuffer
    from infersdk.models.execution.cuda_buffer import CudaBuffer

    with YOLOv5(DETECTOR) as plain:
        want = plain(IMAGE)

    def images() -> Iterator[Path]:
        for number in range(24):
            if number == 12:
                model.network.wait_ready(120)  # type: ignore[attr-defined]
            yield IMAGE

    with YOLOv5(DETECTOR, "tensorrt-rtx", max_batch=4, while_building="onnxruntime@cpu", tf32=False) as model:
        assert isinstance(model._execution._idle[0].rows, HostBuffer)
        results = list(model.stream(images()))
        assert isinstance(model._execution._idle[0].rows, CudaBuffer)
        assert model.network.active_backend == "tensorrt-rtx"
    assert len(results) == 24
    for found in results:
        assert found.labels == want.labels
        np.testing.assert_allclose(found.xyxy, want.xyxy, atol=0.5)


def test_closing_cancels_the_build(tmp_path: Path) -> None:
    infer = load(models.double(tmp_path / "m.onnx", ("batch", 40)))
    thread = infer._building.thread
    infer.close()
    thread.join(30)
    assert not thread.is_alive()
