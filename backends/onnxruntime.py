"""ONNX Runtime: the processor, or an NVIDIA GPU through its CUDA provider.

The tensors of the Infer are bound to the session where they lie (I/O binding), so nothing is copied on the way in or
out. An output whose shape follows from the inputs' by the names of their dimensions is written into its tensor. Any
other is allocated by the runtime in the first run, its tensor looks at that, and later runs write there again; where
the shape turns out to depend on the data, each run allocates anew.
"""

from __future__ import annotations

import contextlib
import functools
import io
import platform
import re
import tempfile
import threading
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ..custom_ops.failures import kernel_failure
from ..custom_ops.ort import register_operators
from ..errors import (
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferenceError,
    ModelFormatError,
    PrecisionUnavailableError,
    UnsupportedModelError,
)
from ..graph.passes import loading_passes, prepared_model
from ..infer import BackendInfo, Infer
from ..options import BackendOptions, Count
from ..precision import describe_layers, keeps_precision
from ..stream import Stream
from ..tensor_spec import TensorSpec
from ._batch_buckets import BatchBuckets, next_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..device import Device
    from ..tensor import Tensor

_DTYPES = {
    "float": "float32", "float16": "float16", "double": "float64", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip
#: Element types that NumPy has not: the type of the same size, and the number that ONNX gives them.
_BITS = {
    "bfloat16": ("uint16", 16), "float8e4m3fn": ("uint8", 17), "float8e4m3fnuz": ("uint8", 18),
    "float8e5m2": ("uint8", 19), "float8e5m2fnuz": ("uint8", 20),
}  # fmt: skip
_X86 = platform.machine().lower() in ("x86_64", "amd64")
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: CUDA graphs that a session makes, over all its clones; later shapes and addresses run without.
GRAPHS = 64
_OPTIMISATION = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """What `load(..., backend="onnxruntime", **options)` takes.

    Attributes:
        threads: threads within an operator; 0 is one a core.
        inter_op_threads: threads across operators, with `execution_mode="parallel"`; 0 is the runtime's choice.
        execution_mode: operators one after another, or side by side where the graph allows it.
        graph_optimization: how far the graph is rewritten on loading.
        allow_spinning: idle threads spin for a while: lower latency, at the cost of a busy processor.
        provider_options: handed to the execution provider as they are.
        session_config: the session's configuration entries, as they are.
        fp16_keep: with precision="fp16" of an FP32 model: names of nodes that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds which should).
        cuda_graph: on an NVIDIA GPU, runs are captured and replayed as CUDA graphs, one for each set of shapes and
            addresses; without effect where an output's shape does not follow from the inputs'. Clones run one at a
            time then.
    """

    threads: Count = 0
    inter_op_threads: Count = 0
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    allow_spinning: bool = True
    provider_options: dict[str, str | int | bool] = {}
    session_config: dict[str, str] = {}
    fp16_keep: list[str] = []
    cuda_graph: bool = False


class _Captures:
    """The CUDA graphs of a session, which the runtime knows by a number that each run gives.

    Without one, all runs would replay the first graph, which reads and writes where that one did.
    """

    def __init__(self) -> None:
        #: Held through a run, for one thread at a time: see `_enqueue()`.
        self.guard = threading.Lock()
        self._made: dict[tuple[Any, ...], Any] = {}

    def options_for(self, memory: tuple[Any, ...]) -> Any:
        """The options of runs that read and write there; nowhere that is known is a run without a graph.

        The runtime gives no graph back before the session ends, so there are only so many.
        """
        found = self._made.get(memory)
        if found is None:
            captured = bool(memory) and len(self._made) < GRAPHS
            found = ort.RunOptions()
            found.add_run_config_entry("gpu_graph_id", str(len(self._made) + 1) if captured else "-1")
            if captured:
                self._made[memory] = found
        return found


class OnnxRuntimeInfer(Infer):
    """An ONNX model on ONNX Runtime. Clones share one session."""

    backend = "onnxruntime"
    Options = Options
    _captures: _Captures | None = None  # of the session, if it makes CUDA graphs
    _guard: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()  # theirs then
    _how: Any = None  # the options of a run
    _buckets: BatchBuckets | None = None  # of the session, on a GPU

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
            _load_libraries()
            # One stream for the session, and so for its clones: their runs go one after another.
            self.stream = Stream(self._device)
            settings = {
                "device_id": str(self._device.index),
                "user_compute_stream": str(self.stream.handle),
                # What is found is as fast as by trying all, the default, which takes five to ten times as long, and
                # that at each change of a shape.
                "cudnn_conv_algo_search": "HEURISTIC",
            }
            if self.options.cuda_graph:
                settings["enable_cuda_graph"] = "1"
                self._captures = _Captures()
                self._guard = self._captures.guard
        elif self.options.cuda_graph:
            raise ConfigError(f"cuda_graph is for device 'cuda', not for {self.device!r}")
        if self._device.kind == "cuda" and self._requested_precision == "fp32":
            settings["use_tf32"] = "0"  # else products are rounded to TF32 on tensor cores
        settings |= {key: str(value) for key, value in self.options.provider_options.items()}
        self._session = self._start(self._source(), provider, settings)
        # The runtime falls back to the processor with a warning at most: look at what it really took.
        taken = self._session.get_providers()
        if taken[0] != provider:
            raise DeviceUnavailableError(
                f"device {self.device!r}: ONNX Runtime could not start its {provider} and took {taken[0]}; "
                "check the driver and the CUDA and cuDNN libraries, or load with device='cpu'"
            )
        self._session.disable_fallback()
        self.input_specs = tuple(self._spec(node, "input") for node in self._session.get_inputs())
        self.output_specs = tuple(self._spec(node, "output") for node in self._session.get_outputs())
        self.metadata = MappingProxyType(dict(self._session.get_modelmeta().custom_metadata_map))
        self._loose: set[str] = set()  # outputs that the runtime allocates
        self._data_dependent = False  # whether it has to do so in each run
        self._check_precision()
        if self.stream is not None:
            self._buckets = BatchBuckets(self.max_batch)
        self._binding = self._session.io_binding()

    def _provider(self) -> str:
        provider = _PROVIDERS.get(self._device.kind, "")
        available = ort.get_available_providers()
        if provider in available and (self._device.kind != "cpu" or self._device.index == 0):
            return provider
        there = [name for name, p in _PROVIDERS.items() if p in available]
        hint = '; for a GPU: pip install "infersdk[gpu]"' if self._device.kind == "cuda" else ""
        raise DeviceUnavailableError(
            f"device {self.device!r}: the installed ONNX Runtime {ort.__version__} has {' and '.join(there)}{hint}"
        )

    def _source(self) -> str | bytes:
        """What to load: the file, or the bytes of what the passes make of it."""
        wanted, keep = self._requested_precision, self.options.fp16_keep
        if keep and wanted != "fp16":
            raise ConfigError(f"fp16_keep is for precision='fp16', not for {wanted!r}")
        passes = loading_passes(self.backend, self._device.kind, wanted, keep_nodes=keep, x86=_X86)
        try:
            return prepared_model(self.model, passes) or str(self.model)
        except UnsupportedModelError as error:
            if wanted is None:
                raise
            raise PrecisionUnavailableError(f"precision {wanted!r}: {error}") from None

    def _start(self, source: str | bytes, provider: str, settings: Mapping[str, str]) -> Any:
        """A session. What the runtime made of the graph is kept in `_executed`, without its weights."""
        self._executed: bytes | None = None
        options = self._session_options()
        try:
            with tempfile.TemporaryDirectory(prefix="infersdk-") as folder:
                file = Path(folder, "executed.onnx")
                options.optimized_model_filepath = str(file)
                for key, value in (("file_name", "weights"), ("min_size_in_bytes", "1024")):
                    options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
                session = ort.InferenceSession(source, options, providers=[(provider, settings)])
                self._executed = file.read_bytes()
                return session
        except Exception:  # the model is at fault, or it is one that cannot be written: that is seen without
            options = self._session_options()
        try:
            return ort.InferenceSession(source, options, providers=[(provider, settings)])
        except (ort_errors.InvalidProtobuf, ort_errors.NoModel) as error:
            raise ModelFormatError(f"{str(self.model)!r} is not an ONNX model, or is corrupt: {_text(error)}") from None
        except ort_errors.InvalidGraph as error:
            raise ModelFormatError(f"the graph of {str(self.model)!r} is not valid: {_text(error)}") from None
        except Exception as error:  # the runtime has no root of its own exceptions
            if re.search("No graph was found|Invalid model", str(error)):  # and no kinds of their own for these
                raise ModelFormatError(f"{str(self.model)!r} is not a valid ONNX model: {_text(error)}") from None
            raise UnsupportedModelError(f"ONNX Runtime cannot load {str(self.model)!r}: {_text(error)}") from None

    def _check_precision(self) -> None:
        wanted = self._requested_precision
        if wanted not in (None, "fp32") and self._executed is None:
            raise PrecisionUnavailableError(
                f"precision {wanted!r}: what ONNX Runtime has made of {self.model.name} could not be written to "
                f"{tempfile.gettempdir()!r}, so nobody can tell that it runs so; make room, or leave precision out"
            )
        if wanted is None or keeps_precision(wanted, self.precision, self.layer_precisions):
            return
        told = describe_layers(self.layer_precisions)
        hint = {
            "int8": "quantise the model, with Q/DQ on both sides of each layer (`infersdk quantize` does)",
            "fp16": f"the {_PROVIDERS[self._device.kind]} has no fp16 kernels for the others",
            "bf16": "it has no bf16 layers; backend 'openvino' may",
        }.get(wanted, "")
        if self.layer_precisions.get("int8") and wanted != "int8":
            hint = "load the model that it was quantised from"
        raise PrecisionUnavailableError(
            f"precision {wanted!r}: ONNX Runtime would run {self.model.name} in {self.precision} on {self.device} "
            f"({told}); {hint}; or leave precision out"
        )

    def _session_options(self) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # fatal: errors come as exceptions, and a library does not print
        options.intra_op_num_threads = self.options.threads
        options.inter_op_num_threads = self.options.inter_op_threads
        options.graph_optimization_level = _OPTIMISATION[self.options.graph_optimization]
        if self.options.execution_mode == "parallel":
            options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        if not self.options.allow_spinning:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        for key, value in self.options.session_config.items():
            options.add_session_config_entry(key, value)
        if self.custom_ops is not None:
            register_operators(options, self.custom_ops, self._device)
        return options

    def _spec(self, node: Any, side: str) -> TensorSpec:
        element = _element(node.type)
        if element in _DTYPES:
            return TensorSpec(node.name, np.dtype(_DTYPES[element]), tuple(node.shape))
        # Two elements to a byte are misread on the way in; bfloat16 and sparse tensors do not come out.
        inward = side == "input"
        refused = element not in ("", "string", *_BITS) or (element == "bfloat16" and not inward)
        if refused or node.type.startswith("sparse"):
            verb, place = ("take", "after") if inward else ("give", "before")
            raise UnsupportedModelError(
                f"{side} {node.name!r} of {self.model.name} is a {node.type}, which ONNX Runtime does not {verb} in "
                f"Python; convert it in the model, by a Cast {place} it"
            )
        return TensorSpec(node.name, np.dtype(object), tuple(node.shape), node.type)

    # ---- running ----

    def _bind(self) -> None:
        with self._guard:
            self._bind_all()

    def _bind_all(self) -> None:
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        where = self._where = (self._device.kind, self._device.index if self._device.kind == "cuda" else 0)
        self._bind_inputs()
        self._written: list[Tensor] = []
        for name, known in self._known_output_shapes().items():
            shape = self._outputs[name].shape if name in self._lent and known is None else known
            if shape is None or name in self._loose:
                self._loose.add(name)
                self._binding.bind_output(name, *where)
            else:
                tensor = self._outputs[name].resize(shape)
                self._binding.bind_output(
                    name, *self._place(tensor), tensor.dtype, shape, self._address(tensor, write=True)
                )
                self._written.append(tensor)
        self._read = tuple(self._inputs.values())
        self._fresh = bool(self._loose)  # the next run allocates
        if self._captures is not None:
            self._how = self._captures.options_for(() if self._loose else self._memory())

    def _memory(self) -> tuple[Any, ...]:
        """Where a run reads and writes, and in which shapes: what a graph holds on to."""
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
            self._binding.bind_input(name, *self._place(tensor), tensor.dtype, tensor.shape, at)

    def _place(self, tensor: Tensor) -> tuple[str, int]:
        """The side of a tensor that is bound: a user's own may live on the host alone."""
        return self._where if tensor.device == self._device else ("cpu", 0)

    def _address(self, tensor: Tensor, *, write: bool) -> int:
        """Where the runtime reads or writes; moves the head."""
        if self.stream is not None and tensor.device == self._device:
            return tensor.device_address(read=not write, write=write, stream=self.stream)
        return tensor.host_ptr(read=not write, write=write)

    def _enqueue(self) -> None:
        # A graph that is captured takes in whatever is queued on the session's one stream meanwhile.
        with self._guard:
            self._run_bound()

    def _run_bound(self) -> None:
        if self.stream is None:
            for tensor in self._read:
                self._address(tensor, write=False)
        else:
            # An input that the graph wants on the other side is copied when it is bound, and not again.
            self._bind_inputs()
        for tensor in self._written:
            self._address(tensor, write=True)
        try:
            self._session.run_with_iobinding(self._binding, self._how)
        except Exception as error:
            if "computed output shape" in str(error) and self._loosen():
                self._bind_all()
                self._run_bound()
                return
            if (failure := kernel_failure(error)) is not None:
                raise failure from failure.__cause__
            raise InferenceError(f"ONNX Runtime failed to run {self.model.name}: {_text(error)}") from None
        if self._fresh:
            self._adopt_outputs()

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = {spec.name: _feed(spec, feeds[spec.name]) for spec in self.input_specs}
        try:
            results = self._session.run(None, given)
        except Exception as error:
            if (failure := kernel_failure(error)) is not None:
                raise failure from failure.__cause__
            raise InferenceError(f"ONNX Runtime failed to run {self.model.name}: {_text(error)}") from None
        return {spec.name: result for spec, result in zip(self.output_specs, results, strict=True)}

    def _loosen(self) -> bool:
        """An output's shape was not what its names or the last run let expect: the runtime allocates it each time."""
        if self._data_dependent:
            return False
        self._data_dependent = True
        self._loose = {spec.name for spec in self.output_specs}
        return True

    def _adopt_outputs(self) -> None:
        """Lets the tensors of loose outputs look at what the runtime has allocated for them."""
        for spec, value in zip(self.output_specs, self._binding.get_outputs(), strict=True):
            if spec.name in self._loose:
                self._adopt(spec.name, value.data_ptr(), tuple(value.shape()), lender=value)
        # The session writes the next results to the same place unless it is told to allocate anew.
        self._fresh = self._data_dependent
        for name in self._loose:
            if self._fresh:
                self._binding.bind_output(name, *self._where)
            else:
                self._written.append(self._outputs[name])

    # ---- the rest ----

    @property
    def concurrency(self) -> int:
        return 1 if self._captures is not None else super().concurrency

    @functools.cached_property
    def layer_precisions(self) -> Mapping[str, int]:
        """Read back from the graph that the runtime has made of the model, in which it shows what fell back."""
        from ..graph.files import parse_model, read_model
        from ..graph.precision import layer_precisions

        # What the runtime cannot write is taken as the model is written.
        model = read_model(self.model) if self._executed is None else parse_model(self._executed)
        return MappingProxyType(layer_precisions(model, executed=True))

    @functools.cached_property
    def _main_precision(self) -> str:
        from ..graph.precision import main_precision

        return main_precision(self.layer_precisions)

    @property
    def precision(self) -> str:
        return self._main_precision

    def bucket_batch(self, n: int) -> int:
        """On a GPU, convolutions are planned anew whenever the batch is another than in the run before: a tenth of a
        second and more. A graph that was captured is past that.
        """
        if self._buckets is None or (self.max_batch is not None and n > self.max_batch):
            return n
        return next_size(n, self.max_batch) if self._captures is not None else self._buckets.size_for(n)

    def _clone(self, twin: OnnxRuntimeInfer) -> None:
        twin._binding = twin._session.io_binding()

    def _close(self) -> None:
        del self._binding, self._session


@functools.cache
def _load_libraries() -> None:
    """Those of CUDA and cuDNN that were installed as packages, where the system's loader does not look for them."""
    if hasattr(ort, "preload_dlls"):  # since 1.21
        # It prints what it does not find, and a library does not print. What is missing shows when a session starts.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def _element(kind: str) -> str:
    """The type of the elements of a `tensor(...)`; nothing for all that is no tensor."""
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    return match[1] if match else ""


def _feed(spec: TensorSpec, value: Any) -> Any:
    """What the session takes: strings as objects, types that NumPy has not as OrtValues, all else as it is."""
    element = _element(spec.kind)
    if element == "string":
        texts = np.asarray(value)
        if not all(isinstance(text, str) for text in texts.flat):  # it would read past the end of bytes
            raise DTypeError(f"input {spec.name!r} takes strings, not {texts.dtype}; decode bytes, and leave no None")
        return texts.astype(object)
    if element in _BITS:
        array, (bits, number) = np.asarray(value, order="C"), _BITS[element]
        if array.dtype != bits and array.dtype.name.replace("_", "") != element:
            raise DTypeError(
                f"input {spec.name!r} takes {element}, not {array.dtype}; "
                f"give an array of ml_dtypes, or the bits as {bits}"
            )
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _text(error: Exception) -> str:
    """The runtime's message in one line, without its code, the file's name, and the place in its own sources."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    return re.sub(r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)? ", "", text)
