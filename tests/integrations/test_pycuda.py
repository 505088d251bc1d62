"""PyCUDA beside us: its arrays, its streams, and a user's own kernel on our tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infersdk import Stream, Tensor, device_count, errors

pytest.importorskip("pycuda")
pytestmark = pytest.mark.gpu

SOURCE = """
__global__ void scale(float *x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= factor;
}
"""


@pytest.fixture(scope="module")
def bridge() -> Iterator[Any]:
    from infersdk.integrations import pycuda as module

    context = module.use_primary_context("cuda:0")
    yield module
    context.pop()


def test_a_users_kernel_is_a_stage_on_our_stream(bridge: Any) -> None:
    kernel, stream = bridge.Kernel(SOURCE, "scale"), Stream()
    tensor = Tensor((1000, 7), "float32", "cuda:0")
    tensor.numpy(writable=True)[:] = np.arange(7)
    for _ in range(3):
        kernel(tensor, np.float32(2), np.int32(tensor.size), stream=stream)
    np.testing.assert_array_equal(tensor.numpy(), np.tile(np.arange(7, dtype=np.float32) * 8, (1000, 1)))
    with pytest.raises(errors.InputError, match="grid"):
        kernel(np.float32(2), stream=stream)


@pytest.mark.skipif(device_count() < 2, reason="needs two GPUs")
def test_a_kernel_on_another_device() -> None:
    from infersdk.integrations import pycuda as module

    context = module.use_primary_context("cuda:1")
    try:
        kernel, stream = module.Kernel(SOURCE, "scale"), Stream("cuda:1")
        tensor = Tensor((10,), "float32", "cuda:1")
        tensor.numpy(writable=True)[:] = 3
        kernel(tensor, np.float32(2), np.int32(10), stream=stream)
        assert tensor.numpy().tolist() == [6.0] * 10
    finally:
        context.pop()


def test_arrays_both_ways_without_copies(bridge: Any) -> None:
    from pycuda import gpuarray

    tensor = Tensor((4, 5), "float32", "cuda:0")
    tensor.numpy(writable=True)[:] = 3
    array = bridge.as_gpuarray(tensor)
    assert int(array.gpudata) == tensor.device_ptr()
    array *= 2
    bridge.cuda.Context.synchronize()
    tensor.device_ptr(write=True)
    assert tensor.numpy().tolist() == [[6.0] * 5] * 4
    theirs = gpuarray.to_gpu(np.arange(6, dtype=np.int32))
    ours = bridge.as_tensor(theirs)
    assert ours.device_ptr() == int(theirs.gpudata)
    assert ours.numpy().tolist() == list(range(6))


def test_their_stream_as_ours(bridge: Any) -> None:
    theirs = bridge.cuda.Stream()
    ours = bridge.as_stream(theirs)
    assert ours.handle == theirs.handle
    tensor = Tensor((8,), "float32", "cuda:0")
    tensor.numpy(writable=True)[:] = 1
    tensor.device_ptr(write=True, stream=ours)
    tensor.fetch(ours)
    assert tensor.numpy().sum() == 8
