"""The contract on clones, threads, and closing."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import infersdk
from infersdk import Infer
from infersdk.bench.machine import resident_bytes
from infersdk.core.stream import device_info
from infersdk.errors import ClosedError, InUseError, ModelFormatError

from .base import ContractBase, MakeModel, RunReference

__all__ = ["LifeContract", "device_memory_used", "resident_bytes"]


class LifeContract(ContractBase):
    """Clones never mix, close() frees everything, nothing leaks."""

    def test_context_manager(self, model: MakeModel) -> None:
        with self.load(model("net")) as infer:
            infer.forward()
        with pytest.raises(ClosedError):
            infer.forward()
        with pytest.raises(ZeroDivisionError), self.load(model("net")) as infer:
            raise ZeroDivisionError
        with pytest.raises(ClosedError):
            infer.forward()

    def test_clones_outlive_the_original(self, model: MakeModel, reference: RunReference) -> None:
        x = self.images(1)
        want = reference("net", x=x)["y"]
        infer = self.load(model("net"), max_batch=self._batches[-1])
        infer(x)
        twin = infer.clone()
        third = twin.clone()
        assert type(twin) is type(infer)
        assert twin.inputs["x"] is not infer.inputs["x"]
        assert (twin.max_batch, twin.precision, twin.device) == (infer.max_batch, infer.precision, infer.device)
        infer.close()
        self.close_to(twin(x)["y"], want)
        twin.close()
        self.close_to(third(x)["y"], want)
        third.close()
        with pytest.raises(ClosedError):
            third(x)

    def test_clones_in_threads_never_mix(self, net: Infer) -> None:
        threads, rounds = 4, 25
        work = [
            [self.images(1 + (i + j) % self._batches[-1], seed=10 * i + j) for j in range(3)] for i in range(threads)
        ]
        want = [[net(x)["y"] for x in mine] for mine in work]
        clones = [net] + [net.clone() for _ in range(threads - 1)]
        start = threading.Barrier(threads)

        def run(i: int) -> None:
            start.wait()
            for j in range(rounds):
                got = clones[i](work[i][j % 3])["y"]
                np.testing.assert_allclose(got, want[i][j % 3], rtol=0, atol=self.batch_atol)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, range(threads)))  # raises the exception of a thread
        for clone in clones[1:]:
            clone.close()

    def test_cloning_and_closing_in_threads(self, net: Infer) -> None:
        x = self.images(1)
        want = net(x)["y"]

        def run(_: int) -> None:
            for _ in range(5):
                with net.clone() as twin:
                    np.testing.assert_allclose(twin(x)["y"], want, rtol=0, atol=self.batch_atol)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(4)))

    def test_threads_that_share_a_model(self, net: Infer) -> None:
        """Each call returns its own right result, or raises InUseError."""
        images = [self.images(1 + i % self._batches[-1], seed=i) for i in range(4)]
        want = [net(x)["y"] for x in images]
        start = threading.Barrier(len(images))

        def right(i: int) -> int:
            """The number of calls that returned their result."""
            start.wait()
            count = 0
            for _ in range(50):
                with contextlib.suppress(InUseError):
                    got = net(images[i])["y"]
                    np.testing.assert_allclose(got, want[i], rtol=0, atol=self.batch_atol)
                    count += 1
            return count

        with ThreadPoolExecutor(len(images)) as pool:
            assert sum(pool.map(right, range(len(images))))
        np.testing.assert_allclose(net(images[1])["y"], want[1], rtol=0, atol=self.batch_atol)

    def test_loading_and_closing_leaks_nothing(self, model: MakeModel) -> None:
        path, x = model("wide"), np.ones((1, 512), np.float32)

        def cycle() -> None:
            with self.load(path, max_batch=self._batches[-1]) as infer:
                infer(x)
                with infer.clone() as twin:
                    twin(x)

        def held() -> tuple[int, int, int]:
            gc.collect()
            own = infersdk.memory_stats()
            return sum(v for k, v in own.items() if "peak" not in k), resident_bytes(), device_memory_used(self._memory)

        for _ in range(max(self.leak_warmup, self.leak_cycles // 10)):
            cycle()
        own, resident, device = held()
        for _ in range(self.leak_cycles):
            cycle()
        own_after, resident_after, device_after = held()
        assert own_after == own, "tensors were left behind"
        assert resident_after - resident < self.leak_bytes, (
            f"{self.leak_cycles} cycles leak host memory: {(resident_after - resident) / 2**20:.0f} MiB"
        )
        # The driver reports what all processes hold on the device together, so this counts only without other tests.
        if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) == 1:
            assert device_after - device < self.leak_bytes, f"{self.leak_cycles} cycles leak device memory"

    def test_failing_to_load_leaks_nothing(self, model: MakeModel, tmp_path: Path) -> None:
        whole = model("wide")
        broken = tmp_path / f"broken{whole.suffix}"
        broken.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])

        def cycle() -> None:
            with pytest.raises(ModelFormatError):
                self.load(broken)

        for _ in range(10):
            cycle()
        gc.collect()
        before = resident_bytes()
        for _ in range(self.leak_cycles):
            cycle()
        gc.collect()
        assert resident_bytes() - before < self.leak_bytes


def device_memory_used(device: str | None) -> int:
    """Bytes in use on a CUDA device, by all processes; 0 for None."""
    if device is None:
        return 0
    info = device_info(device)
    return int(info["total_bytes"] - info["free_bytes"])
