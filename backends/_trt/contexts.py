"""Execution contexts of an engine, and the device memory that they run in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import InferenceError
from ...stream import Event, Stream
from ...tensor import Tensor

if TYPE_CHECKING:
    import tensorrt

    from .._cuda import CudaDevice
    from .options import Options

__all__ = ["Context", "ContextSet"]


class Contexts(Protocol):
    """An engine, as far as a set needs it."""

    name: str

    @property
    def device(self) -> CudaDevice: ...

    @property
    def scratch_nbytes(self) -> int: ...

    @property
    def auxiliary_streams(self) -> int: ...

    def context(self, options: Options) -> tensorrt.IExecutionContext: ...


class Context:
    """An execution context, and the state that was set on it: instances that share it set it again before they run."""

    __slots__ = ("_addresses", "_allocators", "_ran", "_shapes", "profile", "raw")

    def __init__(self, raw: tensorrt.IExecutionContext, profile: int) -> None:
        self.raw, self.profile = raw, profile
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._ran: set[tuple[Any, ...]] = set()

    def set_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Sets the shapes of the inputs. Returns the first input whose shape the engine refuses, or None."""
        for name, shape in shapes.items():
            if self._shapes.get(name) != shape:
                if not self.raw.set_input_shape(name, shape):
                    self._shapes.pop(name, None)
                    return name
                self._shapes[name] = shape
        return None

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        """Sets the addresses of inputs and outputs."""
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                self.raw.set_tensor_address(name, address)
                self._addresses[name] = address

    def set_allocators(self, allocators: Mapping[str, Any]) -> None:
        """Sets the allocators of outputs whose shapes depend on the data."""
        for name, allocator in allocators.items():
            if self._allocators.get(name) is not allocator:
                self.raw.set_output_allocator(name, allocator)
                self._allocators[name] = allocator

    def has_run(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether it has run with these shapes: all kernels that they need are compiled."""
        return tuple(shapes.items()) in self._ran

    def note_run(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Notes that it has run with these shapes."""
        self._ran.add(tuple(shapes.items()))


class ContextSet:
    """Contexts of an engine, one for each profile, that run one at a time in one block of device memory.

    Instances may share a set. A run on another stream than the last one waits for that one on the device, between
    `begin()` and `end()`. The guard of the engine is held for every call.

    Args:
        engine: the engine.
        options: of its instances.

    Attributes:
        users: the number of instances that use the set.
    """

    def __init__(self, engine: Contexts, options: Options) -> None:
        self.users = 1
        self._engine, self._options = engine, options
        device = str(engine.device)
        self._contexts: dict[int, Context] = {}
        self._failed: list[Context] = []
        self._scratch = Tensor((engine.scratch_nbytes,), "uint8", device) if engine.scratch_nbytes else None
        # The runtime's own auxiliary streams are blocking ones. While a run is captured, work of any thread on CUDA's
        # legacy default stream fails then, and ends the capture inside the runtime, which crashes.
        self._auxiliary = [Stream(device) for _ in range(engine.auxiliary_streams)]
        self._run_end = Event(device)
        self._last: Stream | None = None  # the stream of the last run

    def get(self, profile: int, stream: Stream) -> Context:
        """The context of a profile: a context that changes its profile would cost more than a small run."""
        result = self._contexts.get(profile)
        if result is None:
            raw = self._engine.context(self._options)
            if profile and not raw.set_optimization_profile_async(profile, stream.handle):
                raise InferenceError(f"{self._engine.name}: profile {profile} cannot be made active")
            if self._scratch is not None:
                raw.set_device_memory(self._scratch.device_ptr(read=False, write=True), self._engine.scratch_nbytes)
            if self._auxiliary:
                raw.set_aux_streams([auxiliary.handle for auxiliary in self._auxiliary])
            result = self._contexts[profile] = Context(raw, profile)
            stream.synchronize()
        return result

    def replace(self, context: Context) -> None:
        """Takes a context out of use whose state is unknown after an error; `get()` makes another one.

        It is kept: graphs that were captured before may use its memory.
        """
        del self._contexts[context.profile]
        self._failed.append(context)

    def begin(self, stream: Stream) -> None:
        """Makes `stream` wait for the last run, if that is on another stream."""
        if self._last is not None and self._last is not stream:
            stream.wait(self._run_end)

    def end(self, stream: Stream) -> None:
        """Marks the end of the run that was queued on `stream`."""
        self._run_end.record(stream)
        self._last = stream

    def close(self) -> None:
        """Frees the contexts and their memory. No run is under way."""
        self._contexts.clear()
        self._failed.clear()
        if self._scratch is not None:
            self._scratch.close()
        for auxiliary in self._auxiliary:
            auxiliary.close()
        self._run_end.close()
