"""Requests to a wrapper: single ones from many threads, batched by a pipeline; and the release of its memory."""

from __future__ import annotations

import typing
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Condition, Lock, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.processors import start_thread
from ..core.text import logger
from ..errors import ClosedError, ConfigError, InferenceError
from ..image.sources import check_several
from ..pipeline.request import OpenCalls, check_seconds
from .image_model import ImageModel

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

    from ..core.backend import Progress
    from ..image import HostImage, ImageSource
    from ..infer import Infer
    from ..pipeline import BatchBuffer, Pipeline
    from ..pipeline.request import Request
    from .details import ModelDetails

__all__ = ["IdleRelease", "Requests"]

_log = logger("infersdk.models")

Result = TypeVar("Result")


class PipelineHolder:
    """The pipeline of a wrapper, once there is one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._pipeline: Pipeline[Any] | None = None
        self._closed = False
        self._lock = Lock()

    def get(self, model: Requests[Any], settings: Mapping[str, Any] | None = None) -> Pipeline[Any]:
        """The pipeline; a new one in place of one that has failed.

        Args:
            settings: those of a new pipeline, which must not be there; None takes a pipeline that is there.
        """
        if settings is None and (pipeline := self._pipeline) is not None and pipeline.fault is None:
            return pipeline
        from ..pipeline import Pipeline

        with self._lock:
            self.check_open(model)
            failed, pipeline = None, self._pipeline
            if pipeline is not None and pipeline.fault is not None:
                failed, pipeline, self._pipeline = pipeline, None, None
            if pipeline is None:
                merged = {**self.settings, **(settings or {})}
                pipeline = self._pipeline = Pipeline(model.details, **merged)
                self.settings = merged
            elif settings is not None:
                raise ConfigError(
                    f"{model!r} has its pipeline already; call configure_pipeline() before the first submit(), map() "
                    "or infer()"
                )
        if failed is not None:
            failed.close(drain=False)
        return pipeline

    def check_open(self, model: Requests[Any]) -> None:
        """Raises ClosedError if the model was closed."""
        if self._closed:
            raise ClosedError(f"{model!r} was closed; load it again")

    @property
    def requests(self) -> int:
        """The number of requests that have not ended."""
        if (pipeline := self._pipeline) is None or pipeline.fault is not None:
            return 0
        stats = pipeline.stats()
        return stats.waiting + stats.queued + stats.running

    def detach(self) -> Pipeline[Any] | None:
        """The pipeline, for the caller to close; the next request makes another one."""
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
        return pipeline

    def close(self) -> None:
        with self._lock:  # another thread may be making it
            self._closed, pipeline = True, self._pipeline
        if pipeline is not None:
            pipeline.close(drain=False)


class IdleRelease:
    """Counts the uses of a model, and releases it when there are none. In its `with` block the model is used.

    Args:
        model: it is not kept alive. `_release_now()` is called while it is not used, and the function that this returns
            afterwards, when the model may be used again: it ends threads, which may take a while.
        name: of the model, for messages.

    Attributes:
        limit: seconds without use after which the model is released; None where it is released on request alone.
    """

    def __init__(self, model: Requests[Any], name: str) -> None:
        self._model, self._name = weakref.ref(model, lambda _: self.close()), name
        # `with` takes the lock itself: Ctrl-C in the Python code of a condition would leave it locked.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._uses: list[None] = []  # an entry for each use
        self._closed = False
        self._last_use = monotonic()
        self._released_at = -1.0  # the last use before the last release
        self.limit: float | None = None
        self._thread: Thread | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self._name} was closed; load it again")
            self._uses.append(None)

    def __exit__(self, *error: object) -> None:
        # Without the lock: the garbage collector ends generators in threads that hold locks which `requests` needs.
        self._last_use = monotonic()
        self._uses.pop()

    def now(self, model: Requests[Any]) -> None:
        """Releases the model."""
        with self._lock:
            uses, requests = len(self._uses), model._pipeline_holder.requests
            if uses or requests:
                raise InferenceError(
                    f"{self._name} cannot be released: {uses} calls or streams and {requests} requests are "
                    "running; wait for their results, or use release(after=seconds)"
                )
            finish = model._release_now()
        finish()

    def after(self, seconds: float) -> None:
        """Releases the model after this number of seconds without use, each time."""
        with self._lock:
            self.limit, self._last_use = seconds, monotonic()
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():  # an exception has ended it
                self._thread = Thread(target=self._watch, name="infersdk-release", daemon=True)
                start_thread(self._thread, self._name)

    def _watch(self) -> None:
        try:
            while (finish := self._wait_until_idle()) is not None:
                finish()
        except Exception as error:  # there is no caller to raise it to
            _log.error("%s could not be released: %s", self._name, error)

    def _wait_until_idle(self) -> Callable[[], None] | None:
        """Releases the model when its time has come; None when nothing is to be released any more."""
        with self._lock:
            while self.limit is not None and (model := self._model()) is not None:
                if model._pipeline_holder.requests:
                    self._last_use = monotonic()
                used = bool(self._uses)  # first: the end of a use sets the time before
                left = self._last_use + self.limit - monotonic()
                if not used and left <= 0 and self._released_at != self._last_use:
                    self._released_at = self._last_use
                    return model._release_now()
                pause = max(left, self.limit / 4, 0.001)
                del model  # it may be freed here, which calls `close()`, or while this waits
                if self.limit is not None:
                    self._changed.wait(pause)
        return None

    def close(self) -> None:
        """Refuses later uses, ends the watching, and waits for a release in progress."""
        with self._lock:
            self._closed = True
            self.limit = None
            self._changed.notify_all()


class Requests(ImageModel[Result]):
    """Requests to a model through its own pipeline: `submit()`, `map()` and `infer()`."""

    #: Not in `__dict__`: see `_without_pipeline()`.
    __slots__ = ("_pipeline_holder",)

    network: Infer
    _pipeline_holder: PipelineHolder
    _idle: IdleRelease
    _calls: OpenCalls

    def _start(self, pipeline_settings: Mapping[str, Any]) -> None:
        """Makes the parts that a model and each clone of it have for themselves."""
        self._closing = RLock()  # a handler of a signal may call `close()` again
        self._calls = OpenCalls()
        self._pipeline_holder = PipelineHolder(pipeline_settings)
        self._idle = IdleRelease(self, self.network.model.name)

    def _copied(self) -> Self:
        """Another object with the same attributes, without a pipeline. It is not used as a model until `_start()`."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def _without_pipeline(self) -> Self:
        """This model without its pipeline: the same attributes, also those that are set later.

        The buffers of the pipeline refer to it, so the threads of the pipeline do not keep the model alive.
        """
        other = object.__new__(type(self))
        other.__dict__ = self.__dict__
        return other

    def _release_now(self) -> Callable[[], None]:
        """Releases all but the pipeline, and returns what closes that."""
        pipeline = self._pipeline_holder.detach()
        self._release_networks()
        return pipeline.close if pipeline is not None else lambda: None

    @abstractmethod
    def _release_networks(self) -> None:
        """Releases the networks, and what calls keep for them."""

    @abstractmethod
    def _close_networks(self) -> None:
        """Closes the networks, and what calls keep for them."""

    @abstractmethod
    def _batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """For a pipeline: a new batch buffer on a clone of the network."""

    @property
    @abstractmethod
    def details(self) -> ModelDetails:
        """Its details, for pipelines, commands, the server and benchmarks."""

    @classmethod
    def result_type(cls) -> type[Any]:
        """The type of the result of an image: `Detections` for a `Requests[Detections]`; `object` where it is not
        declared.
        """
        for base in cls.__mro__:
            for generic in vars(base).get("__orig_bases__", ()):
                origin = typing.get_origin(generic)
                if isinstance(origin, type) and issubclass(origin, Requests):
                    (kind,) = typing.get_args(generic)
                    if isinstance(kind, type) and kind is not Any:
                        return kind
        return object

    @property
    def pipeline(self) -> Pipeline[Result]:
        """The pipeline of `submit()`, `map()` and `infer()`, made on first access."""
        return self._pipeline_holder.get(self)

    def configure_pipeline(self, **settings: Any) -> Pipeline[Result]:
        """Makes the pipeline with settings of your own: those of `infersdk.pipeline.PipelineSettings`.

        Raises:
            ConfigError: it is there already, or a setting has a wrong value.
        """
        return self._pipeline_holder.get(self, settings)

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """One image, in the pipeline of the model; any number of threads may call. See `Pipeline.submit()`."""
        with self._idle, self._calls:
            return self.pipeline.submit(image, timeout=timeout, deadline=deadline, **parameters)

    def submit_batch(
        self,
        images: Sequence[Any],
        on_done: Callable[[int, Any], object],
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        wait: bool | None = None,
    ) -> list[Request]:
        """Several images at once, without futures. See `Pipeline.submit_batch()`."""
        check_several(images)
        with self._idle, self._calls:
            return self.pipeline.submit_batch(
                images, on_done, parameters, timeout=timeout, deadline=deadline, wait=wait
            )

    def submit_many(
        self, images: Iterable[Any], *, timeout: float | None = None, deadline: float | None = None, **parameters: Any
    ) -> list[Future[Result]]:
        """Several of them. See `Pipeline.submit_many()`."""
        check_several(images)
        with self._idle, self._calls:
            return self.pipeline.submit_many(images, timeout=timeout, deadline=deadline, **parameters)

    def _map(
        self, images: Iterable[Any], in_flight: int | None, return_exceptions: bool, parameters: Mapping[str, Any]
    ) -> Iterator[Result]:
        with self._idle:
            with self._calls:
                found = self.pipeline.map(
                    images, in_flight=in_flight, return_exceptions=return_exceptions, **parameters
                )
            yield from self._calls.each(found)

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio. See `Pipeline.infer()`."""
        with self._idle:
            return await self.pipeline.infer(image, deadline=deadline, **parameters)

    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Runs batches of all sizes, as calls and on all instances of the pipeline. The first request and the first
        call then take no longer than later ones. See `infersdk.pipeline.Pipeline.warm_up()`.
        """
        with self._idle, self._calls:
            self._warm_up_calls(progress, example)
            self.pipeline.warm_up(progress, example=example)

    def _warm_up_calls(self, progress: Progress | None, example: ImageSource | HostImage | None) -> None:
        """Runs batches of all sizes as calls do, where calls do not go through the pipeline."""

    def release(self, *, after: float | None = None) -> None:
        """Frees the memory of the model, and keeps a copy on the host that loads in milliseconds.

        The next call or request loads it. The pipeline ends, and the next request makes another one with the same
        settings and new statistics. Clones of this wrapper keep their memory: release them as well.

        Args:
            after: seconds without use after which the model is released, each time from now on; None releases it now.

        Raises:
            InferenceError: `after` is None, and calls, streams or requests are running.
            UnsupportedModelError: the backend cannot do this.
            ConfigError, InputError: `after` is no number above 0 and up to 1,000,000.
            ClosedError: the model was closed.
            ForkError: its pipeline was made in another process.
            OutOfMemoryError: the system has no thread to wait for `after`.
        """
        seconds = check_seconds("after", after, "a release at once")
        if seconds is None:
            self._idle.now(self)
        elif seconds == 0:
            raise ConfigError(f"after is a number of seconds above 0, not {after!r}")
        else:
            self._pipeline_holder.check_open(self)
            self._idle.after(seconds)

    def close(self) -> None:
        """Frees the model. Requests whose batch has not started raise ClosedError. Any number of threads may call it.

        The handler of a signal and a callback may call it in a call of this thread; the model is freed after that call.
        """
        if self._calls.close_later(self.close):
            return
        self._idle.close()
        try:
            self._pipeline_holder.close()  # without the lock, because it waits for callbacks that may close the model
        finally:  # it raises exceptions of callbacks
            with self._closing:
                self._close_networks()
