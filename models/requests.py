"""Requests to a wrapper: single ones from many threads, batched by a pipeline."""

from __future__ import annotations

import typing
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError
from .image_model import ImageModel
from .releasing import IdleRelease

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..core.backend import Progress
    from ..image import HostImage, ImageSource
    from ..infer import Infer
    from ..pipeline import BatchBuffer, Pipeline
    from ..pipeline.request import Request
    from .details import ModelDetails

__all__ = ["Requests"]

T = TypeVar("T")
Result = TypeVar("Result")


class PipelineHolder:
    """The pipeline of a wrapper, once there is one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._pipeline: Any = None
        self._lock = Lock()

    def get(self, model: Requests[Any]) -> Any:
        if self._pipeline is None:
            with self._lock:
                if self._pipeline is None:
                    self._pipeline = self._new(model, {})
        return self._pipeline

    def make(self, model: Requests[Any], settings: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._pipeline is not None:
                raise ConfigError(
                    f"{model!r} has its pipeline already; call configure_pipeline() before the first submit(), map() "
                    "or infer()"
                )
            self._pipeline = self._new(model, settings)
            self.settings = {**self.settings, **settings}
            return self._pipeline

    def _new(self, model: Requests[Any], settings: Mapping[str, Any]) -> Any:
        from ..pipeline import Pipeline

        return Pipeline(model.details, **{**self.settings, **settings})

    @property
    def requests(self) -> int:
        """The number of requests that have not ended."""
        if self._pipeline is None:
            return 0
        stats = self._pipeline.stats()
        return int(stats.waiting + stats.queued + stats.running)

    def detach(self) -> Pipeline[Any] | None:
        """The pipeline, for the caller to close; the next request makes another one."""
        pipeline: Pipeline[Any] | None
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
        return pipeline

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close(drain=False)


class Requests(ImageModel[Result]):
    """Requests to a model through its own pipeline: `submit()`, `map()` and `infer()`."""

    network: Infer
    _pipeline_holder = PipelineHolder({})
    _idle: IdleRelease

    def _start(self) -> None:
        """Makes the parts that a model and each clone of it have for themselves."""
        self._pipeline_holder = PipelineHolder(self._pipeline_holder.settings)
        self._idle = IdleRelease(self._release_now, lambda: self._pipeline_holder.requests, self.network.model.name)

    def _release_now(self) -> Callable[[], None]:
        """Releases all but the pipeline, and returns what closes that."""
        pipeline = self._pipeline_holder.detach()
        self._release_networks()
        return pipeline.close if pipeline is not None else lambda: None

    @abstractmethod
    def _release_networks(self) -> None:
        """Releases the networks, and what calls keep for them."""

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
        pipeline: Pipeline[Result] = self._pipeline_holder.get(self)
        return pipeline

    def configure_pipeline(self, **settings: Any) -> Pipeline[Result]:
        """Makes the pipeline with settings of your own: those of `infersdk.pipeline.PipelineSettings`.

        Raises:
            ConfigError: it is there already, or a setting has a wrong value.
        """
        pipeline: Pipeline[Result] = self._pipeline_holder.make(self, settings)
        return pipeline

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """One image, batched with other waiting requests; any number of threads may call. See
        `Pipeline.submit()`.
        """
        if self._idle.limit is not None:
            with self._idle:
                return self.pipeline.submit(image, timeout=timeout, deadline=deadline, **parameters)
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
        with self._idle:
            return self.pipeline.submit_batch(
                images, on_done, parameters, timeout=timeout, deadline=deadline, wait=wait
            )

    def submit_many(
        self,
        images: Iterable[Any],
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> list[Future[Result]]:
        """Several of them. See `Pipeline.submit_many()`."""
        with self._idle:
            return self.pipeline.submit_many(images, timeout=timeout, deadline=deadline, **parameters)

    def map(
        self, images: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order; they may be endless. See `Pipeline.map()`."""
        results = self.pipeline.map(images, in_flight=in_flight, return_exceptions=return_exceptions, **parameters)
        return self._idle.until_the_end(results)

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio. See `Pipeline.infer()`."""
        if self._idle.limit is not None:
            with self._idle:
                return await self.pipeline.infer(image, deadline=deadline, **parameters)
        return await self.pipeline.infer(image, deadline=deadline, **parameters)

    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Runs batches of all sizes, as calls and on all instances of the pipeline. The first request and the first
        call then take no longer than later ones. See `infersdk.pipeline.Pipeline.warm_up()`.
        """
        with self._idle:
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
        """
        if after is None:
            self._idle.now()
        elif not after > 0:
            raise ConfigError(f"after is a number of seconds above 0, not {after!r}")
        else:
            self._idle.after(after)
