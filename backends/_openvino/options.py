"""The options of the backend, and the properties of a device's plugin that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigError, nearest
from ...options import BackendOptions, Count
from .runtime import known_properties

__all__ = ["Options", "properties_of"]

#: Properties that have an argument of their own in `load()`.
_ARGUMENTS = {
    "INFERENCE_PRECISION_HINT": "precision=",
    "PERFORMANCE_HINT": "performance_hint=",
    "NUM_STREAMS": "streams=",
    "INFERENCE_NUM_THREADS": "threads=",
    "CACHE_DIR": "cache_dir=",
    "PERF_COUNT": "profiling=",
}


class Options(BackendOptions, frozen=True, kw_only=True):
    """What `load(..., backend="openvino", **options)` takes.

    Attributes:
        performance_hint: one request as fast as possible, or many side by side (for clones in parallel threads);
            `cumulative_throughput` spreads them over all devices that `device="auto"` finds.
        streams: requests that run side by side; 0 leaves it to the hint (one for `latency`).
        threads: processor threads over all streams; 0 is the runtime's choice, about one a core.
        split_batches: on the processor, with `performance_hint="latency"` and neither `streams` nor `threads`: rows of
            a batch that do not depend on each other (those of pipelines and model wrappers) run one by one, one on each
            core, where the first batches show that this takes less time. The model is compiled a second time for that.
        cache_dir: a folder for compiled models, made if it does not exist: a model loads faster the second time. It
            keeps one for each model, device and OpenVINO version. None compiles at each load and writes nothing.
        config: further properties of the device's plugin, passed on unchanged.
        profiling: the plugin measures each layer, for `infersdk.layers`; runs take a little longer.
    """

    performance_hint: Literal["latency", "throughput", "cumulative_throughput"] = "latency"
    streams: Count = 0
    threads: Count = 0
    split_batches: bool = True
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
    if options.threads:
        properties["INFERENCE_NUM_THREADS"] = options.threads
    if options.cache_dir:
        properties["CACHE_DIR"] = _made_folder(options.cache_dir)
    if options.profiling:
        properties["PERF_COUNT"] = True
    if target == "AUTO":
        # Without these it starts on the processor, moves elsewhere later, and moves back on trouble, all unseen.
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
