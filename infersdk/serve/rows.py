"""Batches of rows of several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pipeline import TensorBatchBuffer

if TYPE_CHECKING:
    from ..infer import Infer

__all__ = ["DEFAULT_BATCH", "RowRequests"]

#: Rows in a batch where neither the network nor the configuration gives a number.
DEFAULT_BATCH = 8
#: Bytes of a row that the thread of the event loop copies, in some 0.3 ms. Waking another thread up takes longer than
#: copying less.
_QUICK_NBYTES = 2 << 20


class RowRequests:
    """A network for a `Pipeline` whose items are dicts of tensors by input: arrays or `SharedTensor`s."""

    def __init__(self, network: Infer) -> None:
        self.network = network
        self.concurrency, self.serializes_runs = network.concurrency, network.serializes_runs

    def batch_buffer(self, capacity: int | None) -> _RowBuffer:
        """With `capacity` rows; None is as many as the network was loaded for."""
        return _RowBuffer(self.network.clone(), capacity or self.network.max_batch or DEFAULT_BATCH)


class _RowBuffer(TensorBatchBuffer):
    """A buffer whose items are read in the thread of the event loop where that is short."""

    def prepares_quickly(self, item: Any) -> bool:
        return bool(sum(value.nbytes for value in item.values()) <= _QUICK_NBYTES)
