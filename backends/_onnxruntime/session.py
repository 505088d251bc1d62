"""Sessions: their options, starting one, reading back its optimised graph, and the types of inputs and outputs."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from ...core.backend import BackendOptions, Count
from ...core.files import scratch_folder
from ...core.model_source import ModelSource
from ...core.processors import fits_quotas, runtime_threads
from ...core.tensor_spec import TensorSpec, as_array
from ...errors import (
    ConfigError,
    DeviceUnavailableError,
    DTypeError,
    InferSDKError,
    ModelFormatError,
    UnsupportedModelError,
    exhausted,
    text_of,
)
from ...graph.files import load_proto, private_copy, require_onnx
from ...graph.passes import prepared_model
from .providers import FAILURES, Provider, provider_device

__all__ = [
    "Options", "feed", "load_libraries", "may_run_on_one_core", "message_of", "metadata_of",
    "session_options", "spec_of", "start_session",
]  # fmt: skip

_DTYPES = {
    "float": "float32", "float16": "float16", "double": "float64", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
}  # fmt: skip
#: Element types that NumPy does not have: the type of the same size, and the number in ONNX.
_BITS = {
    "bfloat16": ("uint16", 16), "float8e4m3fn": ("uint8", 17), "float8e4m3fnuz": ("uint8", 18),
    "float8e5m2": ("uint8", 19), "float8e5m2fnuz": ("uint8", 20), "float8e8m0": ("uint8", 24),
}  # fmt: skip


def spec_of(node: Any, side: str, model: ModelSource) -> TensorSpec:
    """The spec of an input or output of a session.

    Raises:
        UnsupportedModelError: the runtime does not take or return the type in Python, or an input has an unknown number
            of dimensions.
    """
    element = _element(node.type)
    if element in _DTYPES:
        if side == "input" and not node.shape and node.name in model.unranked_inputs:  # the runtime shows a scalar
            raise UnsupportedModelError(
                f"input {node.name!r} of {model.name} does not say how many dimensions it has; export the model with a "
                "rank for it"
            )
        return TensorSpec(node.name, np.dtype(_DTYPES[element]), tuple(node.shape))
    # The runtime misreads inputs with two elements per byte, and does not return bfloat16 and sparse tensors.
    inward = side == "input"
    refused = element not in ("", "string", *_BITS) or (element == "bfloat16" and not inward)
    if refused or node.type.startswith("sparse"):
        verb, where = ("take", "after") if inward else ("return", "before")
        raise UnsupportedModelError(
            f"{side} {node.name!r} of {model.name} is a {node.type}, which ONNX Runtime does not {verb} in Python; "
            f"convert it in the model, by a Cast {where} it"
        )
    return TensorSpec(node.name, np.dtype(object), tuple(node.shape), node.type)


def feed(spec: TensorSpec, value: Any) -> Any:
    """The value for a session: strings as objects, types that NumPy does not have as OrtValues, sequences as lists.

    Raises:
        DTypeError: the value is not of the input's type.
        InputError: the value, or a part of a sequence, is not an array.
    """
    part = re.fullmatch(r"seq\((tensor\(\w+\))\)", spec.kind)
    if part and isinstance(value, Iterable) and not isinstance(value, (str, Mapping, np.ndarray)):
        return [feed(msgspec.structs.replace(spec, kind=part[1]), one) for one in value]
    element = _element(spec.kind)
    if element in _DTYPES:  # within a sequence, where the runtime ignores the byte order
        array = as_array(value, spec.name)
        TensorSpec(spec.name, np.dtype(_DTYPES[element]), array.shape).check(array.shape, array.dtype)
        return array
    if element == "string":
        texts = as_array(value, spec.name)
        if not all(isinstance(text, str) for text in texts.flat):  # the runtime would read past the end of bytes
            raise DTypeError(f"input {spec.name!r} takes strings, not {texts.dtype}; decode bytes, and leave no None")
        return texts.astype(object)
    if element in _BITS:
        array, (bits, number) = np.asarray(as_array(value, spec.name), order="C"), _BITS[element]
        name = array.dtype.name.replace("_", "")
        if array.dtype != bits and name.removesuffix("fnu") != element:  # ml_dtypes calls float8e8m0 float8_e8m0fnu
            raise DTypeError(
                f"input {spec.name!r} takes {element}, not {array.dtype}; "
                f"give an array of ml_dtypes, or the bits as {bits}"
            )
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _element(kind: str) -> str:
    """The type of the elements of a `tensor(...)`; empty for any other type."""
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    return match[1] if match else ""


def may_run_on_one_core(options: Options) -> bool:
    """Whether the runtime chooses the threads."""
    return (
        not options.threads
        and not options.inter_op_threads
        and options.execution_mode == "sequential"
        and not options.profiling
        and not any(key.startswith("session.intra_op") for key in options.session_config)
    )


_STOP_SPINNING = "session.force_spinning_stop"
_OPTIMIZATION = {
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """The options of `load(..., backend="onnxruntime", **options)`.

    Attributes:
        threads: threads within an operator; 0 is one for each processor that the process may use. With 0, pipelines and
            calls with a list of images also use a second session of one thread, with its own weights, in parallel.
        inter_op_threads: threads across operators, with `execution_mode="parallel"`; 0 is the runtime's choice.
        execution_mode: whether independent operators run in parallel.
        graph_optimization: the level of graph optimisation on loading.
        allow_spinning: threads that wait within a run spin for a while: lower latency, and a busy processor. They stop
            at the end of the run, unless `session_config` sets `session.force_spinning_stop` to "0". None: they spin
            unless a control group has a quota for fewer threads, which it would pause sooner.
        provider_options: options of the execution provider, passed on unchanged.
        session_config: the session's configuration entries, passed on unchanged.
        fp16_keep: with precision="fp16" of an FP32 model: names of nodes that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds them).
        cuda_graph: on an NVIDIA GPU, runs are captured and replayed as CUDA graphs, one for each set of shapes and
            addresses. Clones then run one at a time. No effect with outputs whose shapes depend on the data.
        memory_limit: on an NVIDIA GPU, the maximum device memory of the model and its clones together, as `"2GB"`. A
            quarter, and at least the tensors of `concurrency` instances, is for tensors and wrappers. The runtime's
            arena, for weights and workspace, has the rest, or `gpu_mem_limit` in `provider_options`.
        allow_cpu_nodes: whether nodes may run on the processor if the provider of another device does not take them.
            False raises an error with their names, True logs them. None is True on "cuda", without the log, else False.
        provider_library: the library of an execution provider that is in no Python package.
        profiling: the session measures each node, for `infersdk.layers`; runs take slightly longer.
    """

    threads: Count = 0
    inter_op_threads: Count = 0
    execution_mode: Literal["sequential", "parallel"] = "sequential"
    graph_optimization: Literal["disabled", "basic", "extended", "all"] = "all"
    allow_spinning: bool | None = None
    provider_options: dict[str, str | int | bool] = {}
    session_config: dict[str, str] = {}
    fp16_keep: list[str] = []
    cuda_graph: bool = False
    memory_limit: str | int | None = None
    allow_cpu_nodes: bool | None = None
    provider_library: str | None = None
    profiling: bool = False


def session_options(options: Options, profile_folder: Path | None = None) -> Any:
    """A new `onnxruntime.SessionOptions`.

    Args:
        profile_folder: the folder of the profiler's file; None does not profile.

    Raises:
        ConfigError: the runtime does not take an entry of `session_config`.
    """
    result = ort.SessionOptions()
    result.log_severity_level = 4  # fatal: errors come as exceptions, and a library does not print
    result.intra_op_num_threads = runtime_threads(options.threads)
    result.inter_op_num_threads = options.inter_op_threads
    result.graph_optimization_level = _OPTIMIZATION[options.graph_optimization]
    if options.execution_mode == "parallel":
        result.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    spins = options.allow_spinning
    if not (fits_quotas(result.intra_op_num_threads) if spins is None else spins):
        result.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif _STOP_SPINNING not in options.session_config:
        # Otherwise each thread keeps a core busy for 20 ms after a run.
        result.add_session_config_entry(_STOP_SPINNING, "1")
    if profile_folder is not None:
        result.enable_profiling = True
        result.profile_file_prefix = str(profile_folder / "run")
    for key, value in options.session_config.items():
        try:
            result.add_session_config_entry(key, value)
        except FAILURES as error:
            raise ConfigError(
                f"session_config: ONNX Runtime does not take the entry {key[:80]!r}: {message_of(error)}; correct it, "
                "or leave it out"
            ) from None
    return result


def start_session(
    source: Path | str | bytes,
    name: str,
    options: Callable[[], Any],
    provider: Provider,
    *,
    write: Literal["disk", "memory"] | None = None,
) -> tuple[Any, bytes | None]:
    """A session, and the graph that it executes, as an ONNX file.

    The graph is None without `write`, and if the runtime cannot write it.

    Args:
        source: the path of the model as text, the path of a file without external weights, or bytes.
        options: returns new options for a session.
        write: where the runtime writes its graph: without the weights to the disk, or with them to a file in memory.

    Raises:
        ModelFormatError, UnsupportedModelError: the model is damaged, or the runtime cannot load it.
        DeviceUnavailableError: the provider cannot start.
    """
    if isinstance(source, str):
        with private_copy(source) as path:
            return start_session(Path(path), name, options, provider, write=write)
    given = options()  # raises for custom operators that cannot be registered
    if write is not None:
        with contextlib.suppress(*FAILURES, OSError, InferSDKError):  # the second try raises an error of the model
            return (_written_to_disk if write == "disk" else _written_to_memory)(source, given, provider)
        given = options()
    try:
        return provider.session(source, given), None
    except (ort_errors.InvalidProtobuf, ort_errors.NoModel) as error:
        raise ModelFormatError(f"{name!r} is not an ONNX model, or is corrupt: {message_of(error)}") from None
    except UnicodeDecodeError as error:  # of the runtime's message, which quotes the model
        raise ModelFormatError(f"{name!r} has names that are not UTF-8; is it damaged? ({text_of(error)})") from None
    except ort_errors.InvalidGraph as error:
        raise ModelFormatError(f"the graph of {name!r} is not valid: {message_of(error)}") from None
    except FAILURES as error:
        if (full := exhausted(message_of(error), repr(name))) is not None:
            raise full from None
        # These have no class of their own.
        if re.search("No graph was found|does not have a graph|Invalid model", str(error)):
            raise ModelFormatError(f"{name!r} is not a valid ONNX model: {message_of(error)}") from None
        if "CreateProvider" in str(error):
            device = provider_device(provider.name)
            raise DeviceUnavailableError(f"device {device!r}: {provider.name}: {message_of(error)}") from None
        raise UnsupportedModelError(f"ONNX Runtime cannot load {name!r}: {message_of(error)}") from None


def _written_to_disk(source: Path | str | bytes, options: Any, provider: Provider) -> tuple[Any, bytes]:
    """A session and its graph without the weights, through files."""
    with scratch_folder() as folder:
        file = folder / "executed.onnx"
        options.optimized_model_filepath = str(file)
        for key, value in (("file_name", "weights"), ("min_size_in_bytes", "1024")):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)
        session = provider.session(source, options)
        return session, file.read_bytes()


def _written_to_memory(source: Path | str | bytes, options: Any, provider: Provider) -> tuple[Any, bytes]:
    """A session and its graph with the weights, through a file in memory."""
    descriptor = os.memfd_create("infersdk-executed", os.MFD_CLOEXEC)
    with open(descriptor, "rb") as file:
        options.optimized_model_filepath = f"/proc/self/fd/{descriptor}"
        session, content = provider.session(source, options), file.read()
    if isinstance(source, Path):  # the runtime leaves external weights where they are
        content = prepared_model(ModelSource.of(content, source.parent), []) or content
    return session, content


@functools.cache
def load_libraries() -> None:
    """Loads the libraries of CUDA and cuDNN from installed packages, which the system's loader does not search."""
    # It prints missing libraries, and a library does not print. A session reports them, too.
    with contextlib.redirect_stdout(io.StringIO()):
        ort.preload_dlls()


def message_of(error: Exception) -> str:
    """The runtime's message in one line, without its code, the file's name, and its source lines."""
    text = " ".join(text_of(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    text = re.sub(r"/\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)? ", "", text)
    return re.sub(r"\[ONNXRuntimeError\](?: : \d+ : \w+ :)? ?", "", text)


def metadata_of(session: Any, model: ModelSource) -> dict[str, str]:
    """The metadata of a model. Bytes that are not UTF-8 are replaced."""
    try:
        return dict(session.get_modelmeta().custom_metadata_map)
    except UnicodeDecodeError:
        require_onnx("reading metadata that is not UTF-8")
        return {entry.key: entry.value for entry in load_proto(model).metadata_props}
