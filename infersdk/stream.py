"""Streams and events: work on a device that runs in order while the host goes on.

::

    stream = Stream("cuda:0")
    at = tensor.device_ptr(write=True, stream=stream)      # copies are queued on it, not waited for
    ...                                                        # queue kernels that write there
    tensor.fetch(stream)                                       # queue the copy home
    tensor.numpy()                                             # waits for that copy alone
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._lib import address, check, ffi, lib, out, text
from .device import Device
from .errors import DeviceUnavailableError
from .memory import Handle

__all__ = ["CudaGraph", "DeviceInfo", "Event", "Stream", "default_stream", "device_count", "device_info"]


def _ordinal(device: str | Device) -> int:
    parsed = Device.parse(device)
    if parsed.ordinal < 0:
        raise DeviceUnavailableError(f'device {str(parsed)!r} has no streams; "cuda:0" and so on have')
    return parsed.ordinal


class DeviceInfo(dict[str, Any]):
    """`name`, `compute_capability` (major, minor), `multiprocessors`, `total_bytes`, `free_bytes`."""


def device_count() -> int:
    """How many CUDA devices there are; 0 where there is no driver, no GPU, or the build is CPU-only."""
    place = out("int32_t")
    return int(place[0]) if lib.ifs_device_count(place) == 0 else 0


def device_info(device: str | Device = "cuda:0") -> DeviceInfo:
    """What a CUDA device is.

    Raises:
        DeviceUnavailableError: there is no such device.
    """
    info = out("ifs_device_info")
    check(lib.ifs_get_device_info(_ordinal(device), info))
    return DeviceInfo(
        name=text(info.name),
        compute_capability=(int(info.major), int(info.minor)),
        multiprocessors=int(info.multiprocessors),
        total_bytes=int(info.total_bytes),
        free_bytes=int(info.free_bytes),
    )


class Stream(Handle):
    """A CUDA stream of our own, which does not wait for the legacy default stream.

    `handle` is the cudaStream_t as a number, for other libraries.
    """

    def __init__(self, device: str | Device = "cuda:0") -> None:
        self._c = None
        place = out("ifs_stream *")
        check(lib.ifs_stream_create(_ordinal(device), place))
        self._own(place[0], lib.ifs_stream_destroy)
        self._lender: object = None

    @classmethod
    def wrap(cls, handle: int, device: str | Device = "cuda:0", lender: object = None) -> Stream:
        """Borrows somebody else's cudaStream_t; `lender` is kept alive with it."""
        stream = cls.__new__(cls)
        stream._c = None
        place = out("ifs_stream *")
        check(lib.ifs_stream_wrap(_ordinal(device), ffi.cast("void *", handle), place))
        stream._own(place[0], lib.ifs_stream_destroy)
        stream._lender = lender
        return stream

    @property
    def handle(self) -> int:
        return address(lib.ifs_stream_native(self._open))

    @property
    def device(self) -> Device:
        return Device("cuda", int(lib.ifs_stream_device(self._open)))

    def synchronize(self) -> None:
        """Waits until all that is queued has run."""
        check(lib.ifs_stream_synchronize(self._open))

    def wait(self, event: Event) -> None:
        """What is queued from now on waits for `event`; the host does not."""
        check(lib.ifs_stream_wait(self._open, event._open))

    def __repr__(self) -> str:
        return "<Stream closed>" if self._c is None else f"<Stream {self.handle:#x} on {self.device}>"


def default_stream(device: str | Device = "cuda:0") -> Stream:
    """The legacy default stream of a device, which CUDA uses where no other stream is given."""
    return Stream.wrap(0, device)


class Event(Handle):
    """A mark in a stream; with `timing`, a clock too."""

    def __init__(self, device: str | Device = "cuda:0", *, timing: bool = False) -> None:
        self._c = None
        place = out("ifs_event *")
        check(lib.ifs_event_create(_ordinal(device), timing, place))
        self._own(place[0], lib.ifs_event_destroy)

    def record(self, stream: Stream) -> Event:
        """Sets the mark behind all that is queued on `stream` now; returns the event itself."""
        check(lib.ifs_event_record(self._open, stream._open))
        return self

    def synchronize(self) -> None:
        """Waits until the mark is reached."""
        check(lib.ifs_event_synchronize(self._open))

    @property
    def done(self) -> bool:
        """Whether the mark is reached."""
        place = out("int32_t")
        check(lib.ifs_event_query(self._open, place))
        return bool(place[0])

    def milliseconds_since(self, start: Event) -> float:
        """The device's time from `start` to here; both made with `timing=True`, and reached."""
        place = out("float")
        check(lib.ifs_event_elapsed(start._open, self._open, place))
        return float(place[0])


class CudaGraph(Handle):
    """What a function queues on a stream, to be launched again in one go.

    It holds the addresses that it was captured with: when one of them changes, capture anew.
    """

    def __init__(self, stream: Stream, queue: Callable[[], object]) -> None:
        self._c = None
        place = out("ifs_cuda_graph *")
        check(lib.ifs_cuda_graph_begin(stream._open))
        try:
            queue()
        except BaseException:  # the stream has to leave the capture, whatever happened
            lib.ifs_cuda_graph_end(stream._open, place)
            lib.ifs_cuda_graph_destroy(place[0])
            raise
        check(lib.ifs_cuda_graph_end(stream._open, place))
        self._own(place[0], lib.ifs_cuda_graph_destroy)

    def launch(self, stream: Stream) -> None:
        """Queues all of it on `stream`."""
        check(lib.ifs_cuda_graph_launch(self._open, stream._open))
