"""ONNX to engine."""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.cache import Cache, key_of
from ...core.files import file_digest
from ...core.memory_limit import tensor_nbytes
from ...core.model_source import ModelLike, ModelSource
from ...core.target import describe_layers, keeps_precision
from ...core.tensor_spec import TensorSpec
from ...core.text import parse_size
from ...errors import (
    BackendError,
    ConfigError,
    CustomOpError,
    ModelFormatError,
    OutputError,
    PrecisionUnavailableError,
    UnsupportedModelError,
)
from ...graph.digest import model_digest
from ...graph.files import read_model
from ...graph.info import onnx_info
from ...graph.passes import Pass, loading_passes, pass_keys, prepared_model
from ...graph.precision import main_precision
from .details import EngineDetails
from .layers import int8_convolutions, network_layers
from .profiles import Profile, make_profiles
from .progress import make_monitor, run_cancellable

if TYPE_CHECKING:
    import tensorrt

    from .flavour import Flavour
    from .gpu import CudaDevice
    from .options import Options

__all__ = ["build_engine", "engine_key", "load_plugins"]

#: Part of each key: raise it when this code builds another engine from the same inputs.
_SCHEMA = 4


def engine_key(
    flavour: Flavour,
    onnx: ModelLike,
    *,
    precision: str | None,
    max_batch: int | None,
    options: Options,
    capabilities: Sequence[str],
    device: CudaDevice | None,
) -> str:
    """The key of the engine that `build_engine` makes of the same arguments.

    Raises:
        ConfigError: an option has a wrong value.
        ModelError: the model cannot be read.
    """
    parts: dict[str, Any] = {
        "schema": _SCHEMA,
        "backend": flavour.backend,
        "version": flavour.version,
        "system": f"{platform.system()} {platform.machine()}",
        "model": model_digest(onnx),
        "precision": precision,
        "max_batch": max_batch,
        "options": {**options.building, "plugins": [_plugin_digest(path) for path in options.plugins]},
        "capabilities": sorted(capabilities) or (device.capability if device else None),
        # The full TensorRT chooses kernels by their times on this GPU.
        "gpu": device.name if device and not flavour.rtx else None,
    }
    parts["passes"] = pass_keys([*ModelSource.of(onnx).passes, *_passes(flavour, precision, options)])
    return key_of(parts)


def build_engine(
    flavour: Flavour,
    onnx: ModelLike,
    *,
    precision: str | None,
    max_batch: int | None,
    options: Options,
    capabilities: Sequence[str] = (),
    device: CudaDevice | None = None,
    timings: Cache | None = None,
) -> tuple[bytes, EngineDetails]:
    """Builds an engine; Ctrl-C stops the build and is raised again.

    Args:
        capabilities: compute capabilities to build for (TensorRT-RTX); none are the runtime's default.
        device: the GPU to build on, if the runtime needs one.
        timings: the cache for times of kernels, for a flavour that measures them.

    Raises:
        ModelFormatError, UnsupportedModelError: the model is damaged or not supported; the message names the node and
            the operator.
        CustomOpError: an operator that is not declared has the name of an operator of the runtime.
        PrecisionUnavailableError, ConfigError: the arguments do not fit the model.
    """
    trt, started, model = flavour.trt, time.monotonic(), ModelSource.of(onnx)
    info = onnx_info(model)
    targets, native = _targets(flavour, capabilities), None if flavour.rtx else device
    source = _source(model, info.precision, precision, flavour, options)
    load_plugins(flavour, options.plugins)
    cancelled = threading.Event()
    monitor = make_monitor(trt, options.progress, cancelled)

    def work() -> tuple[bytes, EngineDetails] | None:
        with flavour.messages() as messages, device.current() if device else contextlib.nullcontext():
            try:
                builder: tensorrt.Builder = trt.Builder(flavour.logger)
            except TypeError:  # the bindings got no builder
                raise BackendError(f"{flavour.title} {flavour.version} cannot start: {messages.last_error()}") from None
            # Versions without weak typing may not have the flag: all their networks are strongly typed.
            strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
            network = builder.create_network(0 if strongly is None else 1 << int(strongly))
            parser: tensorrt.OnnxParser = trt.OnnxParser(network, flavour.logger)
            _check_domains(flavour, model, parser)
            parsed = parser.parse_from_file(str(model)) if source is None else parser.parse(source, str(model))
            if not parsed:
                raise _parser_error(flavour, model, parser)
            if flavour.rtx and (quantised := int8_convolutions(trt, network)):
                raise UnsupportedModelError(  # the build would fail with an error that names no layer
                    f"{flavour.title} {flavour.version} has no INT8 convolutions, and {model.name} has "
                    f"{len(quantised)}, {quantised[0]!r} the first; load the model that it was quantised from with "
                    "precision='fp16', or run it on backend 'tensorrt'"
                )
            layers = network_layers(trt, network)
            real = main_precision(layers)
            if precision is not None and not keeps_precision(precision, real, layers):
                raise PrecisionUnavailableError(
                    f"precision {precision!r}: {flavour.title} would run {model.name} in {real} "
                    f"({describe_layers(layers)}), the types that its graph is written in; leave precision out"
                )
            inputs, outputs = _described(network, info.inputs, info.outputs, flavour)
            alone = options.exact_batches if flavour.rtx else options.exact_batches or []
            profiles = make_profiles(inputs, max_batch, options.profiles, alone)
            config = builder.create_builder_config()
            _configure(flavour, config, options, precision)
            rtx_config: Any = config  # TensorRT-RTX has more than the stubs know
            if targets:
                rtx_config.num_compute_capabilities = len(targets)
            for i, target in enumerate(targets):
                if not rtx_config.set_compute_capability(target, i):
                    raise ConfigError(f"the runtime refuses to build for {target}")
            for profile in profiles:
                ranges = builder.create_optimization_profile()
                for name, shapes in profile.items():
                    ranges.set_shape(name, *map(trt.Dims, shapes))
                if config.add_optimization_profile(ranges) < 0:
                    raise ConfigError(f"{flavour.title} refuses the profile {profile}: {messages.last_error()}")
            config.progress_monitor = monitor
            with _timings(flavour, config, timings, device):
                blob = builder.build_serialized_network(network, config)
                if blob is None:
                    if cancelled.is_set():
                        return None
                    raise UnsupportedModelError(
                        f"{flavour.title} cannot build an engine of {model.name}: {messages.last_error()}"
                    )
            given = {"precision": precision, "max_batch": max_batch, **options.building}
            details = EngineDetails(
                version=flavour.version,
                # Without targets, those of the device; empty is the runtime's default.
                capabilities=sorted(capabilities) if targets or not native else [native.capability],
                gpu=device.name if device else None,
                precision=real,
                layers=dict(layers),
                inputs=inputs,
                outputs=outputs,
                profiles=profiles,
                metadata=dict(info.metadata),
                model=str(model) if model.path is None else str(model.path.absolute()),
                model_sha256=model_digest(model),
                options={name: value for name, value in given.items() if value is not None},
                build_seconds=round(time.monotonic() - started, 3),
                weights_nbytes=messages.memory.get("Weights"),
                workspace_nbytes=messages.memory.get("Activation"),
                outputs_nbytes=_outputs_nbytes(flavour, network, profiles),
            )
            return bytes(blob), details

    built = run_cancellable(work, cancelled)
    if monitor.error is not None:
        raise monitor.error
    if built is None:
        raise BackendError(f"the build of {model.name} was stopped")
    return built


# ---- the model ----


def _passes(flavour: Flavour, precision: str | None, options: Options) -> list[Pass]:
    keep = tuple(sorted(set(options.fp16_keep)))
    return list(loading_passes(flavour.backend, "cuda", precision, keep_nodes=keep, keep_io=not options.half_io))


def _source(model: ModelSource, written: str, wanted: str | None, flavour: Flavour, options: Options) -> bytes | None:
    """The bytes to parse; None is the file. The network has the types of the graph."""
    if options.fp16_keep and (wanted != "fp16" or written != "fp32"):
        raise ConfigError(
            f"fp16_keep is for precision='fp16' of an fp32 model, not for {wanted!r}, and {model.name} is {written}"
        )
    if wanted not in (None, written) and (wanted != "fp16" or written != "fp32"):
        how = "quantise it first" if wanted == "int8" else f"convert it to {wanted} first"
        raise PrecisionUnavailableError(
            f"precision {wanted!r}: {model.name} is {written}, and {flavour.title} runs a graph in the types it is "
            f"written in; {how}, or leave precision out"
        )
    return prepared_model(model, _passes(flavour, wanted, options)) or model.content


def _check_domains(flavour: Flavour, model: ModelSource, parser: tensorrt.OnnxParser) -> None:
    """Raises CustomOpError for an operator that the parser, which ignores domains, would take for one of its own."""
    if not model.foreign_domains:
        return
    from ...custom_ops.operator_set import foreign_nodes, undeclared

    for node in foreign_nodes(read_model(model)):
        if parser.supports_operator(node.op_type) and not node.op_type.startswith("TRT_"):
            raise CustomOpError(
                f"{undeclared(node, model.name)}. {flavour.title} would run its own {node.op_type} instead"
            )


def _described(
    network: tensorrt.INetworkDefinition, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], flavour: Flavour
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The inputs and outputs of the network, with the names of free dimensions from the ONNX file."""
    sources = [network.get_input(i) for i in range(network.num_inputs)]
    results = [network.get_output(i) for i in range(network.num_outputs)]
    for tensor in sources:
        if tensor.is_shape_tensor:
            raise UnsupportedModelError(shape_tensor(tensor.name))
    known = {spec.name: spec for spec in (*inputs, *outputs)}
    result = [
        [spec_of(flavour, tensor.name, tensor.dtype, _dims(tensor.shape), known.get(tensor.name)) for tensor in side]
        for side in (sources, results)
    ]
    return result[0], result[1]


def _outputs_nbytes(flavour: Flavour, network: tensorrt.INetworkDefinition, profiles: Sequence[Profile]) -> int:
    """The bytes of the outputs of the largest batch. The network has sizes that the file may only name."""
    batch = max((shapes[2][0] for profile in profiles for shapes in profile.values() if shapes[2]), default=1)
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    specs = [spec_of(flavour, tensor.name, tensor.dtype, _dims(tensor.shape), None) for tensor in outputs]
    return sum(tensor_nbytes(spec, batch) for spec in specs)


def _dims(shape: tensorrt.Dims) -> tuple[int, ...]:
    return tuple(shape[i] for i in range(len(shape)))


def shape_tensor(name: str) -> str:
    return (
        f"input {name!r}: its values decide the shapes of other tensors, which this backend does not take; make it a "
        "constant of the model"
    )


def spec_of(
    flavour: Flavour, name: str, dtype: tensorrt.DataType, shape: Sequence[int], known: TensorSpec | None
) -> TensorSpec:
    """A tensor of a network or an engine, with the names of free dimensions from `known`.

    Raises:
        UnsupportedModelError: a type that no array has.
    """
    import numpy as np

    try:
        kind = np.dtype(flavour.trt.nptype(dtype))
    except TypeError:
        raise UnsupportedModelError(
            f"{name!r} is of type {dtype}, which no NumPy array has; have the model cast it to float32"
        ) from None
    dims: list[int | str | None] = [d if d >= 0 else None for d in shape]
    if known is not None and len(known.shape) == len(shape):
        # A free dimension of the model looks fixed with a profile of one size.
        dims = [d if isinstance(n, int) else n for d, n in zip(dims, known.shape, strict=True)]
    return TensorSpec(name, kind, tuple(dims))


def _parser_error(flavour: Flavour, model: ModelSource, parser: tensorrt.OnnxParser) -> Exception:
    """The first error of the parser, with the node and its operator."""
    errors = [parser.get_error(i) for i in range(parser.num_errors)]
    if any(error.code() == flavour.trt.ErrorCode.MODEL_DESERIALIZE_FAILED for error in errors):
        return ModelFormatError(f"{str(model)!r} is not an ONNX model, or is corrupt: {errors[0].desc()}")
    reasons = []
    for error in sorted(errors, key=lambda error: error.node() < 0):
        why = " ".join(error.desc().split())
        if why in ("false", ""):  # a check without a message
            why = f"the operator is not supported as it is used here ({error.code().name})"
        where = f"node {error.node_name() or error.node()!r} ({error.node_operator()}): " if error.node() >= 0 else ""
        reasons.append(where + why)
    first = reasons[0] if reasons else "it does not say why"
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return UnsupportedModelError(f"{flavour.title} {flavour.version} cannot take {model.name}: {first}{more}")


# ---- the configuration ----


def _configure(flavour: Flavour, config: tensorrt.IBuilderConfig, options: Options, precision: str | None) -> None:
    trt = flavour.trt
    if options.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, parse_size(options.workspace, "workspace"))
    if options.tf32 if options.tf32 is not None else precision != "fp32":
        config.set_flag(trt.BuilderFlag.TF32)
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.profiling:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level


def _targets(flavour: Flavour, capabilities: Sequence[str]) -> list[Any]:
    """The runtime's values of compute capabilities."""
    if not capabilities:
        return []
    if not flavour.rtx:
        raise ConfigError(
            f"{flavour.title} builds for the GPU that is there; leave compute_capabilities out, or use the backend "
            "'tensorrt-rtx'"
        )
    known = {
        f"{name[2:-1]}.{name[-1]}": value
        for name, value in flavour.trt.ComputeCapability.__members__.items()
        if name.startswith("SM")
    }
    for capability in capabilities:
        if capability not in known:
            raise ConfigError(
                f"compute capability {capability!r}: {flavour.title} {flavour.version} builds for {', '.join(known)}; "
                "without compute_capabilities an engine is for all from 8.0 on"
            )
    return [known[capability] for capability in sorted(set(capabilities))]


# ---- plugins and timings ----


def load_plugins(flavour: Flavour, paths: Sequence[str]) -> None:
    """Loads libraries of plugins, each once in a process.

    Raises:
        ConfigError: a library does not exist or cannot be loaded.
    """
    trt = flavour.trt
    trt.init_libnvinfer_plugins(flavour.logger, "")
    for path in paths:
        file = str(Path(path).resolve())
        if (flavour.backend, file) in _LOADED:
            continue
        registry: tensorrt.IPluginRegistry = trt.get_plugin_registry()
        if not Path(file).is_file():
            raise ConfigError(f"plugins: {path!r} cannot be loaded: no such file")
        with flavour.messages() as messages:
            handle = registry.load_library(file)
        if handle is None:
            unknown = f"{flavour.title} does not say why; give a library of plugins for version {flavour.version}"
            raise ConfigError(f"plugins: {path!r} cannot be loaded: {messages.last_error(unknown)}")
        _LOADED[flavour.backend, file] = handle


_LOADED: dict[tuple[str, str], Any] = {}


def _plugin_digest(path: str) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise ConfigError(f"plugins: {path!r} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _timings(
    flavour: Flavour, config: tensorrt.IBuilderConfig, cache: Cache | None, device: CudaDevice | None
) -> Iterator[None]:
    """Gives a build the kernel times of earlier builds on this GPU, and keeps those of a build that succeeds."""
    if flavour.rtx or cache is None or cache.sealer is not None or device is None:  # all models share an entry
        yield
        return
    key = key_of(
        {"timings": _SCHEMA, "backend": flavour.backend, "version": flavour.version, "gpu": device.name,
         "capability": device.capability}
    )  # fmt: skip
    result = cache.get(key)
    times = config.create_timing_cache(result[0] if result else b"")
    if times is None or not config.set_timing_cache(times, False):
        config.set_timing_cache(config.create_timing_cache(b""), False)
    yield
    data = bytes(config.get_timing_cache().serialize())
    with contextlib.suppress(OutputError):  # only later builds take longer
        cache.put(key, data, kind="timings", backend=flavour.backend, label=device.name)


def named_targets(value: str | Sequence[str]) -> tuple[str, ...]:
    """The compute capabilities of `"8.6,8.9"` or of a sequence. Raises ConfigError for anything else."""
    if not isinstance(value, Iterable):
        raise ConfigError(f'compute_capabilities is a list such as ["8.6", "8.9"], not {value!r}')
    parts = value.split(",") if isinstance(value, str) else list(value)
    return tuple(sorted({str(part).strip() for part in parts if str(part).strip()}))
