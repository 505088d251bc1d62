"""Rows of requests that share a batch: their outputs go where each request asks for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_models
import pytest
import serve_models
from waiting import in_a_loop

import infersdk
from infersdk.serve.errors import RequestError
from infersdk.serve.messages import InferRequest, InferResponse, PlacedOutput, RequestedOutput
from infersdk.serve.networks import NetworkEndpoint
from infersdk.serve.regions import Region, RegionPart
from infersdk.serve.service import InferenceService
from infersdk.serve.settings import ServerSettings

if TYPE_CHECKING:
    from pathlib import Path


class ArrayRegion(Region):
    """A region in an array."""

    device = "cpu"

    def __init__(self, byte_size: int) -> None:
        super().__init__("array", byte_size)
        self.bytes = np.zeros(byte_size, np.uint8)

    def read_into(self, offset: int, array: Any) -> None:
        array.reshape(-1).view(np.uint8)[:] = self.bytes[offset : offset + array.nbytes]

    def write(self, offset: int, data: Any) -> None:
        self.bytes[offset : offset + len(data)] = data


def request_for(target: RegionPart, rows: int, value: int) -> InferRequest:
    """A request whose sums go to shared memory, and whose differences do not."""
    a = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    outputs = [RequestedOutput("OUTPUT0", shared_memory=target), RequestedOutput("OUTPUT1")]
    return InferRequest("simple", "1", "", {"INPUT0": a, "INPUT1": np.full_like(a, value)}, outputs)


@in_a_loop
async def test_requests_of_one_batch_write_to_their_own_memory(tmp_path: Path) -> None:
    """One whose memory is too small fails alone."""
    path = serve_models.simple(tmp_path / "simple.onnx")
    endpoint = NetworkEndpoint("simple", "1", infersdk.load(path, "onnxruntime", max_batch=8, threads=1), {}, None)
    repository: Any = SimpleNamespace(find=lambda name, version: endpoint)
    service = InferenceService(repository, ServerSettings())
    regions = [ArrayRegion(64 * rows + 8) for rows in (3, 1, 2)]
    parts = [RegionPart(region, 8, region.byte_size - 8) for region in regions]
    parts.append(RegionPart(ArrayRegion(64), 0, 63))

    async def response_to(request: InferRequest) -> InferResponse:
        async with service.infer(request) as response:
            return response

    requests = [request_for(part, rows, i) for i, (part, rows) in enumerate(zip(parts, (3, 1, 2, 1), strict=True))]
    responses: list[Any] = await asyncio.gather(*map(response_to, requests), return_exceptions=True)
    *found, failed = responses
    assert isinstance(failed, RequestError)
    assert "'OUTPUT0' (63 bytes) should be at least 64 bytes" in failed.message
    for value, (rows, region, response) in enumerate(zip((3, 1, 2), regions, found, strict=True)):
        a = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
        assert response.outputs["OUTPUT0"] == PlacedOutput(np.dtype(np.int32), (rows, 16))
        np.testing.assert_array_equal(region.bytes[8:].view(np.int32).reshape(rows, 16), a + value)
        assert not region.bytes[:8].any()
        np.testing.assert_array_equal(response.outputs["OUTPUT1"], a - value)
    endpoint.close(drain=1)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_network_with_a_row_for_each_object_runs_whole_requests(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    network = infersdk.load(onnx_models.found(tmp_path / "found.onnx"), backend)
    endpoint = NetworkEndpoint("found", "1", network, {"max_batch": 2}, None)
    endpoint.pipeline.warm_up()
    x = np.float32([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    (rows,) = endpoint.rows(InferRequest("found", "1", "", {"x": x}, []))
    results = [endpoint.pipeline.submit(rows).result()]
    assert endpoint.gather(results, ["y"])["y"].tolist() == [[0, 1], [0, 3], [1, 0]]
    endpoint.close(drain=1)
