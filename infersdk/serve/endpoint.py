"""One loaded version of a model: its inputs and outputs, and its pipeline."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineExceeded
from ..pipeline import RequestStages, stage_listener
from .admission import Admission
from .errors import RequestError
from .messages import InferRequest, TensorInfo
from .regions import SharedTensor
from .workers import all_results, in_worker, within

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..pipeline import Pipeline
    from .shadow import Shadow

__all__ = ["Counters", "Endpoint", "RequestTally"]

#: Minimum default size of the queue: a pipeline with batches of one image has only a few slots.
_LEAST_QUEUE = 64
#: The stages of a request, as the protocol names them.
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(slots=True)
class RequestTally:
    """The figures of one request, for the statistics.

    Attributes:
        came, read: the times of its arrival and of its parsed rows, by `time.monotonic()`.
        gathered: seconds spent on combining the results of the rows.
    """

    came: float
    read: float
    rows: int = 1
    stages: list[RequestStages] = field(default_factory=list)
    gathered: float = 0.0


class Counters:
    """The statistics of a version, in the terms of the protocol.

    Attributes:
        stats: number and total nanoseconds of the requests that succeeded and failed, and of the stages of the
            successful ones: queue, decoding, model, postprocessing. A request of several rows counts the mean of its
            rows. There is no cache.
        batches: by batch size, the total nanoseconds of decoding, run and postprocessing.
        rows: rows of successful requests.
        last_ms: the end of the last request, in milliseconds since 1970.
    """

    def __init__(self) -> None:
        names = ("success", "fail", *_STAGES, "cache_hit", "cache_miss")
        self.stats = {name: {"count": 0, "ns": 0} for name in names}
        self.batches = defaultdict[int, dict[str, float]](lambda: dict.fromkeys(_STAGES[1:], 0.0))
        self.rows = 0
        self.last_ms = 0

    def add(self, request: RequestTally, failed: bool) -> None:
        """Counts a finished request."""
        self._add("fail" if failed else "success", monotonic() - request.came)
        self.last_ms = time_ns() // 1_000_000
        if failed:
            return
        self.rows += request.rows
        read, stages = request.read, request.stages
        totals = dict(zip(_STAGES, (0.0, read - request.came, 0.0, request.gathered), strict=True))
        for one in stages:
            prepare = one.prepare[1] - one.prepare[0]
            run, done = one.ran - one.left, one.done - one.ran
            for name, seconds in zip(_STAGES, (one.left - read - prepare, prepare, run, done), strict=True):
                totals[name] += seconds / len(stages)
            # Each row of a batch adds its share.
            for name, seconds in zip(_STAGES[1:], (prepare, run / one.batch, done / one.batch), strict=True):
                self.batches[one.batch][name] += seconds * 1e9
        for name, seconds in totals.items():
            self._add(name, seconds)

    def _add(self, name: str, seconds: float) -> None:
        self.stats[name]["count"] += 1
        self.stats[name]["ns"] += int(seconds * 1e9)


class Endpoint(ABC):
    """A model that answers requests. All methods except `close()` run in the thread of the event loop.

    Args:
        pipelines: the pipelines of the model; rows are submitted to the first.
        queue: the maximum number of waiting requests; see `Admission`.

    Attributes:
        platform: the backend in the metadata: `"onnxruntime"`, ...
        inputs, outputs: descriptions of its tensors.
        check_samples: runs the golden samples of a bundle, and raises an error if they differ or cannot be run; None
            for a model without samples.
        shadow: a second model that is compared with this one, and belongs to the endpoint; None without.
        golden_checks: how often the golden samples agreed and differed.
        batched: whether the first axis of all tensors is the batch.
        parameters: names of the settings that a request may override.
    """

    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batched: bool
    parameters: frozenset[str] = frozenset()
    check_samples: Callable[[], None] | None = None
    shadow: Shadow | None = None

    def __init__(self, name: str, version: str, pipelines: Sequence[Pipeline[Any]], queue: int | None) -> None:
        self.name, self.version = name, version
        self.pipelines, self.pipeline = pipelines, pipelines[0]
        self.counters = Counters()
        waiting = max(self.pipeline.slots * 8, _LEAST_QUEUE) if queue is None else queue
        self.admission = Admission(self.pipeline.slots, waiting, name)
        self.golden_checks = {"pass": 0, "fail": 0}
        self.difference: BaseException | None = None  # of its golden samples
        self._runs_before = self.pipeline.stats().batch_sizes  # those of the warm-up
        self._users = 0
        self._unused = threading.Condition()

    # ---- abstract methods ----

    @abstractmethod
    def rows(self, request: InferRequest) -> list[Any]:
        """Validates a request, and returns an item of the pipeline for each row of its batch."""

    @abstractmethod
    def gather(self, results: Sequence[Any], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Combines the results of all rows to the outputs of these names."""

    def gathers_slowly(self, results: Sequence[Any]) -> bool:
        """Whether `gather()` is slow and runs in a worker thread."""
        return False

    @abstractmethod
    def release(self) -> None:
        """Frees the model after its last request."""

    def takes_shared(self, tensor: SharedTensor) -> bool:
        """Whether `rows()` accepts a tensor in shared memory; others are copied to arrays."""
        return False

    def run(self, item: Any, deadline: float | None, parameters: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """Runs one row."""
        return self.pipeline.infer(item, deadline=deadline, **parameters)

    @property
    def fault(self) -> BaseException | None:
        """The exception that ended a pipeline of the model, or the difference of its golden samples; None if it accepts
        requests.
        """
        if self.difference is not None:
            return self.difference
        return next((pipeline.fault for pipeline in self.pipelines if pipeline.fault is not None), None)

    def verify_samples(self) -> None:
        """Runs the golden samples. If they differ or cannot be run, that is the `fault` of the model. In any thread."""
        assert self.check_samples is not None
        try:
            self.check_samples()
        except Exception as error:
            self.golden_checks["fail"] += 1
            self.difference = error
        else:
            self.golden_checks["pass"] += 1

    # ---- requests ----

    @contextmanager
    def request(self) -> Iterator[RequestTally]:
        """A request, until its answer is encoded: keeps the model open within the block, and counts the outcome."""
        now, failed, trace = monotonic(), True, stage_listener.get()
        tally = RequestTally(now, now)

        def listen(stages: RequestStages) -> None:
            tally.stages.append(stages)
            if trace is not None:
                trace(stages)

        with self.in_use():
            token = stage_listener.set(listen)
            try:
                yield tally
                failed = False
            finally:
                stage_listener.reset(token)
                self.counters.add(tally, failed)

    async def infer(self, request: InferRequest, tally: RequestTally) -> dict[str, npt.NDArray[Any]]:
        """Runs a request within the block of `request()`; returns the outputs by name, in the requested order."""
        names = self._wanted(request)
        self._check_parameters(request.parameters)
        for name, tensor in request.inputs.items():
            if isinstance(tensor, SharedTensor) and not self.takes_shared(tensor):
                request.inputs[name] = await in_worker(tensor.load)
        items = self.rows(request)
        tally.read, tally.rows = monotonic(), len(items)
        if len(items) == 1:
            results: Sequence[Any] = [await self._submit_one(items[0], request)]
        else:
            results = await all_results(
                self._submit_one(item, request, admitted=row > 0) for row, item in enumerate(items)
            )
        before = monotonic()
        if self.gathers_slowly(results):
            outputs = await within(request.deadline, in_worker(self.gather, results, names))
        else:
            outputs = self.gather(results, names)
        tally.gathered = monotonic() - before
        return outputs

    async def _submit_one(self, item: Any, request: InferRequest, *, admitted: bool = False) -> Any:
        deadline, came = request.deadline, monotonic()
        await self.admission.enter(deadline, request.priority, admitted=admitted)
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
        """Runs one item within the block of `request()`; returns the unchanged result of the model."""
        self._check_parameters(parameters)
        request = InferRequest(self.name, self.version, "", {}, None, parameters, deadline, priority)
        return await self._submit_one(item, request)

    @property
    def batch_sizes(self) -> dict[int, int]:
        """The number of batches of client requests, by size."""
        sizes = self.pipeline.stats().batch_sizes
        runs = {size: count - self._runs_before.get(size, 0) for size, count in sizes.items()}
        return {size: count for size, count in runs.items() if count}

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        if parameters and (unknown := sorted(set(parameters) - self.parameters)):
            known = f"; its parameters are {', '.join(sorted(self.parameters))}" if self.parameters else ""
            raise RequestError(f"model {self.name!r} has no parameter {unknown[0]!r}{known}")

    def _wanted(self, request: InferRequest) -> list[str]:
        known = [info.name for info in self.outputs]
        if not request.outputs:
            return known
        names = [output.name for output in request.outputs]
        for name in names:
            if name not in known:
                raise RequestError(
                    f"unexpected inference output {name!r} for model {self.name!r}; its outputs are {', '.join(known)}"
                )
        if len(set(names)) < len(names):
            raise RequestError(f"an output is requested twice: {', '.join(names)}")
        return names

    # ---- closing ----

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps the model open within the block."""
        with self._unused:
            self._users += 1
        try:
            yield
        finally:
            with self._unused:
                self._users -= 1
                self._unused.notify_all()

    def close(self, drain: float) -> None:
        """Waits at most `drain` seconds for running requests, and frees the model.

        Call it from any thread except that of the event loop.
        """
        with self._unused:
            self._unused.wait_for(lambda: not self._users, drain)
        for pipeline in self.pipelines:
            pipeline.close(drain=not self._users)
        self.release()
