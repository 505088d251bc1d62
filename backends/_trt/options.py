"""The options of both backends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ...core.backend import BackendOptions, Progress

__all__ = ["Options", "Range"]

Dim = Annotated[int, msgspec.Meta(ge=0)]


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shapes of an input: the smallest, the one that the engine is tuned for, the largest."""

    min: list[Dim]
    opt: list[Dim]
    max: list[Dim]


#: Options without effect on the engine.
_RUNNING = ("memory_limit", "cache", "cache_dir", "progress", "kernel_specialization", "cuda_graph")


class Options(BackendOptions, frozen=True, kw_only=True):
    """The options of `load(..., backend="tensorrt", **options)`, also of "tensorrt-rtx".

    Attributes:
        profiles: by the name of an input, `{"min": [...], "opt": [...], "max": [...]}`, or a list of these. The engine
            is tuned for each. An input with a free batch alone needs none: it is built for 1 to `max_batch`, and tuned
            for `max_batch`.
        exact_batches: batch sizes that the engine is also tuned for. Such a batch runs faster; each adds to the time to
            build and to the size of the engine. None is 1 and `max_batch` with TensorRT-RTX, and none with TensorRT.
        workspace: the maximum scratch memory of a kernel, as `"2GB"`; None is no limit.
        tf32: whether FP32 layers may round their factors to TF32 on tensor cores. None is True, except with
            precision="fp32".
        half_io: with precision="fp16", inputs and outputs are float16, too: half the bytes and no conversion. The
            wrappers take either.
        fp16_keep: with precision="fp16": names of nodes of the model that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds them).
        optimization_level: 0 (quick to build) to 5 (quick to run); None is the runtime's default.
        plugins: libraries of plugins to load before the model or engine is read.
        memory_limit: the maximum device memory of the model and its clones together, as `"2GB"`: the weights, the
            workspace and the tensors of each instance, and the memory of wrappers. An engine that needs more is built
            again with a smaller workspace. If it still does not fit, MemoryLimitError is raised before any allocation.
        cache: whether built engines are kept for the next load.
        cache_dir: their folder; None is the user's cache folder. It must be writable.
        cache_tag: part of the key in the cache, for changes that the key does not contain, as of plugins in Python.
        progress: called as `progress(phase, fraction)` on another thread while an engine is built, with a fraction from
            0 to 1. An exception that it raises ends the build.
        kernel_specialization: TensorRT-RTX only: kernels for the shapes of inputs are compiled during the first runs
            (`"lazy"`), before them (`"eager"`), or not at all (`"none"`). None is the runtime's default, or `"eager"`
            with `cuda_graph`.
        cuda_graph: runs are captured and replayed as CUDA graphs, one for each batch size and set of addresses, which
            relieves the host. The first run of a batch size compiles its kernels; the second one is captured.
        profiling: the engine has the data of `infersdk.layers`: layers with their nodes, formats and kernels. An engine
            from a file has the data it was built with.
    """

    profiles: dict[str, Range | list[Range]] = {}
    exact_batches: list[Annotated[int, msgspec.Meta(ge=1)]] | None = None
    workspace: str | int | None = None
    memory_limit: str | int | None = None
    tf32: bool | None = None
    half_io: bool = False
    fp16_keep: list[str] = []
    optimization_level: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    plugins: list[str] = []
    cache: bool = True
    cache_dir: str | None = None
    cache_tag: str = ""
    progress: Progress | None = None
    kernel_specialization: Literal["lazy", "eager", "none"] | None = None
    cuda_graph: bool = False
    profiling: bool = False

    @property
    def building(self) -> dict[str, Any]:
        """The options of the engine that differ from their defaults."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in _RUNNING}
        return {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}


_DEFAULTS = Options()
