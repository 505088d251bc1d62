"""Tensors in POSIX shared memory."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import serve_models
from served_requests import inputs_of, triton

from infersdk.serve.datatypes import pack
from infersdk.serve.errors import RequestError
from infersdk.serve.messages import RequestedOutput
from infersdk.serve.shared_memory import SharedMemoryRegions

if TYPE_CHECKING:
    from collections.abc import Iterator

shm: Any = pytest.importorskip("tritonclient.utils.shared_memory", exc_type=ImportError)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="POSIX shared memory of Linux")


@pytest.fixture
def region() -> Iterator[tuple[str, Any]]:
    """The key of a region of 4096 bytes, and the region."""
    key = f"/infersdk-test-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key[1:], key, 4096)
    yield key, handle
    shm.destroy_shared_memory_region(handle)


def test_in_and_out(client: Any, protocol: str, region: tuple[str, Any]) -> None:
    module = triton(protocol)
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


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_outputs(client: Any, protocol: str, rows: int, region: tuple[str, Any]) -> None:
    """One output in shared memory, one as usual."""
    module = triton(protocol)
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


def part_of(regions: SharedMemoryRegions, offset: int, nbytes: int) -> Any:
    """A part of the region `x`."""
    parameters = {
        "shared_memory_region": "x", "shared_memory_offset": offset, "shared_memory_byte_size": nbytes,
    }  # fmt: skip
    return regions.part(parameters, "input 'a'")


def test_parameters_that_would_have_no_effect(regions: SharedMemoryRegions, region: tuple[str, Any]) -> None:
    regions.register("x", region[0], 0, 4096)
    size = {"shared_memory_byte_size": 8}
    assert "a region's name, an offset and a size, not None, 0, 8" in refused(regions.part, size, "output 'y'")
    both = {"shared_memory_region": "x", "classification": 1, **size}
    assert "'y': give either classification or" in refused(RequestedOutput.of, "y", both, regions)


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
    part = part_of(regions, 16, 4)
    regions.unregister("x")
    part.write(np.frombuffer(b"1234", np.uint8), "y")
    with open(f"/dev/shm{key}", "wb") as other:
        other.write(bytes(4096))
    try:
        regions.register("x", key, 0, 4096)
        part.write(np.frombuffer(b"1278", np.uint8), "y")
        with open(path, "rb") as file:
            assert file.read()[14:22] == b"1278".center(8, bytes(1))
        with open(f"/dev/shm{key}", "rb") as file:
            assert not any(file.read())
    finally:
        os.unlink(f"/dev/shm{key}")


def test_an_output_in_no_region_is_refused_before_the_model_runs(server: Any, client: Any, protocol: str) -> None:
    module = triton(protocol)
    arrays = {name: np.zeros((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("nonesuch", 64)
    before = server.service.statistics("simple")[0]["execution_count"]
    with pytest.raises(Exception, match="Unable to find system shared memory region") as raised:
        client.infer("simple", inputs_of(protocol, arrays, "INT32"), outputs=[output])
    assert raised.value.status() in ("404", "StatusCode.NOT_FOUND")  # type: ignore[attr-defined]
    assert server.service.statistics("simple")[0]["execution_count"] == before


def test_a_region_that_shrinks_is_an_error_and_does_not_grow_again(
    regions: SharedMemoryRegions, region: tuple[str, Any]
) -> None:
    path = f"/dev/shm{region[0]}"
    regions.register("x", region[0], 0, 4096)
    tensor = part_of(regions, 0, 4096).tensor("UINT8", [4096], "a")
    assert tensor.load().tobytes() == bytes(4096)
    os.truncate(path, 100)
    assert "shorter than when it was registered" in refused(tensor.load)
    assert "shorter" in refused(part_of(regions, 90, 20).write, np.zeros(20, np.uint8), "y")
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


def test_a_client_that_shrinks_its_memory_gets_an_error(client: Any, protocol: str) -> None:
    """And the server lives on."""
    module = triton(protocol)
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
        os.truncate(path, size)
        client.infer("echo", [own], outputs=[output])
    finally:
        client.unregister_system_shared_memory(name)
        os.unlink(path)


def test_bytes_in_shared_memory_have_a_limit(server: Any, grpc: Any) -> None:
    """A sparse file has any size; a region of it must not become an array of that size."""
    key, size = f"/infersdk-test-{uuid.uuid4().hex}", 1 << 36
    with open(f"/dev/shm{key}", "wb") as file:
        file.truncate(size)
    try:
        grpc.register_system_shared_memory(key, key, size)
        for model, datatype, shape in (("free", "FP32", [1, size >> 2]), ("simple_identity", "BYTES", [1, 4])):
            one = triton("grpc").InferInput("INPUT0", shape, datatype)
            one.set_shared_memory(key, size)
            with pytest.raises(Exception, match="68,719,476,736 bytes, and max_decompressed under .server. is 16,777"):
                grpc.infer(model, [one])
    finally:
        grpc.unregister_system_shared_memory(key)
        os.unlink(f"/dev/shm{key}")


def test_shared_memory_against_inline_data(client: Any, protocol: str, rng: np.random.Generator) -> None:
    """Random models, row counts, datatypes and places: the outputs are those of inline data, at their places."""
    module = triton(protocol)
    key, size = f"/infersdk-test-{uuid.uuid4().hex}", 1 << 14
    name, path = f"region {rng.integers(1 << 30)}", f"/dev/shm{key}"
    Path(path).write_bytes(bytes(size))
    client.register_system_shared_memory(name, key, size)
    memory = np.memmap(path, np.uint8, "r+", shape=(size,))
    try:
        for _ in range(120):
            model, datatype, sides = MODELS[int(rng.integers(len(MODELS)) * rng.integers(2))]
            rows = int(rng.integers(1, 9))
            shape = (rows, {"wide": 64, "simple": 16, "simple_int8": 16}.get(model, 4))
            arrays = {side: serve_models.values(datatype, shape, rng) for side in sides}
            inline = client.infer(model, inputs_of(protocol, arrays, datatype))
            outputs = [side.replace("IN", "OUT") for side in sides]
            expected = {output: pack(inline.as_numpy(output)) for output in outputs}
            # Each tensor has a place of its own, in any order, with gaps of any size, aligned or not.
            alignment = int(rng.choice([1, 64]))
            nbytes = {**{k: pack(v).nbytes for k, v in arrays.items()}, **{k: v.nbytes for k, v in expected.items()}}
            places, at = {}, int(rng.integers(64))
            for tensor in rng.permutation(list(nbytes)).tolist():
                places[tensor] = at = -(-at // alignment) * alignment
                at += nbytes[tensor] + int(rng.integers(64))
            memory[:] = mark = int(rng.integers(256))
            wanted = np.full(size, mark, np.uint8)
            given = inputs_of(protocol, arrays, datatype)
            asked = [module.InferRequestedOutput(output) for output in outputs]
            for one in given:
                data = np.frombuffer(pack(arrays[one.name()]), np.uint8)
                memory[places[one.name()] :][: len(data)] = wanted[places[one.name()] :][: len(data)] = data
                if rng.random() < 0.8:
                    one.set_shared_memory(name, len(data), offset=places[one.name()])
            for one in asked:
                data = np.frombuffer(expected[one.name()], np.uint8)
                if rng.random() < 0.8:
                    one.set_shared_memory(name, len(data), offset=places[one.name()])
                    wanted[places[one.name()] :][: len(data)] = data
            client.infer(model, given, outputs=asked)
            np.testing.assert_array_equal(memory, wanted, f"{model}, {rows} rows of {datatype}")
    finally:
        client.unregister_system_shared_memory(name)
        os.unlink(path)


#: Their names, datatypes and inputs.
MODELS = [
    ("wide", "FP32", ("INPUT0",)),
    ("simple", "INT32", ("INPUT0", "INPUT1")),
    ("simple_int8", "INT8", ("INPUT0", "INPUT1")),
    ("simple_identity", "BYTES", ("INPUT0",)),
    ("free", "FP32", ("INPUT0",)),
    *((f"identity_{kind}", kind, ("INPUT0",)) for kind in serve_models.KINDS if kind not in ("BYTES", "BF16")),
]
