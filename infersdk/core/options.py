"""Options of `load(..., **options)` for a backend, and the options that mean the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import msgspec

__all__ = ["BackendOptions", "Count", "Progress", "SharedOption"]

#: A number of threads and the like; 0 leaves it to the runtime.
Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]
#: Takes the current step, in the runtime's words, and the completed fraction of the whole (0 to 1).
Progress = Callable[[str, float], None]

#: Options that the command line, the benchmarks and `while_building` set by name, where a backend has them. A backend
#: that supports one of them declares a field of that name and type in its `Options`:
#:
#: threads (Count): processor threads for one run.
#: streams (Count): runs that the runtime makes side by side, each on a clone.
#: performance_hint ("latency" or "throughput"): the goal of the runtime's own settings.
#: cuda_graph (bool): runs are captured and replayed as CUDA graphs. The results stay the same.
#: half_io (bool): with precision="fp16", inputs and outputs are float16 as well.
#: progress (Progress | None): called while the model loads. An exception that it raises stops the load.
#: cache_dir (str | None): the folder where loading keeps engines and compiled models for the next load; None is the
#:     backend's default.
#: memory_limit (str | int | None): the maximum memory of a CUDA device that the model and its clones hold together, in
#:     bytes or as "2GB". `infersdk.core.memory_limit` lists the memory that counts. Loading, cloning or running raises
#:     MemoryLimitError before an allocation that would exceed it.
SharedOption = Literal[
    "threads", "streams", "performance_hint", "cuda_graph", "half_io", "progress", "cache_dir", "memory_limit"
]  # fmt: skip


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of a backend's `Options`. Each field has a default; types are checked when a model is loaded."""

    @classmethod
    def has(cls, name: SharedOption) -> bool:
        """Whether the backend has this one of the shared options."""
        return name in cls.__struct_fields__
