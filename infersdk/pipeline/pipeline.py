"""The public interface of pipelines."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from ..config import convert
from ..core import process_end
from ..core.processors import available_processors
from ..core.text import logger
from ..errors import ClosedError, ConfigError, Overloaded
from ..image.images import for_other_threads
from ..image.sources import check_several
from ..infer import Infer
from .batch_buffer import BatchBuffer, TensorRequests
from .core import PipelineCore
from .request import (
    MOST_SECONDS,
    AsyncResults,
    OpenCalls,
    Request,
    RequestFuture,
    check_seconds,
    results_in_order,
    wake_waiters,
)
from .scheduler import InstanceGroup

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..core.backend import Progress
    from ..core.tensor_spec import TensorSpec
    from .stats import PipelineStats

__all__ = ["Pipeline", "PipelineSettings", "Servable"]

_log = logger("infersdk.pipeline")

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

#: Minimum number of slots for a model whose batches of one row run side by side on a processor.
LEAST_SLOTS = 24
#: Batches that fill at a time, one for each bucket.
MOST_FILLING = 4
#: Maximum number of threads that read and preprocess.
MOST_WORKERS = 64
#: Maximum values of settings: rows in a batch and slots, and threads.
MOST_ROWS, MOST_THREADS = 1 << 20, 1024

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pipeline works.

    Attributes:
        max_batch: maximum number of requests in a batch; None is the largest batch of the model, or 8, or 1 for a
            wrapper on a processor.
        max_delay: maximum seconds that a request waits for others while the model is free. With 0 it does not wait.
        slots: requests in the pipeline at a time, rounded up to whole batches; None is two batches more than
            `instances`: one that fills, and one that waits. With several buckets up to four batches fill.
        when_full: when all slots are taken, `submit()` waits ("block") or raises Overloaded ("raise").
        timeout: seconds that `submit()` waits for a slot; None is without limit.
        instances: batches in flight on each model at a time; None is what suits its backend. A wrapper on a GPU has
            three instances, which its calls and streams use, too.
        workers: threads that read and preprocess; None is one for each processor, 64 at most.
    """

    max_batch: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] | None = None
    max_delay: _Seconds = 0.002
    slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] | None = None
    when_full: Literal["block", "raise"] = "block"
    timeout: _Seconds | None = None
    instances: Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)] | None = None
    workers: Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)] | None = None


class Servable(Protocol[Result_co]):
    """A model that a pipeline serves, apart from an `Infer`: `details` of a wrapper."""

    @property
    def network(self) -> Infer | None:
        """The network whose clones the buffers run; None for a model without one."""

    def batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """A new buffer with `capacity` rows; None is as many as the model was made for."""

    @property
    def concurrency(self) -> int:
        """Batches in flight at a time that suit the backend."""

    @property
    def serializes_runs(self) -> bool:
        """Whether batches in flight queue on a device and run one after another, instead of at the same time."""


class HasDetails(Protocol[Result_co]):
    """A model wrapper."""

    @property
    def details(self) -> Servable[Result_co]: ...


Model: TypeAlias = "HasDetails[Result] | Servable[Result] | Infer"


class Pipeline(Generic[Result]):
    """Single requests from many threads, run in batches. See `infersdk.pipeline`.

    Any number of threads may use it. The models remain the caller's, and are closed after the pipeline: it runs clones
    of them, which share their weights, or on a GPU the instances of a wrapper itself.

    Args:
        models: a model wrapper or an `Infer`, or several of them that do the same on different devices. They share the
            requests: each batch goes to the model that has the least to do.
        settings: those of `PipelineSettings`, by name.

    Raises:
        ClosedError: the process ends.
        ConfigError: a setting is invalid, there is no model, or the inputs or outputs of several `Infer` differ.
        UnsupportedModelError: requests cannot share a run of this model.
    """

    def __init__(self, models: Model[Result] | Sequence[Model[Result]], **settings: Any) -> None:
        self.settings = convert(settings, PipelineSettings, "Pipeline settings")
        self._rejects = self.settings.when_full == "raise"
        several = models if isinstance(models, (list, tuple)) else [models]
        served: list[Any] = [
            TensorRequests(one) if isinstance(one, Infer) else getattr(one, "details", one) for one in several
        ]
        if not served:
            raise ConfigError("a pipeline needs a model")
        if wrong := [one for one in served if not hasattr(one, "batch_buffer")]:
            raise ConfigError(
                f"a pipeline takes a wrapper of infersdk.models, an Infer, or a list of them, not {wrong[0]!r}"
            )
        if process_end.begun:
            raise ClosedError(
                "the process ends, and runs no pipeline; register the handler of atexit after the import of infersdk"
            )
        self._core = _start(served, self.settings)
        self._calls = OpenCalls()
        self._async_results: weakref.WeakKeyDictionary[Any, AsyncResults] = weakref.WeakKeyDictionary()  # by event loop
        _log.debug(
            "a pipeline of %d slots in batches of %d, %d models, %s batches in flight on each, %d threads", self.slots,
            self._core.capacity, len(served), "/".join(str(group.max_in_flight) for group in self._core.groups),
            len(self._core.threads),
        )  # fmt: skip
        self._finalizer = weakref.finalize(self, _close_in_background, self._core)
        self._finalizer.atexit = False  # see process_end
        process_end.open_pipelines.add(self)

    # ---- requests ----

    def submit(
        self, item: Any, *, timeout: float | None = None, deadline: float | None = None, **parameters: Any
    ) -> Future[Result]:
        """Takes a request in: an image for a wrapper; for an `Infer` arrays without the batch axis.

        The item must not change until the future ends: another thread reads it. A callback of a future does not wait
        for a slot, since it runs in a thread that frees them: its request waits in the queue.

        Args:
            timeout: seconds to wait for a slot, instead of the setting.
            deadline: seconds from now within which its batch has to leave; otherwise the future ends in
                DeadlineExceeded.
            parameters: settings of the wrapper for this request alone, such as `conf=0.5`. Requests with different
                parameters share a batch. One that the wrapper does not know fails the request with a ConfigError, and
                any for an `Infer` with an InputError.

        Returns:
            A future. `cancel()` takes the request back as long as its batch has not left.

        Raises:
            InputError: `timeout` or `deadline` is no number from 0 to 1,000,000.
            Overloaded: no slot is free, and the settings or `timeout` say not to wait any longer.
            ClosedError: the pipeline was closed.
            ForkError: the pipeline was made in another process.
            PipelineError: the pipeline has failed.
        """
        timeout = check_seconds("timeout", timeout)
        future = RequestFuture()
        future.request = request = self._request(item, parameters, deadline, future.end)
        with self._calls:
            self._core.submit(
                (request,), timeout=self.settings.timeout if timeout is None else timeout, reject=self._rejects
            )
        return future

    def submit_many(
        self, items: Iterable[Any], *, timeout: float | None = None, deadline: float | None = None, **parameters: Any
    ) -> list[Future[Result]]:
        """Takes several requests in, all with the same parameters. Those that get no slot end in Overloaded."""
        check_several(items, arrays=False)
        futures: list[Future[Result]] = []
        for item in items:
            try:
                futures.append(self.submit(item, timeout=timeout, deadline=deadline, **parameters))
            except Overloaded as error:
                refused = RequestFuture()
                refused.end(error)
                futures.append(refused)
        return futures

    def submit_batch(
        self,
        items: Sequence[Any],
        on_done: Callable[[int, Any], object],
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        wait: bool | None = None,
    ) -> list[Request]:
        """Takes several requests in at once, without futures: for results that are made of several requests.

        Args:
            on_done: called for each request with its index and its result or exception, in the thread that ends it;
                perhaps before this returns or raises. Not called after this has raised.
            parameters, timeout, deadline: see `submit()`.
            wait: whether to wait for slots. None follows the settings and `timeout`; True waits without limit; False
                returns at once, and the requests wait in the queue, also where the settings say "raise".

        Returns:
            The requests. `cancel()` takes one back as long as its batch has not left.

        Raises:
            InputError, Overloaded, ClosedError, ForkError, PipelineError: see `submit()`. All whose batch has not left
                are cancelled.
        """

        def ended(index: int, outcome: Any) -> None:
            wake_waiters()
            on_done(index, outcome)

        check_several(items, arrays=False)
        timeout = check_seconds("timeout", timeout)
        requests = [
            self._request(item, parameters, deadline, partial(ended, index)) for index, item in enumerate(items)
        ]
        if not requests:
            return requests
        with self._calls:
            if wait is None:
                timeout = self.settings.timeout if timeout is None else timeout
                self._core.submit(requests, timeout=timeout, reject=self._rejects)
            else:
                self._core.submit(requests, wait=wait)
        return requests

    def _request(
        self, item: Any, parameters: Mapping[str, Any] | None, deadline: float | None, on_done: Callable[[Any], object]
    ) -> Request:
        time_limit = check_seconds("deadline", deadline)
        return Request(self._core.withdraw, for_other_threads(item), parameters or None, time_limit, on_done, self)

    def map(
        self, items: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of requests, in their order; the items may be endless. It waits for slots without
        limit: `when_full` and `timeout` are for `submit()`.

        Args:
            in_flight: items that are read ahead of the result that is returned; None is as many as there are slots.
            return_exceptions: return the exception of a request in place of its result, instead of raising it, which
                ends the iteration.
            parameters: those of each request; see `submit()`.

        Raises:
            ConfigError: `in_flight` is no whole number from 1.
        """

        def begin(item: Any, future: RequestFuture) -> None:
            future.request = request = self._request(item, parameters, None, future.end)
            with self._calls:
                self._core.submit((request,))

        return results_in_order(items, begin, self.slots if in_flight is None else in_flight, return_exceptions)

    async def infer(self, item: Any, *, deadline: float | None = None, **parameters: Any) -> Result:
        """From asyncio: the result of one request, with its parameters (see `submit()`).

        Waiting for a slot blocks no thread. `timeout` of the settings does not limit it; `deadline` does.

        Raises:
            Overloaded: no slot is free, and `when_full` is "raise".
            DeadlineExceeded: see `submit()`.
        """
        loop = asyncio.get_running_loop()
        results = self._async_results.setdefault(loop, AsyncResults())
        future = loop.create_future()
        request = self._request(item, parameters, deadline, partial(results.put, future))
        with self._calls:
            self._core.submit((request,), wait=False, reject=self._rejects)
        try:
            result: Result = await future
        except asyncio.CancelledError:
            request.cancel()
            raise
        return result

    def warm_up(self, progress: Progress | None = None, *, example: Any = None) -> None:
        """Runs batches of all sizes on all instances, so that the first request takes no longer than later ones.

        The first runs of a size compile kernels, capture graphs or allocate memory, depending on the backend. Call
        this before the first request: it takes the batch buffers out of service one after another, when they are free.
        On a processor it runs as many of them as run at the same time; the first run of another one allocates memory.

        Args:
            progress: called as `progress(what, fraction)` before each run; an exception ends the warm-up.
            example: an item such as `submit()` will be given. On a GPU the memory for images is as large as they are,
                and where images are preprocessed is measured for their size. None is a small image, or zeros.

        Raises:
            ClosedError: the pipeline is or was closed.
            Exception: a run failed.
        """
        with self._calls:
            self._core.warm_up(progress, example)

    # ---- the rest ----

    @property
    def max_batch(self) -> int:
        """Maximum number of requests in a batch."""
        return self._core.capacity

    @property
    def slots(self) -> int:
        """Maximum number of requests that it holds."""
        return self._core.slots

    @property
    def fault(self) -> BaseException | None:
        """The exception that ended a thread of this pipeline; None while it works. After that all requests fail with a
        PipelineError; make another pipeline.
        """
        return self._core.fault

    def stats(self) -> PipelineStats:
        """The statistics so far. Raises ForkError in another process than the pipeline's."""
        return self._core.stats()

    def durations(self) -> dict[str, tuple[list[int], float, int]]:
        """The histograms behind `stats()`, by stage: the counts of the buckets, the sum of the durations in seconds,
        and their number. The buckets end at `stats.BOUNDS`; the last one has no end.

        Raises:
            ForkError: the pipeline was made in another process.
        """
        return self._core.durations()

    def close(self, *, drain: bool = True) -> None:
        """Ends the pipeline. A second call does nothing.

        The handler of a signal, in a call of this thread, and a callback of a future may call it; the pipeline ends
        after that call.

        Args:
            drain: run all requests that were taken in first. Otherwise those whose batch has not left end in
                ClosedError.
        """
        if self._calls.close_later(partial(self.close, drain=drain)):
            return
        self._finalizer.detach()
        self._core.close(drain=drain)
        process_end.open_pipelines.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(drain=kind is None)

    def __reduce__(self) -> Any:
        raise TypeError("a Pipeline has threads, and can be neither copied nor pickled; make another one")


def _check_same(first: Infer, other: Infer) -> None:
    """Raises ConfigError unless both take the same requests and give the same results. A free dimension fits any."""

    def fits(one: TensorSpec | None, two: TensorSpec) -> bool:
        return (
            one is not None
            and (one.dtype, len(one.shape)) == (two.dtype, len(two.shape))
            and all(a == b or {type(a), type(b)} != {int} for a, b in zip(one.shape[1:], two.shape[1:], strict=True))
        )

    for side in ("input_specs", "output_specs"):
        named, specs = {spec.name: spec for spec in getattr(first, side)}, getattr(other, side)
        if len(named) != len(specs) or not all(fits(named.get(spec.name), spec) for spec in specs):
            both = "; ".join(", ".join(map(str, getattr(one, side))) for one in (first, other))
            raise ConfigError(
                f"the models of one pipeline have the same {side.replace('_specs', 's')}, and those of "
                f"{first.model.name} and {other.model.name} differ ({both}); make a pipeline for each"
            )


def _start(models: Sequence[Servable[Any]], settings: PipelineSettings) -> PipelineCore:
    networks = [model.network for model in models if isinstance(model, TensorRequests)]
    for other in networks[1:]:
        _check_same(networks[0], other)
    lock, groups = threading.Lock(), list[InstanceGroup]()
    warming, names = list[BatchBuffer](), list[str]()
    with ExitStack() as opened:
        for model in models:
            network = model.network
            names.append(type(model).__name__ if network is None else str(network.model.name))
            instances = settings.instances or model.concurrency
            first = model.batch_buffer(settings.max_batch)
            opened.callback(first.close)
            # With several buckets there is a batch that fills for each, for the most frequent ones at least.
            count = instances + 1 + min(len(first.buckets()), MOST_FILLING)
            shares = network is not None and network.scheduling.one_core_clones > 0
            if first.capacity == 1 and shares:
                count = max(count, LEAST_SLOTS)
            if settings.slots is not None:
                count = max(-(-settings.slots // (first.capacity * len(models))), 1)
            buffers = [first]
            while len(buffers) < count:
                buffers.append(model.batch_buffer(first.capacity))
                opened.callback(buffers[-1].close)
            instances = min(instances, count)
            warming += buffers[:instances] if shares else buffers
            running = 1 if model.serializes_runs else instances
            groups.append(InstanceGroup(len(groups), buffers, instances, running, lock))
        capacities = sorted({batch.capacity for group in groups for batch in group.batches})
        if len(capacities) != 1:
            raise ConfigError(
                f"the models of one pipeline take the same largest batch, and these take {capacities}; give max_batch"
            )
        core = PipelineCore(
            lock, groups, warming, max_delay=settings.max_delay,
            workers=settings.workers or min(MOST_WORKERS, available_processors()),
            name=f"the pipeline of {' and '.join(dict.fromkeys(names))}",
        )  # fmt: skip
        opened.pop_all()
        return core


def _close_in_background(core: PipelineCore) -> None:
    """Closes the threads and buffers of a pipeline that was not closed. The garbage collector calls this in any thread,
    perhaps in one that holds the lock of the pipeline, so it does not wait.
    """
    if sys.is_finalizing():
        return  # no thread starts any more
    threading.Thread(target=core.close, kwargs={"drain": False}, name="infersdk-close").start()
