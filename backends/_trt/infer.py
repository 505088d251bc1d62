"""The Infer on TensorRT."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..._text import logger
from ...cache import Cache
from ...errors import (
    ConfigError,
    CudaError,
    DeviceUnavailableError,
    EngineError,
    InferenceError,
    NativeError,
    OutputError,
    PrecisionUnavailableError,
    ShapeError,
)
from ...formats import FORMATS
from ...infer import BackendInfo, Infer
from ...precision import keeps_precision
from ...releasing import SharedRuntime
from ...stream import CudaGraph, Stream
from ...tensor import Tensor
from .._batch_buckets import next_size
from .._cuda import cuda_device, device_count
from .build import build_engine, engine_key, last, load_plugins
from .details import EngineDetails
from .engine import SUFFIXES, check_details, check_header, check_operators, read_engine
from .flavour import FLAVOURS, Flavour
from .limited import LimitedEngine
from .options import Options
from .plugins import register_operators, takes_plugins
from .profiles import fits
from .profiling import ProfiledRuns
from .queued import QueuedRuns
from .releasing import ReleasableEngine

if TYPE_CHECKING:
    import tensorrt

    from ...device import Device

__all__ = ["TensorRtInfer", "TensorRtRtxInfer"]

_log = logger("infersdk.tensorrt")

#: CUDA graphs that an Infer keeps: one for each batch size and set of addresses.
GRAPHS = 16

_ENGINES = (FORMATS["tensorrt"], FORMATS["tensorrt-rtx"])
#: Options that have no effect on an engine that is built already.
_BUILDING = ("profiles", "exact_batches", "workspace", "tf32", "half_io", "fp16_keep", "optimization_level")


class _TensorRt(ReleasableEngine, QueuedRuns, ProfiledRuns, LimitedEngine, Infer):
    """An ONNX model, or an engine, on TensorRT. Clones share one engine; each has a context and a stream of its own."""

    default_device = "cuda:0"
    default_max_batch = 1
    Options = Options
    formats = ("onnx", "tensorrt", "tensorrt-rtx")
    flavour: ClassVar[Flavour]

    @classmethod
    def probe(cls) -> BackendInfo:
        return BackendInfo(cls.flavour.version, tuple(f"cuda:{i}" for i in range(device_count())))

    @classmethod
    def runs_custom_ops(cls, device: Device) -> bool:
        return takes_plugins(cls.flavour)

    # ---- loading ----

    def _load(self) -> None:
        self._cuda = self._cuda_device()
        if not self.flavour.runtime_cache and self.options.kernel_specialization:
            raise ConfigError("kernel_specialization is an option of backend 'tensorrt-rtx' alone")
        load_plugins(self.flavour, self.options.plugins)
        if self.custom_ops is not None:
            register_operators(self.flavour, self.custom_ops, self._device)
        cache = self._open_cache()
        with self._cuda:
            built = self.model.suffix.lower() in SUFFIXES or self.model.format in _ENGINES
            details = self._load_file(cache) if built else self._load_onnx(cache)
            self._shared = SharedRuntime(self._engine)
            self._kernels = cache
            inputs, outputs = self._engine.describe(details)
            self.input_specs = tuple(tensor.spec for tensor in inputs)
            self.output_specs = tuple(tensor.spec for tensor in outputs)
            self.metadata = MappingProxyType(dict(details.metadata) if details else {})
            self._profiles = self._engine.profiles([spec.name for spec in self.input_specs])
            # Fused layers hide their types from the engine inspector, so without a manifest nothing true can be said.
            self._precision = details.precision if details else "unknown"
            self._layers = MappingProxyType(dict(details.layers) if details else {})
            self._check_precision()
            self._check_batch()
            self._scratch_nbytes = self._engine.scratch_nbytes
            self._start()

    def _cuda_device(self) -> Any:
        if self._device.kind != "cuda":
            there = ", ".join(f"cuda:{i}" for i in range(device_count())) or "no device of this machine"
            raise DeviceUnavailableError(
                f"device {self.device!r} is not supported; {self.flavour.title} runs on: {there}"
            )
        return cuda_device(self._device.index)

    def _open_cache(self) -> Cache | None:
        folder = self.options.cache_dir
        if folder is None and self.model.origin is None:
            return None  # what is made from a model that is given in memory stays there
        if not self.options.cache:
            if folder is not None:
                raise ConfigError(f"cache_dir={folder!r} names a folder for engines, and cache=False keeps none")
            return None
        try:
            return Cache(folder, required=folder is not None)
        except OutputError as error:
            warnings.warn(f"{error}; engines are not kept", RuntimeWarning, stacklevel=2)
            return None

    def _load_file(self, cache: Cache | None) -> EngineDetails | None:
        for name in _BUILDING:
            if getattr(self.options, name) != getattr(Options(), name):
                raise ConfigError(f"{name} is for building an engine, and {self.model.name} is built already")
        data, details = read_engine(self.model, self.flavour, self._cuda)
        check_operators(str(self.model), details, self.custom_ops)
        self._engine = self._engine_of(data, details, cache)
        self._origin = "prebuilt"
        return details

    def _load_built(self, cache: Cache | None, options: Any) -> EngineDetails:
        """The engine from the cache, or a new one."""
        key, digest = engine_key(
            self.flavour, self.model, precision=self._requested_precision, max_batch=self.max_batch,
            options=options, capabilities=(), device=self._cuda, custom_ops=self.custom_ops,
        )  # fmt: skip

        def make() -> tuple[bytes, dict[str, Any]]:
            data, details = build_engine(
                self.flavour, self.model, digest=digest, precision=self._requested_precision,
                max_batch=self.max_batch, options=options, device=self._cuda, timings=cache,
                custom_ops=self.custom_ops,
            )  # fmt: skip
            return data, details.plain()

        if cache is None:
            data, raw = make()
            details = msgspec.convert(raw, EngineDetails)
            self._engine = self._engine_of(data, details, None)
            return details
        about: dict[str, Any] = {"kind": "engine", "backend": self.flavour.backend, "label": self.model.name}
        data, raw, there = cache.get_or_make(key, make, **about, waiting=self._tell_waiting)
        self._origin = "cached" if there else "built"
        try:
            details = self._take(data, raw, cache)
        except (EngineError, msgspec.ValidationError):
            if not there:
                raise
            # It is whole, but the runtime does not take it any more: for example after a change of the driver.
            _log.info("%s: its engine in the cache is not taken any more, and is built again", self.model.name)
            cache.remove(key)
            self._origin = "built"
            data, raw, _ = cache.get_or_make(key, make, **about, waiting=self._tell_waiting)
            details = self._take(data, raw, cache)
        return details

    def _take(self, data: bytes, raw: dict[str, Any], cache: Cache) -> EngineDetails:
        details = msgspec.convert(raw, EngineDetails)
        check_details(str(self.model), details, self.flavour, self._cuda)
        check_header(str(self.model), data, self.flavour)
        self._engine = self._engine_of(data, details, cache)
        return details

    def _tell_waiting(self) -> None:
        if self.options.progress is not None:
            self.options.progress("Waiting for another process that builds this engine", 0.0)

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        if wanted is not None and (
            self._precision == "unknown" or not keeps_precision(wanted, self._precision, self._layers)
        ):
            raise PrecisionUnavailableError(
                f"precision {wanted!r}: the engine {self.model.name} is {self._precision}; build one that is {wanted}, "
                "or leave precision out"
            )

    def _check_batch(self) -> None:
        """The largest batch is what the engine was built for."""
        sizes = [
            max(profile[spec.name][2][0] for profile in self._profiles)
            for spec in self.input_specs
            if spec.has_free_batch
        ]
        if not sizes:
            return
        largest = min(sizes)
        if self.max_batch is not None and self.max_batch > largest:
            raise ConfigError(
                f"max_batch={self.max_batch}, but {self.model.name} was built for batches up to {largest}; build it "
                f"with max_batch={self.max_batch}"
            )
        self.max_batch = self.max_batch or largest

    def _start(self) -> None:
        """A stream of this Infer's own; contexts come with the shapes that need them."""
        self.stream: Stream = Stream(self._device)
        self._own_stream = True
        self._contexts: dict[int, _Context] = {}  # by the profile
        self._scratch: Tensor | None = None  # the device memory that they run in, one at a time
        self._stages: dict[str, Tensor] = {}  # device memory for tensors that have none
        self._grown: dict[str, _Allocator] = {}  # for outputs whose shapes depend on the data
        self._graphs: OrderedDict[tuple[Any, ...], _Captured] = OrderedDict()
        self._captures = self.options.cuda_graph
        self.warm_up_runs = 2 if self._captures else 1  # the second one captures the graph
        self._first = True
        with self._engine.guard:
            self._context = self._context_for(0)

    def _context_for(self, profile: int) -> _Context:
        """The context for a profile: switching one between profiles would cost more than a small run."""
        result = self._contexts.get(profile)
        if result is None:
            raw = self._engine.context(self.options)
            if profile and not raw.set_optimization_profile_async(profile, self.stream.handle):
                raise InferenceError(f"{self.model.name}: profile {profile} cannot be made active")
            if nbytes := self._engine.scratch_nbytes:
                if self._scratch is None:
                    self._scratch = Tensor((nbytes,), "uint8", self._device)
                raw.set_device_memory(self._scratch.device_ptr(read=False, write=True), nbytes)
            result = self._contexts[profile] = _Context(raw, profile)
            self.stream.synchronize()
        return result

    # ---- running ----

    def _bind(self) -> None:
        shapes = {spec.name: self._inputs[spec.name].shape for spec in self.input_specs}
        with self._engine.guard, self._cuda, self.flavour.complaints() as complaints:
            self._context = self._context_for(self._profile_of(shapes))
            raw, set_already = self._context.raw, self._context.shapes
            for name, shape in shapes.items():
                if set_already.get(name) != shape:
                    if not raw.set_input_shape(name, shape):
                        set_already.pop(name, None)
                        raise ShapeError(f"input {name!r}: the engine does not take {shape}: {last(complaints)}")
                    set_already[name] = shape
            if missing := raw.infer_shapes():
                raise InferenceError(f"{self.model.name}: the shape of {missing[0]!r} cannot be inferred")
            self._sources = [(name, tensor, self._stage(name, tensor)) for name, tensor in self._inputs.items()]
            self._results: list[tuple[str, Tensor, Tensor, tuple[int, ...]]] = []
            for name, tensor in self._outputs.items():
                shape = tuple(raw.get_tensor_shape(name))
                if -1 in shape:
                    self._grow(name, tensor)
                else:
                    tensor.resize(shape)
                    self._results.append((name, tensor, self._stage(name, tensor), shape))
        self._copied = any(tensor is not stage for _, tensor, stage, _ in self._results)

    def _profile_of(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The first profile that takes the shapes: those for one batch size alone come before the one for all."""
        if not self._profiles:
            return 0
        for index, profile in enumerate(self._profiles):
            if fits(profile, shapes):
                return index
        widest = self._profiles[-1]
        mismatches = "; ".join(
            f"{name} is {shape}, and may be {widest[name][0]} to {widest[name][2]}"
            for name, shape in shapes.items()
            if not fits(widest, {name: shape})
        )
        raise ShapeError(
            f"the engine of {self.model.name} was not built for these shapes: input {mismatches}; load the model with "
            "other profiles or another max_batch"
        )

    def _stage(self, name: str, tensor: Tensor) -> Tensor:
        """The address that the engine uses for `tensor`: its own, or that of a copy if it lives on the host alone."""
        if tensor.device == self._device:
            return tensor
        stage = self._stages.get(name)
        if stage is None:
            stage = self._stages[name] = Tensor(tensor.shape, tensor.dtype, self._device)
        return stage.resize(tensor.shape)

    def _grow(self, name: str, tensor: Tensor) -> None:
        if tensor.device != self._device:
            raise InferenceError(f"output {name!r} has a shape that depends on the data: bind no host tensor to it")
        allocator = self._grown.get(name)
        if allocator is None:
            allocator = self._grown[name] = _allocator(self.flavour.trt)
        if name not in self._context.grows:
            self._context.raw.set_output_allocator(name, allocator)
            self._context.grows.add(name)
        allocator.tensor = tensor

    def _enqueue(self) -> None:
        self._update_addresses()
        with self._cuda:
            if self._captures:
                self._launch()
            else:
                self._execute()
        if self._grown:
            self._wait()
            self._adopt_grown()
        if self._copied:
            for _, tensor, stage, _ in self._results:
                if stage is not tensor:
                    tensor.copy_from(stage)
        if self._first:
            self._first = False
            self._wait()
            if self._engine.compiled is not None:
                self._engine.compiled.keep_first()

    def _update_addresses(self) -> None:
        """Brings the inputs to where they are read, and tells the context all addresses."""
        for name, tensor, stage in self._sources:
            if stage is not tensor:
                stage.copy_from(tensor)
            self._set_address(name, stage.device_ptr(stream=self.stream))
        for name, tensor, stage, shape in self._results:
            if tensor.shape != shape:  # its user resized it
                tensor.resize(shape)
            self._set_address(name, stage.device_ptr(read=False, write=True, stream=self.stream))

    def _set_address(self, name: str, at: int) -> None:
        context = self._context
        if context.addresses.get(name) != at:
            context.raw.set_tensor_address(name, at)
            context.addresses[name] = at

    def _launch(self) -> None:
        """As a CUDA graph: the first run with these shapes and addresses goes as it is, the second is captured."""
        key = self._context.key
        captured = self._graphs.setdefault(key, _Captured())
        self._graphs.move_to_end(key)
        if len(self._graphs) > GRAPHS:
            self._graphs.popitem(last=False)
        if captured.graph is None:
            if captured.wait or self._grown or not self._can_capture():
                captured.wait = max(captured.wait - 1, 0)
                self._execute()
                return
            try:
                # No other thread makes contexts or compiles meanwhile: that may end a capture, too.
                with self._engine.guard:
                    captured.graph = CudaGraph(self.stream, self._queue)
            except (NativeError, InferenceError) as error:
                # TensorRT-RTX captures on a stream of its own as well, which is a blocking one: what another thread
                # does on CUDA's default stream meanwhile, as torch and CuPy do, ends the capture.
                captured.pause *= 2
                captured.wait = captured.pause
                _log.warning("%s: no CUDA graph, tried again after %d runs: %s", self.model.name, captured.wait, error)
                self._renew()
                self._execute()
                return
        captured.graph.launch(self.stream)

    def _renew(self) -> None:
        """Another context instead of the current one, whose state is unknown after an error."""
        profile = self._context.profile
        self._contexts.pop(profile, None)
        for key, captured in self._graphs.items():
            if key[0] == profile:
                captured.graph, captured.wait = None, max(captured.wait, 1)  # it used what was the context's
        self._bound = None  # if it cannot be made, the next run tries
        self._bind()
        self._bound = self._generations()
        self._update_addresses()

    def _can_capture(self) -> bool:
        """A run that allocates memory cannot be captured; TensorRT-RTX tells whether it does, others just fail."""
        tell = getattr(self._context.raw, "is_stream_capturable", None)
        return tell is None or bool(tell(self.stream.handle))

    def _execute(self) -> None:
        with self._engine.guard:
            self._queue()

    def _queue(self) -> None:
        if not self._context.raw.execute_async_v3(self.stream.handle):
            raise self._failure()

    def _wait(self) -> None:
        try:
            self.stream.synchronize()
        except CudaError as error:
            raise InferenceError(f"{self.flavour.title} failed to run {self.model.name}: {error}") from None

    def _failure(self) -> Exception:
        for allocator in self._grown.values():
            if error := allocator.error:
                allocator.error = None
                return error
        return InferenceError(
            f"{self.flavour.title} failed to run {self.model.name}; its messages go to the logger 'infersdk.tensorrt'"
        )

    def _adopt_grown(self) -> None:
        """The memory is there, and the shape is known now."""
        for name, allocator in self._grown.items():
            if allocator.error is not None:
                raise self._failure()
            if allocator.shape is not None:
                self._outputs[name].resize(allocator.shape)

    # ---- the rest ----

    def bucket_batch(self, n: int) -> int:
        """Kernels are compiled (TensorRT-RTX) and graphs captured for each size anew, which takes seconds: so there are
        only 1, 2, 3, 4, 6, 8, 12, 16, 24... and the largest.
        """
        if not (self.flavour.runtime_cache or self._captures) or n >= (self.max_batch or n):
            return n
        return next_size(n, self.max_batch or n)

    @property
    def precision(self) -> str:
        return self._precision

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """As the runtime parsed them when the engine was built, out of its manifest."""
        return self._layers

    def _clone(self, twin: _TensorRt) -> None:
        with self._cuda:
            twin._start()

    def _close(self) -> None:
        self._free()

    def _free(self) -> None:
        """Frees the context, and lets go of the engine."""
        with contextlib.suppress(CudaError), self._cuda:  # a failed device must not keep the rest from being freed
            self.stream.synchronize()
        self._grown.clear()
        self._graphs.clear()
        self._contexts.clear()
        del self._context, self._engine
        if self._scratch is not None:
            self._scratch.close()
        if self._own_stream:
            self.stream.close()
        for stage in self._stages.values():
            stage.close()


class _Captured:
    """The graph of some shapes and addresses, once it is there."""

    __slots__ = ("graph", "pause", "wait")

    def __init__(self) -> None:
        self.graph: CudaGraph | None = None
        self.wait = self.pause = 1  # runs that go as they are before it is captured; and after a capture that failed


class _Context:
    """An execution context, and what has been told to it."""

    __slots__ = ("addresses", "grows", "profile", "raw", "shapes")

    def __init__(self, raw: tensorrt.IExecutionContext, profile: int) -> None:
        self.raw, self.profile = raw, profile
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.grows: set[str] = set()  # outputs with an allocator

    @property
    def key(self) -> tuple[Any, ...]:
        """What a graph of it is captured with."""
        return (self.profile, *self.shapes.items(), *self.addresses.items())


class _Allocator:
    """Gives an output the memory that it turns out to need: that of its tensor, made larger."""

    tensor: Tensor
    shape: tuple[int, ...] | None
    error: Exception | None


def _allocator(trt: Any) -> Any:
    class Allocator(trt.IOutputAllocator, _Allocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.shape, self.error = None, None

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


class TensorRtInfer(_TensorRt):
    """TensorRT 10 and later."""

    backend = "tensorrt"
    flavour = FLAVOURS["tensorrt"]


class TensorRtRtxInfer(_TensorRt):
    """TensorRT for RTX."""

    backend = "tensorrt-rtx"
    flavour = FLAVOURS["tensorrt-rtx"]
