"""Batch buffers: batch batches, and how the rows of one are filled and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InputError, ShapeError, UnsupportedModelError

if TYPE_CHECKING:
    from ..infer import Infer

__all__ = ["BatchBuffer", "TensorBatchBuffer"]

#: Bytes that are copied sooner than another thread is woken up.
QUICK = 64 * 1024


class BatchBuffer(Protocol):
    """A batch batch with `capacity` rows, and a model that runs it. What a `Pipeline` is made of.

    `prepare()` is called from several threads at once, for different rows; everything else from one at a time, and not
    while rows are being prepared.
    """

    capacity: int

    def quick(self, item: Any) -> bool:
        """Whether preparing it takes so little that the submitting thread had best do so itself. Any thread may ask."""

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        """Writes a request into a row. What it raises becomes that request's own failure.

        Args:
            parameters: what was given to `submit()` with the item, None if nothing was. They hold for this row only:
                requests with different parameters share a batch. A parameter that the buffer does not know is an
                InputError.
        """

    def move(self, source: int, target: int) -> None:
        """Makes row `target` what row `source` is: a request between them has gone."""

    def run(self, count: int) -> None:
        """Runs the first `count` rows. What it raises becomes the failure of each of them."""

    def results(self, count: int) -> Sequence[Any]:
        """What came of the first `count` rows: a result each, or an exception."""

    def refresh(self) -> None:
        """Called while the batch is empty, before it is filled again."""

    def batch_sizes(self) -> Sequence[int]:
        """The batch sizes that `run()` executes, ascending, up to the capacity: one for each bucket."""

    def warm_up(self, count: int) -> None:
        """Runs a batch of `count` neutral rows with everything before and behind the model, and drops its results.
        Called while the batch is empty.
        """

    def close(self) -> None:
        """Frees what the buffer holds."""


class TensorBatchBuffer:
    """Arrays in, arrays out: a request is an array, or one for each input by name, without the batch axis.

    The result is a dict of arrays, by output, without the batch axis.

    Args:
        infer: the buffer's own; it is closed with it.
        capacity: rows.

    Raises:
        UnsupportedModelError: an input or output has no batch axis.
    """

    def __init__(self, infer: Infer, capacity: int) -> None:
        self.capacity = capacity
        self._infer = infer
        self._specs = infer.input_specs
        for side, specs in (("input", infer.input_specs), ("output", infer.output_specs)):
            for spec in specs:
                if not spec.has_free_batch and spec.fixed_batch != capacity:
                    raise UnsupportedModelError(
                        f"{side} {spec} of {infer.model.name} has no free batch axis in front, so requests cannot "
                        "share a run"
                    )
        free = [spec for spec in self._specs if any(not isinstance(d, int) for d in spec.shape[1:])]
        if free:
            raise UnsupportedModelError(
                f"input {free[0]} of {infer.model.name} leaves more than its batch free: requests of different shapes "
                "cannot share a run; fix its other dimensions"
            )
        self._rows: list[np.ndarray[Any, Any]] = []
        for spec in self._specs:
            tensor = infer.inputs[spec.name].resize((capacity, *spec.shape[1:]))  # type: ignore[arg-type]
            self._rows.append(tensor.numpy(writable=True))
            self._rows[-1].fill(0)  # rows that pad are run as well, and indices in them must be some

    def quick(self, item: Any) -> bool:
        return isinstance(item, np.ndarray) and item.nbytes <= QUICK

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        if parameters:
            raise InputError(
                f"{self._infer.model.name} takes no parameters with a request, and {', '.join(sorted(parameters))} was "
                "given; only model wrappers do"
            )
        if isinstance(item, Mapping):
            if set(item) != {spec.name for spec in self._specs}:
                raise InputError(f"a request has arrays for {[s.name for s in self._specs]}, not for {list(item)}")
            values = [item[spec.name] for spec in self._specs]
        elif len(self._specs) == 1:
            values = [item]
        else:
            raise InputError(f"the model has the inputs {[s.name for s in self._specs]}: submit a dict of arrays")
        for spec, rows, value in zip(self._specs, self._rows, values, strict=True):
            array = np.asarray(value)
            if array.shape != rows.shape[1:]:
                raise ShapeError(f"input {spec.name!r} takes {rows.shape[1:]} for one request, not {array.shape}")
            spec.check((1, *array.shape), array.dtype)
            rows[row] = array

    def move(self, source: int, target: int) -> None:
        for rows in self._rows:
            rows[target] = rows[source]

    def run(self, count: int) -> None:
        infer = self._infer
        # Asked once for all inputs, for the answer may be another the next time; beyond the capacity there are no rows.
        batch = min(infer.bucket_batch(count), self.capacity)
        for spec, rows in zip(self._specs, self._rows, strict=True):
            tensor = infer.inputs[spec.name]
            if spec.has_free_batch:
                tensor.resize((batch, *rows.shape[1:]))
            tensor.host_ptr(read=False, write=True)  # the rows were written behind its back
        infer.forward()

    def results(self, count: int) -> Sequence[Any]:
        outputs = {name: tensor.numpy()[:count].copy() for name, tensor in self._infer.outputs.items()}
        for name, array in outputs.items():
            if len(array) < count:
                raise UnsupportedModelError(f"output {name!r} has {len(array)} rows for a batch of {count}")
        return [{name: array[i] for name, array in outputs.items()} for i in range(count)]

    def refresh(self) -> None:
        self._infer.change()

    def batch_sizes(self) -> Sequence[int]:
        sizes = {min(self._infer.bucket_batch(count), self.capacity) for count in range(1, self.capacity + 1)}
        return sorted(sizes)

    def warm_up(self, count: int) -> None:
        for rows in self._rows:
            rows[:count] = 0
        self.run(count)
        self.results(count)

    def close(self) -> None:
        self._rows = []
        self._infer.close()
