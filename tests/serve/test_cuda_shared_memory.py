"""Tensors in the memory of CUDA devices, by the handles of CUDA's interprocess communication."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from served_requests import ServerProcess, ask, client_of, serving_process, triton

from infersdk import Tensor, device_count
from infersdk.core._lib import check, ffi, lib
from infersdk.image import read_image
from infersdk.models import YOLOv5

HANDLE = bytes(64)


@pytest.mark.posix
@pytest.mark.skipif(device_count() > 0, reason="there is a GPU here")
def test_without_a_gpu_a_region_is_refused(client: Any, protocol: str) -> None:
    with pytest.raises(Exception, match="no device cuda:0.*use system shared memory"):
        client.register_cuda_shared_memory("frames", base64.b64encode(HANDLE), 0, 64)
    assert not client.get_cuda_shared_memory_status(**({"as_json": True} if protocol == "grpc" else {}))
    client.unregister_cuda_shared_memory()


@pytest.mark.posix
def test_what_is_no_region(client: Any) -> None:
    for handle, device, size, message in (
        (bytes(63), 0, 64, "has the 64 bytes of a cudaIpcMemHandle_t, not 63"),
        (HANDLE, -1, 64, "device_id -1"),
        (HANDLE, 0, 0, "byte_size 0"),
        (HANDLE, 99, 64, "no device cuda:99"),
    ):
        with pytest.raises(Exception, match=message):
            client.register_cuda_shared_memory("frames", base64.b64encode(handle), device, size)


def test_json_that_is_no_region(server: Any) -> None:
    path = "/v2/cudasharedmemory/region/frames/register"
    for body in ({}, {"raw_handle": "x", "byte_size": 1}, {"raw_handle": {"b64": 1}, "byte_size": 1}):
        answer = ask(server.http_port, path, body)
        assert (answer.status, "raw_handle" in answer.json()["error"]) == (400, True)
    answer = ask(server.http_port, path, {"raw_handle": {"b64": "?"}, "device_id": 0, "byte_size": 1})
    assert (answer.status, "base64" in answer.json()["error"]) == (400, True)


def handle_of(tensor: Tensor) -> bytes:
    """By which another process opens the memory of a tensor, which is the start of an allocation."""
    raw = ffi.new("uint8_t[]", lib.IFS_CUDA_IPC_NBYTES)
    check(lib.ifs_cuda_ipc_export(0, ffi.cast("void *", tensor.device_ptr(write=True)), raw))
    return base64.b64encode(bytes(raw))


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models run on the host and on the GPU. It has a process of its own: none opens its own handles."""
    folder = tmp_path_factory.mktemp("cuda")
    path = str(serve_models.identity(folder / "add.onnx", "float32", ["batch", 4096]))
    tables = {
        name: {"type": "network", "path": path, "max_batch": 4, "device": device}
        for name, device in (("host", "cpu"), ("cuda", "cuda:0"))
    }
    with serving_process(tables, folder, shared_memory_prefix="/") as running:
        yield running


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["host", "cuda"])
@pytest.mark.parametrize("rows", [1, 3])
def test_in_and_out(process: ServerProcess, protocol: str, model: str, rows: int, rng: np.random.Generator) -> None:
    module = triton(protocol)
    x = rng.normal(size=(rows, 4096)).astype(np.float32)
    memory = Tensor((2, rows, 4096), "float32", "cuda:0")
    handle = handle_of(memory)
    with client_of(process, protocol) as client:
        client.register_cuda_shared_memory("frames", handle, 0, 2 * x.nbytes)
        try:
            own, output = module.InferInput("INPUT0", list(x.shape), "FP32"), module.InferRequestedOutput("OUTPUT0")
            own.set_shared_memory("frames", x.nbytes)
            output.set_shared_memory("frames", x.nbytes, offset=x.nbytes)
            for factor in (1, 2):
                memory.numpy(writable=True)[:] = np.stack([x * factor, np.zeros_like(x)])
                memory.device_ptr(write=True)  # up to date there, and newer from now on
                client.infer(model, [own], outputs=[output])
                np.testing.assert_array_equal(memory.numpy()[1], x * factor)
            assert "frames" in str(client.get_cuda_shared_memory_status())
            result = client.infer(model, [own])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x * 2)
            with pytest.raises(Exception, match="already in manager"):
                client.register_cuda_shared_memory("frames", handle, 0, x.nbytes)
            with pytest.raises(Exception, match="are registered"):
                client.register_cuda_shared_memory("more", handle, 0, 1 << 40)
        finally:
            client.unregister_cuda_shared_memory("frames")
        with pytest.raises(Exception, match="Unable to find"):
            client.infer(model, [own])
    memory.close()


@pytest.mark.gpu
def test_the_utilities_of_the_client(process: ServerProcess) -> None:
    """As its examples use them: `pip install cuda-python`."""
    shm: Any = pytest.importorskip("tritonclient.utils.cuda_shared_memory", exc_type=Exception)
    x = np.arange(4096, dtype=np.float32)[None]
    module = triton("grpc")
    region = shm.create_shared_memory_region("utilities", 2 * x.nbytes, 0)
    try:
        shm.set_shared_memory_region(region, [x])
        with client_of(process, "grpc") as client:
            client.register_cuda_shared_memory("utilities", shm.get_raw_handle(region), 0, 2 * x.nbytes)
            own, output = module.InferInput("INPUT0", list(x.shape), "FP32"), module.InferRequestedOutput("OUTPUT0")
            own.set_shared_memory("utilities", x.nbytes)
            output.set_shared_memory("utilities", x.nbytes, offset=x.nbytes)
            client.infer("cuda", [own], outputs=[output])
            client.unregister_cuda_shared_memory("utilities")
        found = shm.get_contents_as_numpy(region, np.float32, [2, 4096])
        np.testing.assert_array_equal(found, np.concatenate([x, x]))
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.gpu
@pytest.mark.assets
def test_frames_of_a_wrapper(assets: Path, tmp_path: Path) -> None:
    """Decoded frames on the device of the model: the boxes of the process."""
    path = assets / "models" / "yolov5n.onnx"
    frame = np.ascontiguousarray(read_image(assets / "images" / "bus.jpg").pixels)
    with YOLOv5(path, device="cuda:0") as detector:
        expected = detector(frame).xyxy
    table = {"detector": {"type": "yolov5", "path": str(path), "device": "cuda:0"}}
    with serving_process(table, tmp_path, shared_memory_prefix="/") as running:
        module = triton("grpc")
        memory = Tensor(frame.shape, "uint8", "cuda:0")
        memory.numpy(writable=True)[:] = frame
        with client_of(running, "grpc") as client:
            client.register_cuda_shared_memory("frame", handle_of(memory), 0, frame.nbytes)
            own = module.InferInput("pixels", [1, *frame.shape], "UINT8")
            own.set_shared_memory("frame", frame.nbytes)
            found = client.infer("detector", [own]).as_numpy("detection_boxes")[0]
            client.unregister_cuda_shared_memory("frame")
        np.testing.assert_allclose(found, expected, atol=0.5)
