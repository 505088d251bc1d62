"""Batch buffers: rows to fill, and a model that runs them, on the cores of a processor side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..core.tensor_spec import as_array, by_name
from ..errors import ConfigError, InferenceError, InputError, OutOfMemoryError, ShapeError, UnsupportedModelError

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..core.tensor import Tensor
    from ..core.tensor_spec import TensorSpec
    from ..infer import Infer

__all__ = [
    "BatchBuffer", "OneBucket", "SideBySide", "TensorBatchBuffer", "TensorRequests", "check_capacity",
    "runs_side_by_side",
]  # fmt: skip

#: Requests in a batch, if neither the model nor the user says how many.
DEFAULT_BATCH = 8


def runs_side_by_side(infer: Infer) -> int:
    """The number of parallel runs that suits a model: on a processor one more than cores, since its threads also
    distribute results.
    """
    return infer.scheduling.one_core_clones + 1 if infer.scheduling.one_core_clones else infer.scheduling.concurrency


class SideBySide:
    """Runs an `Infer` on all cores while no other run of its model is in progress, and on one core otherwise.

    Threads of a runtime wait for each other after each layer, so parallel runs of one thread each have a higher
    throughput. A model without clones for one core always runs on the `Infer`.

    Args:
        infer: its inputs are filled; it stays the caller's. Other `SideBySide` have clones of it.
    """

    def __init__(self, infer: Infer) -> None:
        self._infer, self._under_way = infer, infer._side_by_side
        self._on_one_core: Infer | None = None  # a clone that is made when it is first needed

    def forward(self) -> Mapping[str, Tensor]:
        """Runs; returns the outputs, which the next run overwrites."""
        under_way = self._under_way
        infer = self._clone() if under_way and self._infer.scheduling.one_core_clones else self._infer
        try:
            under_way.append(None)
            return infer.forward()
        finally:
            under_way.pop()

    def _clone(self) -> Infer:
        """The clone on one core, with the inputs of the model."""
        if self._on_one_core is None:
            self._on_one_core = self._infer.clone(one_core=True)
        for name, tensor in self._infer.inputs.items():
            if self._on_one_core.inputs[name] is not tensor:
                self._on_one_core.bind(name, tensor)
        return self._on_one_core

    def warm_up(self) -> None:
        """Runs the present inputs on one core."""
        if self._infer.scheduling.one_core_clones:
            self._clone().forward()

    def close(self) -> None:
        """Frees the clone. A later run makes another one."""
        clone, self._on_one_core = self._on_one_core, None
        if clone is not None:
            clone.close()


#: Maximum number of bytes that are copied in less time than waking up another thread.
QUICK_NBYTES = 64 * 1024


class BatchBuffer(Protocol):
    """Memory for a batch of `capacity` rows, and an execution context of a model that runs it.

    Several threads call `prepare()` at the same time, for different rows; any thread calls `prepares_quickly()`. One
    thread at a time calls the other methods, while no row is being prepared.
    """

    capacity: int

    def prepares_quickly(self, item: Any) -> bool:
        """Whether preparing the item takes less time than waking up a thread: then the caller's thread does it."""

    def bucket_of(self, item: Any) -> Hashable:
        """Which items share a batch: those whose bucket is equal, such as images of one canvas. None where all do.

        Called before the item has a row, in the thread that submits it. It raises nothing: `prepare()` does.
        """

    def set_bucket(self, bucket: Hashable) -> None:
        """The bucket of the rows that are prepared from now on. Called while the buffer is empty; takes no time."""

    def buckets(self) -> Sequence[Hashable]:
        """All buckets, for warming up; the one for any item is the last."""

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        """Writes a request into a row. An exception fails this request alone.

        Args:
            parameters: those of `submit()`, or None. They hold for this row alone: requests with different parameters
                share a batch. An unknown parameter is a ConfigError of a wrapper, and an InputError of an `Infer`.
        """

    def move(self, source: int, target: int) -> None:
        """Copies row `source` to row `target`, whose request has gone."""

    def run(self, count: int) -> None:
        """Runs the first `count` rows. Further rows that the model runs are zeros: the scales of a model that is
        quantised at run time depend on all rows.

        After an exception, each half of the rows is moved to the front and run again, down to single rows; the
        exception of a single row fails that request. Rows of the same batch may then be behind them.
        """

    def results(self, count: int) -> Sequence[Any]:
        """A result, or an exception, for each of the first `count` rows. The rows behind them are kept."""

    def refresh(self) -> bool:
        """Changes to the backend that serves now, if that is another one. Called while the buffer is empty.

        Returns:
            Whether it is another one.
        """

    def batch_sizes(self) -> Sequence[int]:
        """The batch sizes that the model runs, ascending up to the capacity. Others are padded to the next one."""

    def warm_up(self, count: int, example: Any = None) -> None:
        """Runs `count` rows, with preprocessing and postprocessing, until a further run takes no longer than usual, and
        drops the results.

        Called while the buffer is empty, after `set_bucket()`.

        Args:
            example: the item of each row; None is neutral content.
        """

    def close(self) -> None:
        """Frees the memory of the buffer."""


class OneBucket:
    """The buckets of a `BatchBuffer` whose requests all share batches."""

    def bucket_of(self, item: Any) -> None:
        return None

    def set_bucket(self, bucket: Hashable) -> None:
        """There is one."""

    def buckets(self) -> Sequence[None]:
        return (None,)


class TensorBatchBuffer(OneBucket):
    """Arrays in, arrays out.

    A request is an array, or a dict with an array for each input, without the batch axis. A result is a dict with an
    array for each output, without the batch axis.

    In place of an array there may be an object with `shape`, `dtype` and `read_into(array)`, which writes its values
    into the row by itself: from shared memory for instance, without an array in between.

    The `Infer` belongs to the buffer, which closes it.

    Raises:
        UnsupportedModelError: an input or output has no batch axis, or an input leaves other dimensions free.
    """

    def __init__(self, infer: Infer, capacity: int) -> None:
        self.capacity = capacity
        self._infer, self._serving = infer, infer.current()
        self._runs = SideBySide(infer)
        self._outputs = infer.outputs
        self._specs = infer.input_specs
        sides = (("input", infer.input_specs), ("output", infer.output_specs))
        fixed = {spec.fixed_batch for _, specs in sides for spec in specs if not spec.has_free_batch}
        for side, specs in sides:
            for spec in specs:
                if not spec.has_free_batch and spec.fixed_batch != capacity:
                    usable = side == "input" and spec.fixed_batch and len(fixed) == 1
                    remedy = f", or use max_batch={spec.fixed_batch}" if usable else ""
                    raise UnsupportedModelError(
                        f"{side} {spec} of {infer.model.name} has no free batch axis in front, so batches of "
                        f"{capacity} requests cannot run; export the model with a dynamic first dimension{remedy}"
                    )
        if free := _open_inputs(infer):
            raise UnsupportedModelError(
                f"input {free[0]} of {infer.model.name} leaves more than its batch free, and requests of different "
                "shapes cannot share a run; fix its other dimensions"
            )
        self._rows: list[np.ndarray[Any, Any]] = []
        self._prepared = False  # whether rows were prepared since the last run
        self._ran = capacity  # rows of the last run
        for spec in self._specs:
            tensor = infer.inputs[spec.name].resize((capacity, *spec.shape[1:]))  # type: ignore[arg-type]
            self._rows.append(tensor.numpy(writable=True))

    def check_rows(self) -> None:
        """Checks that the free first dimensions of outputs are the batch, by their names, or else by runs of zeros.

        Raises:
            UnsupportedModelError: an output has a row count of its own: as many as objects, for example.
        """
        if names_rows(self._infer) and all(None not in spec.shape for spec in self._infer.output_specs):
            return
        for count in {1, min(2, self.capacity)}:
            self._resize(count)
            known = self._infer._known_output_shapes()
            if all(shape is not None and shape[0] == self._ran for shape in known.values()):
                continue
            for rows in self._rows:
                rows.fill(0)
            # Zeros are no valid input, and may ask for any size: `outputs()` checks each run.
            with contextlib.suppress(InferenceError, OutOfMemoryError):
                self._forward()
                self.outputs(count)

    def prepares_quickly(self, item: Any) -> bool:
        return isinstance(item, np.ndarray) and item.nbytes <= QUICK_NBYTES

    def prepare(self, row: int, item: Any, parameters: Mapping[str, Any] | None) -> None:
        self._prepared = True
        if parameters:
            raise InputError(
                f"{self._infer.model.name} takes no parameters with a request, and {', '.join(sorted(parameters))} was "
                "given; only model wrappers do"
            )
        values = by_name(item, self._specs)
        for spec, rows in zip(self._specs, self._rows, strict=True):
            value = values[spec.name]
            write = getattr(value, "read_into", None)
            array = as_array(value, spec.name) if write is None else value
            if tuple(array.shape) != rows.shape[1:]:
                raise ShapeError(
                    f"input {spec.name!r} takes {rows.shape[1:]} for one request, not {tuple(array.shape)}"
                )
            if array.dtype != rows.dtype:
                spec.check((1, *array.shape), array.dtype)  # raises a DTypeError
            if write is None:
                rows[row] = array
            else:
                write(rows[row])

    def move(self, source: int, target: int) -> None:
        for rows in self._rows:
            rows[target] = rows[source]

    def _resize(self, batch: int) -> None:
        """Gives the inputs this number of rows."""
        for spec, rows in zip(self._specs, self._rows, strict=True):
            tensor = self._infer.inputs[spec.name]
            if spec.has_free_batch:
                tensor.resize((batch, *rows.shape[1:]))
            self._ran = tensor.shape[0]

    def run(self, count: int) -> None:
        # One question for all inputs, since the answer may change from call to call. There are no rows beyond the
        # capacity.
        self._resize(min(self._infer.scheduling.bucket_batch(count), self.capacity))
        if self._prepared:
            for rows in self._rows:
                rows[count : self._ran] = 0
        self._forward()

    def _forward(self) -> None:
        for spec in self._specs:  # the tensors do not know that their rows were written
            self._infer.inputs[spec.name].host_ptr(read=False, write=True)
        self._prepared = False
        self._outputs = self._runs.forward()

    def results(self, count: int) -> Sequence[Any]:
        outputs = {name: array.copy() for name, array in self.outputs(count).items()}
        return [{name: array[i, ...] for name, array in outputs.items()} for i in range(count)]

    def outputs(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """The outputs of the first `count` rows, which the next run overwrites."""
        with self._infer.scheduling.stream_guard:
            outputs = {name: tensor.numpy() for name, tensor in self._outputs.items()}
        for name, array in outputs.items():
            if len(array) != self._ran:  # which row belongs to which request is unknown
                raise UnsupportedModelError(
                    f"output {name!r} has {len(array)} rows for a batch of {self._ran}, so requests cannot share a "
                    "run; call the Infer itself"
                )
        return {name: array[:count] for name, array in outputs.items()}

    def refresh(self) -> bool:
        before, self._serving = self._serving, self._infer.current()  # the requested backend, once it is ready
        return self._serving is not before

    def batch_sizes(self) -> Sequence[int]:
        return self._infer.scheduling.batch_sizes(self.capacity)

    def warm_up(self, count: int, example: Any = None) -> None:
        for rows in self._rows:
            rows.fill(0)
        if example is not None:
            for row in range(count):
                self.prepare(row, example, None)
        for _ in range(self._infer.current().scheduling.warm_up_runs):
            self.run(count)
            self.results(count)
            self._runs.warm_up()

    def close(self) -> None:
        self._rows = []
        self._runs.close()
        self._infer.close()


class TensorRequests:
    """An `Infer` for a pipeline: requests of tensors.

    Args:
        network: stays the caller's. Each buffer has a clone of it.
        buffer: the class of its buffers.
    """

    def __init__(self, network: Infer, buffer: type[TensorBatchBuffer] = TensorBatchBuffer) -> None:
        self.network, self._buffer, self._checked = network, buffer, False
        self.concurrency, self.serializes_runs = runs_side_by_side(network), network.scheduling.serializes_runs

    def batch_buffer(self, capacity: int | None) -> TensorBatchBuffer:
        """A buffer of `capacity` rows; None is the batch of the network.

        Raises:
            ConfigError: the network was loaded for less.
        """
        fixed = next((spec.fixed_batch for spec in self.network.input_specs if spec.fixed_batch is not None), None)
        if fixed is None:
            check_capacity(self.network, capacity)
        network, made = self.network.clone(), None
        try:
            made = self._buffer(network, capacity or fixed or self.network.max_batch or DEFAULT_BATCH)
            if not self._checked:
                made.check_rows()
                self._checked = True
            return made
        except BaseException:
            (made or network).close()
            raise


def _open_inputs(network: Infer) -> list[TensorSpec]:
    """The inputs that leave more than their batch free."""
    return [spec for spec in network.input_specs if any(not isinstance(side, int) for side in spec.shape[1:])]


def has_rows(network: Infer) -> bool:
    """Whether all tensors have a free batch in front, and the inputs leave nothing else free."""
    return network._has_free_rows and not _open_inputs(network)


def names_rows(network: Infer) -> bool:
    """Whether the first dimension of each output has the name or the size of that of an input."""
    names = {spec.shape[0] for spec in network.input_specs} - {None}
    return all(spec.shape[0] in names for spec in network.output_specs)


def check_capacity(network: Infer, capacity: int | None, fixed: int | None = None) -> None:
    """Checks the rows of a batch that a pipeline is to run.

    Args:
        fixed: the batch of the input, where it has no free one.

    Raises:
        ConfigError: they are more than the network takes.
    """
    largest = network.max_batch if fixed is None else fixed
    if capacity is not None and largest is not None and capacity > largest:
        remedy = f"load it with max_batch={capacity}" if fixed is None else "export it with a free batch dimension"
        raise ConfigError(
            f"max_batch={capacity}, but {network.model.name} takes batches up to {largest}; {remedy}, or leave "
            "max_batch out"
        )


def sizes_to_run(sizes: Sequence[int], capacity: int) -> list[int]:
    """Which of the batch sizes of a model to run, the largest first, since it allocates the memory for all of them.

    A backend that pads batches prepares itself for each size. For others a new size costs little: sizes that double
    are enough.
    """
    if len(sizes) == capacity:
        sizes = [size for size in sizes if size == capacity or not size & (size - 1)]
    return sorted(sizes, reverse=True)
