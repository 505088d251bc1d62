"""ONNX Runtime: the processor, or an NVIDIA GPU through its CUDA provider.

The session reads and writes the memory of the Infer's tensors (I/O binding), so nothing is copied on the way in or out.
An output whose shape follows from the inputs' by the names of their dimensions is written into its tensor. Any other is
allocated by the runtime in the first run, its tensor looks at that memory, and later runs write there again. Where the
shape turns out to depend on the data, each run allocates again.
"""

from __future__ import annotations

import functools
import platform
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from ..custom_ops.failures import raise_kernel_failure
from ..custom_ops.ort import register_operators
from ..errors import (
    ConfigError,
    DeviceUnavailableError,
    InferenceError,
    ModelFormatError,
    PrecisionUnavailableError,
    UnsupportedModelError,
)
from ..graph.info import onnx_info
from ..graph.passes import NameNodes, cached_model, loading_passes
from ..infer import BackendInfo
from ..memory_limit import tensor_nbytes
from ..ops.batch import available_processors
from ..precision import describe_layers, keeps_precision
from ..releasing import SharedRuntime
from ..stream import Stream
from ._batch_buckets import BatchBuckets, next_size
from ._onnxruntime.cuda_graphs import CudaGraphs
from ._onnxruntime.memory import Arena
from ._onnxruntime.options import Options, session_options
from ._onnxruntime.profiling import profile_session
from ._onnxruntime.rows import RowMemory, SessionRows, UnchangedFile, may_split, start_one_thread
from ._onnxruntime.session import load_libraries, message_of, metadata_of, start_session
from ._onnxruntime.values import feed, spec_of
from ._row_runs import RowRuns, RunsRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..device import Device
    from ..executed_layers import LayerProfile
    from ..memory_limit import MemoryBudget
    from ..tensor import Tensor

_X86 = platform.machine().lower() in ("x86_64", "amd64")
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxRuntimeInfer(RunsRows):
    """An ONNX model on ONNX Runtime. Clones share one session, and one of one thread where batches are split."""

    backend = "onnxruntime"
    Options = Options
    formats = ("onnx", "ort")
    _graphs: CudaGraphs | None = None  # of the session, if it captures runs
    _run_options: Any = None
    _profile_folder: tempfile.TemporaryDirectory[str] | None = None  # where the profiler of the session writes
    _buckets: BatchBuckets | None = None  # of the session, on a GPU
    _arena: Arena | None = None  # with a memory_limit
    _kept: bytes | None = None  # the graph that the runtime made, weights included, where it is needed again

    @classmethod
    def probe(cls) -> BackendInfo:
        providers = ort.get_available_providers()
        return BackendInfo(ort.__version__, tuple(name for name, p in _PROVIDERS.items() if p in providers))

    @classmethod
    def runs_custom_ops(cls, device: Device) -> bool:
        return True

    # ---- loading ----

    def _load(self) -> None:
        provider = self._provider()
        settings: dict[str, str] = {}
        if self._device.kind == "cuda":
            load_libraries()
            # One stream for the session, and so for its clones: their runs go one after another.
            self.stream, self.shares_stream = Stream(self._device), True
            settings = {
                "device_id": str(self._device.index),
                "user_compute_stream": str(self.stream.handle),
                # The default, trying every algorithm, finds none that is faster, and takes five to ten times as long at
                # each change of a shape.
                "cudnn_conv_algo_search": "HEURISTIC",
            }
            if self.options.cuda_graph:
                settings["enable_cuda_graph"] = "1"
                self._graphs = CudaGraphs()
                self.stream_guard = self._graphs.guard
        elif self.options.cuda_graph:
            raise ConfigError(f"cuda_graph is for device 'cuda', not for {self.device!r}")
        if self._device.kind == "cuda" and self._requested_precision == "fp32":
            settings["use_tf32"] = "0"  # else products are rounded to TF32 on tensor cores
        if self.options.profiling:
            self._profile_folder = tempfile.TemporaryDirectory(prefix="infersdk-")
        given = {key: str(value) for key, value in self.options.provider_options.items()}
        unchanged = UnchangedFile(self.model)
        source = self._source()
        if self.memory_budget is not None:
            self._arena = self._arena_for(source, given, self.memory_budget)
            settings |= self._arena.settings
        settings |= given
        self._start_session(source, provider, settings)
        # The runtime falls back to the processor with no more than a warning: look at what it really uses.
        taken = self._session.get_providers()
        if taken[0] != provider:
            raise DeviceUnavailableError(
                f"device {self.device!r}: ONNX Runtime could not start its {provider} and uses {taken[0]}; "
                "check the driver and the CUDA and cuDNN libraries, or load with device='cpu'"
            )
        self._session.disable_fallback()
        self._shared = SharedRuntime(self._session)
        try:
            self.input_specs = tuple(spec_of(node, "input", self.model.name) for node in self._session.get_inputs())
            self.output_specs = tuple(spec_of(node, "output", self.model.name) for node in self._session.get_outputs())
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{str(self.model)!r} has a tensor whose name is not UTF-8: {error}") from None
        self.metadata = MappingProxyType(metadata_of(self._session, self.model))
        self._allocated: set[str] = set()  # outputs whose shapes only a run shows
        self._data_dependent = False  # whether each run may show others
        self._check_precision()
        if self.stream is not None:
            self._buckets = BatchBuckets(self.max_batch)
        else:
            self._rows = self._row_runs(unchanged)
        self._row_memory = RowMemory()
        self._binding = self._session.io_binding()

    def _start_session(self, source: str | bytes, provider: str, settings: dict[str, str]) -> None:
        arena = self._arena
        try:
            self._session, self._executed = start_session(
                source, str(self.model), self._session_options, provider, settings,
                keep_in_memory=self.model.origin is None or arena is not None,
            )  # fmt: skip
        except UnsupportedModelError as error:
            if arena is not None and (full := arena.error_of(error)) is not None:
                raise full from None
            raise
        self._providers = provider, settings
        if arena is not None:
            arena.hold(self._session)
            self._kept = self._executed  # a second session would exceed the limit

    def _arena_for(self, source: str | bytes, settings: dict[str, str], budget: MemoryBudget) -> Arena:
        """The arena, if weights and tensors leave room for it; before anything is allocated."""
        if not self.model.is_onnx:
            return Arena(budget, 0, len(self.model.read()), settings)
        from ..graph.files import parse_model, read_model
        from ..graph.weights import weights_size

        info = onnx_info(self.model)
        tensors = sum(tensor_nbytes(spec, self.max_batch) for spec in (*info.inputs, *info.outputs))
        weights = weights_size(parse_model(source) if isinstance(source, bytes) else read_model(self.model))
        return Arena(budget, self.concurrency * tensors, weights, settings)

    def _session_options(self) -> Any:
        folder = self._profile_folder
        options = session_options(self.options, Path(folder.name) if folder is not None else None)
        if self.custom_ops is not None:
            register_operators(options, self.custom_ops, self._device)
        return options

    def _provider(self) -> str:
        provider = _PROVIDERS.get(self._device.kind, "")
        available = ort.get_available_providers()
        if provider in available and (self._device.kind != "cpu" or self._device.index == 0):
            return provider
        there = [name for name, p in _PROVIDERS.items() if p in available]
        hint = '; for a GPU: pip install "infersdk[gpu]"' if self._device.kind == "cuda" else ""
        raise DeviceUnavailableError(
            f"device {self.device!r} is not supported; the installed ONNX Runtime {ort.__version__} runs on: "
            f"{', '.join(there)}{hint}"
        )

    def _source(self) -> str | bytes:
        """What to load: the file, or the bytes of what the passes make of it."""
        wanted = self._requested_precision
        if self.options.fp16_keep and wanted != "fp16":
            raise ConfigError(f"fp16_keep is for precision='fp16', not for {wanted!r}")
        passes = self._passes()
        if self.options.profiling:
            passes.append(NameNodes())  # the profiler reports nodes by their names
        try:
            return cached_model(self.model, passes) or self.model.content or str(self.model)
        except UnsupportedModelError as error:
            if wanted is None:
                raise
            raise PrecisionUnavailableError(f"precision {wanted!r}: {error}") from None

    def _passes(self) -> list[Any]:
        wanted, keep = self._requested_precision, self.options.fp16_keep
        return [*loading_passes(self.backend, self._device.kind, wanted, keep_nodes=keep, x86=_X86)]

    def _row_runs(self, unchanged: UnchangedFile) -> RowRuns | None:
        start = functools.partial(
            start_one_thread, self.model, self._passes(), self.options, self.custom_ops, self._device, self._providers,
            unchanged,
        )  # fmt: skip
        return self._rows_on(available_processors(), start) if may_split(self.options) else None

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        if wanted not in (None, "fp32") and self._executed is None:
            raise PrecisionUnavailableError(
                f"precision {wanted!r} cannot be verified: ONNX Runtime could not write the graph that it made of "
                f"{self.model.name} to {tempfile.gettempdir()!r}; free some space there, or leave precision out"
            )
        if wanted is None or keeps_precision(wanted, self.precision, self.layer_precisions):
            return
        is_quantized = bool(self.layer_precisions.get("int8"))
        hint = _precision_hint(wanted, _PROVIDERS[self._device.kind], is_quantized=is_quantized)
        raise PrecisionUnavailableError(
            f"precision {wanted!r}: ONNX Runtime would run {self.model.name} in {self.precision} on {self.device} "
            f"({describe_layers(self.layer_precisions)}); {hint}; or leave precision out"
        )

    # ---- running ----

    def _bind(self) -> None:
        with self.stream_guard:
            self._bind_all()

    def _bind_all(self) -> None:
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        where = self._where = (self._device.kind, self._device.index if self._device.kind == "cuda" else 0)
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
                shape = tensor.shape if shape is None else shape  # noqa: PLW2901 - the user knows what comes
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
        """Where a run reads and writes, and in which shapes: a graph is captured for these."""
        return tuple(
            (name, tensor.shape, self._address(tensor, write=side is self._outputs))
            for side in (self._inputs, self._outputs)
            for name, tensor in side.items()
        )

    def _bind_inputs(self) -> None:
        for name, tensor in self._inputs.items():
            at = self._address(tensor, write=False)
            if self.stream is not None:
                self.stream.synchronize()  # the runtime may copy now, and not on our stream
            self._binding.bind_input(name, *self._side(tensor), tensor.dtype, tensor.shape, at)

    def _side(self, tensor: Tensor) -> tuple[str, int]:
        """The side of a tensor that is bound: a user's tensor may live only on the host."""
        return self._where if tensor.device == self._device else ("cpu", 0)

    def _address(self, tensor: Tensor, *, write: bool) -> int:
        """Where the runtime reads or writes; moves the head."""
        if self.stream is not None and tensor.device == self._device:
            return tensor.device_ptr(read=not write, write=write, stream=self.stream)
        return tensor.host_ptr(read=not write, write=write)

    def _enqueue(self) -> None:
        if self._graphs is None:  # 0.1 us less than with a guard that guards nothing
            self._run_bound()
            return
        # A graph that is captured takes in whatever is queued on the session's one stream meanwhile.
        with self.stream_guard:
            self._run_bound()

    def _run_bound(self) -> None:
        if self.stream is None:
            for tensor in self._read:
                tensor.host_ptr()
            for tensor in self._written:
                tensor.host_ptr(read=False, write=True)
        else:
            # An input that the graph wants on the other side is copied only when it is bound.
            self._bind_inputs()
            for tensor in self._written:
                self._address(tensor, write=True)
        try:
            self._session.run_with_iobinding(self._binding, self._run_options)
        except Exception as error:
            if "computed output shape" in str(error) and self._allocate_outputs():
                self._bind_all()
                self._run_bound()
                return
            raise_kernel_failure(error)
            if self._arena is not None and (full := self._arena.error_of(error)) is not None:
                raise full from None
            raise InferenceError(f"ONNX Runtime failed to run {self.model.name}: {message_of(error)}") from None
        if self._to_adopt:
            self._adopt_outputs()
        for source, target in self._passed_through:
            target.resize(source.shape).copy_from(source)

    def _row_runner_on(self, runtime: Any) -> SessionRows:
        return SessionRows(runtime)

    def _whole_runner(self) -> Any:
        return self._session

    def _row_error(self, error: Exception) -> Exception:
        raise_kernel_failure(error)
        return InferenceError(f"ONNX Runtime failed to run {self.model.name}: {message_of(error)}")

    def _own_row_output(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._allocated or name in self._lent:
            super()._own_row_output(name, shape)
        else:
            self._row_memory.lend(name, self._outputs[name], shape)

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = {spec.name: feed(spec, feeds[spec.name]) for spec in self.input_specs}
        try:
            results = self._session.run(None, given)
        except Exception as error:
            raise_kernel_failure(error)
            raise InferenceError(f"ONNX Runtime failed to run {self.model.name}: {message_of(error)}") from None
        return {spec.name: result for spec, result in zip(self.output_specs, results, strict=True)}

    def _allocate_outputs(self) -> bool:
        """An output's shape was not the one of its names or of the last run: from now on each run allocates all."""
        if self._data_dependent:
            return False
        self._data_dependent = True
        self._allocated = {spec.name for spec in self.output_specs}
        return True

    def _adopt_outputs(self) -> None:
        """Lets the tensors of outputs look at what the runtime has allocated for them."""
        for spec, value in zip(self.output_specs, self._binding.get_outputs(), strict=True):
            if spec.name in self._to_adopt:
                self._adopt(spec.name, value.data_ptr(), tuple(value.shape()), lender=value)
        if self._data_dependent:
            for name in self._to_adopt:  # without this the session writes the next results to the same memory
                self._binding.bind_output(name, *self._where)
        else:
            self._written += [self._outputs[name] for name in self._to_adopt]
            self._to_adopt = set()

    # ---- the rest ----

    @property
    def concurrency(self) -> int:
        return 1 if self._graphs is not None else super().concurrency

    @functools.cached_property
    def layer_precisions(self) -> Mapping[str, int]:
        """Read back from the graph that the runtime made of the model, which shows what it really runs."""
        from ..graph.files import parse_model, read_model
        from ..graph.precision import layer_precisions

        # Where the runtime could not write its graph, the model as it is written.
        model = read_model(self.model) if self._executed is None else parse_model(self._executed)
        if not self.options.profiling:
            self._executed = self._executed and b""  # it is not needed any more, and may hold weights
        return MappingProxyType(layer_precisions(model, executed=True))

    @functools.cached_property
    def _main_precision(self) -> str:
        from ..graph.precision import main_precision

        return main_precision(self.layer_precisions)

    @property
    def precision(self) -> str:
        return self._main_precision

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.executed_layers.ReportsLayers`. A session can be profiled once."""
        return profile_session(self, runs, self._session, self._executed, self._profile_folder)

    def bucket_batch(self, n: int) -> int:
        """On a GPU, convolutions are planned again whenever the batch differs from the last run's, which takes a tenth
        of a second and more. A run that was captured needs no plan.
        """
        if self._buckets is None or (self.max_batch is not None and n > self.max_batch):
            return n
        return next_size(n, self.max_batch) if self._graphs is not None else self._buckets.size_for(n)

    def batch_sizes(self, largest: int) -> list[int]:
        if self._buckets is None:
            return super().batch_sizes(largest)
        return sorted({next_size(n, largest) for n in range(1, largest + 1)})  # asking the buckets would change them

    def _clone(self, twin: OnnxRuntimeInfer) -> None:
        twin._row_runner, twin._row_memory = None, RowMemory()
        twin._binding = twin._session.io_binding()

    def _release(self) -> None:
        if self._graphs is not None:
            raise UnsupportedModelError("a model with cuda_graph cannot be released: its graphs hold its memory")
        self._shared.keep(self._loader)
        self._read, self._written, self._to_adopt = (), [], set()
        self._row_runner, self._row_memory = None, RowMemory()
        del self._binding, self._session

    def _loader(self) -> Callable[[], Any]:
        """What starts the session again, from the graph that the runtime made of the model."""
        source, executed, arena = self._source(), self._kept, self._arena
        if executed is None:
            _, executed = start_session(
                source, str(self.model), self._session_options, *self._providers, keep_in_memory=True
            )

        def start() -> Any:
            options = self._session_options()
            if executed is not None:
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = ort.InferenceSession(executed or source, options, providers=[self._providers])
            session.disable_fallback()
            if arena is not None:
                arena.hold(session)
            return session

        return start

    def _restore(self) -> None:
        self._session = self._shared.get()
        self._binding = self._session.io_binding()

    def _close(self) -> None:
        self._row_runner = self._rows = None
        del self._binding, self._session
        if self._profile_folder is not None:
            self._profile_folder.cleanup()


def _precision_hint(wanted: str, provider: str, *, is_quantized: bool) -> str:
    """What to do where a model does not run in the precision that was asked for."""
    if is_quantized and wanted != "int8":
        return "load the model that it was quantised from"
    return {
        "int8": "quantise the model, with Q/DQ on both sides of each layer (`infersdk quantize` does)",
        "fp16": f"the {provider} has no fp16 kernels for the others",
        "bf16": "it has no bf16 layers; backend 'openvino' may",
    }.get(wanted, "")
