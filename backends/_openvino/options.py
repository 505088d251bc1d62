"""The options of the backend, and the properties that they set on the plugin of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ...core.backend import BackendOptions, Count
from ...core.processors import runtime_threads
from ...errors import ConfigError, nearest
from .runtime import known_properties

__all__ = ["Options", "properties_of"]

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
        cache_dir: a folder for compiled models, created if it does not exist. It keeps one for each model, device and
            OpenVINO version. None compiles at each load and writes nothing.
        config: further properties of the device's plugin, passed on unchanged.
        profiling: the plugin measures each layer, for `infersdk.layers`; runs take slightly longer.
    """

    performance_hint: Literal["latency", "throughput", "cumulative_throughput"] = "latency"
    streams: Count = 0
    threads: Count = 0
    cache_dir: str | None = None
    config: dict[str, str | int | float | bool] = {}
    profiling: bool = False


def properties_of(options: Options, target: str) -> dict[str, Any]:
    """The properties for compiling a model for `target`, a device by OpenVINO's name; without the precision.

    Raises:
        ConfigError: the plugin does not know a property of `config`, or the cache folder cannot be made.
    """
    _check_config(options, target)
    properties: dict[str, Any] = {"PERFORMANCE_HINT": options.performance_hint.upper()}
    if options.streams:
        properties["NUM_STREAMS"] = options.streams
    if threads := runtime_threads(options.threads) if target == "CPU" else options.threads:
        properties["INFERENCE_NUM_THREADS"] = threads
    if options.cache_dir:
        properties["CACHE_DIR"] = _made_folder(options.cache_dir)
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


def _made_folder(name: str) -> str:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"options of backend 'openvino': cannot make cache_dir {str(folder)!r}: {error.strerror}; "
            "name a folder that can be written, or leave it out"
        ) from None
    return str(folder)
