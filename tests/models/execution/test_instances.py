"""The instances that calls, streams and requests share on a device. No device is needed: others stand in for them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from waiting import together

from infersdk.errors import ClosedError
from infersdk.infer import Scheduling
from infersdk.models.execution import cuda
from infersdk.models.execution.cuda import INSTANCES, CudaInstances


class Network:
    """Counts its clones."""

    backend, scheduling, memory_budget = "fake", Scheduling(), None
    made: list[Network] = []

    def __init__(self) -> None:
        self.model = type("Model", (), {"name": "m.onnx"})
        self.closed = False
        self.made.append(self)

    def current(self) -> Network:
        return self

    def clone(self) -> Network:
        return Network()

    def close(self) -> None:
        self.closed = True


class Instance:
    """Doubles the numbers of one batch at a time; a batch that holds 13 fails."""

    def __init__(self, infer: Any, stages: Any, capacity: int) -> None:
        self.infer, self.capacity = infer, capacity
        self.stream = type("Stream", (), {"device": type("Device", (), {"index": 0})})
        self.rows: list[Any] | None = None

    def queue(self, rows: list[Any], workers: Any) -> None:
        assert self.rows is None, "it has a batch already"
        self.rows = rows

    def collect(self) -> list[int]:
        rows, self.rows = self.rows, None
        assert rows is not None
        if 13 in rows:
            raise ValueError("13")
        return [2 * row for row in rows]

    def close(self) -> None:
        assert self.rows is None, "its batch has not ended"


@pytest.fixture
def instances(monkeypatch: pytest.MonkeyPatch) -> CudaInstances:
    monkeypatch.setattr(cuda, "CudaInstance", Instance)
    monkeypatch.setattr(cuda, "shared_workers", lambda device, shares_cpu: None)
    monkeypatch.setattr(Network, "made", [])
    network: Any = Network()
    made = CudaInstances(network, None)  # type: ignore[arg-type]
    made.add(network, network)
    made.reserve(4)
    return made


def queued(instances: CudaInstances, *rows: Any) -> cuda.CudaRun:
    return instances.queue(rows, False)


def test_no_thread_waits_for_batches_that_nobody_collects(instances: CudaInstances) -> None:
    """As those of streams that are paused."""
    runs = [queued(instances, number) for number in range(10)]
    assert len(Network.made) == INSTANCES
    assert [run.results() for run in reversed(runs)] == [[2 * number] for number in reversed(range(10))]
    assert [run.results() for run in runs] == [[2 * number] for number in range(10)]


def test_an_error_belongs_to_its_batch(instances: CudaInstances) -> None:
    bad = queued(instances, 13)
    runs = [queued(instances, number) for number in range(5)]  # another thread ends the bad one
    assert [run.results() for run in runs] == [[2 * number] for number in range(5)]
    for _ in range(2):
        with pytest.raises(ValueError, match="13"):
            bad.results()


def test_many_threads(instances: CudaInstances) -> None:
    def work(seed: int) -> None:
        pending: list[tuple[int, cuda.CudaRun]] = []
        for number in range(100, 300):
            pending.append((number, queued(instances, number, seed)))
            if len(pending) > seed % 5:
                expected, run = pending.pop(0)
                assert run.results() == [2 * expected, 2 * seed]

    together(work, range(20, 28))
    assert len(Network.made) == INSTANCES


def test_threads_get_instances_in_turn(instances: CudaInstances, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has just given one back does not overtake threads that wait."""
    queue = Instance.queue

    def slowly(self: Instance, rows: list[Any], workers: Any) -> None:
        queue(self, rows, workers)
        time.sleep(0.001)  # other threads run, as while a runtime works

    monkeypatch.setattr(Instance, "queue", slowly)
    batches, left = Counter[int](), iter(range(400))

    def work(thread: int) -> None:
        for number in left:
            assert queued(instances, 100 + number).results() == [2 * (100 + number)]
            batches[thread] += 1

    together(work, range(10))
    assert min(batches[thread] for thread in range(10)) > max(batches.values()) / 2, batches


def test_release_and_close_end_what_is_queued(instances: CudaInstances) -> None:
    run = queued(instances, 1)
    instances.release()
    assert [network.closed for network in Network.made] == [False]
    assert run.results() == [2]
    others = [queued(instances, number) for number in range(2, 5)]
    instances.close()
    assert [network.closed for network in Network.made] == [False, True, True]
    assert [other.results() for other in others] == [[4], [6], [8]]
    with pytest.raises(ClosedError, match=r"m\.onnx was closed"):
        queued(instances, 1)


def test_instances_grow_with_the_largest_batch(instances: CudaInstances) -> None:
    queued(instances, 1).results()
    instances.reserve(9)
    queued(instances, *range(9)).results()
    assert [slot.instance.capacity for slot in instances._slots if slot.instance is not None] == [9]
