"""The Infer on TensorRT."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ...core.backend import SharedRuntime
from ...core.cache import Cache
from ...core.formats import FORMATS
from ...core.stream import CudaGraph, Stream, device_count
from ...core.target import keeps_precision
from ...core.tensor import Tensor
from ...core.text import logger
from ...errors import (
    ConfigError,
    CudaError,
    DeviceUnavailableError,
    EngineError,
    InferenceError,
    MemoryLimitError,
    NativeError,
    PrecisionUnavailableError,
    ShapeError,
    UnsupportedModelError,
)
from ...infer import BackendInfo, Declaration, Infer, Scheduling
from .._batch_buckets import next_size
from .build import build_engine, engine_key, load_plugins
from .contexts import make_allocator
from .details import EngineDetails, EngineMemory
from .engine import SUFFIXES, Engine, check_details, check_header, read_engine
from .flavour import FLAVOURS, Flavour
from .gpu import cuda_device
from .options import Options
from .profiles import fits
from .profiling import ProfiledRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    import tensorrt

__all__ = ["TensorRtInfer", "TensorRtRtxInfer"]

_log = logger("infersdk.tensorrt")

#: Maximum number of CUDA graphs of an Infer, one for each batch size and set of addresses.
GRAPHS = 16
#: Captures that fail in a row before that is an error.
CAPTURES = 8

_ENGINES = (FORMATS["tensorrt"], FORMATS["tensorrt-rtx"])
#: Options of building that also have an effect with a built engine, or describe it.
_OF_ENGINES = ("plugins", "cache_tag", "profiling")


def _declared(flavour: Flavour) -> Declaration:
    return Declaration(
        probe=lambda: BackendInfo(flavour.version, tuple(f"cuda:{i}" for i in range(device_count()))),
        options=Options,
        formats=("onnx", "tensorrt", "tensorrt-rtx"),
        default_device="cuda:0",
        default_max_batch=1,
    )


class _TensorRt(ProfiledRuns, Infer):
    """An ONNX model or an engine on TensorRT. Clones share one engine; each has its own context and stream."""

    flavour: ClassVar[Flavour]
    _engine: Engine
    _memory: EngineMemory | None = None  # with a memory_limit

    # ---- loading ----

    def _load(self) -> None:
        self._cuda = self._cuda_device()
        if not self.flavour.rtx and self.options.kernel_specialization:
            raise ConfigError("kernel_specialization is an option of backend 'tensorrt-rtx' alone")
        load_plugins(self.flavour, self.options.plugins)
        cache = Cache.of_model(self.model, self.options)
        with self._cuda.current():
            built = self.model.suffix.lower() in SUFFIXES or self.model.format in _ENGINES
            details = self._load_file(cache) if built else self._load_onnx(cache)
            self._shared = SharedRuntime(self._engine)
            self._kernels = cache
            self.input_specs, self.output_specs = self._engine.describe(details)
            self.metadata = MappingProxyType(dict(details.metadata) if details else {})
            self._profiles = self._engine.profiles([spec.name for spec in self.input_specs])
            # The engine inspector does not show the types of fused layers: without a manifest they are unknown.
            self._precision = details.precision if details else "unknown"
            self._layers = MappingProxyType(dict(details.layers) if details else {})
            self._check_precision()
            self._check_batch()
            self._start()

    def _cuda_device(self) -> Any:
        if self._device.kind != "cuda":
            there = ", ".join(f"cuda:{i}" for i in range(device_count())) or "no device of this machine"
            raise DeviceUnavailableError(
                f"device {self.device!r} is not supported; {self.flavour.title} runs on: {there}"
            )
        return cuda_device(self._device.index)

    def _load_file(self, cache: Cache | None) -> EngineDetails | None:
        for name in self.options.building:
            if name not in _OF_ENGINES:
                raise ConfigError(f"{name} is for building an engine, and {self.model.name} is built already")
        data, details = read_engine(self.model, self.flavour, self._cuda)
        self._engine = self._engine_of(data, details, cache)
        self._origin = "prebuilt"
        return details

    def _load_onnx(self, cache: Cache | None) -> EngineDetails:
        try:
            return self._load_built(cache, self.options)
        except MemoryLimitError as error:
            left = 0 if self._memory is None else self._memory.workspace_left
            if self.options.workspace is not None or left <= 0:
                raise
            _log.info("%s; it is built again with a workspace of at most %d bytes", error, left)
            try:
                return self._load_built(cache, msgspec.structs.replace(self.options, workspace=left))
            except UnsupportedModelError:  # no kernels take less
                raise error from None

    def _engine_of(self, data: bytes, details: EngineDetails | None, cache: Cache | None) -> Engine:
        """The engine, if it fits the `memory_limit` by its manifest and by its own numbers."""
        budget = self.memory_budget
        self._memory = memory = None if budget is None else EngineMemory.of(budget, data, details)
        if memory is not None:
            memory.check()
        engine = Engine(self.flavour, data, str(self.model), self._cuda, cache, memory)
        if memory is not None and engine.scratch_nbytes != memory.workspace:
            memory.workspace = engine.scratch_nbytes
            try:
                memory.check(loaded=True)
            except MemoryLimitError:
                del engine  # the error keeps this frame
                raise
        return engine

    def _instance_needs(self) -> dict[str, int]:
        tensors = super()._instance_needs()
        if self._memory is not None and self._memory.tensors:
            tensors = {"inputs and outputs": self._memory.tensors}
        return {"workspace": self._engine.next_scratch_nbytes, **tensors}

    def _load_built(self, cache: Cache | None, options: Any) -> EngineDetails:
        """The engine from the cache, or a new one."""
        wanted: dict[str, Any] = {
            "precision": self._requested_precision, "max_batch": self.max_batch, "options": options,
            "device": self._cuda,
        }  # fmt: skip
        key = engine_key(self.flavour, self.model, capabilities=(), **wanted)

        def make() -> tuple[bytes, dict[str, Any]]:
            data, details = build_engine(self.flavour, self.model, timings=cache, **wanted)
            return data, details.plain()

        def load() -> EngineDetails:
            if cache is None:
                data, raw = make()
            else:
                about: dict[str, Any] = {"kind": "engine", "backend": self.flavour.backend, "label": self.model.name}
                data, raw, there = cache.get_or_make(key, make, **about, waiting=self._report_waiting)
                self._origin = "cached" if there else "built"
            details = EngineDetails.of(raw)
            check_details(str(self.model), details, self.flavour, self._cuda)
            check_header(str(self.model), data, self.flavour)
            self._engine = self._engine_of(data, details, cache)
            return details

        try:
            return load()
        except (EngineError, msgspec.ValidationError):
            if cache is None or self._origin != "cached":
                raise
            # For example after a change of the driver.
            _log.info("%s: the runtime refuses the engine in the cache; it is built again", self.model.name)
            cache.remove(key)
            return load()

    def _report_waiting(self) -> None:
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
        """Sets `max_batch` to the largest batch of the engine."""
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
        """Creates the stream of this Infer, and joins contexts that clones may share."""
        self.stream: Stream = Stream(self._device)
        self._own_stream = True
        self._stages: dict[str, Tensor] = {}  # device memory for tensors that have none
        self._grown: dict[str, Any] = {}  # for outputs whose shapes depend on the data
        self._graphs: OrderedDict[tuple[Any, ...], CudaGraph] = OrderedDict()
        self._captures, self._failed_captures = self.options.cuda_graph, 0
        self.scheduling = self._scheduling()
        self._first = True
        contexts = self._engine.join(self.options)
        try:
            with self._engine.guard:
                self._context = contexts.get(0, {}, self.stream)
        except BaseException:
            self._engine.leave(contexts)
            raise
        self._contexts = contexts

    def _scheduling(self) -> Scheduling:
        """Each size compiles kernels (TensorRT-RTX) and captures graphs, which takes seconds. So there are few sizes:
        1, 2, 3, 4, 6, 8, 12, 16, 24... and the largest.
        """
        runs = 2 if self._captures else 1  # the second one is captured
        if self.max_batch is None or not (self.flavour.rtx or self._captures):
            return Scheduling.on_stream(warm_up_runs=runs)
        return Scheduling.on_stream(warm_up_runs=runs, bucket_batch=partial(next_size, largest=self.max_batch))

    # ---- running ----

    def _bind(self) -> None:
        self._shapes = shapes = {spec.name: self._inputs[spec.name].shape for spec in self.input_specs}
        with self._engine.guard, self._cuda.current(), self.flavour.messages() as messages:
            self._context = self._contexts.get(self._profile_of(shapes), shapes, self.stream)
            raw = self._context.raw
            if (refused := self._context.set_shapes(shapes)) is not None:
                raise ShapeError(
                    f"input {refused!r}: the engine does not take {shapes[refused]}: {messages.last_error()}"
                )
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
        """The first profile that takes the shapes. Those for one batch size come before the one for all."""
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
        """The tensor that the engine uses for `tensor`: itself, or a copy on the device if it is on the host."""
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
            allocator = self._grown[name] = make_allocator(self.flavour.trt)
        allocator.tensor = tensor

    def _enqueue(self) -> None:
        self._update_addresses()
        with self._cuda.current(), self._engine.guard:
            self._contexts.begin(self.stream)
            try:
                if self._captures:
                    self._launch()
                else:
                    self._queue()
            finally:
                self._contexts.end(self.stream)
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
            compiled = self._engine.compiled
            if compiled is not None and not compiled.nbytes:
                compiled.keep()

    def _update_addresses(self) -> None:
        """Copies inputs on the host to the device, and updates all addresses."""
        self._addresses: dict[str, int] = {}
        for name, tensor, stage in self._sources:
            if stage is not tensor:
                stage.copy_from(tensor)
            self._addresses[name] = stage.device_ptr(stream=self.stream)
        for name, tensor, stage, shape in self._results:
            if tensor.shape != shape:  # the user resized it
                tensor.resize(shape)
            self._addresses[name] = stage.device_ptr(read=False, write=True, stream=self.stream)

    def _launch(self) -> None:
        """Queues a run as a CUDA graph. The first run of a context with these shapes compiles kernels; a later one is
        captured.
        """
        key = (self._context.profile, *self._shapes.items(), *self._addresses.items())
        graph = self._graphs.get(key)
        if graph is None:
            self._set_context()
            if not self._grown and tuple(self._shapes.items()) in self._context.ran and self._can_capture():
                graph = self._capture()
            if graph is None:
                self._queue()
                return
            self._graphs[key] = graph
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        graph.launch(self.stream)

    def _capture(self) -> CudaGraph | None:
        """Captures a run; None if that failed. A `cudaDeviceSynchronize` of another thread ends a capture."""
        try:
            graph = CudaGraph(self.stream, self._queue)
        except (NativeError, InferenceError) as error:
            self._contexts.replace(self._context)
            self._failed_captures += 1
            if self._failed_captures == CAPTURES:
                self._failed_captures = 0
                raise InferenceError(
                    f"{self.flavour.title} cannot run {self.model.name} as a CUDA graph, tried {CAPTURES} times: "
                    f"{error}; load it with cuda_graph=False"
                ) from error
            _log.warning("%s: a CUDA graph is captured at a later run: %s", self.model.name, error)
            return None
        self._failed_captures = 0
        return graph

    def _can_capture(self) -> bool:
        """Whether a run does not allocate memory, as far as the runtime reports it: TensorRT-RTX does."""
        capturable = getattr(self._context.raw, "is_stream_capturable", None)
        return capturable is None or bool(capturable(self.stream.handle))

    def _queue(self) -> None:
        """Queues a run. The guard of the engine is held."""
        self._set_context()
        context: tensorrt.IExecutionContext = self._context.raw
        if not context.execute_async_v3(self.stream.handle):
            raise self._failure()
        self._context.ran.add(tuple(self._shapes.items()))

    def _set_context(self) -> None:
        """Prepares the context for a run, since another instance may have used or replaced it."""
        self._context = self._contexts.get(self._context.profile, self._shapes, self.stream)
        self._context.set_shapes(self._shapes)
        self._context.set_addresses(self._addresses)
        self._context.set_allocators(self._grown)

    def _wait(self) -> None:
        try:
            self.stream.synchronize()
        except CudaError as error:
            raise InferenceError(f"{self.flavour.title} failed to run {self.model.name}: {error}") from None

    def _failure(self) -> Exception:
        for allocator in self._grown.values():
            error: Exception | None = allocator.error
            if error is not None:
                allocator.error = None
                return error
        return InferenceError(
            f"{self.flavour.title} failed to run {self.model.name}; its messages go to the logger 'infersdk.tensorrt'"
        )

    def _adopt_grown(self) -> None:
        """Sets the shapes of the outputs that the run has allocated."""
        for name, allocator in self._grown.items():
            if allocator.error is not None:
                raise self._failure()
            if allocator.shape is not None:
                self._outputs[name].resize(allocator.shape)

    # ---- as one of several engines of a model that is cut ----

    def use_stream(self, stream: Stream) -> None:
        """Runs on the caller's `stream` from now on."""
        self.stream.synchronize()
        if self._own_stream:
            self.stream.close()
        self.stream, self._own_stream = stream, False

    # ---- the rest ----

    @property
    def precision(self) -> str:
        return self._precision

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """From the manifest: as the runtime parsed them on building the engine."""
        return self._layers

    def _clone(self, twin: _TensorRt) -> None:
        with self._cuda.current():
            twin._start()

    def _release(self) -> None:
        self._shared.keep(self._loader)
        self._close()

    def _loader(self) -> Callable[[], Engine]:
        """A function that reads the engine again."""
        flavour, name, device, cache = self.flavour, str(self.model), self._cuda, self._kernels
        memory, compiled = self._engine.memory, self._engine.compiled
        with device.current():
            data = self._engine.serialized()

        def read() -> Engine:
            with device.current():
                return Engine(flavour, data, name, device, cache, memory, compiled)

        return read

    def _restore(self) -> None:
        self._engine = self._shared.get()
        with self._cuda.current():
            self._start()

    def _close(self) -> None:
        """Frees the context and the reference to the engine."""
        with contextlib.suppress(CudaError, DeviceUnavailableError), self._cuda.current():  # free the rest, too
            self.stream.synchronize()
        self._grown.clear()
        self._graphs.clear()
        self._engine.leave(self._contexts)
        del self._context, self._contexts, self._engine
        if self._own_stream:
            self.stream.close()
        for stage in self._stages.values():
            stage.close()

    def _forget(self) -> None:
        super()._forget()
        del self._shared


class TensorRtInfer(_TensorRt):
    """TensorRT 10 and later."""

    backend = "tensorrt"
    flavour = FLAVOURS["tensorrt"]
    declaration = _declared(flavour)


class TensorRtRtxInfer(_TensorRt):
    """TensorRT for RTX."""

    backend = "tensorrt-rtx"
    flavour = FLAVOURS["tensorrt-rtx"]
    declaration = _declared(flavour)
