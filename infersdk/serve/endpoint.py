"""One loaded version of a model: what it takes and gives, and its pipeline."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineExceeded
from ..pipeline import RequestStages, stage_listener
from .admission import Admission
from .errors import RequestError, Status
from .messages import InferRequest, TensorInfo
from .regions import SharedTensor
from .workers import in_worker, within

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ..pipeline import Pipeline

__all__ = ["Counters", "Endpoint"]

#: Requests that wait at least, before more are refused: with one image a run a pipeline holds a few requests alone, and
#: the clients of a small service are not refused for that.
_LEAST_QUEUE = 64


class Counters:
    """What a version of a model has done, as the protocol's statistics name it. Durations in nanoseconds.

    Attributes:
        success, failed: requests, and with `_ns` their durations in all.
        queue_ns, input_ns, infer_ns, output_ns: how long requests that succeeded waited, were decoded, were run and
            had their results made; of a request of several rows the mean of its rows.
        batches: of each batch size, the durations of its batches: decoding of all rows, run, results.
        rows: of requests that succeeded.
        last_ms: when the last request ended, since 1970.
    """

    def __init__(self) -> None:
        self.success = self.success_ns = self.failed = self.failed_ns = 0
        self.queue_ns = self.input_ns = self.infer_ns = self.output_ns = 0
        self.batches: dict[int, tuple[float, float, float]] = {}
        self.rows = 0
        self.last_ms = 0

    def add(self, rows: int, seconds: float, failed: bool) -> None:
        """A request has ended."""
        if failed:
            self.failed += 1
            self.failed_ns += int(seconds * 1e9)
        else:
            self.success += 1
            self.success_ns += int(seconds * 1e9)
            self.rows += rows
        self.last_ms = time_ns() // 1_000_000

    def add_stages(self, came: float, read: float, stages: Sequence[RequestStages], gathered: float) -> None:
        """A request has succeeded.

        Args:
            came, read: when it came, and when its rows were known, by `time.monotonic()`.
            stages: of its rows.
            gathered: seconds that its outputs took to be made of the results of the rows.
        """
        self.input_ns += int((read - came) * 1e9)
        self.output_ns += int(gathered * 1e9)
        for one in stages:
            prepare = one.prepare[1] - one.prepare[0]
            waited, run, done = one.left - read - prepare, one.ran - one.left, one.done - one.ran
            self.queue_ns += int(waited / len(stages) * 1e9)
            self.input_ns += int(prepare / len(stages) * 1e9)
            self.infer_ns += int(run / len(stages) * 1e9)
            self.output_ns += int(done / len(stages) * 1e9)
            before = self.batches.get(one.batch, (0.0, 0.0, 0.0))
            now = prepare, run / one.batch, done / one.batch  # each of its rows adds its share
            self.batches[one.batch] = tuple(a + b * 1e9 for a, b in zip(before, now, strict=True))  # type: ignore[assignment]


@contextmanager
def _stages() -> Iterator[list[RequestStages]]:
    """Collects the stages of the requests to pipelines that are made within."""
    stages: list[RequestStages] = []
    outer = stage_listener.get()

    def listen(one: RequestStages) -> None:
        stages.append(one)
        if outer is not None:
            outer(one)

    token = stage_listener.set(listen)
    try:
        yield stages
    finally:
        stage_listener.reset(token)


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
        self._runs_before: Mapping[int, int] = {}
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

    def gathers_slowly(self, results: Sequence[Any]) -> bool:
        """Whether `gather()` takes long: it runs in a worker thread then."""
        return False

    @abstractmethod
    def release(self) -> None:
        """Frees the model. Its pipeline has no more requests."""

    def takes_shared(self, tensor: SharedTensor) -> bool:
        """Whether `rows()` takes a tensor that is still in shared memory. It gets any other as an array."""
        return False

    def run(self, item: Any, deadline: float | None, parameters: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Gives the result of one row."""
        return self.pipeline.infer(item, deadline=deadline, **parameters)

    @property
    def fault(self) -> BaseException | None:
        """The exception that ended a pipeline of the model; None while it takes requests."""
        return next((pipeline.fault for pipeline in self.pipelines if pipeline.fault is not None), None)

    # ---- requests ----

    async def infer(self, request: InferRequest) -> dict[str, npt.NDArray[Any]]:
        """Runs a request; the outputs by name, in the order in which they were asked for.

        Raises:
            RequestError, InferSDKError: why not.
        """
        names = self._checked_names(request)
        came, failed, count = monotonic(), True, 1
        try:
            for name, tensor in request.inputs.items():
                if isinstance(tensor, SharedTensor) and not self.takes_shared(tensor):
                    request.inputs[name] = await in_worker(tensor.load)
            items = self.rows(request)
            read, count = monotonic(), len(items)
            with _stages() as stages:
                if count == 1:
                    results: Sequence[Any] = [await self._submit_one(items[0], request)]
                else:
                    results = await self._submit_all(items, request)
            before = monotonic()
            gathering = in_worker(self.gather, request, results, names, when=self.gathers_slowly(results))
            outputs = await within(request.deadline, gathering)
            self.counters.add_stages(came, read, stages, monotonic() - before)
            failed = False
        finally:
            self.counters.add(count, monotonic() - came, failed)
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
        came, failed = monotonic(), True
        try:
            with _stages() as stages:
                result = await self._submit_one(item, request)
            self.counters.add_stages(came, came, stages, 0.0)
            failed = False
        finally:
            self.counters.add(1, monotonic() - came, failed)
        return result

    def start_counting(self) -> None:
        """Leaves the runs so far out of `batch_sizes`: they were no requests of clients."""
        self._runs_before = self.pipeline.stats().batch_sizes

    @property
    def batch_sizes(self) -> dict[int, int]:
        """The number of batches that were run for requests, by their size."""
        sizes = self.pipeline.stats().batch_sizes
        runs = {size: count - self._runs_before.get(size, 0) for size, count in sizes.items()}
        return {size: count for size, count in runs.items() if count}

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
