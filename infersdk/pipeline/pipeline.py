"""The face of the machinery: what users call."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, TypeVar

import msgspec

from ..config import convert
from ..errors import ConfigError, Overloaded
from ..infer import Infer
from ..ops.batch import available_processors
from .batch_buffer import BatchBuffer, TensorBatchBuffer
from .batcher import Batcher
from .slots import Ticket

if TYPE_CHECKING:
    from typing_extensions import Self

    from .stats import PipelineStats

__all__ = ["Pipeline", "PipelineSettings", "Servable"]

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

#: Requests that share a batch where neither the model nor the user says how many.
DEFAULT_BATCH = 8


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pipeline works.

    Attributes:
        max_batch: the most requests in a batch; None is what the model was loaded for, or else 8.
        max_delay: seconds that a request waits for others at most while the model is free. 0 sends it off alone.
        slots: requests in the pipeline at a time, rounded up to whole batches; None is a batch for each that runs side
            by side, one that fills, and one between.
        when_full: with all slots taken, `submit()` waits ("block") or raises Overloaded ("raise").
        timeout: seconds that it waits; None is as long as it takes.
        instances: batches on each model at a time; None is what its backend runs side by side.
        workers: threads that read and preprocess; None is one for each processor, 4 at most.
    """

    max_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_delay: Annotated[float, msgspec.Meta(ge=0)] = 0.002
    slots: Annotated[int, msgspec.Meta(ge=1)] | None = None
    when_full: Literal["block", "raise"] = "block"
    timeout: Annotated[float, msgspec.Meta(ge=0)] | None = None
    instances: Annotated[int, msgspec.Meta(ge=1)] | None = None
    workers: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Servable(Protocol[Result_co]):
    """What a pipeline serves, beside an `Infer`: every model wrapper is one."""

    def batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """A new buffer with that many rows; None is as many as the model was made for."""

    @property
    def concurrency(self) -> int:
        """Batches that are best under way side by side."""

    @property
    def serializes_runs(self) -> bool:
        """Whether these stand one behind the other on a device, instead of running at the same time."""


class Pipeline(Generic[Result]):
    """Single requests from many threads, run in batches. See `infersdk.pipeline`.

    Any number of threads may use it. The models stay the caller's: the pipeline runs clones of them, which share their
    weights, and closes those.

    Args:
        models: a model wrapper or an `Infer`, or several of them that do the same on different devices: they share the
            requests, each batch going to the one with the least to do.
        settings: those of `PipelineSettings`, by name.

    Raises:
        ConfigError: a setting that says something wrong, or no model.
        UnsupportedModelError: requests cannot share a run of this model.
    """

    def __init__(self, models: Servable[Result] | Infer | Sequence[Servable[Result] | Infer], **settings: Any) -> None:
        self.settings = convert(settings, PipelineSettings, "Pipeline settings")
        several = list(models) if isinstance(models, Sequence) else [models]
        if not several:
            raise ConfigError("a pipeline needs a model")
        self._core = _start(several, self.settings)
        self._close = weakref.finalize(self, self._core.close, drain=False)
        self._close.atexit = False  # see _close_all
        _open.add(self)

    # ---- requests ----

    def submit(
        self, item: Any, *, timeout: float | None = None, deadline: float | None = None, **parameters: Any
    ) -> Future[Result]:
        """Takes a request in: an image for a wrapper; for an `Infer` arrays without the batch axis.

        The item must stay as it is until the future ends: it is read by another thread.

        Args:
            timeout: seconds to wait for a slot, instead of the setting.
            deadline: seconds from now by which its batch has to leave; else the future ends in DeadlineExceeded.
            parameters: settings of the wrapper for this request alone, such as `conf=0.5`. Requests with different
                parameters share a batch. One that the wrapper does not know fails the request with an InputError.

        Returns:
            A future. `cancel()` takes the request back as long as its batch has not left.

        Raises:
            Overloaded: no slot, and no (more) waiting.
            ClosedError, ForkError: the pipeline is not to be used any more, or not here.
        """
        return self._core.submit(item, parameters or None, timeout=self._patience(timeout), deadline=deadline)

    def submit_many(
        self, items: Iterable[Any], *, timeout: float | None = None, deadline: float | None = None, **parameters: Any
    ) -> list[Future[Result]]:
        """Takes several requests in, all with the same parameters; those that find no slot end in Overloaded."""
        futures: list[Future[Result]] = []
        for item in items:
            try:
                futures.append(self.submit(item, timeout=timeout, deadline=deadline, **parameters))
            except Overloaded as error:
                refused: Future[Result] = Future()
                refused.set_running_or_notify_cancel()
                refused.set_exception(error)
                futures.append(refused)
        return futures

    def map(
        self,
        items: Iterable[Any],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Result]:
        """The results of any number of requests, in their order; the items may be endless.

        Args:
            in_flight: items that are taken ahead of the result that is handed out; None is as many as there are slots.
            return_exceptions: hand out the exception of a request in its place, instead of raising it, which ends the
                whole.
            parameters: those of each request; see `submit()`.

        Raises:
            ConfigError: `in_flight` is less than 1.
        """
        ahead = self.slots if in_flight is None else in_flight
        if ahead < 1:
            raise ConfigError(f"in_flight is at least 1, not {in_flight}")
        return self._map(iter(items), parameters or None, ahead, return_exceptions)

    def _map(
        self, items: Iterator[Any], parameters: Mapping[str, Any] | None, ahead: int, return_exceptions: bool
    ) -> Iterator[Result]:
        pending: deque[Ticket] = deque()
        try:
            for item in items:
                # Here the line is the place to wait, whatever submit() does when all slots are taken.
                pending.append(
                    self._core.submit(item, parameters, timeout=None, deadline=None, reject=False, kind=Ticket)
                )
                if len(pending) >= ahead:
                    yield _end(pending.popleft(), return_exceptions)
            while pending:
                yield _end(pending.popleft(), return_exceptions)
        finally:
            for ticket in pending:
                ticket.cancel()

    async def infer(self, item: Any, *, deadline: float | None = None, **parameters: Any) -> Result:
        """From asyncio: the result of one request, with its parameters (see `submit()`).

        Waiting for a slot blocks no thread.

        Raises:
            Overloaded: no slot, and the setting is to raise.
            DeadlineExceeded: see `submit()`.
        """
        result: Result = await asyncio.wrap_future(
            self._core.submit(item, parameters or None, timeout=None, deadline=deadline, wait=False)
        )
        return result

    def _patience(self, timeout: float | None) -> float | None:
        return self.settings.timeout if timeout is None else timeout

    # ---- the rest ----

    @property
    def max_batch(self) -> int:
        """The most requests in a batch."""
        return self._core.capacity

    @property
    def slots(self) -> int:
        """How many requests it holds at a time."""
        return self._core.slots

    def stats(self) -> PipelineStats:
        """What it has done so far."""
        return self._core.stats()

    def durations(self) -> dict[str, tuple[list[int], float, int]]:
        """By stage the histogram behind `stats()`: the counts of the buckets up to each of `stats.BOUNDS` seconds, and
        above; the sum in seconds; how many.
        """
        return self._core.durations()

    def close(self, *, drain: bool = True) -> None:
        """Ends it. A second call does nothing.

        Args:
            drain: all requests that were taken in are run first. Otherwise those whose batch has not left are
                cancelled.
        """
        self._close.detach()
        self._core.close(drain=drain)
        _open.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close(drain=kind is None)

    def __reduce__(self) -> Any:
        raise TypeError("a Pipeline can be neither copied nor pickled: it has threads; make another one")


def _end(ticket: Ticket, return_exceptions: bool) -> Any:
    ticket.wait()
    result, error = ticket.result, ticket.error
    if error is None:
        return result
    if return_exceptions and not isinstance(error, CancelledError):
        return error
    raise error


def _start(models: Sequence[Any], settings: PipelineSettings) -> Batcher:
    groups: list[tuple[Sequence[BatchBuffer], int, int]] = []
    made: list[BatchBuffer] = []
    try:
        for model in models:
            permits = settings.instances or int(model.concurrency)
            first = _buffer(model, settings.max_batch)
            made.append(first)
            buffers = permits + 2
            if settings.slots is not None:
                buffers = max(-(-settings.slots // (first.capacity * len(models))), 1)
            own = [first]
            while len(own) < buffers:
                own.append(_buffer(model, first.capacity))
                made.append(own[-1])
            permits = min(permits, buffers)
            groups.append((own, permits, 1 if model.serializes_runs else permits))
        if len({buffer.capacity for buffers, *_ in groups for buffer in buffers}) != 1:
            raise ConfigError("the models of one pipeline take the same largest batch; give max_batch")
        what = " and ".join(dict.fromkeys(_title(model) for model in models))
        return Batcher(
            groups, max_delay=settings.max_delay, workers=settings.workers or min(4, available_processors()),
            reject=settings.when_full == "raise", name=f"the pipeline of {what}",
        )  # fmt: skip
    except BaseException:
        for buffer in made:
            buffer.close()
        raise


def _buffer(model: Any, capacity: int | None) -> BatchBuffer:
    if isinstance(model, Infer):
        fixed = next((spec.fixed_batch for spec in model.input_specs if spec.fixed_batch is not None), None)
        return TensorBatchBuffer(model.clone(), capacity or fixed or model.max_batch or DEFAULT_BATCH)
    buffer: BatchBuffer = model.batch_buffer(capacity)
    return buffer


def _title(model: Any) -> str:
    network = model if isinstance(model, Infer) else getattr(model, "network", None)
    return str(network.model.name) if isinstance(network, Infer) else type(model).__name__


_open: weakref.WeakSet[Pipeline[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No thread is left inside a runtime while the interpreter goes down."""
    for pipeline in list(_open):
        pipeline.close(drain=False)
