"""ONNX Runtime's CUDA provider, on an NVIDIA GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import infersdk
from infersdk.testing import InferContract

ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("CUDAExecutionProvider" not in ort.get_available_providers(), reason="needs onnxruntime-gpu"),
]


class TestOnnxRuntimeCuda(InferContract):
    backend = "onnxruntime"
    device = "cuda:0"
    rtol, atol = 2e-3, 2e-3  # TF32
    batch_atol = 2e-3
    leak_cycles = 40


def test_reads_and_writes_device_tensors(net: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 3, 12, 10), dtype=np.float32)
    with infersdk.load(net, device="cuda:0", max_batch=4) as infer:
        tensor = infer.inputs["x"].resize(x.shape)
        tensor.numpy(writable=True)[:] = x
        at = tensor.device_ptr()
        output = infer.forward()["y"]
        assert output.head is infersdk.Head.DEVICE
        first = output.numpy().copy()
        assert tensor.device_ptr() == at
        tensor.numpy(writable=True)[:] = 0
        assert not np.allclose(infer.forward()["y"].numpy(), first)


def test_cuda_graphs_give_the_same(net: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 12, 10), dtype=np.float32)
    with infersdk.load(net, device="cuda:0", max_batch=2) as plain:
        want = plain(x)["y"]
    with infersdk.load(net, device="cuda:0", max_batch=2, cuda_graph=True) as infer:
        for _ in range(4):
            np.testing.assert_allclose(infer(x)["y"], want, atol=1e-6)
        np.testing.assert_allclose(infer(x * 0)["y"][0], infer(x * 0)["y"][1], atol=1e-6)
    with pytest.raises(infersdk.errors.ConfigError, match="cuda_graph"):
        infersdk.load(net, cuda_graph=True)


def test_each_clone_and_batch_has_a_graph_of_its_own(net: Path) -> None:
    """A graph writes where it was captured: replayed for another clone it leaves that one's outputs as they are."""
    rng = np.random.default_rng(1)
    with (
        infersdk.load(net, device="cuda:0", max_batch=4) as plain,
        infersdk.load(net, device="cuda:0", max_batch=4, cuda_graph=True) as first,
        first.clone() as second,
    ):
        assert first.scheduling.concurrency == 1
        for _ in range(4):
            for infer in (first, second):
                for batch in (1, 4, 2):
                    x = rng.standard_normal((batch, 3, 12, 10), dtype=np.float32)
                    np.testing.assert_allclose(infer(x)["y"], plain(x)["y"], atol=1e-5)


def test_a_batch_is_kept_for_a_while(net: Path) -> None:
    with infersdk.load(net, device="cuda:0", max_batch=8) as infer, infer.clone() as twin:
        assert [infer.scheduling.bucket_batch(n) for n in (1, 5, 3)] == [1, 6, 6]
        assert [twin.scheduling.bucket_batch(n) for n in (8, 1)] == [8, 8]  # what is planned is the session's
        assert infer.scheduling.bucket_batch(9) == 9  # which the run refuses
        x = np.random.default_rng(2).standard_normal((5, 3, 12, 10), dtype=np.float32)
        want = infer(x)["y"]
        with infersdk.Pipeline(infer, max_delay=0.02) as pipeline:
            found = [future.result(60)["y"] for future in pipeline.submit_many(list(x))]
        np.testing.assert_allclose(np.stack(found), want, rtol=2e-3, atol=2e-3)
    with infersdk.load(net, device="cuda:0", max_batch=8, cuda_graph=True) as infer:
        assert [infer.scheduling.bucket_batch(n) for n in (1, 5, 3, 8, 1)] == [1, 6, 3, 8, 1]


def test_graphs_in_a_pipeline(net: Path) -> None:
    x = np.random.default_rng(2).standard_normal((64, 3, 12, 10), dtype=np.float32)
    with (
        infersdk.load(net, device="cuda:0", precision="fp32", max_batch=4) as plain,
        infersdk.load(net, device="cuda:0", precision="fp32", max_batch=4, cuda_graph=True) as infer,
        infersdk.Pipeline(infer) as pipeline,
    ):
        want = np.concatenate([plain(x[i : i + 4])["y"] for i in range(0, 64, 4)])
        for _ in range(5):
            found = [future.result(60)["y"] for future in pipeline.submit_many(list(x))]
            np.testing.assert_allclose(np.stack(found), want, atol=1e-5)


def test_outputs_are_read_beside_a_capture(net: Path) -> None:
    """The graph of one clone is captured while another one's outputs are copied home, on the session's one stream."""
    x = np.random.default_rng(3).standard_normal((4, 3, 12, 10), dtype=np.float32)
    with (
        infersdk.load(net, device="cuda:0", precision="fp32", max_batch=4) as plain,
        infersdk.load(net, device="cuda:0", precision="fp32", max_batch=4, cuda_graph=True) as infer,
        infer.clone() as twin,
    ):
        want = {count: plain(x[:count])["y"] for count in range(1, 5)}
        stop = Event()

        def read() -> int:
            times = 0
            while not stop.is_set():
                np.testing.assert_allclose(twin(x)["y"], want[4], atol=1e-5)
                times += 1
            return times

        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(read)
            try:
                for count in (1, 2, 3, 4) * 4:  # each is captured once
                    np.testing.assert_allclose(infer(x[:count])["y"], want[count], atol=1e-5)
            finally:
                stop.set()
            assert reading.result(60)
