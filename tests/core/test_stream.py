"""Streams, and tensors whose copies are on their way; with torch, CuPy and numba as neighbours."""

from __future__ import annotations

import gc
import threading
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import infersdk
from infersdk import Event, Head, Stream, Tensor, device_count, device_info, memory_stats, pinned_empty
from infersdk.core.memory import is_page_locked
from infersdk.core.stream import CudaGraph, default_stream
from infersdk.errors import DeviceUnavailableError, InputError, OutOfMemoryError


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_all_say_so() -> None:
    for make in (
        Stream,
        Event,
        device_info,
        lambda: Stream.wrap(0),
        lambda: pinned_empty((4,)),
        lambda: Tensor((4,), device="cuda:0").device_ptr(),
    ):
        with pytest.raises(DeviceUnavailableError, match="no device cuda"):
            make()
    with pytest.raises(DeviceUnavailableError, match="cpu"):
        Stream("cpu")
    assert not is_page_locked(np.zeros(4))


class TestOnDevice:
    """What needs a GPU. Torch is the independent party that queues work on our streams and looks at our memory."""

    pytestmark = pytest.mark.gpu

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    def test_what_the_device_is(self) -> None:
        info = device_info("cuda:0")
        assert info["name"]
        assert info["compute_capability"] >= (5, 0)
        assert 0 < info["free_bytes"] <= info["total_bytes"]
        with pytest.raises(DeviceUnavailableError, match=f"cuda:{device_count()}: this machine has"):
            device_info(f"cuda:{device_count()}")

    def test_heads(self, rng: np.random.Generator) -> None:
        tensor, stream = Tensor((1000, 7), "float32", "cuda:0"), Stream()
        content = rng.random((1000, 7), np.float32)
        tensor.numpy(writable=True)[:] = content
        assert tensor.head is Head.HOST
        at = tensor.device_ptr()
        assert tensor.head is Head.SYNCED
        assert tensor.device_ptr(write=True, stream=stream) == at
        assert tensor.head is Head.DEVICE
        np.testing.assert_array_equal(tensor.numpy(), content)
        assert tensor.head is Head.SYNCED
        tensor.resize((10, 7))
        assert tensor.device_ptr() == at  # what fits the capacity allocates nothing
        np.testing.assert_array_equal(tensor.numpy(), content[:10])

    def test_every_reader_sees_work_on_a_stream(self, torch: Any) -> None:
        tensor, stream = Tensor((1 << 20,), "float32", "cuda:0"), Stream()
        for value in range(1, 20):
            tensor.device_ptr(read=False, write=True, stream=stream)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
                torch.cuda._sleep(3_000_000)  # a slow kernel in front
                view = torch.as_tensor(_Raw(tensor.device_ptr(stream=stream), tensor.shape), device="cuda")
                view.fill_(value)
            assert tensor.numpy()[[0, -1]].tolist() == [value, value]

    def test_the_host_is_not_rewritten_while_it_is_copied_out(self, torch: Any) -> None:
        tensor, stream = Tensor((64 << 20,), "uint8", "cuda:0"), Stream()
        for value in range(1, 8):
            tensor.numpy(writable=True)[:] = value
            at = tensor.device_ptr(stream=stream)  # queued
            tensor.numpy(writable=True)[:] = 99  # at once: must wait for the copy
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
                seen = torch.as_tensor(_Raw(at, tensor.shape, "|u1"), device="cuda").clone()
            stream.synchronize()
            assert seen.min().item() == seen.max().item() == value

    def test_copies_between_overlapping_views(self) -> None:
        tensor, stream = Tensor((10,), "int32", "cuda:0"), Stream()
        tensor.numpy(writable=True)[:] = np.arange(10)
        tensor.device_ptr(write=True)
        with pytest.raises(InputError, match="cannot copy 36 bytes on a device to memory that overlaps the source"):
            tensor[1:].copy_from(tensor[:-1], stream=stream)
        tensor[1:].copy_from(tensor[:-1])
        assert tensor.numpy().tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]

    def test_fetch_is_waited_for_alone(self, torch: Any) -> None:
        tensor, stream = Tensor((1 << 20,), "int32", "cuda:0"), Stream()
        tensor.numpy(writable=True)[:] = 5
        tensor.device_ptr(write=True, stream=stream)
        tensor.fetch(stream)
        after = Event()
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
            torch.cuda._sleep(2_000_000_000)  # about a second behind the copy
        after.record(stream)
        assert tensor.numpy()[0] == 5
        assert not after.done
        stream.synchronize()
        assert after.done

    @pytest.mark.parametrize("call", ["lend", "fetch"])
    def test_other_threads_run_while_a_copy_is_waited_for(self, torch: Any, call: str) -> None:
        stream = Stream()
        tensor = Tensor.wrap(np.zeros(1 << 20, np.float32), "cuda:0")
        tensor.device_ptr(write=True)
        if call == "lend":
            tensor.numpy(writable=True)[:] = 1
        torch.cuda.synchronize()
        gaps, done = [0.0], threading.Event()

        def tick() -> None:
            last = perf_counter()
            while not done.wait(0.001):
                now = perf_counter()
                gaps.append(now - last)
                last = now

        thread = threading.Thread(target=tick)
        thread.start()
        busy = torch.cuda.default_stream() if call == "lend" else torch.cuda.ExternalStream(stream.handle)
        with torch.cuda.stream(busy):
            torch.cuda._sleep(2_000_000_000)  # about a second
        started = perf_counter()
        if call == "lend":
            torch.from_dlpack(tensor)
        else:
            tensor.fetch(stream)
        waited = perf_counter() - started
        done.set()
        thread.join()
        assert waited > 0.4
        assert max(gaps) < waited / 2

    def test_streams_follow_one_another(self, torch: Any) -> None:
        tensor, first, second = Tensor((1 << 20,), "float32", "cuda:0"), Stream(), Stream()
        for value in range(1, 10):
            at = tensor.device_ptr(read=False, write=True, stream=first)
            with torch.cuda.stream(torch.cuda.ExternalStream(first.handle)):
                torch.cuda._sleep(5_000_000)
                torch.as_tensor(_Raw(at, tensor.shape), device="cuda").fill_(value)
            at = tensor.device_ptr(stream=second)
            with torch.cuda.stream(torch.cuda.ExternalStream(second.handle)):
                seen = torch.as_tensor(_Raw(at, tensor.shape), device="cuda").sum()
            second.synchronize()
            assert seen.item() == value * (1 << 20)

    def test_torch_both_ways_without_copies(self, torch: Any) -> None:
        tensor = Tensor((3, 4), "float32", "cuda:0")
        tensor.numpy(writable=True)[:] = 1
        theirs = torch.from_dlpack(tensor)
        assert theirs.device.type == "cuda"
        assert theirs.data_ptr() == tensor.device_ptr()
        theirs.mul_(3)
        torch.cuda.synchronize()
        tensor.device_ptr(write=True)
        assert tensor.numpy().tolist() == [[3.0] * 4] * 3
        tensor.close()
        assert theirs.sum().item() == 36  # its memory is still there
        source = torch.arange(12, dtype=torch.int64, device="cuda").reshape(3, 4)
        ours = Tensor.from_dlpack(source)
        assert ours.device_ptr() == source.data_ptr()
        np.testing.assert_array_equal(ours.numpy(), np.arange(12).reshape(3, 4))
        assert Tensor.wrap(source).device_ptr() == source.data_ptr()
        with pytest.raises(infersdk.errors.ShapeError, match="dense"):
            Tensor.from_dlpack(source.T)

    def test_from_dlpack_honours_the_producers_stream(self, torch: Any) -> None:
        ours, theirs = Stream(), torch.cuda.Stream()
        for value in range(1, 10):
            with torch.cuda.stream(theirs):
                source = torch.zeros(1 << 20, dtype=torch.float32, device="cuda")
                torch.cuda._sleep(5_000_000)
                source.fill_(value)
                tensor = Tensor.from_dlpack(source, stream=ours)
            at = tensor.device_ptr(stream=ours)
            with torch.cuda.stream(torch.cuda.ExternalStream(ours.handle)):
                seen = torch.as_tensor(_Raw(at, tensor.shape), device="cuda").max()
            ours.synchronize()
            assert seen.item() == value

    def test_from_dlpack_on_the_default_stream(self, torch: Any) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            source = torch.zeros(1 << 20, dtype=torch.float32, device="cuda")
            torch.cuda._sleep(5_000_000)
            source.fill_(3)
            tensor = Tensor.from_dlpack(source, stream=default_stream())
        np.testing.assert_array_equal(tensor.numpy(), 3)

    def test_cupy_and_numba(self) -> None:
        cupy = pytest.importorskip("cupy")
        tensor = Tensor((6,), "int32", "cuda:0")
        tensor.numpy(writable=True)[:] = np.arange(6)
        view = cupy.asarray(tensor)
        assert view.data.ptr == tensor.device_ptr()
        view *= 2
        cupy.cuda.Device().synchronize()
        tensor.device_ptr(write=True)
        assert tensor.numpy().tolist() == [0, 2, 4, 6, 8, 10]
        assert cupy.from_dlpack(tensor).sum() == 30
        other = cupy.arange(5, dtype=cupy.float16)
        assert Tensor.from_dlpack(other).device_ptr() == other.data.ptr
        assert Tensor.wrap(other).numpy().tolist() == [0, 1, 2, 3, 4]
        numba = pytest.importorskip("numba.cuda")
        assert numba.as_cuda_array(tensor).copy_to_host().tolist() == [0, 2, 4, 6, 8, 10]

    def test_graphs_replay(self, torch: Any) -> None:
        tensor, stream = Tensor((8,), "float32", "cuda:0"), Stream()
        tensor.numpy(writable=True)[:] = 0
        at = tensor.device_ptr(write=True, stream=stream)
        view = torch.as_tensor(_Raw(at, tensor.shape), device="cuda")

        def add() -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
                view.add_(1)

        add()
        stream.synchronize()
        graph = CudaGraph(stream, add)
        for _ in range(5):
            graph.launch(stream)
        assert tensor.numpy().tolist() == [6.0] * 8

        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            CudaGraph(stream, fail)
        graph.launch(stream)  # the stream left the capture
        stream.synchronize()

        old = [Tensor((1000,), "float32", "cuda:0") for _ in range(3)]
        for one in old:
            one.numpy(writable=True)[:] = 1
            one.device_ptr(stream=stream)
        stream.synchronize()

        def add_and_free() -> None:  # as the garbage collection may do at any moment
            add()
            old.clear()

        graph = CudaGraph(stream, add_and_free)
        graph.launch(stream)
        tensor.device_ptr(write=True, stream=stream)  # the tensor does not know what the graph writes
        assert tensor.numpy().tolist() == [8.0] * 8

    def test_copies_that_are_due_in_a_graph_are_refused(self) -> None:
        tensor, stream = Tensor((8,), "float32", "cuda:0"), Stream()
        tensor.numpy(writable=True)[:] = 3
        with pytest.raises(InputError, match="32 bytes between host and device is due while its stream is captured"):
            CudaGraph(stream, lambda: tensor.device_ptr(stream=stream))
        assert tensor.head is Head.HOST
        assert tensor.device_ptr(write=True, stream=stream)
        with pytest.raises(InputError, match="fetch it after the launch"):
            CudaGraph(stream, lambda: tensor.fetch(stream))
        assert tensor.head is Head.DEVICE
        assert tensor.numpy().tolist() == [3.0] * 8

    def test_pinned_arrays(self) -> None:
        array = pinned_empty((100, 100, 3))
        assert is_page_locked(array)
        assert is_page_locked(array[50:])
        assert not is_page_locked(np.zeros((100, 100, 3), np.uint8))

    def test_out_of_memory_tells_sizes(self) -> None:
        before = memory_stats()["device_bytes"]
        tensor = Tensor((1 << 44,), "uint8", "cuda:0")
        with pytest.raises(OutOfMemoryError, match=rf"{1 << 44} bytes.*are free.*infersdk holds"):
            tensor.device_ptr()
        tensor.resize((16,)).device_ptr()  # usable again
        tensor.close()
        assert memory_stats()["device_bytes"] == before

    def test_copies_stay_on_the_device(self, rng: np.random.Generator) -> None:
        last = f"cuda:{device_count() - 1}"
        source, target = Tensor((1 << 18,), "float32", "cuda:0"), Tensor((1 << 18,), "float32", last)
        content = rng.random(1 << 18, np.float32)
        source.numpy(writable=True)[:] = content
        source.device_ptr(write=True)
        target.copy_from(source)
        assert target.head is Head.DEVICE
        np.testing.assert_array_equal(target.numpy(), content)
        np.testing.assert_array_equal(source.astype("float16").numpy(), content.astype(np.float16))

    def test_the_current_device_stays(self, torch: Any) -> None:
        if device_count() < 2:
            pytest.skip("needs two GPUs")
        torch.cuda.set_device(0)
        tensor = Tensor((100,), "float32", "cuda:1")
        tensor.numpy(writable=True)[:] = 1
        assert tensor.device_ptr()
        assert torch.cuda.current_device() == 0

    @pytest.mark.soak
    def test_nothing_leaks(self) -> None:
        gc.collect()
        before = memory_stats()
        free = device_info()["free_bytes"]
        stream = Stream()
        for i in range(20_000):
            with Tensor((1 + i % 5000, 100), "float32", "cuda:0") as tensor:
                tensor.numpy(writable=True)[:] = 1
                tensor.device_ptr(write=True, stream=stream)
                tensor.fetch(stream)
        stream.synchronize()
        gc.collect()
        after = memory_stats()
        for name in ("pinned_bytes", "device_bytes", "memories"):
            assert after[name] <= before[name]
        assert device_info()["free_bytes"] >= free - (64 << 20)


class _Raw:
    """Device memory as torch takes it, without asking the tensor again."""

    def __init__(self, at: int, shape: tuple[int, ...], typestr: str = "<f4") -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (at, False), "version": 2}
