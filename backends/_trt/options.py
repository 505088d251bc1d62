"""The options of both flavours."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ...options import BackendOptions, Progress

__all__ = ["Options", "Range"]

Dim = Annotated[int, msgspec.Meta(ge=0)]


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shapes of an input that an engine is built for: the smallest, the one it is tuned for, the largest."""

    min: list[Dim]
    opt: list[Dim]
    max: list[Dim]


class Options(BackendOptions, frozen=True, kw_only=True):
    """What `load(..., backend="tensorrt", **options)` takes; "tensorrt-rtx" takes the same.

    Attributes:
        profiles: for an input by its name, `{"min": [...], "opt": [...], "max": [...]}`, or a list of these: the engine
            is tuned for each of them, as for the sizes of images that come. An input whose batch alone is free needs
            none: it is built for 1 to `max_batch`, and tuned for `max_batch`.
        exact_batches: batch sizes that the engine is tuned for one by one, beside the range: a batch of just that size
            runs faster, and each costs a part of the time to build and of the engine's size. None is 1 and `max_batch`
            with TensorRT-RTX, which builds in seconds, and none with TensorRT.
        workspace: the most scratch memory that a kernel may ask for, as `"2GB"`; None is no limit.
        tf32: whether FP32 layers may round their factors to TF32 on tensor cores. None is yes, as the runtime has it,
            unless precision="fp32" was asked for.
        half_io: with precision="fp16", inputs and outputs are float16 too, instead of what they are in the model: half
            the bytes, and no conversion at either end. The wrappers take either.
        fp16_keep: with precision="fp16": names of nodes of the model that stay FP32
            (`infersdk.graph.fp16_parity.find_fp16_loss` finds which should).
        optimization_level: 0 (quick to build) to 5 (quick to run); None is the runtime's own.
        plugins: libraries of plugins to load before the model is parsed, or the engine read.
        memory_limit: the most memory of the device that the model and its clones hold together, as `"2GB"`: the
            engine's weights, the workspace and the tensors of each instance, and what a wrapper holds there. An engine
            that needs more is built again with a smaller workspace; if that does not fit either, loading raises
            MemoryLimitError before anything is allocated.
        cache: whether built engines are kept for the next load.
        cache_dir: the folder where they are kept; None is the user's cache folder. It has to be one that can be
            written.
        cache_tag: goes into the key of the cache, for what the key cannot see, as plugins written in Python.
        progress: called as `progress(phase, fraction)` while an engine is built, on another thread; fraction goes from
            0 to 1. An exception that it raises ends the build.
        kernel_specialization: TensorRT-RTX only: kernels for the shapes that come are compiled beside the first runs
            (`"lazy"`), before them (`"eager"`), or not at all (`"none"`). None is the runtime's own, or with
            `cuda_graph` `"eager"`.
        cuda_graph: runs are captured and replayed as CUDA graphs, one for each batch size and set of addresses, which
            takes load off the host. The first run of a batch size compiles its kernels, the second one is captured.
        profiling: the engine holds what `infersdk.layers` shows: the layers with the nodes they came from, formats and
            kernels. An engine that is loaded from a file has what it was built with.
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
