"""ONNX Runtime: the processor, an NVIDIA GPU through its CUDA provider, or the device of any other provider.

The session reads and writes the memory of the Infer's tensors (I/O binding), without copies. An output whose shape
follows from the inputs, by the names of dimensions, is written into its tensor. The runtime allocates other outputs in
the first run; their tensors use that memory, and later runs write to it. If the shape depends on the data, each run
allocates.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import onnxruntime as ort

from ..core.backend import SharedRuntime
from ..core.files import file_state
from ..core.processors import available_processors
from ..core.stream import Stream
from ..core.target import describe_layers, keeps_precision
from ..core.text import logger
from ..errors import (
    ConfigError,
    DeviceUnavailableError,
    InferenceError,
    InferSDKError,
    ModelFormatError,
    OutOfMemoryError,
    PrecisionUnavailableError,
    UnsupportedModelError,
    exhausted,
)
from ..graph.files import files_of
from ..graph.passes import cached_model, loading_passes
from ..infer import BackendInfo, Declaration, Infer, Scheduling
from ._onnxruntime.providers import FAILURES, Provider, available_devices, find_provider
from ._onnxruntime.session import (
    Options,
    feed,
    load_libraries,
    may_run_on_one_core,
    message_of,
    metadata_of,
    session_options,
    spec_of,
    start_session,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from tempfile import TemporaryDirectory
    from typing import NoReturn

    from ..core.executed_layers import LayerProfile
    from ..core.tensor import Tensor
    from ._onnxruntime.cuda import Arena, CudaGraphs

_log = logger("infersdk.load")
_X86 = platform.machine().lower() in ("x86_64", "amd64")
#: Devices on which the runtime can write the graph that it executes, and registers custom operators.
_OPEN_DEVICES = ("cpu", "cuda")
#: In the message about an output of another shape than that of its memory: since ONNX Runtime 1.27, and before.
_OTHER_SHAPE = ("computed output shape", "OrtValue shape verification failed")
#: Before ONNX Runtime 1.30, a later run reuses the memory of an output that the caller still holds.
_LENDS_OUTPUTS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 30)


class OnnxRuntimeInfer(Infer):
    """An ONNX model on ONNX Runtime. Clones share one session; clones for one core share a second one of one thread.

    Three uses start another session, which reads the files of the model again: a clone for one core, `release()`
    without a memory limit, and `precision` if none was requested. They raise UnsupportedModelError if a file has
    changed since the model was loaded.
    """

    backend = "onnxruntime"
    declaration = Declaration(
        probe=lambda: BackendInfo(ort.__version__, tuple(available_devices())), options=Options,
        formats=("onnx", "ort"), runs_custom_ops=lambda device: device.kind in _OPEN_DEVICES,
    )  # fmt: skip
    _graphs: CudaGraphs | None = None  # of the session, if it captures runs
    _run_options: Any = None
    _profile_folder: TemporaryDirectory[str] | None = None  # of the profiler's file
    _arena: Arena | None = None  # with a memory_limit
    _kept: bytes | None = None  # the optimised graph with the weights, with a memory_limit

    # ---- loading ----

    def _load(self) -> None:
        provider = find_provider(self._device, self.options.provider_library)
        settings = dict(provider.settings)
        if self._device.kind == "cuda":
            from ._onnxruntime.cuda import CudaGraphs, scheduling_on_stream

            load_libraries()
            # One stream for the session and its clones: their runs are sequential.
            self.stream = Stream(self._device)
            settings |= {
                "device_id": str(self._device.index),
                "user_compute_stream": str(self.stream.handle),
                # The default tries all algorithms at each change of a shape. It takes five to ten times as long, and
                # finds no faster one.
                "cudnn_conv_algo_search": "HEURISTIC",
            }
            if self.options.cuda_graph:
                settings["enable_cuda_graph"] = "1"
                self._graphs = CudaGraphs()
            self.scheduling = scheduling_on_stream(self.max_batch, self._graphs)
        elif self.options.cuda_graph:
            raise ConfigError(f"cuda_graph is for device 'cuda', not for {self.device!r}")
        if self._device.kind == "cpu":
            for name in ("provider_options", "provider_library"):
                if value := getattr(self.options, name):
                    raise ConfigError(f"{name}={value!r} is for other devices than 'cpu'; name one, or leave it out")
        if self.options.inter_op_threads and self.options.execution_mode != "parallel":
            raise ConfigError("inter_op_threads is for execution_mode='parallel'; add that, or leave it out")
        if self._device.kind == "cuda" and self._requested_precision == "fp32":
            settings["use_tf32"] = "0"  # otherwise tensor cores round factors to TF32
        if self.options.profiling:
            from tempfile import TemporaryDirectory

            self._profile_folder = TemporaryDirectory(prefix="infersdk-")
        given = {key: str(value) for key, value in self.options.provider_options.items()}
        self._file_states = {file: file_state(file) for file in files_of(self.model)}
        source = self._source()
        if self.memory_budget is not None:
            from ._onnxruntime.cuda import arena_for

            self._arena = arena_for(self, source, given, self.memory_budget)
            settings |= self._arena.settings
        settings |= given
        self._start_session(source, provider._replace(settings=settings))
        self._check_nodes()
        self._shared = SharedRuntime(self._session)
        self._one_core = SharedRuntime[Any]()
        try:
            self.input_specs = tuple(spec_of(node, "input", self.model) for node in self._session.get_inputs())
            self.output_specs = tuple(spec_of(node, "output", self.model) for node in self._session.get_outputs())
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{str(self.model)!r} has a tensor whose name is not UTF-8: {error}") from None
        self.metadata = MappingProxyType(metadata_of(self._session, self.model))
        self._allocated: set[str] = set()  # outputs that the runtime allocates
        self._data_dependent = False  # whether it allocates them in each run
        self._check_precision()
        if self.stream is None:
            cores = available_processors() if self._device.kind == "cpu" else 1
            clones = cores if cores > 1 and may_run_on_one_core(self.options) and self._has_free_rows else 0
            self.scheduling = Scheduling(one_core_clones=clones, stream_guard=self._provider.guard)
        self._binding = self._session.io_binding()

    def _start_session(self, source: Path | str | bytes, provider: Provider) -> None:
        arena = self._arena
        verified = self._requested_precision is not None or self.options.profiling or arena is not None
        try:
            self._session, self._executed = start_session(
                source, str(self.model), self._session_options, provider,
                write=self._place_of_graph(in_memory=arena is not None) if verified else None,
            )  # fmt: skip
        except (UnsupportedModelError, OutOfMemoryError) as error:
            if arena is not None and (full := arena.error_of(error)) is not None:
                raise full from None
            raise
        self._provider = provider
        if arena is not None:
            arena.hold(self._session)
            self._kept = self._executed  # a second session would exceed the limit

    def _check_nodes(self) -> None:
        """Raises an error if the runtime has moved the model, or a part of it, to the processor."""
        name, taken = self._provider.name, self._session.get_providers()
        if taken[0] != name:
            raise DeviceUnavailableError(
                f"device {self.device!r}: ONNX Runtime could not start its {name} and uses {taken[0]}; "
                "check the driver and its libraries, or load with device='cpu'"
            )
        self._session.disable_fallback()
        if not self._records_nodes:
            return
        others, count = self._provider.other_nodes(self._session)
        if not others:
            return
        text = f"{len(others)} of {count} nodes of {self.model.name} run on the processor: {', '.join(others)}"
        if not self.options.allow_cpu_nodes:
            raise UnsupportedModelError(
                f"device {self.device!r}: {text}; allow it with allow_cpu_nodes=True, or load with device='cpu'"
            )
        _log.info("device %s: %s", self.device, text)

    @property
    def _records_nodes(self) -> bool:
        """Whether the session records which nodes the provider does not take."""
        allowed = self.options.allow_cpu_nodes
        return self._device.kind not in _OPEN_DEVICES or (self._device.kind == "cuda" and allowed is not None)

    def _place_of_graph(self, *, in_memory: bool) -> Literal["disk", "memory"]:
        """Where the runtime writes its optimised graph: nothing of a model in memory is written to the disk."""
        return "memory" if in_memory or self.model.origin is None else "disk"

    def _session_options(self) -> Any:
        folder = self._profile_folder
        options = session_options(self.options, Path(folder.name) if folder is not None else None)
        if self._records_nodes:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if self.custom_ops is not None:
            from ..custom_ops.loading import register_operators

            register_operators(options, self.custom_ops, self._device)
        return options

    def _source(self) -> Path | str | bytes:
        """The path of the file as text, or of the model after the passes the path in the cache or the bytes."""
        wanted = self._requested_precision
        if self.options.fp16_keep and wanted != "fp16":
            raise ConfigError(f"fp16_keep is for precision='fp16', not for {wanted!r}")
        passes = [*loading_passes(self.backend, self._device.kind, wanted, keep_nodes=self.options.fp16_keep, x86=_X86)]
        if self.options.profiling:
            from ..graph.passes import NameNodes

            passes.append(NameNodes())  # the profiler reports nodes by their names
        try:
            return cached_model(self.model, passes) or self.model.content or str(self.model)
        except UnsupportedModelError as error:
            if wanted is None:
                raise
            raise PrecisionUnavailableError(f"precision {wanted!r}: {error}") from None

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        verified = self._executed is not None or (wanted == "fp32" and self._device.kind in _OPEN_DEVICES)
        if wanted is not None and not verified:
            from tempfile import gettempdir

            remedy = f"free some space in {gettempdir()!r}, or " if self._device.kind in _OPEN_DEVICES else ""
            raise PrecisionUnavailableError(
                f"precision {wanted!r} cannot be verified: ONNX Runtime could not write the graph that it made of "
                f"{self.model.name} for {self._provider.name}; {remedy}leave precision out"
            )
        if wanted is None or keeps_precision(wanted, self.precision, self.layer_precisions):
            return
        hint = {
            "int8": "quantise the model, with Q/DQ on both sides of each layer (`infersdk quantize` does)",
            "fp16": f"the {self._provider.name} has no fp16 kernels for the others",
            "bf16": "it has no bf16 layers; backend 'openvino' may",
        }.get(wanted, "")
        if wanted != "int8" and self.layer_precisions.get("int8"):
            hint = "load the model that it was quantised from"
        raise PrecisionUnavailableError(
            f"precision {wanted!r}: ONNX Runtime would run {self.model.name} in {self.precision} on {self.device} "
            f"({describe_layers(self.layer_precisions)}); {hint}; or leave precision out"
        )

    # ---- running ----

    def _bind(self) -> None:
        with self.scheduling.stream_guard:
            self._bind_all()

    def _bind_all(self) -> None:
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        where = self._where = (self._device.kind, self._device.index) if self.stream is not None else ("cpu", 0)
        self._bind_inputs()
        self._written: list[Tensor] = []
        self._to_adopt: set[str] = set()  # outputs that the next run allocates
        self._passed_through: list[tuple[Tensor, Tensor]] = []  # inputs that are outputs, too
        for name, shape in self._known_output_shapes().items():
            tensor = self._outputs[name]
            if name in self._inputs:  # the session does not write such an output where it is bound
                self._binding.bind_output(name, *where)
                self._passed_through.append((self._inputs[name], tensor))
                continue
            if not self._data_dependent and name in self._lent:
                shape = tensor.shape if shape is None else shape  # noqa: PLW2901 - the user gives the shape
            elif name in self._allocated:
                shape = None  # noqa: PLW2901
            if shape is None:
                self._allocated.add(name)
                self._to_adopt.add(name)
                self._binding.bind_output(name, *where)
            else:
                tensor.resize(shape)
                self._binding.bind_output(
                    name, *self._side(tensor), tensor.dtype, shape, self._address(tensor, write=True)
                )
                self._written.append(tensor)
        self._read = tuple(self._inputs.values())
        if self._graphs is not None:
            self._run_options = self._graphs.options_for(() if self._to_adopt else self._memory())

    def _memory(self) -> tuple[Any, ...]:
        """The addresses and shapes of all tensors. A graph is captured for these."""
        return tuple(
            (name, tensor.shape, self._address(tensor, write=side is self._outputs))
            for side in (self._inputs, self._outputs)
            for name, tensor in side.items()
        )

    def _bind_inputs(self) -> None:
        for name, tensor in self._inputs.items():
            at = self._address(tensor, write=False)
            if self.stream is not None:
                self.stream.synchronize()  # the runtime may copy now, on another stream
            self._binding.bind_input(name, *self._side(tensor), tensor.dtype, tensor.shape, at)

    def _side(self, tensor: Tensor) -> tuple[str, int]:
        """The memory of a bound tensor: that of a user may be on the host alone."""
        return self._where if tensor.device == self._device else ("cpu", 0)

    def _address(self, tensor: Tensor, *, write: bool) -> int:
        """The address for the runtime. Moves the head of the tensor."""
        if self.stream is not None and tensor.device == self._device:
            return tensor.device_ptr(read=not write, write=write, stream=self.stream)
        return tensor.host_ptr(read=not write, write=write)

    def _enqueue(self) -> None:
        if self._device.kind == "cpu":
            self._run_bound()  # entering a context that guards nothing costs a tenth of a small run
        else:
            with self.scheduling.stream_guard:
                self._run_bound()

    def _run_bound(self) -> None:
        if self._device.kind == "cpu":
            for tensor in self._read:
                tensor.host_ptr()
            for tensor in self._written:
                tensor.host_ptr(read=False, write=True)
        else:
            # The runtime copies an input to or from a device only when it is bound.
            self._bind_inputs()
            for tensor in self._written:
                self._address(tensor, write=True)
        try:
            self._session.run_with_iobinding(self._binding, self._run_options)
        except FAILURES as error:
            if any(text in str(error) for text in _OTHER_SHAPE) and self._allocate_outputs():
                self._bind_all()
                self._run_bound()
                return
            self._fail(error)
        if self._to_adopt:
            self._adopt_outputs()
        for source, target in self._passed_through:
            target.resize(source.shape).copy_from(source)

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = {spec.name: feed(spec, feeds[spec.name]) for spec in self.input_specs}
        try:
            results = self._session.run(None, given)
        except FAILURES as error:
            self._fail(error)
        return {spec.name: result for spec, result in zip(self.output_specs, results, strict=True)}

    def _fail(self, error: Exception) -> NoReturn:
        """Raises the error for a failure of the runtime."""
        if self.custom_ops is not None:
            from ..custom_ops.failures import raise_kernel_failure

            raise_kernel_failure(error)
        if self._arena is not None and (full := self._arena.error_of(error)) is not None:
            raise full from None
        raise exhausted(message_of(error), self.model.name) or InferenceError(
            f"ONNX Runtime failed to run {self.model.name}: {message_of(error)}"
        ) from None

    def _allocate_outputs(self) -> bool:
        """Lets each run allocate all outputs from now on, after a shape that differs from its names or the last run."""
        if self._data_dependent:
            return False
        self._data_dependent = True
        self._allocated = {spec.name for spec in self.output_specs}
        return True

    def _adopt_outputs(self) -> None:
        """Lets the tensors of outputs use the memory that the runtime has allocated."""
        for spec, value in zip(self.output_specs, self._binding.get_outputs(), strict=True):
            if spec.name in self._to_adopt:
                at, owner = self._owned(value, spec.dtype)
                self._adopt(spec.name, at, tuple(value.shape()), lender=owner)
        if self._data_dependent or not _LENDS_OUTPUTS:
            for name in self._to_adopt:  # otherwise the session writes the next results to the same memory
                self._binding.bind_output(name, *self._where)
        else:
            self._written += [self._outputs[name] for name in self._to_adopt]
            self._to_adopt = set()

    def _owned(self, value: Any, dtype: Any) -> tuple[int, object]:
        """The address of an output that the runtime has allocated, and the owner of its memory; of older releases those
        of a copy.
        """
        if _LENDS_OUTPUTS:
            return value.data_ptr(), value
        from ..core.tensor import Tensor

        copied = Tensor(tuple(value.shape()), dtype, self._device)
        copied.copy_from(Tensor._over(value.data_ptr(), copied.shape, dtype, self._device, lender=value))
        return self._address(copied, write=False), copied

    # ---- the rest ----

    @functools.cached_property
    def layer_precisions(self) -> Mapping[str, int]:
        """Read back from the optimised graph. Without a requested precision a second session writes it on first use."""
        from ..graph.files import read_model
        from ..graph.precision import layer_precisions

        if self._executed is None and self._device.kind not in _OPEN_DEVICES:
            return MappingProxyType({})
        if self._executed is None and self._requested_precision is None:
            self._executed = self._written_graph(in_memory=False)
        # If the runtime cannot write its graph, the precisions are those of the model.
        model = read_model(self.model if self._executed is None else self._executed)
        if not self.options.profiling:
            self._executed = self._executed and b""  # it may hold weights
        return MappingProxyType(layer_precisions(model, executed=True))

    @property
    def precision(self) -> str:
        from ..graph.precision import main_precision

        known = self._executed is not None or self._device.kind in _OPEN_DEVICES
        return main_precision(self.layer_precisions) if known else "unknown"

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.core.executed_layers.ReportsLayers`. A session can be profiled once."""
        from ._onnxruntime.profiling import profile_session

        self._check_open()
        return profile_session(self, runs, self._session, self._executed, self._profile_folder)

    def _written_graph(self, *, in_memory: bool) -> bytes | None:
        """The optimised graph, written by another session; None if it cannot be written.

        Raises:
            ClosedError, UnsupportedModelError: the model was closed, or its file has changed since.
        """
        if self._closed:
            self._check_open()
        return self._second_session(self._place_of_graph(in_memory=in_memory))[1]

    def _second_session(self, write: Literal["disk", "memory"] | None = None) -> tuple[Any, bytes | None]:
        """As `start_session()`. Raises UnsupportedModelError if the file of the model has changed since."""
        try:
            result = start_session(self._source(), str(self.model), self._session_options, self._provider, write=write)
        except InferSDKError:
            self._check_unchanged()
            raise
        self._check_unchanged()  # after loading: the file had no time to change
        return result

    def _check_unchanged(self) -> None:
        if any(file_state(file) != state for file, state in self._file_states.items()):
            raise UnsupportedModelError(f"{str(self.model)!r} has changed since it was loaded; load it again") from None

    def _clone(self, twin: OnnxRuntimeInfer) -> None:
        twin._binding = twin._session.io_binding()

    def _clone_for_one_core(self, twin: OnnxRuntimeInfer) -> None:
        twin.options = msgspec.structs.replace(self.options, threads=1)
        twin.scheduling = Scheduling()
        twin._shared, twin._allocated, twin._data_dependent = self._one_core, set(), False
        twin._session = self._one_core.get(twin._start_one_core)
        twin._binding = twin._session.io_binding()

    def _start_one_core(self) -> Any:
        session, _ = self._second_session()
        session.disable_fallback()
        return session

    def _release(self) -> None:
        if self._graphs is not None:
            raise UnsupportedModelError("a model with cuda_graph cannot be released: its graphs hold its memory")
        self._shared.keep(self._loader)
        self._read, self._written, self._to_adopt = (), [], set()
        del self._binding, self._session

    def _loader(self) -> Callable[[], Any]:
        """A function that starts the session again from the optimised graph."""
        executed, arena, provider = self._kept, self._arena, self._provider
        if executed is None and self._device.kind in _OPEN_DEVICES:
            executed = self._written_graph(in_memory=True)
        source = executed or self._source()

        def start() -> Any:
            options = self._session_options()
            if executed is not None:
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = provider.session(source, options)
            session.disable_fallback()
            if arena is not None:
                arena.hold(session)
            return session

        return start

    def _restore(self) -> None:
        self._session = self._shared.get()
        self._binding = self._session.io_binding()

    def _close(self) -> None:
        with self.scheduling.stream_guard:
            del self._binding, self._session

    def _forget(self) -> None:
        super()._forget()
        self._kept = None
        del self._shared, self._one_core
        if self._profile_folder is not None:
            self._profile_folder.cleanup()
