"""Streams and events: work on a device that runs in order while the host continues.

::

    stream = Stream("cuda:0")
    at = tensor.device_ptr(write=True, stream=stream)  # copies are queued on it, not waited for
    ...                                                # queue kernels that write there
    tensor.fetch(stream)                               # queue the copy to the host
    tensor.numpy()                                     # waits for that copy alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import DeviceUnavailableError
from ._lib import Handle, address, check, ffi, lib, out, returned, text
from .device import Device

__all__ = [
    "CudaGraph", "Event", "Stream", "current_device", "default_stream", "device_count", "device_info", "nvidia_driver",
]  # fmt: skip


def _ordinal(device: str | Device) -> int:
    parsed = Device.parse(device)
    if parsed.ordinal < 0:
        raise DeviceUnavailableError(f"device {str(parsed)!r} has no streams; use a CUDA device such as 'cuda:0'")
    return parsed.ordinal


@contextmanager
def current_device(device: str | Device) -> Iterator[None]:
    """Makes a device the current one of this thread, for libraries that use the thread's CUDA context.

    Raises:
        DeviceUnavailableError: The device does not exist.
    """
    previous = returned("int32_t", lib.held_ifs_device_select, _ordinal(device))
    try:
        yield
    finally:
        returned("int32_t", lib.held_ifs_device_select, previous)


def device_count() -> int:
    """The number of CUDA devices; 0 without a driver, without a GPU, and in a CPU-only build."""
    count = out("int32_t")
    return int(count[0]) if lib.ifs_device_count(count) == 0 else 0


def device_info(device: str | Device = "cuda:0") -> dict[str, Any]:
    """The `name`, `compute_capability` (major, minor), `multiprocessors`, `total_bytes` and `free_bytes` of a device.

    Raises:
        DeviceUnavailableError: The device does not exist.
    """
    info = returned("ifs_device_info", lib.ifs_get_device_info, _ordinal(device))
    return {
        "name": text(info.name),
        "compute_capability": (int(info.major), int(info.minor)),
        "multiprocessors": int(info.multiprocessors),
        "total_bytes": int(info.total_bytes),
        "free_bytes": int(info.free_bytes),
    }


def nvidia_driver() -> str:
    """The version of the NVIDIA driver as the kernel states it; empty on other systems and without a driver."""
    try:
        return Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return ""


class Stream(Handle):
    """A CUDA stream, which does not wait for the legacy default stream.

    `handle` is the cudaStream_t as a number, for other libraries.
    """

    def __init__(self, device: str | Device = "cuda:0") -> None:
        self._own(returned("ifs_stream *", lib.ifs_stream_create, _ordinal(device)), lib.ifs_stream_destroy)
        self._lender: object = None

    @classmethod
    def wrap(cls, handle: int, device: str | Device = "cuda:0", lender: object = None) -> Stream:
        """Borrows the cudaStream_t of another library, and keeps `lender` alive with it."""
        stream = cls.__new__(cls)
        native = ffi.cast("void *", handle)
        stream._own(
            returned("ifs_stream *", lib.held_ifs_stream_wrap, _ordinal(device), native), lib.ifs_stream_destroy
        )
        stream._lender = lender
        return stream

    @property
    def handle(self) -> int:
        return address(lib.held_ifs_stream_native(self._open))

    @property
    def device(self) -> Device:
        return Device("cuda", int(lib.held_ifs_stream_device(self._open)))

    def synchronize(self) -> None:
        """Waits until all queued work is done."""
        check(lib.ifs_stream_synchronize(self._open))

    def wait(self, event: Event) -> None:
        """Makes work that is queued from now on wait for `event`. The host does not wait."""
        check(lib.held_ifs_stream_wait(self._open, event._open))

    def __repr__(self) -> str:
        return "<Stream closed>" if self._c is None else f"<Stream {self.handle:#x} on {self.device}>"


def default_stream(device: str | Device = "cuda:0") -> Stream:
    """The legacy default stream of a device, which CUDA uses where no other stream is given."""
    return Stream.wrap(0, device)


class Event(Handle):
    """A point in a stream."""

    def __init__(self, device: str | Device = "cuda:0") -> None:
        self._own(returned("ifs_event *", lib.ifs_event_create, _ordinal(device)), lib.ifs_event_destroy)

    def record(self, stream: Stream) -> Event:
        """Puts the event after all work that is queued on `stream` now, and returns the event."""
        check(lib.held_ifs_event_record(self._open, stream._open))
        return self

    def synchronize(self) -> None:
        """Waits until the stream reaches the event."""
        check(lib.ifs_event_synchronize(self._open))

    @property
    def done(self) -> bool:
        """Whether the stream has reached the event."""
        return bool(returned("int32_t", lib.ifs_event_query, self._open))


class CudaGraph(Handle):
    """The work that a function queues on a stream, to be launched again at once.

    Args:
        stream: The stream to capture.
        queue: Queues the work on it, and waits for nothing.

    A graph keeps the addresses that it was captured with. When one of them changes, capture a new graph.

    A copy between host and device is not captured: if one is due, `device_ptr()` and `fetch()` raise InputError. Access
    tensors on the device before the capture, and fetch them after the launch.
    """

    def __init__(self, stream: Stream, queue: Callable[[], object]) -> None:
        graph = out("ifs_cuda_graph *")
        check(lib.ifs_cuda_graph_begin(stream._open))
        try:
            queue()
        except BaseException:  # the stream must leave the capture in any case
            lib.ifs_cuda_graph_end(stream._open, graph)
            lib.ifs_cuda_graph_destroy(graph[0])
            raise
        check(lib.ifs_cuda_graph_end(stream._open, graph))
        self._own(graph[0], lib.ifs_cuda_graph_destroy)

    def launch(self, stream: Stream) -> None:
        """Queues the work of the graph on `stream`."""
        check(lib.held_ifs_cuda_graph_launch(self._open, stream._open))
