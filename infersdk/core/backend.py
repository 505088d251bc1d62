"""Parts of an `Infer`: the declarations of its backend about the runtime, and the schedule of the runs of a model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from .device import Device
from .options import BackendOptions

__all__ = ["BackendInfo", "Declaration", "Scheduling"]


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
            backend prepares itself anew for each size, so that there are few sizes.
        prepared_size: the batch that `bucket_batch` returns for `n` rows after other batches, where it depends on them.
    """

    concurrency: int = 1
    serializes_runs: bool = False
    one_core_clones: int = 0
    warm_up_runs: int = 1
    shares_stream: bool = False
    stream_guard: AbstractContextManager[Any] = nullcontext()
    bucket_batch: Callable[[int], int] = lambda n: n
    prepared_size: Callable[[int], int] | None = None

    @classmethod
    def on_stream(cls, **settings: Any) -> Scheduling:
        """Of a backend that queues runs on a stream of the device; `settings` are the attributes that differ."""
        return cls(**{"concurrency": 3, "serializes_runs": True, **settings})

    def batch_sizes(self, largest: int) -> list[int]:
        """The batches in which 1 to `largest` rows run, ascending."""
        size_of = self.prepared_size or self.bucket_batch
        return sorted({min(size_of(n), largest) for n in range(1, largest + 1)})
