"""Batches of rows of several requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..pipeline import TensorBatchBuffer
from .errors import RequestError
from .messages import PlacedOutput

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..infer import Infer
    from .messages import Tensor
    from .regions import RegionPart

__all__ = ["Row", "RowBuffer"]

#: Rows up to this size are copied in the thread of the event loop (0.3 ms); waking another thread would take longer.
_QUICK_NBYTES = 2 << 20


@dataclass(slots=True)
class Row:
    """A row of the batch of a request.

    Attributes:
        inputs: by name: arrays, or `SharedTensor`s, which are read into the batch.
        outputs: the names of the requested outputs.
        targets: shared memory for whole outputs, by name. Other outputs become arrays.
        index, count: the index of the row in its request, and the number of rows.
    """

    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    targets: Mapping[str, RegionPart]
    index: int
    count: int

    def take(self, outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any] | RequestError:
        """Copies the outputs of this row to their targets or to arrays; returns an error if a target is too small."""
        taken: dict[str, Any] = {}
        for name in self.outputs:
            array, target = outputs[name], self.targets.get(name)
            if target is None:
                taken[name] = array.copy()
                continue
            try:
                target.write(array, name, self.index, self.count)
            except RequestError as error:
                return error
            taken[name] = PlacedOutput(array.dtype, array.shape)
        return taken


class RowBuffer(TensorBatchBuffer):
    """A buffer for `Row`s. Small rows are copied in the thread of the event loop."""

    def __init__(self, infer: Infer, capacity: int) -> None:
        super().__init__(infer, capacity)
        self._items: list[Row | None] = [None] * capacity

    def prepares_quickly(self, item: Row) -> bool:
        return bool(sum([value.nbytes for value in item.inputs.values()]) <= _QUICK_NBYTES)

    def prepare(self, row: int, item: Row, parameters: Mapping[str, Any] | None) -> None:
        super().prepare(row, item.inputs, parameters)
        self._items[row] = item

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self._items[target] = self._items[source]

    def results(self, count: int) -> Sequence[Any]:
        outputs, items = self.outputs(count), self._items[:count]
        self._items[:count] = [None] * count
        return [
            None if item is None else item.take({name: array[row] for name, array in outputs.items()})
            for row, item in enumerate(items)
        ]
