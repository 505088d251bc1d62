"""Sessions on CUDA devices: their arena under a `memory_limit`, and their CUDA graphs."""

from __future__ import annotations

import functools
import re
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from ...core.memory_limit import tensor_nbytes
from ...core.text import size_text
from ...errors import ConfigError, MemoryLimitError
from ...graph.files import read_model
from ...graph.info import onnx_info
from ...graph.weights import weights_size
from ...infer import Infer, Scheduling
from .._batch_buckets import BatchBuckets, next_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...core.memory_limit import MemoryBudget

__all__ = ["Arena", "CudaGraphs", "arena_for", "scheduling_on_stream"]

#: One part in this many of a limit is for tensors and for the memory of wrappers.
_REST = 4
#: The runtime's messages for a full arena.
_FULL = re.compile(r"BFCArena|Available memory of \d+ is smaller than requested bytes|Failed to allocate memory")
_REMEDY = "use a smaller max_batch or precision='fp16'"


class Arena:
    """The device memory that the sessions of a model allocate from.

    Args:
        budget: of the model.
        tensors: bytes of all tensors of the parallel instances.
        weights: bytes of the weights in the file; a session takes about the same.
        settings: options of the provider from the user.

    Raises:
        ConfigError: `gpu_mem_limit` is not a number.
        MemoryLimitError: the weights and the tensors do not fit.
    """

    def __init__(self, budget: MemoryBudget, tensors: int, weights: int, settings: Mapping[str, Any]) -> None:
        self._budget = budget
        given = settings.get("gpu_mem_limit")
        if given is not None and not str(given).isdecimal():
            raise ConfigError(f"gpu_mem_limit is a number of bytes, not {given!r}")
        rest = max(budget.limit // _REST, tensors)
        self.limit = budget.limit - rest if given is None else int(str(given))
        budget.require({"weights": weights, "inputs and outputs": tensors}, _REMEDY)
        if weights > self.limit or self.limit <= 0:
            enough = max(-(-weights * _REST // (_REST - 1)), weights + tensors)
            raise MemoryLimitError(
                f"{budget.name}: of memory_limit {size_text(budget.limit)} the runtime's arena has "
                f"{size_text(max(self.limit, 0))}, and the weights alone are {size_text(weights)}; {_REMEDY}, raise "
                f"memory_limit to {enough} bytes, or divide it with provider_options={{'gpu_mem_limit': ...}}"
            )

    @property
    def settings(self) -> dict[str, str]:
        """Options of the provider: blocks of the requested sizes, since the default strategy doubles them."""
        return {"gpu_mem_limit": str(self.limit), "arena_extend_strategy": "kSameAsRequested"}

    def hold(self, session: Any) -> None:
        """Counts the whole arena until the session is freed.

        Raises:
            MemoryLimitError: the limit does not leave enough beside the tensors.
        """
        weakref.finalize(session, self._budget.reserve(self.limit).close).atexit = False

    def error_of(self, error: BaseException) -> MemoryLimitError | None:
        """The error for a failure of the runtime with a full arena; None for other failures."""
        if _FULL.search(str(error)) is None:
            return None
        return MemoryLimitError(
            f"{self._budget.name} needs more than {size_text(self.limit)} for weights and workspace, its runtime's "
            f"arena within memory_limit {size_text(self._budget.limit)}; {_REMEDY}, or raise memory_limit"
        )


#: Maximum number of CUDA graphs of a session and its clones. Later shapes and addresses run without one.
GRAPHS = 64


class CudaGraphs:
    """The graphs that a session has captured. Each run passes the number of its graph to the runtime.

    Without a number all runs replay the first graph, with its addresses.
    """

    def __init__(self) -> None:
        #: Held while a thread runs the session or queues other work: a capture records all work on the stream.
        self.guard = threading.RLock()
        self._made: dict[tuple[Any, ...], Any] = {}

    def options_for(self, memory: tuple[Any, ...]) -> Any:
        """The options of runs that read and write this memory; an empty tuple is a run without a graph.

        Their number is limited, since the runtime frees graphs only with the session.
        """
        result = self._made.get(memory)
        if result is None:
            captured = bool(memory) and len(self._made) < GRAPHS
            result = ort.RunOptions()
            result.add_run_config_entry("gpu_graph_id", str(len(self._made) + 1) if captured else "-1")
            if captured:
                self._made[memory] = result
        return result


def scheduling_on_stream(max_batch: int | None, graphs: CudaGraphs | None) -> Scheduling:
    """The runtime plans convolutions at each change of the batch, in 0.1 s and more; not for captured runs."""
    size_of = functools.partial(next_size, largest=max_batch)
    if graphs is None:
        bucket = BatchBuckets(max_batch).size_for
        return Scheduling.on_stream(shares_stream=True, bucket_batch=bucket, prepared_size=size_of)
    return Scheduling.on_stream(concurrency=1, shares_stream=True, stream_guard=graphs.guard, bucket_batch=size_of)


def arena_for(infer: Infer, source: Path | str | bytes, settings: Mapping[str, str], budget: MemoryBudget) -> Arena:
    """The arena of a model, checked against the limit before anything is allocated."""
    if not infer.model.is_onnx:
        return Arena(budget, 0, len(infer.model.read()), settings)
    info = onnx_info(infer.model)
    tensors = sum(tensor_nbytes(spec, infer.max_batch) for spec in (*info.inputs, *info.outputs))
    graph = read_model(source)
    return Arena(budget, infer.scheduling.concurrency * tensors, weights_size(graph), settings)
