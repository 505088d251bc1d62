"""Options of the backend, and queries of OpenVINO: devices, properties, models that were read, compiled models."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import openvino as ov
from openvino.frontend import FrontEndManager

from ...core.backend import BackendOptions, Count
from ...core.device import Device
from ...core.processors import runtime_threads
from ...errors import ConfigError, DeviceUnavailableError, ModelFormatError, nearest, text_of
from ...graph.files import load_proto, require_onnx

if TYPE_CHECKING:
    from ...core.model_source import ModelSource

__all__ = [
    "FAILURES", "Options", "can_export", "capabilities", "compiles", "core", "devices",
    "executed_precisions", "execution_devices", "kept_signal_stack", "known_properties", "metadata_of", "new_core",
    "offered", "our_name", "port_name", "precision_of", "properties_of", "readers", "reason", "written_precision",
]  # fmt: skip


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restores the stack of this thread, if the system still accepts its size."""
    if not sys.platform.startswith("linux"):
        yield
        return
    system, before = ctypes.CDLL(None), _Stack()
    known = system.sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            system.sigaltstack(ctypes.byref(before), None)


#: The precision of a node by its name in a runtime model; plugins differ in case and in style.
PRECISION_NAMES = {
    "f32": "fp32", "fp32": "fp32", "f16": "fp16", "fp16": "fp16", "bf16": "bf16", "f64": "fp32", "fp64": "fp32",
    "i8": "int8", "u8": "int8", "int8": "int8", "uint8": "int8",
}  # fmt: skip
#: Layers with most of the computation; they decide the precision of a model.
_HEAVY = ("convolution", "deconvolution", "fullyconnected", "matmul", "gemm", "fully_connected", "lstm", "gru", "rnn")
#: Layers that only move data.
_MOVES = ("input", "output", "const", "reorder", "convert", "reshape", "result", "parameter", "constant", "convertlike")


#: The exceptions of the runtime: an error, or a decoding error where its message is not UTF-8.
FAILURES = (RuntimeError, UnicodeDecodeError)


# ---- OpenVINO as a whole ----


@functools.cache
def core() -> Any:
    """The core of the process, with the plugins. Any thread may use it."""
    return new_core()


def new_core() -> Any:
    """A separate core. Its CPU plugin is loaded here, so that the thread keeps its stack for signals.

    It reads files into memory: mapped weights would change with their file, or crash the process.
    """
    made = ov.Core()
    made.set_property({"ENABLE_MMAP": False})
    with kept_signal_stack(), contextlib.suppress(RuntimeError):  # an OpenVINO without that plugin
        made.get_property("CPU", "FULL_DEVICE_NAME")
    return made


#: OpenVINO's readers by format.
_READERS = {
    "onnx": "onnx", "openvino": "ir", "tensorflow-graph": "tf", "tensorflow-saved-model": "tf", "tflite": "tflite",
    "paddle": "paddle",
}  # fmt: skip


@functools.cache
def readers(format_key: str | None) -> tuple[Any, ...]:
    """The readers of a format; those of ONNX and IR for an unknown one."""
    manager = FrontEndManager()
    names = (_READERS[format_key],) if format_key in _READERS else ("onnx", "ir")
    return tuple(manager.load_by_framework(name) for name in names)


def devices() -> list[str]:
    """The devices of this machine, by our names: `cpu`, `gpu`, `gpu:1`, `npu`."""
    return [our_name(name) for name in core().available_devices]


def our_name(device: str) -> str:
    """`gpu:1` for `GPU.1`."""
    kind, _, index = device.partition(".")
    return str(Device(kind.lower(), int(index) if index.isdecimal() else 0))


def execution_devices(compiled: Any) -> list[str]:
    """The devices of a compiled model, by our names."""
    # AUTO puts a device in parentheses while it is not the final one.
    return [our_name(name.strip("()")) for name in compiled.get_property("EXECUTION_DEVICES")]


@functools.cache  # OpenVINO leaks some memory each time
def known_properties(target: str) -> set[str]:
    """The properties of a device that can be set."""
    targets = [target] if target != "AUTO" else [target, *core().available_devices]
    return {
        str(key)
        for one in targets
        for key, access in core().get_property(one, "SUPPORTED_PROPERTIES").items()
        if access != "RO"
    }


def capabilities(compiled: Any) -> list[str]:
    """The precisions of the devices of a compiled model."""
    devices = [device.strip("()") for device in compiled.get_property("EXECUTION_DEVICES")]
    return list(dict.fromkeys(name for device in devices for name in offered(device)))


@functools.cache
def offered(target: str) -> tuple[str, ...]:
    """The precisions of a device; for AUTO those of its first choice."""
    if target == "AUTO":
        target = max(core().available_devices, key=lambda name: name.partition(".")[0] != "CPU", default="CPU")
    result = (PRECISION_NAMES.get(name.lower()) for name in _abilities(target))
    return tuple(dict.fromkeys(name for name in result if name))


def can_export(target: str) -> bool:
    """Whether a device writes compiled models, and reads them."""
    return "EXPORT_IMPORT" in _abilities(target)


def _abilities(target: str) -> list[str]:
    """The abilities of a device, in OpenVINO's words."""
    try:
        return list(core().get_property(target, "OPTIMIZATION_CAPABILITIES"))
    except FAILURES as error:
        raise DeviceUnavailableError(
            f"device {our_name(target)!r}: OpenVINO cannot use it: {reason(error)}; check its driver, and that the "
            "plugins of OpenVINO are installed"
        ) from None


def has_rope(compiled: Any) -> bool:
    """Whether OpenVINO executes its operation RoPE.

    OpenVINO 2026.4 does not write all its attributes: a model that is read back has other results.
    """
    return any(_text_of(layer, "layerType") == "rope" for layer in _executed_layers(compiled) or ())


def compiles(model: Any, target: str, properties: dict[str, Any]) -> bool:
    """Whether a model compiles with these properties."""
    try:
        core().compile_model(model, target, properties)
    except FAILURES:
        return False
    return True


# ---- models ----


def port_name(port: Any) -> str:
    """The name of an input or output; that of its node in a model without tensor names."""
    names = port.get_names()
    own = str(port.get_node().get_friendly_name()).partition("/sink_port_")[0]
    return own if own in names or not names else str(min(names))


def metadata_of(model: Any, source: ModelSource) -> dict[str, str]:
    """The metadata of an ONNX file, or the `rt_info` of an IR.

    Nested keys are joined by a slash, except below `framework` and `model_info`, which exporters write. Bytes that are
    not UTF-8 are replaced.
    """
    result: dict[str, str] = {}

    def collect(value: Any, key: str) -> None:
        try:
            value = getattr(value, "value", value)
        except UnicodeDecodeError as error:
            value = error.object.decode("utf-8", "replace")
        if hasattr(value, "items"):
            for name, inner in value.items():
                collect(inner, name if key in ("", "framework", "model_info") else f"{key}/{name}")
        elif key and not key.startswith("__"):
            result[key] = str(value)

    try:
        collect(dict(model.get_rt_info().items()), "")
    except UnicodeDecodeError:  # of a key
        if not source.is_onnx:
            raise ModelFormatError(f"{str(source)!r} has metadata whose names are not UTF-8; is it damaged?") from None
        require_onnx("reading metadata that is not UTF-8")
        return {entry.key: entry.value for entry in load_proto(source).metadata_props}
    return result


def written_precision(model: Any) -> str | None:
    """The precision of a model as written; None without floating point. Compressed weights do not count."""
    elements: Counter[str] = Counter()
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind == "FakeQuantize":
            return "int8"
        if kind not in ("Constant", "Convert", "ConvertLike", "Parameter", "Result"):
            names = {output.get_element_type().get_type_name() for output in node.outputs()}
            elements.update(PRECISION_NAMES[name] for name in names if name in ("f32", "f16", "bf16", "f64"))
    return elements.most_common(1)[0][0] if elements else None


def executed_precisions(compiled: Any) -> Counter[str]:
    """How many layers run in each precision, read back from the compiled model."""
    layers = _executed_layers(compiled)
    if layers is None:
        hint = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return Counter([PRECISION_NAMES.get(hint, "fp32")])
    heavy: Counter[str] = Counter()
    light: Counter[str] = Counter()
    for layer in layers:
        kind = _text_of(layer, "layerType")
        runs = precision_of(layer)
        if runs is None or kind in _MOVES:
            continue
        if kind.startswith(_HEAVY):
            heavy[runs] += 1
        elif runs != "int8":  # data in bytes, such as an image, does not make a quantised model
            light[runs] += 1
    return heavy or light


def _executed_layers(compiled: Any) -> list[Any] | None:
    """The runtime information of each layer; None if the plugin has no runtime model."""
    try:
        return [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    except RuntimeError:
        return None


def precision_of(layer: Any) -> str | None:
    """The precision of a layer, from its runtime information; None for one that is not in `PRECISION_NAMES`."""
    # The name of a kernel ends with its precision (`brgconv_avx512_amx_bf16`). The precision of the layer is that of
    # its weights, which may be stored in a narrower type.
    kernel = _text_of(layer, "primitiveType").rpartition("_")[2]
    return PRECISION_NAMES.get(kernel) or PRECISION_NAMES.get(_text_of(layer, "runtimePrecision"))


def _text_of(layer: Any, key: str) -> str:
    return str(layer[key].value).lower() if key in layer else ""


def reason(error: Exception) -> str:
    """The runtime's message in one line, without the lines of its own source."""
    text = " ".join(text_of(error).split())
    return str(re.sub(r"Exception from \S+:\d+: |Check '[^']*' failed at \S+:\d+: ", "", text).strip() or text)


#: Properties with their own argument of `load()`.
_ARGUMENTS = {
    "INFERENCE_PRECISION_HINT": "precision=",
    "PERFORMANCE_HINT": "performance_hint=",
    "NUM_STREAMS": "streams=",
    "INFERENCE_NUM_THREADS": "threads=",
    "CACHE_DIR": "cache_dir=",
    "PERF_COUNT": "profiling=",
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """The options of `load(..., backend="openvino", **options)`.

    Attributes:
        performance_hint: optimise for one request, or for parallel requests of clones. `cumulative_throughput` uses all
            devices of `device="auto"`.
        streams: the number of parallel requests; 0 leaves it to the hint (one for `latency`).
        threads: processor threads over all streams; 0 is about one for each processor that the process may use. On the
            processor, with `performance_hint="latency"` and neither `streams` nor `threads`, pipelines and calls with a
            list of images compile the model a second time, with a stream for each core.
        cache: whether compiled models are kept for the next load. Those of `device="auto"`, TensorFlow SavedModels
            and PaddlePaddle models are not kept, nor those in which OpenVINO finds its operation RoPE; those with
            custom operators are only in a `cache_dir`.
        cache_dir: their folder; None is the user's cache folder. It must be writable.
        config: further properties of the device's plugin, passed on unchanged.
        profiling: the plugin measures each layer, for `infersdk.layers`; runs take slightly longer.
    """

    performance_hint: Literal["latency", "throughput", "cumulative_throughput"] = "latency"
    streams: Count = 0
    threads: Count = 0
    cache: bool = True
    cache_dir: str | None = None
    config: dict[str, str | int | float | bool] = {}
    profiling: bool = False


def properties_of(options: Options, target: str) -> dict[str, Any]:
    """The properties for compiling a model for `target`, a device by OpenVINO's name; without the precision.

    Raises:
        ConfigError: the plugin does not know a property of `config`.
    """
    _check_config(options, target)
    properties: dict[str, Any] = {"PERFORMANCE_HINT": options.performance_hint.upper()}
    if options.streams:
        properties["NUM_STREAMS"] = options.streams
    if threads := runtime_threads(options.threads) if target == "CPU" else options.threads:
        properties["INFERENCE_NUM_THREADS"] = threads
    if options.profiling:
        properties["PERF_COUNT"] = True
    if target == "AUTO":
        # Otherwise it starts on the processor, changes the device later, and changes back after errors, without notice.
        properties |= {"ENABLE_STARTUP_FALLBACK": False, "ENABLE_RUNTIME_FALLBACK": False}
    properties.update(options.config)
    return properties


def _check_config(options: Options, target: str) -> None:
    for key in options.config:
        if key in _ARGUMENTS:
            raise ConfigError(f"options of backend 'openvino': config sets {key}; use {_ARGUMENTS[key]} instead")
        if key not in (known := known_properties(target) - _ARGUMENTS.keys()):
            ask = nearest(key, known) or f"; it has {', '.join(sorted(known))}"
            raise ConfigError(f"options of backend 'openvino': {target} has no property {key!r} to set{ask}")
