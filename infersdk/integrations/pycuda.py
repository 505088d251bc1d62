"""PyCUDA: arrays and streams that share memory with tensors, and custom kernels before or after a model.

::

    from infersdk.integrations import pycuda as bridge

    bridge.use_primary_context("cuda:0")              # PyCUDA and infersdk on one context
    brighten = bridge.Kernel(SOURCE, "brighten")      # CUDA C, compiled by PyCUDA's SourceModule
    brighten(tensor, np.float32(1.2), stream=stream)  # over all elements, on our stream
    array = bridge.as_gpuarray(tensor)                # a view, without a copy
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..core.device import Device
from ..core.stream import Event, Stream
from ..core.tensor import Tensor
from ..errors import BackendUnavailableError, InputError

try:
    import pycuda.driver as cuda
    from pycuda import compiler, gpuarray
except ImportError as error:
    raise BackendUnavailableError(
        f'infersdk.integrations.pycuda needs PyCUDA, which does not import ({error}): pip install "infersdk[pycuda]"'
    ) from None

__all__ = ["Kernel", "as_gpuarray", "as_stream", "as_tensor", "use_primary_context"]


@functools.cache
def _primary_context(ordinal: int) -> Any:
    cuda.init()
    return cuda.Device(ordinal).retain_primary_context()


def use_primary_context(device: str | Device = "cuda:0") -> Any:
    """Makes the primary context of the device current in PyCUDA. infersdk uses this context.

    Call it instead of importing `pycuda.autoinit`, which creates a separate context without access to memory of
    infersdk. Returns the context; it stays current in the calling thread.
    """
    context = _primary_context(Device.parse(device).ordinal)
    context.push()
    return context


def as_gpuarray(tensor: Tensor) -> Any:
    """The device side as a `pycuda.gpuarray.GPUArray` over the same memory; it becomes the newer side.

    Do not resize or close the tensor while the array is in use. The array keeps it alive.
    """
    array = gpuarray.GPUArray(tensor.shape, tensor.dtype, gpudata=tensor.device_ptr(write=True))
    array.base = tensor
    return array


def as_tensor(array: Any) -> Tensor:
    """A `GPUArray` as a tensor over the same memory. It waits for pending work, and keeps the array alive."""
    if not array.flags.c_contiguous:
        raise InputError("a GPUArray that is not C-contiguous cannot be wrapped; copy it first")
    cuda.Context.synchronize()
    return Tensor.wrap(array)


def as_stream(stream: Any, device: str | Device = "cuda:0") -> Stream:
    """A `pycuda.driver.Stream` as a `Stream`."""
    return Stream.wrap(stream.handle, device, lender=stream)


class Kernel:
    """A custom CUDA kernel over tensors.

    Args:
        source: CUDA C.
        name: the `__global__` function in it. Its parameters are those of the call, in order.
        threads: threads of a block.
        options: arguments of nvcc.

    PyCUDA launches only on its own streams, so each kernel has one, on the device of the current context. Events order
    its work with other streams.
    """

    def __init__(self, source: str, name: str, *, threads: int = 256, options: list[str] | None = None) -> None:
        self._module = compiler.SourceModule(source, options=options, no_extern_c='extern "C"' in source)
        self._function = self._module.get_function(name)
        self._theirs = cuda.Stream()
        current = cuda.Context.get_device()
        self._device = Device("cuda", next(i for i in range(cuda.Device.count()) if cuda.Device(i) == current))
        self._ours = as_stream(self._theirs, self._device)
        self.threads = threads

    def __call__(self, *arguments: Any, stream: Stream, grid: int | tuple[int, ...] | None = None) -> None:
        """Queues the kernel after the work on `stream`; later work there waits for it.

        Args:
            arguments: NumPy scalars and tensors; their device side is updated before, and the newer one after the run.
            stream: a stream of infersdk.
            grid: blocks; None is one thread for each element of the first tensor.
        """
        if grid is None:
            first = next((a for a in arguments if isinstance(a, Tensor)), None)
            if first is None:
                raise InputError("without a tensor among the arguments the grid has to be given")
            grid = max(1, -(-first.size // self.threads))  # CUDA refuses a grid without blocks
        if stream.device != self._device:
            raise InputError(f"the kernel was made for {self._device}, and the stream is on {stream.device}")
        # Each call has its own events: threads may share the kernel.
        self._ours.wait(Event(self._device).record(stream))
        native = [
            np.uintp(a.device_ptr(write=True, stream=self._ours)) if isinstance(a, Tensor) else a for a in arguments
        ]
        blocks = (grid, 1) if isinstance(grid, int) else grid
        self._function(*native, block=(self.threads, 1, 1), grid=blocks, stream=self._theirs)
        stream.wait(Event(self._device).record(self._ours))
