"""Rows of requests: their outputs go where the request asks for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import serve_models

import infersdk
from infersdk.serve.endpoint import Endpoint, RequestTally
from infersdk.serve.errors import RequestError
from infersdk.serve.messages import InferRequest, PlacedOutput, RequestedOutput
from infersdk.serve.networks import NetworkEndpoint
from infersdk.serve.regions import Region, RegionPart

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[NetworkEndpoint]:
    path = serve_models.simple(tmp_path / "simple.onnx")
    network = infersdk.load(path, backend="onnxruntime", max_batch=8, threads=1)
    own = NetworkEndpoint("simple", "1", network, {}, None)
    yield own
    own.close(drain=1)


def request_for(target: RegionPart, rows: int, value: int = 1) -> InferRequest:
    """A request whose sums go to shared memory, and whose differences do not."""
    a = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    outputs = [RequestedOutput("OUTPUT0", shared_memory=target), RequestedOutput("OUTPUT1")]
    return InferRequest("simple", "1", "", {"INPUT0": a, "INPUT1": np.full_like(a, value)}, outputs)


def test_requests_of_one_batch_write_to_their_own_memory(endpoint: NetworkEndpoint) -> None:
    """One whose memory is too small fails alone."""
    regions = [ArrayRegion(64 * rows + 8) for rows in (3, 1, 2)]
    parts = [RegionPart(region, 8, region.byte_size - 8) for region in regions]
    parts.append(RegionPart(ArrayRegion(64), 0, 63))
    requests = [
        request_for(part, rows, value) for value, (part, rows) in enumerate(zip(parts, (3, 1, 2, 1), strict=True))
    ]

    async def run() -> list[Any]:
        return await asyncio.gather(*(endpoint.infer(one, RequestTally()) for one in requests), return_exceptions=True)

    *found, failed = asyncio.run(run())
    assert isinstance(failed, RequestError)
    assert "'OUTPUT0' (63 bytes) should be at least 64 bytes" in failed.message
    for value, (rows, region, outputs) in enumerate(zip((3, 1, 2), regions, found, strict=True)):
        a = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
        assert outputs["OUTPUT0"] == PlacedOutput(np.dtype(np.int32), (rows, 16))
        np.testing.assert_array_equal(region.bytes[8:].view(np.int32).reshape(rows, 16), a + value)
        assert not region.bytes[:8].any()
        np.testing.assert_array_equal(outputs["OUTPUT1"], a - value)


def test_a_request_that_is_cancelled_writes_nothing(endpoint: NetworkEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client may use the memory for something else, while the model still runs the batch."""
    region = ArrayRegion(64)
    items: list[Any] = []

    async def infer_for_ever(self: Endpoint, item: Any, deadline: float | None, parameters: Any) -> None:
        items.append(item)
        await asyncio.sleep(60)

    async def run() -> None:
        task = asyncio.ensure_future(endpoint.infer(request_for(RegionPart(region, 0, 64), 1), RequestTally()))
        while not items:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(Endpoint, "run", infer_for_ever)
    asyncio.run(run())
    (item,) = items
    taken = item.take({name: np.ones(16, np.int32) for name in ("OUTPUT0", "OUTPUT1")})
    assert not region.bytes.any()
    np.testing.assert_array_equal(taken["OUTPUT0"], np.ones(16, np.int32))
