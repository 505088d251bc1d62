"""OpenVINO: Intel processors, GPUs and NPUs; it reads ONNX, and OpenVINO's own IR (an .xml with its .bin).

The infer request reads and writes the memory of the Infer's tensors, without copies. An output whose shape follows from
the shapes of the inputs is written into its tensor. The runtime allocates the outputs whose shapes depend on the data,
and their tensors use that memory.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import openvino as ov

from ..core.backend import SharedRuntime
from ..core.cache import Cache, key_of
from ..core.executed_layers import check_runs
from ..core.formats import FORMATS
from ..core.processors import available_processors
from ..core.target import describe_layers, keeps_precision
from ..core.text import logger
from ..errors import (
    ConfigError,
    DeviceUnavailableError,
    InferenceError,
    ModelFormatError,
    PrecisionUnavailableError,
    UnsupportedModelError,
    exhausted,
)
from ..graph.digest import model_digest
from ..graph.files import private_copy
from ..graph.passes import cached_model, loading_passes, pass_keys
from ..graph.precision import main_precision
from ..infer import BackendInfo, Declaration, Infer, Scheduling
from ._openvino.profiling import profile_model
from ._openvino.runtime import (
    FAILURES,
    Options,
    can_export,
    capabilities,
    compiles,
    core,
    devices,
    executed_precisions,
    execution_devices,
    has_rope,
    offered,
    properties_of,
    readers,
    reason,
)
from ._openvino.signature import Signature, feed, writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ..core.executed_layers import LayerProfile
    from ..core.tensor_spec import TensorSpec
    from ..graph.passes import Pass

_log = logger("infersdk.openvino")

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
#: The formats of the compiled models that the cache keeps: those whose files are known.
_KEPT = tuple(FORMATS[key] for key in ("onnx", "openvino", "tensorflow-graph", "tflite"))


class _Compiled:
    """A compiled model, which clones share until a run fails.

    After a run with shapes that fail inside the network, the CPU plugin of OpenVINO 2026.4 is in an undefined state. In
    every infer request, it fails again with the shapes of earlier runs, or returns wrong results. A model that is
    compiled again is not affected.

    Attributes:
        one_thread: whether runs use one thread of the processor.
    """

    def __init__(self, make: Callable[..., Any], model: Any, target: str, properties: dict[str, Any]) -> None:
        self.compiled = make(model, target, properties)
        self.one_thread = target == "CPU" and self.compiled.get_property("INFERENCE_NUM_THREADS") == 1
        self.runs = 0
        self.failed = False


class OpenVinoInfer(Infer):
    """A model on OpenVINO. Clones are infer requests of one compiled model; those for one core, of a second one."""

    backend = "openvino"
    declaration = Declaration(
        probe=lambda: BackendInfo(ov.get_version().split("-")[0], (*devices(), "auto")),
        options=Options,
        formats=("onnx", "openvino", "tensorflow-graph", "tensorflow-saved-model", "tflite", "paddle"),
        runs_custom_ops=lambda device: device.kind == "cpu",
    )

    # ---- loading ----

    def _load(self) -> None:
        target = self._target()
        self._core = self._own_core()
        properties = properties_of(self.options, target)
        cache = Cache.of_model(self.model, self.options)
        if cache is None or (key := self._key(target, properties)) is None:
            self._load_model(target, properties)
        else:
            self._load_cached(cache, key, target, properties)
        self._compiled = self._current.compiled
        self._check_device(target)
        self.metadata = MappingProxyType(self._signature.metadata)
        self.input_specs, self.output_specs = self._signature.inputs, self._signature.outputs
        self._fails_by_values = self.custom_ops is not None or self._signature.fails_by_values
        self._passed_on = self._signature.inputs_passed_on(self._compiled)
        self._layers = executed_precisions(self._compiled)
        self._check_precision()
        self._request = self._compiled.create_infer_request()
        self._shared = SharedRuntime(self._current)
        self._cloned = False
        self._runtime_allocated: set[str] = set()  # outputs whose shape turned out to depend on the data
        cores = self._count_cores(target)
        self._schedule(cores)
        self._one_core = SharedRuntime[_Compiled]()
        *arguments, properties = self._arguments
        streams = {"NUM_STREAMS": cores, "INFERENCE_NUM_THREADS": cores}
        self._one_core_arguments = *arguments, properties | streams

    def _key(self, target: str, properties: dict[str, Any]) -> str | None:
        """The key in the cache; None if the device exports no compiled models, or the model's files are not known.

        It has the versions of custom operators, not their code: such models are kept only in a folder of the user.
        """
        by_version = self.custom_ops is not None and self.options.cache_dir is None
        if by_version or not can_export(target) or self.model.format not in _KEPT:
            return None
        parts = {
            "schema": 4,
            "backend": self.backend,
            "version": ov.get_version(),
            "device": [core().get_property(target, name) for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")],
            "target": target,
            "model": model_digest(self.model),
            "passes": pass_keys([*self.model.passes, *self._passes()]),
            "custom_ops": [(op.domain, op.name, op.version) for op in (self.custom_ops or {}).values()],
            "precision": self._requested_precision,
            "properties": properties,
        }
        return key_of(parts)

    def _export(self) -> bytes:
        """The compiled model as OpenVINO writes it; empty if that cannot be used."""
        compiled, why = self._current.compiled, "OpenVINO does not write its operation RoPE completely"
        try:
            if not has_rope(compiled):
                data: bytes = compiled.export_model().getvalue()
                return data
        except FAILURES as error:
            why = reason(error)
        _log.info("%s: the compiled model is not kept: %s", self.model.name, why)
        return b""

    def _load_cached(self, cache: Cache, key: str, target: str, properties: dict[str, Any]) -> None:
        """Imports the compiled model from the cache, which compiles less. The first load of a model writes it."""

        def make() -> tuple[bytes, dict[str, Any]]:
            self._load_model(target, properties)
            return self._export(), msgspec.to_builtins(self._signature, enc_hook=str)

        about: dict[str, Any] = {"kind": "compiled model", "backend": self.backend, "label": self.model.name}
        data, details, stored = cache.get_or_make(key, make, **about)
        if not stored:
            return
        if not data:  # it must be compiled each time
            self._load_model(target, properties)
            return
        try:
            self._signature = msgspec.convert(details, Signature, dec_hook=lambda _, name: np.dtype(name))
            self._arguments = self._core.import_model, _blob(data), target, self._with_precision(target, properties)
            self._current = _Compiled(*self._arguments)
        except (*FAILURES, msgspec.ValidationError) as error:  # for example after a change of the driver
            self._raise_cause(error)
            _log.info("%s: OpenVINO refuses the compiled model in the cache: %s", self.model.name, error)
            cache.remove(key)
            self._load_model(target, properties)
        else:
            self._origin = "cached"

    def _load_model(self, target: str, properties: dict[str, Any]) -> None:
        """Reads and compiles the model."""
        model = self._read()
        try:
            self._signature = Signature.read(model, self.model)
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{str(self.model)!r} has a tensor whose name is not UTF-8: {error}") from None
        properties = self._with_precision(target, properties)
        self._current = _Compiled(self._compile, model, target, properties)
        self._signature.settle(self._current.compiled)
        self._arguments = self._core.compile_model, model, target, properties

    def _with_precision(self, target: str, properties: dict[str, Any]) -> dict[str, Any]:
        # By default plugins compute in a narrower type than that of the model: bfloat16 on processors with AMX, float16
        # on GPUs. So the hint is always given. It does not change the quantised layers of an int8 model.
        wanted, written = self._requested_precision, self._signature.written
        asked = wanted or written or ""
        if wanted is None and asked in ("fp16", "bf16") and asked not in offered(target):
            asked = "fp32"  # the CPU plugin replaces an unsupported hint, by bfloat16 for instance
        result = properties | {"INFERENCE_PRECISION_HINT": _HINTS.get(asked, "f32")}
        if written == "int8" and target == "CPU":
            # OpenVINO 2026.4 computes two quantised matrix products in one step, incorrectly. AUTO drops the property.
            result.setdefault("SNIPPETS_MODE", "DISABLE")
        _log.debug("%s: written in %s, compiled for %s with %s", self.model.name, written, target, result)
        return result

    def _own_core(self) -> Any:
        if self.custom_ops is None:
            return core()
        from ._openvino.custom_ops import core_with

        return core_with(self.custom_ops)

    def _raise_cause(self, error: Exception) -> None:
        """Raises the failure of a custom operator, or an OutOfMemoryError, where the runtime's exception is one."""
        if self.custom_ops is not None:
            from ._openvino.custom_ops import raise_kernel_failure

            raise_kernel_failure(error, self.model)
        if (full := exhausted(reason(error), self.model.name)) is not None:
            raise full from None

    def _count_cores(self, target: str) -> int:
        """The cores of a run, where the runtime chooses streams and threads; else 0."""
        options = self.options
        given = options.streams or options.threads or options.profiling or options.performance_hint != "latency"
        if target != "CPU" or given or not self._has_free_rows:
            return 0
        cores = min(int(self._compiled.get_property("INFERENCE_NUM_THREADS")), available_processors())
        return cores if cores > 1 else 0

    def _schedule(self, one_core_clones: int) -> None:
        """The compiled model runs as many infer requests side by side as it has streams."""
        streams = int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.scheduling = Scheduling(concurrency=streams, one_core_clones=one_core_clones)

    def _target(self) -> str:
        """OpenVINO's name of the requested device."""
        kind, index = self._device.kind, self._device.index
        if kind == "cpu" and index == 0:
            return "CPU"  # listing the devices loads the plugins of all of them
        there = devices()
        if kind == "auto" and index == 0:
            return "AUTO"
        if str(self._device) in there:
            return f"{kind.upper()}.{index}"
        hint = ""
        if kind == "cuda":
            hint = "; for an NVIDIA GPU use backend='tensorrt' or 'onnxruntime'"
        elif kind in ("gpu", "npu"):
            hint = f"; if the machine has one, its {kind.upper()} driver is missing"
        raise DeviceUnavailableError(
            f"device {str(self._device)!r} is not supported; OpenVINO {ov.get_version().split('-')[0]} runs here on: "
            f"{', '.join(there)} (and auto, which picks one){hint}"
        )

    def _read(self) -> Any:
        if self.model.path is not None:
            self._check_weights(self.model.path)
            self._check_readable(self.model.path)
        elif self.model.format is FORMATS["openvino"]:
            return self._read_ir()
        content = cached_model(self.model, self._passes())
        try:
            model = self._core.read_model(content or self.model.content or self._path_to_read())
        except FAILURES as error:
            self._raise_cause(error)
            text = reason(error)
            if "OpConversionFailure" in text:
                return self._read_content(text)
            if "outside the base directory" in text and self.model.path is not None:
                return self._read_copy()
            hint = ""
            if "weights" in text and self.model.path is not None and self.model.suffix == ".xml":
                hint = f"; its weights belong next to it, in {self.model.path.with_suffix('.bin').name!r}"
            raise ModelFormatError(f"{str(self.model)!r} is not a valid model: {text}{hint}") from None
        if not model.outputs:
            raise ModelFormatError(f"{str(self.model)!r} is not a valid model: it has no outputs")
        return model

    def _passes(self) -> Iterator[Pass]:
        return loading_passes(self.backend, self._device.kind, self._requested_precision)

    def _path_to_read(self) -> str:
        """The path of the file, or of the folder of a SavedModel."""
        if self.model.path is not None and self.model.format is FORMATS["tensorflow-saved-model"]:
            return str(self.model.path.parent)
        return str(self.model)

    def _check_readable(self, path: Path) -> None:
        # `Core.read_model` tries every format, and some readers print their errors.
        key = self.model.format.key if self.model.format else None
        if not any(reader.supported(self._path_to_read()) for reader in readers(key)):
            raise ModelFormatError(
                f"{str(path)!r} is not a model of ONNX, TensorFlow or PaddlePaddle, nor an OpenVINO IR (.xml with its "
                ".bin), or is corrupt; was the download cut off?"
            )

    def _check_weights(self, path: Path) -> None:
        """Raises ModelFormatError if the weights of an IR are a pipe, since OpenVINO would wait for it."""
        weights = path.with_suffix(".bin")
        if self.model.format is FORMATS["openvino"] and weights.exists() and not weights.is_file():
            raise ModelFormatError(f"the weights {str(weights)!r} are not a regular file")

    def _read_ir(self) -> Any:
        """An IR in memory. `external_data` names the file of its weights."""
        weights = self.model.external_data
        if weights is None or not weights.is_file():
            raise ModelFormatError(
                f"the {self.model} is an OpenVINO IR; name the file of its weights: external_data='model.bin'"
            )
        try:
            return self._core.read_model(self.model.read(), weights.read_bytes())
        except (*FAILURES, OSError) as error:
            self._raise_cause(error)
            raise ModelFormatError(f"the {self.model} is not a valid model: {reason(error)}") from None

    def _read_content(self, failure: str) -> Any:
        """The model from its bytes, after reading the file has failed.

        OpenVINO has different readers for files and for bytes. The reader for files does not convert some operators:
        in OpenVINO 2026.4, those that the ONNX standard defines by functions.
        """
        try:
            return self._core.read_model(self.model.read())
        except FAILURES as error:  # for example with external weights
            self._raise_cause(error)
            raise UnsupportedModelError(f"OpenVINO cannot read {str(self.model)!r}: {failure}") from None

    def _read_copy(self) -> Any:
        """The model from a copy of its files: OpenVINO refuses weights that are links to files of another folder, as in
        the cache of Hugging Face.
        """
        try:
            with private_copy(self.model) as path:
                return self._core.read_model(path)
        except FAILURES as error:
            self._raise_cause(error)
            raise ModelFormatError(f"{str(self.model)!r} is not a valid model: {reason(error)}") from None

    def _compile(self, model: Any, target: str, properties: dict[str, Any]) -> Any:
        try:
            return self._core.compile_model(model, target, properties)
        except FAILURES as error:
            self._raise_cause(error)
            given = self.options.config
            if given and compiles(model, target, {k: v for k, v in properties.items() if k not in given}):
                raise ConfigError(
                    f"options of backend 'openvino': {target} does not take config {given}: {reason(error)}"
                ) from None
            wide, wanted = properties | {"INFERENCE_PRECISION_HINT": "f32"}, self._requested_precision
            if wanted in ("fp16", "bf16") and compiles(model, target, wide):
                raise PrecisionUnavailableError(
                    f"precision {wanted!r}: OpenVINO compiles {self.model.name} for {target} without it, and fails "
                    f"with it: {reason(error)}; leave precision out"
                ) from None
            raise UnsupportedModelError(
                f"OpenVINO cannot compile {str(self.model)!r} for {target}: {reason(error)}"
            ) from None

    def _check_device(self, target: str) -> None:
        taken = execution_devices(self._compiled)
        if target != "AUTO" and taken != [str(self._device)]:
            raise DeviceUnavailableError(
                f"device {str(self._device)!r}: OpenVINO used {', '.join(taken) or 'no device'} instead; "
                "check the driver, or load with that device"
            )

    def _check_precision(self) -> None:
        wanted, written, runs = self._requested_precision, self._signature.written, self.precision
        if wanted is None:
            if written and ((runs in ("fp16", "bf16") and runs != written) or (runs == "int8" != written)):
                raise PrecisionUnavailableError(
                    f"{self.model.name} is written in {written}, and {self.device} computes it in {runs}; "
                    f"ask for precision={runs!r} if that is good enough"
                )
        elif not keeps_precision(wanted, runs, self._layers):
            kept = keeps_precision(runs, runs, self._layers)
            hint = f"leave precision out, or ask for {runs!r}" if kept else "leave precision out"
            if wanted == "int8" != written:
                hint = "quantise the model first (NNCF, or ONNX Runtime's QDQ), or leave precision out"
            raise PrecisionUnavailableError(
                f"precision {wanted!r}: {self.model.name} would run in {runs} on {self.device} "
                f"({describe_layers(self._layers)}), which offers {', '.join(capabilities(self._compiled))}; {hint}"
            )

    def _known_output_shapes(self) -> dict[str, tuple[int, ...] | None]:
        return self._signature.output_shapes({name: tensor.shape for name, tensor in self._inputs.items()})

    # ---- running ----

    def _bind(self) -> None:
        self._unchecked: list[tuple[Any, tuple[int, ...]]] = []
        self._runtime_outputs: dict[str, Any] = {}  # the runtime's side of the outputs that it allocates
        # The request keeps only addresses; this keeps the memory.
        self._kept = [writable(tensor) for tensor in self._inputs.values()]
        for index, array in enumerate(self._kept):
            self._request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        written = []
        for index, (name, shape) in enumerate(self._known_output_shapes().items()):
            spec = self.output_specs[index]
            if name in self._passed_on:
                continue
            if shape is None or name in self._runtime_allocated:
                self._runtime_allocated.add(name)
                self._give_output(index, spec)
            else:
                tensor = self._outputs[name].resize(shape)
                self._kept.append(tensor.numpy(writable=True))
                view = ov.Tensor(self._kept[-1], shared_memory=True)
                self._request.set_output_tensor(index, view)
                written.append(tensor)
                if spec.is_dynamic:
                    self._unchecked.append((view, shape))
        self._written = tuple(written)
        self._read_from = tuple(self._inputs.values())
        self._may_fail = True

    def _enqueue(self, *, retried: bool = False) -> None:
        if self._current.failed:
            self._renew()
            self._bind()
        for tensor in self._read_from:
            tensor.host_ptr()
        for tensor in self._written:
            tensor.host_ptr(read=False, write=True)
        try:
            self._infer()
        except FAILURES as error:
            if self._current.failed or ("set new shape" in str(error) and self._allocate_outputs()):
                return self._again()
            self._mark_failed()
            if self._cloned and not retried:  # the failure may be that of a clone's run
                return self._again(retried=True)
            self._raise_cause(error)
            raise InferenceError(f"OpenVINO failed to run {self.model.name}: {reason(error)}") from None
        self._current.runs += 1
        if self._current.failed:  # a clone's run failed meanwhile
            return self._again()
        self._may_fail = self._fails_by_values
        if self._unchecked:
            # The first run after binding checks the shapes that follow from the graph.
            if any(tuple(view.shape) != shape for view, shape in self._unchecked) and self._allocate_outputs():
                return self._again()
            self._unchecked = []
        if self._runtime_allocated:
            self._adopt_outputs()
        for output, source in self._passed_on.items():
            tensor = self._inputs[source]
            self._outputs[output].resize(tensor.shape).copy_from(tensor)
        return None

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if self._current.failed:
            self._renew()
        given = {index: feed(spec, feeds[spec.name]) for index, spec in enumerate(self.input_specs)}
        try:
            self._infer(given)
        except FAILURES as error:
            self._mark_failed()
            self._raise_cause(error)
            raise InferenceError(f"OpenVINO failed to run {self.model.name}: {reason(error)}") from None
        self._current.runs += 1
        return dict(zip((spec.name for spec in self.output_specs), self._request.results.values(), strict=True))

    def _infer(self, given: dict[int, Any] | None = None) -> None:
        """Runs the request, and waits for it.

        With one thread, `infer()` of OpenVINO 2026.4 drops the exceptions of a run. `start_async()` raises them, but
        wakes up another thread, which takes 45 us. It makes the runs that may fail: the first one of new shapes, and
        those of models that compute indices or shapes, or have custom operators.
        """
        if self._current.one_thread and (given is not None or self._may_fail):
            self._request.start_async(given)
            self._request.wait()
        else:
            self._request.infer(given, share_outputs=True)

    def _again(self, *, retried: bool = False) -> None:
        self._bind()
        self._enqueue(retried=retried)

    def _mark_failed(self) -> None:
        self._current.failed = True
        self._shared.drop(self._current)

    def _renew(self) -> None:
        try:
            self._current = self._shared.get(partial(_Compiled, *self._arguments))
        except FAILURES as error:
            self._raise_cause(error)
            raise InferenceError(
                f"OpenVINO failed to compile {self.model.name} another time, for a clone, a use after release() or a "
                f"run after one that failed: {reason(error)}; load it again"
            ) from None
        self._compiled = self._current.compiled
        self._request = self._compiled.create_infer_request()

    def _allocate_outputs(self) -> bool:
        """Lets the runtime allocate all outputs of variable shape from now on, after a wrong shape from the graph."""
        before = len(self._runtime_allocated)
        self._runtime_allocated |= {spec.name for spec in self.output_specs if spec.is_dynamic}
        return len(self._runtime_allocated) > before

    def _adopt_outputs(self) -> None:
        for index, spec in enumerate(self.output_specs):
            if (given := self._runtime_outputs.get(spec.name)) is not None:
                array = given.data
                self._adopt(spec.name, array.__array_interface__["data"][0], array.shape, lender=array)
                self._give_output(index, spec)  # the next run must not free the memory that views of this one show

    def _give_output(self, index: int, spec: TensorSpec) -> None:
        """Gives the request an empty output, which the runtime allocates."""
        empty = ov.Tensor(spec.dtype, [d if isinstance(d, int) else 0 for d in spec.shape])
        self._runtime_outputs[spec.name] = empty
        self._request.set_output_tensor(index, empty)

    # ---- the rest ----

    @property
    def device(self) -> str:
        """The device; with `device="auto"`, the chosen devices."""
        if self._device.kind == "auto" and (compiled := getattr(self, "_compiled", None)):
            return ",".join(execution_devices(compiled))
        return str(self._device)

    @property
    def precision(self) -> str:
        return main_precision(self._layers)

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """Read back from the kernels of the compiled model."""
        return MappingProxyType(self._layers)

    def profile_layers(self, runs: int) -> LayerProfile:
        """See `infersdk.core.executed_layers.ReportsLayers`."""
        self._check_open()
        check_runs(runs)
        if self._bound is None:
            self.forward()
        if self.options.profiling and self.device == "cpu" and self._current.runs > runs:
            # The counters have the mean of all runs, in whole microseconds. A model compiled again has had no others.
            self._shared.drop(self._current)
            self._renew()
            self._bound = None
            self.forward()
        return profile_model(self, runs, self._compiled, self._request, self._current.runs)

    def _clone(self, twin: OpenVinoInfer) -> None:
        self._cloned = twin._cloned = True
        twin._renew()
        twin._runtime_allocated = set(self._runtime_allocated)

    def _clone_for_one_core(self, twin: OpenVinoInfer) -> None:
        twin._shared, twin._arguments = self._one_core, self._one_core_arguments
        self._clone(twin)
        twin._schedule(0)

    def _release(self) -> None:
        if not self._current.failed and self._origin == "built" and can_export(self._arguments[2]):
            self._shared.keep(self._importer)
        self._close()

    def _importer(self) -> Callable[[], _Compiled]:
        """A function that imports the compiled model from host memory, or else compiles it, which takes longer."""
        if data := self._export():
            return partial(_Compiled, self._core.import_model, _blob(data), *self._arguments[2:])
        return partial(_Compiled, *self._arguments)

    def _restore(self) -> None:
        self._renew()

    def _close(self) -> None:
        self._unchecked, self._runtime_outputs, self._kept = [], {}, []
        self._written = self._read_from = ()
        del self._request, self._compiled, self._current

    def _forget(self) -> None:
        super()._forget()
        del self._shared, self._one_core, self._arguments, self._one_core_arguments


def _blob(data: bytes) -> Any:
    """A copy of an exported model, in memory that the compiled models share that are imported from it."""
    return ov.Tensor(np.frombuffer(data, np.uint8))
