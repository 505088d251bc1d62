"""A row that is alone in its batch is run on the shared memory of its client."""

from __future__ import annotations

import gc
import os
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value
from served_requests import NAMES, inputs_of

import infersdk
from infersdk.serve.errors import RequestError
from infersdk.serve.in_place import PlacedTensor
from infersdk.serve.messages import SharedMemory
from infersdk.serve.regions import CudaRegion, HostRegion
from infersdk.serve.rows import Destination, RowItem, RowRequests
from infersdk.serve.shared_memory import SharedMemoryRegions

if TYPE_CHECKING:
    from infersdk.serve.regions import RegionPart
    from infersdk.serve.rows import _RowBuffer

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")
SIDE, NBYTES = 32, 128  # of a row of floats


class Shared:
    """A region of 16 rows in the table of a server."""

    def __init__(self) -> None:
        self.key = f"/infersdk-test-{uuid.uuid4().hex}"
        self.path = f"/dev/shm{self.key}"
        Path(self.path).write_bytes(bytes(16 * NBYTES))
        self.regions = SharedMemoryRegions("/")
        self.regions.register("x", self.key, 0, 16 * NBYTES)
        self.rows = np.memmap(self.path, np.float32, shape=(16, SIDE))

    def part(self, offset: int, nbytes: int) -> RegionPart:
        return self.regions.part(SharedMemory("x", offset, nbytes))

    def item(self, source: int, target: int | None = None, shift: int = 0) -> RowItem:
        """A request of one row, from one row of the region to another one."""
        part = SharedMemory("x", source * NBYTES + shift, NBYTES)
        item = RowItem(x=self.regions.tensor(part, "FP32", [1, SIDE], "x")[0])
        item.outputs = ["y"]
        item.destinations = {}
        if target is not None:
            item.destinations = {"y": Destination(self.part(target * NBYTES, NBYTES), 0, 1)}
        return item


@pytest.fixture
def shared() -> Iterator[Shared]:
    own = Shared()
    yield own
    own.regions.close()
    os.unlink(own.path)


@pytest.fixture(params=["onnxruntime", "openvino"])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_RowBuffer]:
    """Four rows of a model that adds 1."""
    path = onnx_models.save(
        tmp_path / "add.onnx", [node("Add", "x one", "y")], [value("x", ["batch", SIDE])],
        [value("y", ["batch", SIDE])], {"one": np.ones(1, np.float32)},
    )  # fmt: skip
    with infersdk.load(path, request.param, max_batch=4) as network:
        made = RowRequests(network).batch_buffer(4)
        yield made
        made.close()


def run(buffer: _RowBuffer, *items: RowItem) -> list[Any]:
    for row, item in enumerate(items):
        buffer.prepare(row, item, None)
    buffer.run(len(items))
    return list(buffer.results(len(items)))


def test_one_row_is_read_and_written_in_place(buffer: _RowBuffer, shared: Shared) -> None:
    shared.rows[0] = np.arange(SIDE)
    own = buffer._network.inputs["x"]
    for _ in range(3):  # bound once, used again
        shared.rows[0] += 1
        (result,) = run(buffer, shared.item(0, 1))
        assert result["y"] == PlacedTensor((SIDE,), np.dtype(np.float32))
        np.testing.assert_array_equal(shared.rows[1], shared.rows[0] + 1)
    assert buffer._network.inputs["x"] is not own
    assert not own.numpy().any()  # nothing was copied there


def test_memory_of_a_device_is_let_go_after_each_run(
    buffer: _RowBuffer, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its client could not free it, and register what it allocates then."""
    assert not CudaRegion.stays_bound
    monkeypatch.setattr(HostRegion, "stays_bound", False)  # no GPU is needed for what happens next
    own = buffer._network.inputs["x"], buffer._network.outputs["y"]
    region = weakref.ref(shared.part(0, NBYTES).region)
    mapped = weakref.ref(shared.part(0, NBYTES).region._map)  # which the tensors of the region keep
    for number in range(2):
        shared.rows[0] = number
        (result,) = run(buffer, shared.item(0, 1))
        assert isinstance(result["y"], PlacedTensor)
        assert (shared.rows[1] == number + 1).all()
        assert (buffer._network.inputs["x"], buffer._network.outputs["y"]) == own
    gc.disable()  # a client does not wait for the garbage collector
    try:
        shared.regions.unregister("x")
        assert region() is None
        # OpenVINO's request keeps its inputs until it gets others, but lends no memory of CUDA devices.
        assert mapped() is None or buffer._network.backend == "openvino"
    finally:
        gc.enable()


def test_an_output_without_a_part_is_an_array(buffer: _RowBuffer, shared: Shared) -> None:
    shared.rows[2] = 4
    (result,) = run(buffer, shared.item(2))
    np.testing.assert_array_equal(result["y"], np.full(SIDE, 5, np.float32))


def test_rows_in_turn_alone_and_together(buffer: _RowBuffer, shared: Shared) -> None:
    shared.rows[:8] = np.arange(8)[:, None]
    for first in (0, 3, 0, 5, 1):
        run(buffer, shared.item(first, 8))
        assert (shared.rows[8] == first + 1).all()
        run(buffer, *(shared.item((first + i) % 8, 9 + i) for i in range(3)))
        assert [row[0] for row in shared.rows[9:12]] == [(first + i) % 8 + 1 for i in range(3)]
        (result,) = run(buffer, shared.item(first))
        assert (result["y"] == first + 1).all()


def test_a_row_whose_request_has_gone(buffer: _RowBuffer, shared: Shared) -> None:
    """The second row takes the place of the first one."""
    shared.rows[0], shared.rows[1] = 10, 20
    buffer.prepare(0, shared.item(0, 8), None)
    buffer.prepare(1, shared.item(1, 9), None)
    buffer.move(1, 0)
    buffer.run(1)
    buffer.results(1)
    assert (shared.rows[9] == 21).all()
    assert not shared.rows[8].any()


def test_unaligned_memory_is_copied(buffer: _RowBuffer, shared: Shared) -> None:
    shared.rows[:2] = 3
    own = buffer._network.inputs["x"]
    run(buffer, shared.item(0, 8, shift=4))
    assert (shared.rows[8] == 4).all()
    assert buffer._network.inputs["x"] is own


def test_a_part_that_is_too_small(buffer: _RowBuffer, shared: Shared) -> None:
    item = shared.item(0, 1)
    item.destinations = {"y": Destination(shared.part(NBYTES, NBYTES - 1), 0, 1)}
    with pytest.raises(RequestError, match=r"'y' \(127 bytes\) should be at least 128 bytes"):
        run(buffer, item)
    shared.rows[0] = 1
    run(buffer, shared.item(0, 1))
    assert (shared.rows[1] == 2).all()


def test_numbers_that_may_be_indices_are_copied(tmp_path: Path, shared: Shared) -> None:
    path = onnx_models.save(
        tmp_path / "take.onnx", [node("Gather", "table x", "y")], [value("x", ["batch", SIDE], "int32")],
        [value("y", ["batch", SIDE])], {"table": np.arange(10, dtype=np.float32)},
    )  # fmt: skip
    shared.rows[0].view(np.int32)[:] = 7
    with infersdk.load(path, max_batch=4) as network:
        buffer = RowRequests(network).batch_buffer(4)
        own = buffer._network.inputs["x"]
        item = shared.item(0, 1)
        part = SharedMemory("x", 0, NBYTES)
        item["x"] = shared.regions.tensor(part, "INT32", [1, SIDE], "x")[0]
        run(buffer, item)
        assert (shared.rows[1] == 7).all()
        assert buffer._network.inputs["x"] is own
        buffer.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_shrinks_its_memory_gets_an_error(request: pytest.FixtureRequest, protocol: str) -> None:
    """And the server lives on."""
    import importlib

    module, client = importlib.import_module(NAMES[protocol]), request.getfixturevalue(protocol)
    shape, nbytes = [1, 640, 640, 3], 640 * 640 * 3
    size = 2 * -(-nbytes // 4096) * 4096
    key = f"/infersdk-test-{uuid.uuid4().hex}"
    name, path = key[1:], f"/dev/shm{key}"
    Path(path).write_bytes(bytes([1]) * size)
    try:
        client.register_system_shared_memory(name, key, size)
        own, output = module.InferInput("INPUT0", shape, "UINT8"), module.InferRequestedOutput("OUTPUT0")
        own.set_shared_memory(name, nbytes)
        output.set_shared_memory(name, nbytes, offset=size // 2)
        client.infer("echo", [own], outputs=[output])
        for left in (size // 2 + 10, 4096, 100, 0):
            os.truncate(path, left)
            with pytest.raises(Exception, match="shorter than when it was registered"):
                client.infer("echo", [own], outputs=[output])
            assert os.path.getsize(path) == left
            frames = np.full(shape, 7, np.uint8)
            inputs = inputs_of(protocol, {"INPUT0": frames}, "UINT8")
            np.testing.assert_array_equal(client.infer("echo", inputs).as_numpy("OUTPUT0"), frames)
        client.unregister_system_shared_memory(name)
        os.truncate(path, size)
        client.register_system_shared_memory(name, key, size)
        client.infer("echo", [own], outputs=[output])
    finally:
        client.unregister_system_shared_memory(name)
        os.unlink(path)
