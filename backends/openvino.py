"""OpenVINO: Intel processors, GPUs and NPUs; it reads ONNX, and OpenVINO's own IR (an .xml with its .bin).

The tensors of the Infer are given to the infer request where they lie, so nothing is copied on the way in or out. An
output whose shape follows from the inputs' is written into its tensor; one whose shape depends on the data is allocated
by the runtime, and its tensor looks at that.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import openvino as ov

from ..custom_ops.failures import kernel_failure
from ..device import Device
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
from ..precision import PRECISIONS, describe_layers, keeps_precision
from ..tensor_spec import TensorSpec
from ._openvino import (
    capabilities,
    compiles,
    core,
    devices,
    executed_precisions,
    execution_devices,
    is_busy,
    known_properties,
    metadata_of,
    offered,
    port_name,
    readers,
    reason,
    written_precision,
)
from ._openvino_custom_ops import core_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..tensor import Tensor

#: OpenVINO's name of an element type by ours, for what NumPy can hold.
_DTYPES = {
    "f32": "float32", "f16": "float16", "f64": "float64", "boolean": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_KINDS = ("cpu", "gpu", "npu", "auto")
#: Properties that have a place of their own in `load()`.
_OWN = {
    "INFERENCE_PRECISION_HINT": "precision=",
    "PERFORMANCE_HINT": "performance_hint=",
    "NUM_STREAMS": "streams=",
    "INFERENCE_NUM_THREADS": "threads=",
    "CACHE_DIR": "cache_dir=",
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """What `load(..., backend="openvino", **options)` takes.

    Attributes:
        performance_hint: one request as fast as can be, or many side by side (for clones in parallel threads);
            `cumulative_throughput` spreads them over all devices that `device="auto"` finds.
        streams: requests that run side by side; 0 leaves it to the hint (one for `latency`).
        threads: processor threads over all streams; 0 is the runtime's choice, about one a core.
        cache_dir: a folder for compiled models, made if it is not there: a model loads quicker the second time. It
            keeps one for each model, device and OpenVINO version. None compiles at each load and writes nothing.
        config: further properties of the device's plugin, as they are.
    """

    performance_hint: Literal["latency", "throughput", "cumulative_throughput"] = "latency"
    streams: Count = 0
    threads: Count = 0
    cache_dir: str | None = None
    config: dict[str, str | int | float | bool] = {}


class _Place:
    """The host side of a tensor, which is only going to be read; NumPy may think that it can be written.

    OpenVINO wants it so, of inputs too, while the user may have bound an array that is read-only.
    """

    __slots__ = ("__array_interface__", "_view")

    def __init__(self, tensor: Tensor) -> None:
        self._view = tensor.numpy()  # keeps the memory alive
        interface = self._view.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


class _Compiled:
    """The compiled model that clones share; compiled anew after a run that failed.

    Once the shapes of a run turn out wrong inside the network, the processor's plugin is left between two states: with
    the shapes of the run before it fails again, in every infer request, or gives wrong results (seen in OpenVINO
    2026.4). A model that was compiled anew knows nothing of that failure.
    """

    def __init__(self, current: Any, compile_anew: Callable[[], Any]) -> None:
        self.current: Any = current  # None once it is spoilt
        self.cloned = False
        self._compile_anew = compile_anew
        self._lock = Lock()

    def spoil(self, used: Any) -> None:
        """A run on `used` has failed."""
        with self._lock:
            if self.current is used:
                self.current = None

    def sound(self) -> Any:
        """The compiled model to run on."""
        with self._lock:
            if self.current is None:
                self.current = self._compile_anew()
            return self.current


class OpenVinoInfer(Infer):
    """A model on OpenVINO. Clones are infer requests of one compiled model."""

    backend = "openvino"
    Options = Options

    @classmethod
    def probe(cls) -> BackendInfo:
        return BackendInfo(ov.get_version().split("-")[0], (*devices(), "auto"))

    @property
    def concurrency(self) -> int:
        """The infer requests that the compiled model runs side by side: its streams."""
        return int(self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    @classmethod
    def runs_custom_ops(cls, device: Device) -> bool:
        return device.kind == "cpu"

    # ---- loading ----

    def _load(self) -> None:
        target = self._target()
        self._core = core() if self.custom_ops is None else core_with(self.custom_ops)
        properties = self._properties(target)
        model = self._fixed(self._read())
        self.input_specs, self._ties_in = self._describe_inputs(model)
        self.output_specs, self._ties = self._describe_outputs(model)
        self.metadata = MappingProxyType(metadata_of(model))
        written = written_precision(model)
        wanted = self._requested_precision
        # Left alone, plugins compute in less than the model was written in: bfloat16 on processors with AMX, float16
        # on GPUs. So the hint is always given. It leaves the quantised layers of an int8 model as they are.
        asked = wanted or written or ""
        if wanted is None and asked in ("fp16", "bf16") and asked not in offered(target):
            asked = "fp32"  # given a hint that it cannot follow, the processor's plugin takes another, bfloat16 for one
        properties["INFERENCE_PRECISION_HINT"] = _HINTS.get(asked, "f32")
        self._compiled = self._compile(model, target, properties)
        self._check_device(target)
        self._settle_outputs()
        self._passed_on = self._find_passed_on()
        self._layers = executed_precisions(self._compiled)
        self._precision = max(PRECISIONS, key=lambda name: (self._layers[name], -PRECISIONS.index(name)))
        self._check_precision(wanted, written)
        self._request = self._compiled.create_infer_request()
        self._shared = _Compiled(self._compiled, functools.partial(self._core.compile_model, model, target, properties))
        self._loose: set[str] = set()  # outputs whose shape turned out to depend on the data

    def _target(self) -> str:
        """OpenVINO's name of the device that was asked for."""
        kind, index = self._device.kind, self._device.index
        there = devices()
        if kind == "auto" and index == 0:
            return "AUTO"
        if kind in _KINDS and str(Device(kind, index)) in there:
            return kind.upper() if kind == "cpu" else f"{kind.upper()}.{index}"
        hint = ""
        if kind == "cuda":
            hint = "; for an NVIDIA GPU take backend='tensorrt' or 'onnxruntime'"
        elif kind in ("gpu", "npu"):
            hint = f"; if the machine has one, its {kind.upper()} driver is missing"
        raise DeviceUnavailableError(
            f"device {self._device_name()!r}: OpenVINO {ov.get_version().split('-')[0]} finds here "
            f"{', '.join(there)} (and auto, which picks one){hint}"
        )

    def _device_name(self) -> str:
        return str(self._device)

    def _properties(self, target: str) -> dict[str, Any]:
        options = self.options
        for key in options.config:
            if key in _OWN:
                raise ConfigError(f"options of backend 'openvino': config sets {key}; say it by {_OWN[key]} instead")
            if key not in (known := known_properties(target) - _OWN.keys()):
                close = difflib.get_close_matches(key.upper(), known, 1)
                ask = f"; did you mean {close[0]!r}?" if close else f"; it knows {', '.join(sorted(known))}"
                raise ConfigError(f"options of backend 'openvino': {target} has no property {key!r} to set{ask}")
        properties: dict[str, Any] = {"PERFORMANCE_HINT": options.performance_hint.upper()}
        if options.streams:
            properties["NUM_STREAMS"] = options.streams
        if options.threads:
            properties["INFERENCE_NUM_THREADS"] = options.threads
        if options.cache_dir:
            folder = Path(options.cache_dir)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"options of backend 'openvino': cannot make cache_dir {str(folder)!r}: {error.strerror}; "
                    "name a folder that can be written, or leave it out"
                ) from None
            properties["CACHE_DIR"] = str(folder)
        if target == "AUTO":
            # Else it would start on the processor, move elsewhere later, and move back on trouble, all unseen.
            properties |= {"ENABLE_STARTUP_FALLBACK": False, "ENABLE_RUNTIME_FALLBACK": False}
        properties.update(options.config)
        return properties

    def _read(self) -> Any:
        # Asked one by one: `Core.read_model` would try every format it knows, and some readers print their complaints.
        if not any(reader.supported(str(self.model)) for reader in readers()):
            raise ModelFormatError(
                f"{str(self.model)!r} is neither an ONNX model nor an OpenVINO IR (.xml with its .bin), or is corrupt; "
                "was the download cut off?"
            )
        content = prepared_model(self.model, loading_passes(self.backend, self._device.kind, self._requested_precision))
        try:
            model = self._core.read_model(content or str(self.model))
        except RuntimeError as error:
            _raise_custom(error)
            text = reason(error)
            if "OpConversionFailure" in text:
                return self._read_content(text)
            hint = ""
            if "weights" in text and self.model.suffix == ".xml":
                hint = f"; its weights belong beside it, in {self.model.with_suffix('.bin').name!r}"
            raise ModelFormatError(f"{str(self.model)!r} is not a valid model: {text}{hint}") from None
        if not model.outputs:
            raise ModelFormatError(f"{str(self.model)!r} is not a valid model: it has no outputs")
        return model

    def _read_content(self, failure: str) -> Any:
        """The model out of the bytes of its file, for those whose file cannot be read.

        ONNX files and bytes go through different readers, and that of files cannot convert some operators that other
        one can (OpenVINO 2026.4: those that it takes apart by the functions of the ONNX standard).
        """
        try:
            return self._core.read_model(self.model.read_bytes())
        except RuntimeError:  # weights in files of their own are not found from bytes, either
            raise UnsupportedModelError(f"OpenVINO cannot read {str(self.model)!r}: {failure}") from None

    def _fixed(self, model: Any) -> Any:
        """With `max_batch=1` the model for a batch of 1 alone: with a free one yolov5n takes 3 to 7 % longer."""
        shapes = [port.partial_shape for port in model.inputs]
        free = all(not shape.rank.is_dynamic and len(shape) and shape[0].is_dynamic for shape in shapes)
        if self.max_batch != 1 or not shapes or not free:
            return model
        fixed = model.clone()
        try:
            fixed.reshape({i: ov.PartialShape([1, *list(shape)[1:]]) for i, shape in enumerate(shapes)})
        except RuntimeError:  # a free first dimension that is no batch
            return model
        return fixed

    def _compile(self, model: Any, target: str, properties: dict[str, Any]) -> Any:
        try:
            return self._core.compile_model(model, target, properties)
        except RuntimeError as error:
            _raise_custom(error)
            given = self.options.config
            if given and compiles(model, target, properties, without=given):
                raise ConfigError(
                    f"options of backend 'openvino': {target} does not take config {given}: {reason(error)}"
                ) from None
            wide, wanted = properties | {"INFERENCE_PRECISION_HINT": "f32"}, self._requested_precision
            if wanted in ("fp16", "bf16") and compiles(model, target, wide, without={}):
                raise PrecisionUnavailableError(
                    f"precision {wanted!r}: OpenVINO compiles {self.model.name} for {target} without it, and fails "
                    f"with it: {reason(error)}; leave precision out"
                ) from None
            raise UnsupportedModelError(
                f"OpenVINO cannot compile {str(self.model)!r} for {target}: {reason(error)}"
            ) from None

    def _check_device(self, target: str) -> None:
        taken = execution_devices(self._compiled)
        if target != "AUTO" and taken != [self._device_name()]:
            raise DeviceUnavailableError(
                f"device {self._device_name()!r}: OpenVINO took {', '.join(taken) or 'none'} in its place; "
                "check the driver, or load with the device that is there"
            )

    def _check_precision(self, wanted: str | None, written: str | None) -> None:
        runs = self._precision
        if wanted is None:
            if written and ((runs in ("fp16", "bf16") and runs != written) or (runs == "int8" != written)):
                raise PrecisionUnavailableError(
                    f"{self.model.name} is written in {written}, and {self.device} computes it in {runs}; "
                    f"if that will do, ask for it: precision={runs!r}"
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

    # ---- what the model says of itself ----

    def _describe_inputs(self, model: Any) -> tuple[tuple[TensorSpec, ...], list[tuple[Any, str, int]]]:
        """The specs, and a symbol for each free dimension. OpenVINO carries those through the graph to the outputs."""
        symbols: list[tuple[Any, str, int]] = []
        for port, node in zip(model.inputs, model.get_parameters(), strict=True):
            shape = node.get_partial_shape()
            if shape.rank.is_dynamic:
                continue
            dims = list(shape)
            for axis, dim in enumerate(dims):
                if dim.is_dynamic:
                    dim.set_symbol(ov.Symbol())
                    symbols.append((dim.get_symbol(), port_name(port), axis))
            node.set_partial_shape(ov.PartialShape(dims))
        specs = tuple(self._spec(port, "input") for port in model.inputs)
        model.validate_nodes_and_infer_types()
        return specs, symbols

    def _describe_outputs(self, model: Any) -> tuple[tuple[TensorSpec, ...], dict[str, Any]]:
        """The specs, and for each output what its dimensions are: a size, or (input, axis), or None if unknown."""
        specs = tuple(self._spec(port, "output") for port in model.outputs)
        ties = {
            spec.name: tuple(
                dim.get_length()
                if dim.is_static
                else next(((name, axis) for symbol, name, axis in self._ties_in if symbol == dim.get_symbol()), None)
                for dim in port.partial_shape
            )
            for spec, port in zip(specs, model.outputs, strict=True)
        }
        return specs, ties

    def _settle_outputs(self) -> None:
        """A plugin may find out, in compiling, how large an output always is that the graph leaves open."""
        specs = []
        for spec, port in zip(self.output_specs, self._compiled.outputs, strict=True):
            if spec.is_dynamic and port.partial_shape.is_static:
                self._ties[spec.name] = tuple(port.shape)
                spec = dataclasses.replace(spec, shape=tuple(port.shape))  # noqa: PLW2901
            specs.append(spec)
        self.output_specs = tuple(specs)

    def _find_passed_on(self) -> dict[str, str]:
        """The input for each output that is nothing but that: once compiled, the two go by the same names.

        Given a tensor for such an output, the processor's plugin leaves it as it is, or even writes what is in it over
        the input (seen in OpenVINO 2026.4). So it gets none, and the input is copied here.
        """
        return {
            output.name: source.name
            for output, port in zip(self.output_specs, self._compiled.outputs, strict=True)
            for source, other in zip(self.input_specs, self._compiled.inputs, strict=True)
            if port.get_names() & other.get_names()
        }

    def _spec(self, port: Any, side: str) -> TensorSpec:
        name, kind = port_name(port), port.element_type.get_type_name()
        # bfloat16 goes in by its bits; it would come out marked as float16. Strings come out damaged once their number
        # changes, and are freed twice (seen in OpenVINO 2026.4).
        called = kind == "bf16" and side == "input"
        if kind not in _DTYPES and not called:
            raise UnsupportedModelError(
                f"{side} {name!r} of {self.model.name} has elements of type {kind}; tensors hold {', '.join(_DTYPES)}"
            )
        if port.partial_shape.rank.is_dynamic:
            raise UnsupportedModelError(
                f"{side} {name!r} of {self.model.name} does not say how many dimensions it has; "
                "export the model with a rank for it"
            )
        # OpenVINO forgets the names that free dimensions have in an ONNX file.
        shape = tuple(dim.get_length() if dim.is_static else None for dim in port.partial_shape)
        if called:
            return TensorSpec(name, np.dtype(object), shape, kind)
        return TensorSpec(name, np.dtype(_DTYPES[kind]), shape)

    def _known_output_shapes(self) -> dict[str, tuple[int, ...] | None]:
        shapes: dict[str, tuple[int, ...] | None] = {}
        for name, ties in self._ties.items():
            dims = [self._inputs[d[0]].shape[d[1]] if isinstance(d, tuple) else d for d in ties]
            shapes[name] = None if None in dims else tuple(dims)
        return shapes

    # ---- running ----

    def _bind(self) -> None:
        try:
            self._give_tensors()
        except RuntimeError as error:
            if is_busy(error):
                raise self._in_use() from None
            raise

    def _in_use(self) -> InferenceError:
        return InferenceError(
            f"{self.model.name} runs in another thread just now: one Infer serves one thread at a time; "
            "clone() it for each thread, or hand requests to an infersdk.Pipeline"
        )

    def _give_tensors(self) -> None:
        self._unproven: list[tuple[Any, tuple[int, ...]]] = []
        self._given: dict[str, Any] = {}  # the runtime's side of the outputs that it allocates
        # The request keeps addresses alone: here is what keeps the memory.
        self._kept = [np.asarray(_Place(tensor)) for tensor in self._inputs.values()]
        for index, array in enumerate(self._kept):
            self._request.set_input_tensor(index, ov.Tensor(array, shared_memory=True))
        written = []
        for index, (name, shape) in enumerate(self._known_output_shapes().items()):
            spec = self.output_specs[index]
            if name in self._passed_on:
                continue
            if shape is None or name in self._loose:
                self._loose.add(name)
                empty = [d if isinstance(d, int) else 0 for d in spec.shape]
                self._given[name] = ov.Tensor(spec.dtype, empty)
                self._request.set_output_tensor(index, self._given[name])
            else:
                tensor = self._outputs[name].resize(shape)
                self._kept.append(tensor.numpy(writable=True))
                place = ov.Tensor(self._kept[-1], shared_memory=True)
                self._request.set_output_tensor(index, place)
                written.append(tensor)
                if spec.is_dynamic:
                    self._unproven.append((place, shape))
        self._written = tuple(written)
        self._read_from = tuple(self._inputs.values())

    def _enqueue(self, *, retried: bool = False) -> None:
        if self._shared.current is not self._compiled:
            self._renew()
            self._bind()
        for tensor in self._read_from:
            tensor.host_ptr()
        for tensor in self._written:
            tensor.host_ptr(read=False, write=True)
        try:
            self._request.infer(share_outputs=True)
        except RuntimeError as error:
            if is_busy(error):
                raise self._in_use() from None
            if self._shared.current is not self._compiled or ("set new shape" in str(error) and self._loosen()):
                return self._again()
            self._shared.spoil(self._compiled)
            if self._shared.cloned and not retried:  # a clone's failure may have come in between
                return self._again(retried=True)
            _raise_custom(error)
            raise InferenceError(f"OpenVINO failed to run {self.model.name}: {reason(error)}") from None
        if self._shared.current is not self._compiled:  # a clone's run failed meanwhile
            return self._again()
        if self._unproven:
            # The first run after binding: are the outputs of the shape that the graph promised?
            if any(tuple(place.shape) != shape for place, shape in self._unproven) and self._loosen():
                return self._again()
            self._unproven = []
        if self._loose:
            self._adopt_outputs()
        for output, source in self._passed_on.items():
            tensor = self._inputs[source]
            self._outputs[output].resize(tensor.shape).copy_from(tensor)
        return None

    def _call(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        if self._shared.current is not self._compiled:
            self._renew()
        given = {index: _feed(spec, feeds[spec.name]) for index, spec in enumerate(self.input_specs)}
        try:
            results = self._request.infer(given)
        except RuntimeError as error:
            if is_busy(error):
                raise self._in_use() from None
            self._shared.spoil(self._compiled)
            _raise_custom(error)
            raise InferenceError(f"OpenVINO failed to run {self.model.name}: {reason(error)}") from None
        return {spec.name: results[index] for index, spec in enumerate(self.output_specs)}

    def _again(self, *, retried: bool = False) -> None:
        self._bind()
        self._enqueue(retried=retried)

    def _renew(self) -> None:
        try:
            self._compiled = self._shared.sound()
        except RuntimeError as error:
            raise InferenceError(
                f"OpenVINO failed to compile {self.model.name} anew after a run that failed: {reason(error)}; "
                "load it again"
            ) from None
        self._request = self._compiled.create_infer_request()

    def _loosen(self) -> bool:
        """The shapes worked out for the outputs were wrong: from now on the runtime allocates all that can vary."""
        before = len(self._loose)
        self._loose |= {spec.name for spec in self.output_specs if spec.is_dynamic}
        return len(self._loose) > before

    def _adopt_outputs(self) -> None:
        for name, given in self._given.items():
            array = given.data
            self._adopt(name, array.__array_interface__["data"][0], array.shape, lender=array)

    # ---- the rest ----

    @property
    def device(self) -> str:
        """Where it runs; with `device="auto"`, the devices that were picked."""
        if self._device.kind == "auto" and (compiled := getattr(self, "_compiled", None)):
            return ",".join(execution_devices(compiled))
        return self._device_name()

    @property
    def precision(self) -> str:
        return self._precision

    @property
    def layer_precisions(self) -> Mapping[str, int]:
        """Read back from the kernels of the compiled model."""
        return MappingProxyType(self._layers)

    def _clone(self, twin: OpenVinoInfer) -> None:
        self._shared.cloned = True
        twin._renew()
        twin._loose = set(self._loose)

    def _close(self) -> None:
        self._unproven, self._given, self._kept = [], {}, []
        del self._request, self._compiled, self._shared


def _raise_custom(error: RuntimeError) -> None:
    """Raises the failure of a custom operator, where it is one."""
    if (failure := kernel_failure(error)) is not None:
        raise failure from failure.__cause__


def _feed(spec: TensorSpec, value: Any) -> Any:
    """What a request takes: bfloat16 by its bits, since NumPy has no such type."""
    array = np.asarray(value, order="C")
    if spec.kind == "tensor":
        return ov.Tensor(array)
    if array.dtype.name not in ("bfloat16", "uint16"):
        raise DTypeError(
            f"input {spec.name!r} takes bfloat16, not {array.dtype}; give an array of ml_dtypes, or the bits as uint16"
        )
    spec.check(array.shape)
    return ov.Tensor(array.view(np.uint16), ov.Shape(array.shape), ov.Type.bf16)
