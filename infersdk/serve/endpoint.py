"""One loaded version of a model: what it takes and gives, and its pipeline."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineExceeded
from ..tensor import Tensor
from .admission import Admission
from .errors import RequestError, Status
from .messages import InferRequest, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    import numpy.typing as npt

    from ..pipeline import Pipeline

__all__ = ["Counters", "Endpoint"]

#: Requests that wait at least, before more are refused: with one image a run a pipeline holds a few requests alone, and
#: the clients of a small service are not refused for that.
_LEAST_QUEUE = 64


class Counters:
    """What a version of a model has done, as the protocol's statistics name it. Durations in nanoseconds."""

    def __init__(self) -> None:
        self.success = self.success_ns = self.failed = self.failed_ns = 0
        self.input_ns = self.output_ns = 0
        self.rows = 0
        self.last_ms = 0

    def add(self, rows: int, started: int, ended: int, failed: bool) -> None:
        """A request has ended; the times are of `time.time_ns()`."""
        if failed:
            self.failed += 1
            self.failed_ns += ended - started
        else:
            self.success += 1
            self.success_ns += ended - started
            self.rows += rows
        self.last_ms = ended // 1_000_000


class Endpoint(ABC):
    """A model that answers requests. Its methods but `close()` run in the thread of the event loop.

    Args:
        pipelines: of the model; the first one takes its rows.
        queue: how many requests may wait; see `Admission`.

    Attributes:
        platform: what runs it, as metadata names it: `"onnxruntime"`, ...
        inputs, outputs: what it takes and gives.
        labels: the class names, by number.
        batched: whether the first axis of all tensors is the batch.
        parameters: names of the settings that a request may give.
    """

    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    labels: Sequence[str] = ()
    batched: bool
    parameters: frozenset[str] = frozenset()

    def __init__(self, name: str, version: str, pipelines: Sequence[Pipeline[Any]], queue: int | None) -> None:
        self.name, self.version = name, version
        self.pipelines, self.pipeline = pipelines, pipelines[0]
        self.counters = Counters()
        waiting = max(self.pipeline.slots * 8, _LEAST_QUEUE) if queue is None else queue
        self.admission = Admission(self.pipeline.slots, waiting, name)
        self._leases = 0
        self._lock = threading.Lock()
        self._unused = threading.Condition(self._lock)

    # ---- what a kind of model fills in ----

    @abstractmethod
    def rows(self, request: InferRequest) -> list[Any]:
        """What is submitted to the pipeline for a request, checked: an item for each row of its batch."""

    @abstractmethod
    def gather(
        self, request: InferRequest, results: Sequence[Any], names: Sequence[str]
    ) -> dict[str, npt.NDArray[Any]]:
        """The outputs of these names out of the results of all rows."""

    @abstractmethod
    def release(self) -> None:
        """Frees the model. Its pipeline has no more requests."""

    def run(self, item: Any, deadline: float | None, parameters: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Gives the result of one row."""
        return self.pipeline.infer(item, deadline=deadline, **parameters)

    # ---- requests ----

    async def infer(self, request: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Runs a request; the outputs by name, in the order in which they were asked for.

        Raises:
            RequestError, InferSDKError: why not.
        """
        known = request.known_rows
        kept = None if known is None else known.of(self)
        names, items = kept or (self._checked_names(request), None)
        started, failed, count = time_ns(), True, 1
        try:
            if items is None:
                items = self.rows(request)
                if known is not None and not any(isinstance(item, Tensor) for item in items):  # it may have a copy
                    known.keep(self, names, items)
            self.counters.input_ns += time_ns() - started
            count = len(items)
            if count == 1:
                results: Sequence[Any] = [await self._submit_one(items[0], request)]
            else:
                results = await self._submit_all(items, request)
            before = time_ns()
            outputs = self.gather(request, results, names)
            self.counters.output_ns += time_ns() - before
            failed = False
        finally:
            self.counters.add(count, started, time_ns(), failed)
        return outputs

    async def _submit_all(self, items: list[Any], request: InferRequest) -> Sequence[Any]:
        tasks = [asyncio.ensure_future(self._submit_one(item, request)) for item in items]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _submit_one(self, item: Any, request: InferRequest) -> Any:
        deadline, came = request.deadline, monotonic()
        await self.admission.enter(deadline, request.priority)
        try:
            if deadline is not None:
                deadline = max(deadline - (monotonic() - came), 0.0)
            return await self.run(item, deadline, request.parameters)
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"the request to model {self.name!r} had not left for the model within its {request.deadline:g} s"
            ) from None
        finally:
            self.admission.leave()

    async def predict(self, item: Any, parameters: Mapping[str, Any], deadline: float | None, priority: int) -> Any:
        """One item, counted as a request; the result as the model gives it. Otherwise as `infer()`."""
        self._check_parameters(parameters)
        request = InferRequest(self.name, self.version, "", {}, None, parameters, deadline, priority)
        started, failed = time_ns(), True
        try:
            result = await self._submit_one(item, request)
            failed = False
        finally:
            self.counters.add(1, started, time_ns(), failed)
        return result

    def _checked_names(self, request: InferRequest) -> list[str]:
        """The names of the outputs that are wanted, where outputs and parameters are the model's."""
        names = self._wanted(request)
        self._check_parameters(request.parameters)
        return names

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        if parameters and (unknown := sorted(set(parameters) - self.parameters)):
            known = f"; its parameters are {', '.join(sorted(self.parameters))}" if self.parameters else ""
            raise RequestError(Status.INVALID, f"model {self.name!r} has no parameter {unknown[0]!r}{known}")

    def _wanted(self, request: InferRequest) -> list[str]:
        known = [info.name for info in self.outputs]
        if not request.outputs:
            return known
        names = [output.name for output in request.outputs]
        for name in names:
            if name not in known:
                raise RequestError(
                    Status.INVALID,
                    f"unexpected inference output {name!r} for model {self.name!r}; its outputs are {', '.join(known)}",
                )
        if len(set(names)) < len(names):
            raise RequestError(Status.INVALID, f"an output is asked for twice: {', '.join(names)}")
        return names

    # ---- its life ----

    def acquire(self) -> None:
        """A request is on its way: until `put_back()` the model is not closed."""
        with self._lock:
            self._leases += 1

    def put_back(self) -> None:
        """The request has ended."""
        with self._lock:
            self._leases -= 1
            if not self._leases:
                self._unused.notify_all()

    def close(self, drain: float) -> None:
        """Waits for the requests that are on their way, at most `drain` seconds, and frees the model. In any thread
        but that of the event loop.
        """
        with self._lock:
            self._unused.wait_for(lambda: not self._leases, drain)
        for pipeline in self.pipelines:
            pipeline.close(drain=not self._leases)
        self.release()
