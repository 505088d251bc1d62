"""Execution contexts of an engine, and their device memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.stream import Event, Stream
from ...core.tensor import Tensor
from ...errors import InferenceError

if TYPE_CHECKING:
    import tensorrt

    from .options import Options

__all__ = ["Context", "ContextSet", "make_allocator"]


#: The most contexts of a profile in TensorRT-RTX: one for each of the last shapes. Version 1.6 never frees part of the
#: host memory that a run takes after the shapes of its context have changed: 79 kB for a small detector.
SHAPES = 16


class Context:
    """An execution context with its state. Instances that share it set the state again before they run.

    Attributes:
        ran: the shapes with which it has run, and so has compiled their kernels.
    """

    __slots__ = ("_addresses", "_allocators", "_shapes", "profile", "ran", "raw")

    def __init__(self, raw: tensorrt.IExecutionContext, profile: int) -> None:
        self.raw, self.profile = raw, profile
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self.ran: set[tuple[Any, ...]] = set()

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


class ContextSet:
    """Contexts of an engine that run one at a time in one block of device memory.

    Each profile has one context; in TensorRT-RTX, each shape of its inputs has one.

    Instances may share a set. Between `begin()` and `end()`, a run waits on the device for the last run, if that is on
    another stream. The guard of the engine is held for every call.

    Attributes:
        users: the number of instances that use the set.
    """

    def __init__(self, engine: Any, options: Options) -> None:
        self.users = 1
        self._engine, self._options = engine, options
        device = str(engine.device)
        self._most = SHAPES if engine.flavour.rtx else 1  # contexts of a profile
        self._contexts: dict[tuple[Any, ...], Context] = {}  # by profile and shapes; the latest use is the last one
        self._failed: list[Context] = []
        self._scratch = Tensor((engine.scratch_nbytes,), "uint8", device) if engine.scratch_nbytes else None
        # The runtime's own auxiliary streams block: during a capture, work of any thread on CUDA's legacy default
        # stream would fail, end the capture, and crash the runtime.
        self._auxiliary = [Stream(device) for _ in range(engine.auxiliary_streams)]
        self._run_end = Event(device)
        self._last: Stream | None = None  # the stream of the last run

    def get(self, profile: int, shapes: Mapping[str, tuple[int, ...]], stream: Stream) -> Context:
        """The context of a profile for these shapes, which `set_shapes()` sets. Changing the profile of a context takes
        longer than a small run.
        """
        key = profile, *shapes.items()
        result = self._contexts.pop(key, None) or self._contexts.pop((profile,), None)  # one without shapes
        if result is None:
            others = [other for other in self._contexts if other[0] == profile]
            result = self._make(profile, stream) if len(others) < self._most else self._contexts.pop(others[0])
        self._contexts[key] = result
        return result

    def _make(self, profile: int, stream: Stream) -> Context:
        raw = self._engine.context(self._options)
        if profile and not raw.set_optimization_profile_async(profile, stream.handle):
            raise InferenceError(f"{self._engine.name}: profile {profile} cannot be made active")
        if self._scratch is not None:
            raw.set_device_memory(self._scratch.device_ptr(read=False, write=True), self._engine.scratch_nbytes)
        if self._auxiliary:
            raw.set_aux_streams([auxiliary.handle for auxiliary in self._auxiliary])
        stream.synchronize()
        return Context(raw, profile)

    def replace(self, context: Context) -> None:
        """Removes a context whose state is unknown after an error; `get()` creates another one.

        It is not freed, since earlier graphs may use its memory.
        """
        self._contexts = {key: other for key, other in self._contexts.items() if other is not context}
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


def make_allocator(trt: Any) -> Any:
    """An IOutputAllocator that enlarges the `tensor` of an output for a run, where the shape depends on the data."""

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        tensor: Tensor

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] | None = None
            self.error: Exception | None = None

        def reallocate_output_async(self, name: str, memory: Any, size: int, alignment: int, stream: Any) -> int:
            try:
                self.tensor.resize((max(1, math.ceil(size / self.tensor.dtype.itemsize)),))
                return self.tensor.device_ptr(read=False, write=True)
            except Exception as error:  # it must not go through the runtime
                self.error = error
                return 0

        def reallocate_output(self, name: str, memory: Any, size: int, alignment: int) -> int:
            return self.reallocate_output_async(name, memory, size, alignment, None)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
