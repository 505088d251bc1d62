"""Declarations and options of a backend, the schedule of its runs, and the runtime that clones share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from .device import Device

__all__ = [
    "BackendInfo", "BackendOptions", "Count", "Declaration", "Progress", "Scheduling", "SharedOption", "SharedRuntime",
]  # fmt: skip


T = TypeVar("T")

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
#:     user's cache folder.
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


class BackendInfo(msgspec.Struct, frozen=True):
    """The version of an installed runtime, and the devices it finds here. `infersdk doctor` prints them."""

    version: str
    devices: tuple[str, ...]


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of a backend before a model is loaded.

    Attributes:
        probe: returns the runtime's version and devices. An ImportError means that it is not installed.
        options: the options of `load(..., **options)` for this backend.
        formats: the formats that it reads, by their names in `infersdk.core.formats`; None leaves all to the runtime.
        default_device: the device when none is requested.
        default_max_batch: the largest batch when none is requested; None is no limit.
        runs_custom_ops: whether the runtime takes the nodes of `custom_ops` itself on a device. Otherwise the model is
            cut at them.
    """

    probe: Callable[[], BackendInfo]
    options: type[BackendOptions] = BackendOptions
    formats: tuple[str, ...] | None = None
    default_device: str = "cpu"
    default_max_batch: int | None = None
    runs_custom_ops: Callable[[Device], bool] = lambda device: False


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """How the runs of an `Infer` are best scheduled. A backend sets it in `_load()`; clones share it.

    Attributes:
        concurrency: how many runs to make side by side, each on a clone.
        serializes_runs: whether the device computes such runs one after another, and overlaps their copies.
        one_core_clones: how many runs on clones of one core each use the processor fully; 0 for a model without such
            clones.
        warm_up_runs: runs of a shape that prepare it: later ones take no longer than it always takes.
        shares_stream: whether clones use its stream, too.
        stream_guard: held while work is queued on the stream, or waited for: a run may capture it.
        bucket_batch: the batch in which to run the next `n` rows; rows from `n` on are padding. More than `n` where the
            backend has to prepare each size before its first run.
        prepared_size: the batch that `bucket_batch` returns for `n` rows after other batches, where it depends on them.
    """

    concurrency: int = 1
    serializes_runs: bool = False
    one_core_clones: int = 0
    warm_up_runs: int = 1
    shares_stream: bool = False
    stream_guard: AbstractContextManager[Any] = nullcontext()
    bucket_batch: Callable[[int], int] = int  # the number itself
    prepared_size: Callable[[int], int] | None = None

    @classmethod
    def on_stream(cls, **settings: Any) -> Scheduling:
        """Of a backend that queues runs on a stream of the device; `settings` are the attributes that differ."""
        return cls(**{"concurrency": 3, "serializes_runs": True, **settings})

    def batch_sizes(self, largest: int) -> list[int]:
        """The batches in which 1 to `largest` rows run, ascending."""
        size_of = self.prepared_size or self.bucket_batch
        return sorted({min(size_of(n), largest) for n in range(1, largest + 1)})


class SharedRuntime(Generic[T]):
    """The part that an Infer and its clones share (a session, an engine), as long as one of them has it.

    `infer.release()` frees it, and a later use makes it again. A backend that can be released keeps in host memory the
    data for a load in milliseconds: the graph as the runtime executes it, a compiled model, an engine.

    Args:
        value: the current part; None before the first `get()`.
    """

    def __init__(self, value: T | None = None) -> None:
        self._alive: Callable[[], T | None] = (lambda: None) if value is None else weakref.ref(value)
        self._lock = threading.Lock()
        self._make: Callable[[], T] | None = None

    def keep(self, prepare: Callable[[], Callable[[], T]]) -> None:
        """Before the last one lets go of it: keeps the data to make it again. `prepare` is called once."""
        with self._lock:
            if self._make is None:
                self._make = prepare()

    def drop(self, value: T) -> None:
        """Forgets a value that is not usable any more."""
        with self._lock:
            if self._alive() is value:
                self._alive = lambda: None

    def get(self, make: Callable[[], T] | None = None) -> T:
        """The value that a clone still has, or a new one.

        Args:
            make: makes it where nothing was kept.
        """
        with self._lock:
            value = self._alive()
            if value is None:
                make = self._make or make
                assert make is not None
                value = make()
                self._alive = weakref.ref(value)
            return value
