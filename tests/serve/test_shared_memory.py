"""Tensors in POSIX shared memory."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, value
from served_requests import NAMES, inputs_of

import infersdk
from infersdk.serve.errors import RequestError
from infersdk.serve.messages import SharedMemory
from infersdk.serve.networks import WholeRequests
from infersdk.serve.shared_memory import SharedMemoryRegions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no POSIX shared memory here")


@pytest.fixture
def region() -> Iterator[tuple[str, Any]]:
    """The key of a region of 4096 bytes, and the region."""
    import tritonclient.utils.shared_memory as shm

    key = f"/infersdk-test-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key[1:], key, 4096)
    yield key, handle
    shm.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_in_and_out(request: pytest.FixtureRequest, protocol: str, region: tuple[str, Any]) -> None:
    import importlib

    import tritonclient.utils.shared_memory as shm

    module, client = importlib.import_module(NAMES[protocol]), request.getfixturevalue(protocol)
    key, handle = region
    name = key[1:]
    a, b = np.arange(16, dtype=np.int32)[None], np.full((1, 16), 5, np.int32)
    shm.set_shared_memory_region(handle, [a, b])
    client.register_system_shared_memory(name, key, 4096)
    try:
        inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        inputs[0].set_shared_memory(name, 64)
        inputs[1].set_shared_memory(name, 64, offset=64)
        outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        outputs[0].set_shared_memory(name, 64, offset=128)
        outputs[1].set_shared_memory(name, 100, offset=200)
        client.infer("simple", inputs, outputs=outputs)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [1, 16], offset=128), a + b)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [1, 16], offset=200), a - b)
        assert key in str(client.get_system_shared_memory_status())
        outputs[0].set_shared_memory(name, 60, offset=128)
        with pytest.raises(Exception, match=r"'OUTPUT0' \(60 bytes\) should be at least 64 bytes"):
            client.infer("simple", inputs, outputs=outputs)
        inputs[0].set_shared_memory(name, 64, offset=4090)
        with pytest.raises(Exception, match="Invalid offset"):
            client.infer("simple", inputs)
        with pytest.raises(Exception, match="already in manager"):
            client.register_system_shared_memory(name, key, 4096)
    finally:
        client.unregister_system_shared_memory(name)
    with pytest.raises(Exception, match="Unable to find system shared memory region"):
        client.infer("simple", inputs)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_equal_request_reads_and_writes_anew(
    request: pytest.FixtureRequest, protocol: str, region: tuple[str, Any]
) -> None:
    import importlib

    import tritonclient.utils.shared_memory as shm

    module, client = importlib.import_module(NAMES[protocol]), request.getfixturevalue(protocol)
    (key, handle), name = region, region[0][1:]
    inputs = [module.InferInput(one, [2, 16], "INT32") for one in ("INPUT0", "INPUT1")]
    outputs = [module.InferRequestedOutput(one) for one in ("OUTPUT0", "OUTPUT1")]
    for index, tensor in enumerate([*inputs, outputs[0]]):
        tensor.set_shared_memory(name, 128, offset=128 * index)
    for _ in range(2):
        client.register_system_shared_memory(name, key, 4096)
        try:
            for number in range(4):
                a, b = (np.full((2, 16), value, np.int32) for value in (number, 10 * number))
                shm.set_shared_memory_region(handle, [a, b])
                result = client.infer("simple", inputs, outputs=outputs)
                np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [2, 16], offset=256), a + b)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), a - b)
        finally:
            client.unregister_system_shared_memory(name)
        with pytest.raises(Exception, match="Unable to find system shared memory region"):
            client.infer("simple", inputs, outputs=outputs)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_outputs(request: pytest.FixtureRequest, protocol: str, rows: int, region: tuple[str, Any]) -> None:
    """One output in shared memory, one as usual."""
    import importlib

    import tritonclient.utils.shared_memory as shm

    module, client = importlib.import_module(NAMES[protocol]), request.getfixturevalue(protocol)
    (key, handle), name = region, region[0][1:]
    a, b = np.arange(rows * 16, dtype=np.int32).reshape(rows, 16), np.full((rows, 16), 7, np.int32)
    shm.set_shared_memory_region(handle, [a])
    client.register_system_shared_memory(name, key, 4096)
    try:
        inputs = [module.InferInput(one, [rows, 16], "INT32") for one in ("INPUT0", "INPUT1")]
        inputs[0].set_shared_memory(name, a.nbytes)
        inputs[1].set_data_from_numpy(b)
        outputs = [module.InferRequestedOutput(one) for one in ("OUTPUT1", "OUTPUT0")]
        outputs[0].set_shared_memory(name, a.nbytes, offset=1024)
        result = client.infer("simple", inputs, outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.int32, [rows, 16], offset=1024), a - b)
        outputs[0].set_shared_memory(name, a.nbytes - 1, offset=1024)
        with pytest.raises(Exception, match=f"should be at least {a.nbytes} bytes"):
            client.infer("simple", inputs, outputs=outputs)
    finally:
        client.unregister_system_shared_memory(name)


@pytest.fixture
def regions() -> Iterator[SharedMemoryRegions]:
    own = SharedMemoryRegions("/infersdk-test-")
    yield own
    own.close()


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(RequestError) as raised:
        call(*arguments)
    return raised.value.message


def test_keys_outside_of_the_prefix(regions: SharedMemoryRegions) -> None:
    keys = ("/other", "infersdk-test-x", "/infersdk-test-/../../etc/passwd", "/", "", "/infersdk-test-a/b")
    for key in keys:
        assert "is not allowed" in refused(regions.register, "x", key, 0, 1)
    assert "shared_memory_prefix" in refused(SharedMemoryRegions(None).register, "x", "/x", 0, 1)


def test_what_is_no_shared_memory(regions: SharedMemoryRegions, region: tuple[str, Any]) -> None:
    assert "No such file" in refused(regions.register, "x", "/infersdk-test-none", 0, 1)
    assert "cannot be opened" in refused(regions.register, "x", "/infersdk-test-\0", 0, 1)
    assert "has 4,096 bytes, and 4,097 are registered" in refused(regions.register, "x", region[0], 1, 4096)
    assert "not valid" in refused(regions.register, "x", region[0], -1, 4096)
    assert "not valid" in refused(regions.register, "x", region[0], 0, 0)
    link = f"/dev/shm/infersdk-test-link-{uuid.uuid4().hex}"
    os.symlink("/etc/passwd", link)
    try:
        assert "cannot be opened" in refused(regions.register, "x", link.removeprefix("/dev/shm"), 0, 1)
    finally:
        os.unlink(link)


@pytest.mark.parametrize("name", ["", "n" * 257])
def test_names_of_regions(regions: SharedMemoryRegions, region: tuple[str, Any], name: str) -> None:
    """An empty one could not be unregistered alone."""
    problem = f"a name of 1 to 256 characters, and this one has {len(name)}"
    assert problem in refused(regions.register, name, region[0], 0, 16)
    assert problem in refused(regions.register_cuda, name, bytes(64), 0, 16)
    assert regions.status("") == []


def test_an_output_goes_where_its_request_has_named_it(regions: SharedMemoryRegions, region: tuple[str, Any]) -> None:
    """Also when the name stands for other memory, or for none, by the time it is written."""
    key, path = f"/infersdk-test-{uuid.uuid4().hex}", f"/dev/shm{region[0]}"
    regions.register("x", region[0], 0, 4096)
    part = regions.part(SharedMemory("x", 16, 4))
    regions.unregister("x")
    part.write(memoryview(b"1234"), "y")
    with open(f"/dev/shm{key}", "wb") as other:
        other.write(bytes(4096))
    try:
        regions.register("x", key, 0, 4096)
        part.write_row(np.frombuffer(b"78", np.uint8), 1, 2, "y")
        with open(path, "rb") as file:
            assert file.read()[14:22] == b"1278".center(8, bytes(1))
        with open(f"/dev/shm{key}", "rb") as file:
            assert not any(file.read())
    finally:
        os.unlink(f"/dev/shm{key}")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_output_in_no_region_is_refused_before_the_model_runs(request: pytest.FixtureRequest, protocol: str) -> None:
    import importlib

    module, client = importlib.import_module(NAMES[protocol]), request.getfixturevalue(protocol)
    server = request.getfixturevalue("server")
    arrays = {name: np.zeros((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("nonesuch", 64)
    before = server.service.statistics("simple")[0]["execution_count"]
    with pytest.raises(Exception, match="Unable to find system shared memory region") as raised:
        client.infer("simple", inputs_of(protocol, arrays, "INT32"), outputs=[output])
    assert raised.value.status() in ("404", "StatusCode.NOT_FOUND")  # type: ignore[attr-defined]
    assert server.service.statistics("simple")[0]["execution_count"] == before


def test_a_runtime_that_reads_in_place_gets_copies(
    regions: SharedMemoryRegions, region: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with text gets the caller's arrays themselves, and a client must not change an index that was checked."""
    path = onnx_models.save(
        tmp_path / "pick.onnx", [node("Gather", "texts index", "text")],
        [value("texts", ["n"], "string"), value("index", ["m"], "int64")], [value("text", ["m"], "string")],
    )  # fmt: skip
    regions.register("x", region[0], 0, 4096)
    index = regions.tensor(SharedMemory("x", 0, 16), "INT64", [2], "index")
    texts = np.array([b"a", b"b"], np.object_)
    with infersdk.load(path) as network:
        buffer = WholeRequests(network).batch_buffer(1)
        given: list[Any] = []
        run = buffer._infer._call
        monkeypatch.setattr(buffer._infer, "_call", lambda feeds: given.append(feeds["index"]) or run(feeds))
        buffer.prepare(0, {"texts": texts, "index": index}, None)
        buffer.run(1)
        assert buffer.results(1)[0]["text"].tolist() == ["a", "a"]
        assert not np.shares_memory(given[0], np.asarray(index))
        buffer.close()


def test_a_region_that_shrinks_is_an_error_and_does_not_grow_again(
    regions: SharedMemoryRegions, region: tuple[str, Any]
) -> None:
    path = f"/dev/shm{region[0]}"
    regions.register("x", region[0], 0, 4096)
    assert bytes(regions.read(SharedMemory("x", 0, 4096))) == bytes(4096)
    os.truncate(path, 100)
    assert "shorter than when it was registered" in refused(regions.read, SharedMemory("x", 0, 4096))
    assert "shorter" in refused(regions.part(SharedMemory("x", 90, 20)).write, memoryview(bytes(20)), "y")
    assert os.path.getsize(path) == 100
    os.truncate(path, 4096)  # the client that made it maps it


def test_files_are_closed(regions: SharedMemoryRegions, region: tuple[str, Any]) -> None:
    def is_open() -> int:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(link) and os.readlink(link) == f"/dev/shm{region[0]}" for link in links)

    before = is_open()
    for _ in range(3):
        for name in "abc":
            regions.register(name, region[0], 0, 16)
        assert is_open() == before + 3
        regions.unregister("a")
        regions.unregister("")
    refused(regions.register, "x", region[0], 0, 1 << 40)
    assert is_open() == before
    assert regions.status("") == []
