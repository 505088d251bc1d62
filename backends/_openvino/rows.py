"""The rows of a batch, one by one on a compiled model with a stream for each core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import openvino as ov

from .._row_runs import RowShapesError

if TYPE_CHECKING:
    from ...tensor import Tensor
    from .options import Options

__all__ = ["RequestRows", "cores_of", "may_split", "streams_of_one_thread"]


def may_split(options: Options) -> bool:
    """Whether streams and threads are the runtime's choice, so that they may be used otherwise."""
    return (
        options.split_batches
        and options.performance_hint == "latency"
        and not options.streams
        and not options.threads
        and not options.profiling
    )


def cores_of(compiled: Any) -> int:
    """The cores that one run of a compiled model takes."""
    return int(compiled.get_property("INFERENCE_NUM_THREADS"))


def streams_of_one_thread(properties: dict[str, Any], cores: int) -> dict[str, Any]:
    """The properties for as many runs side by side as there are cores."""
    return {**properties, "NUM_STREAMS": cores, "INFERENCE_NUM_THREADS": cores}


class RequestRows:
    """See `RowRunner`. Each worker has an infer request.

    Args:
        compiled: with a stream for each core.
        workers: how many run at a time.
        as_input: a tensor's host side as an array that OpenVINO takes.
    """

    def __init__(self, compiled: Any, workers: int, as_input: Callable[[Tensor], Any]) -> None:
        self._requests = [compiled.create_infer_request() for _ in range(workers)]
        self._as_input = as_input
        self._whole: Any = None
        self._rows: list[tuple[list[Any], list[Any]]] = []
        self._rest: tuple[list[Any], list[Any]] = [], []

    def place(
        self, inputs: Sequence[tuple[str, Tensor]], outputs: Sequence[tuple[str, Tensor]], split: int, whole: Any
    ) -> None:
        self._whole = whole
        read = [self._as_input(tensor) for _, tensor in inputs]
        written = [tensor.numpy(writable=True) for _, tensor in outputs]
        batch = len(read[0])

        def views(first: int, end: int) -> tuple[list[Any], list[Any]]:
            given, taken = (
                [ov.Tensor(array[first:end], shared_memory=True) for array in side] for side in (read, written)
            )
            return given, taken

        self._kept = [*read, *written]  # the runtime keeps addresses only
        self._rows = [views(row, row + 1) for row in range(split)]
        self._rest = views(split, batch) if split < batch else ([], [])

    def run_row(self, row: int, worker: int) -> None:
        _run(self._requests[worker], *self._rows[row])

    def run_rest(self) -> None:
        _run(self._whole, *self._rest)


def _run(request: Any, inputs: list[Any], outputs: list[Any]) -> None:
    shapes = [tuple(view.shape) for view in outputs]
    for index, view in enumerate(inputs):
        request.set_input_tensor(index, view)
    for index, view in enumerate(outputs):
        request.set_output_tensor(index, view)
    try:
        request.infer(share_outputs=True)
    except RuntimeError as error:
        if "Could set new shape" in str(error):  # more than there is room for
            raise RowShapesError from None
        raise
    if any(tuple(view.shape) != shape for view, shape in zip(outputs, shapes, strict=True)):
        raise RowShapesError
