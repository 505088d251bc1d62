"""Batches of rows of several requests, whose tensors may lie in shared memory on both sides.

An input is read from there straight into its row, and an output is written there straight from the model's tensor, in
the thread that ran the batch: no array in between, and nothing for the thread of the event loop to copy. A request of
one row that has a batch for itself is not copied at all: the model reads and writes the shared memory in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedModelError
from ..pipeline import TensorBatchBuffer
from .in_place import InPlace, PlacedTensor
from .regions import SharedTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from ..infer import Infer
    from .regions import RegionPart

__all__ = ["DEFAULT_BATCH", "Destination", "PlacedTensor", "RowItem", "RowRequests"]

#: Rows in a batch where neither the network nor the configuration says how many.
DEFAULT_BATCH = 8
#: What is copied in the thread of the event loop: some 0.3 ms. Waking another thread up takes longer than less.
_QUICK_NBYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a row of an output goes: one of `rows`, which lie one after another in a part of a region."""

    part: RegionPart
    row: int
    rows: int

    def write(self, array: npt.NDArray[Any], output: str) -> PlacedTensor:
        """Writes the row there.

        Raises:
            RequestError: the part is too small for all of the rows.
        """
        self.part.write_row(array, self.row, self.rows, output)
        return PlacedTensor(array.shape, array.dtype)

    def tensor(self, dtype: np.dtype[Any], shape: tuple[int, ...], output: str) -> SharedTensor:
        """The only row, in place.

        Raises:
            RequestError: the part is too small for it.
        """
        size = dtype.itemsize * math.prod(shape)
        self.part.check_size(size, output)
        return SharedTensor(self.part.region, self.part.offset, dtype, shape, size)


class RowItem(dict[str, Any]):
    """A row of a request: a tensor for each input.

    Attributes:
        outputs: those that are wanted.
        destinations: where outputs go, by name; the others become arrays.
    """

    outputs: Sequence[str]
    destinations: Mapping[str, Destination]


class RowRequests:
    """A network for a `Pipeline` whose requests are `RowItem`s."""

    def __init__(self, network: Infer) -> None:
        self.network = network
        self.concurrency, self.serializes_runs = network.concurrency, network.serializes_runs

    def batch_buffer(self, capacity: int | None) -> _RowBuffer:
        """With `capacity` rows; None is as many as the network was loaded for."""
        return _RowBuffer(self.network.clone(), capacity or self.network.max_batch or DEFAULT_BATCH)


class _RowBuffer(TensorBatchBuffer):
    """A buffer that remembers of each row where its outputs go, and runs a row in place that is alone."""

    def __init__(self, infer: Infer, capacity: int) -> None:
        super().__init__(infer, capacity)
        self._network = infer
        self._items: list[RowItem | None] = [None] * capacity
        self._in_place = InPlace(infer)
        self._unread: RowItem | None = None  # the item of row 0, if it has not been read into its row

    def prepares_quickly(self, item: Any) -> bool:
        return bool(sum(value.nbytes for value in item.values()) <= _QUICK_NBYTES)

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        later = row == 0 and not parameters and isinstance(item, RowItem) and self._in_place.suits(item)
        if not later:
            super().prepare(row, item, parameters)
        if row == 0:
            self._unread = item if later else None
        self._items[row] = item

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._items[target] = self._items[source]
        if target == 0:
            self._unread = None

    def run(self, count: int) -> None:
        item, self._unread = self._unread, None
        if item is not None and count == 1 and self._network.bucket_batch(1) == 1:
            try:
                self._in_place.bind(item)
                self._network.forward()
            except BaseException:
                self._in_place.finish()
                raise
            return
        self._in_place.unbind()
        if item is not None:
            super().prepare(0, item, None)
        super().run(count)

    def results(self, count: int) -> Sequence[Any]:
        views = {
            name: tensor.numpy() for name, tensor in self._network.outputs.items() if name not in self._in_place.bound
        }
        for name, array in views.items():
            if len(array) < count:
                raise UnsupportedModelError(f"output {name!r} has {len(array)} rows for a batch of {count}")
        results = [self._result(row, views) for row in range(count)]
        self._in_place.finish()
        return results

    def _result(self, row: int, views: Mapping[str, npt.NDArray[Any]]) -> Any:
        item, self._items[row] = self._items[row], None
        if item is None:  # of a warm-up
            return None
        try:
            return {
                name: self._in_place.placed(name)
                if name not in views
                else views[name][row].copy()
                if (destination := item.destinations.get(name)) is None
                else destination.write(views[name][row], name)
                for name in item.outputs
            }
        except Exception as error:  # of this row alone
            return error

    def refresh(self) -> bool:
        changed = super().refresh()
        if changed:
            self._in_place.refresh()
        return changed

    def close(self) -> None:
        self._in_place.unbind()
        super().close()
