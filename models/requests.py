"""Requests to a wrapper: single ones from many threads, batched by a pipeline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..image import HostImage, ImageSource
    from ..infer import Infer
    from ..options import Progress
    from ..pipeline import BatchBuffer, Pipeline
    from ..pipeline.pipeline import Servable
    from ..pipeline.request import Request
    from .releasing import IdleRelease

__all__ = ["PipelineHolder", "Requests"]

T = TypeVar("T")
Result = TypeVar("Result")


class Requests(Generic[Result]):
    """What a wrapper offers beside calls: `submit()`, `map()` and `infer()`, through a pipeline of its own."""

    network: Infer
    _pipeline_holder: PipelineHolder
    _idle: IdleRelease

    @abstractmethod
    def batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """For a pipeline: a new batch buffer on a clone of the network."""

    @property
    def pipeline(self) -> Pipeline[Result]:
        """What runs the requests of `submit()`, `map()` and `infer()`; it is made when it is first asked for."""
        pipeline: Pipeline[Result] = self._pipeline_holder.get(self)
        return pipeline

    @property
    def pipelines(self) -> tuple[Pipeline[Any], ...]:
        """The pipeline alone; compositions have several."""
        return (self.pipeline,)

    def configure_pipeline(self, **settings: Any) -> Pipeline[Result]:
        """Makes the pipeline with settings of your own: those of `infersdk.pipeline.PipelineSettings`.

        Raises:
            ConfigError: it is there already, or a setting has a wrong value.
        """
        pipeline: Pipeline[Result] = self._pipeline_holder.make(self, settings)
        return pipeline

    def set_pipeline_defaults(self, settings: Mapping[str, Any]) -> None:
        """The settings of the pipeline where `configure_pipeline()` says nothing: those of a configuration file."""
        self._pipeline_holder.settings = settings

    @property
    def pipeline_settings(self) -> Mapping[str, Any]:
        """The settings that were given for the pipeline, whether it is there yet or not."""
        return self._pipeline_holder.settings

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """One image, run together with whatever else is waiting; any number of threads may call. See
        `Pipeline.submit()`.
        """
        if self._idle.watches:
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
        return self.in_use(results)

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio. See `Pipeline.infer()`."""
        if self._idle.watches:
            with self._idle:
                return await self.pipeline.infer(image, deadline=deadline, **parameters)
        return await self.pipeline.infer(image, deadline=deadline, **parameters)

    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Makes the pipeline, and runs batches of all sizes on all of its instances, and as calls do: the first request
        and the first call take no longer than later ones. See `infersdk.pipeline.Pipeline.warm_up()`.

        Requests may come meanwhile; calls may not, since a wrapper serves the calls of one thread at a time.
        """
        with self._idle:
            self._warm_up_calls(progress, example)
            self.pipeline.warm_up(progress, example=example)

    def _warm_up_calls(self, progress: Progress | None, example: ImageSource | HostImage | None) -> None:
        """Runs batches of all sizes as calls do, where calls do not go through the pipeline."""

    def release(self, *, after: float | None = None) -> None:
        """Gives the memory of the model back, and keeps what it is loaded from again in milliseconds on the host.

        The next call or request loads it. The pipeline ends, and the next request makes another one with the same
        settings; its statistics begin anew. Clones of this wrapper keep their memory: release them as well.

        Args:
            after: seconds without use after which this happens, each time, from now on; None is now.

        Raises:
            InferenceError: it is now, and calls, streams or requests are on their way.
            UnsupportedModelError: the backend cannot do this.
        """
        if after is None:
            self._idle.now()
        elif not after > 0:
            raise ConfigError(f"after is a number of seconds above 0, not {after!r}")
        else:
            self._idle.after(after)

    def in_use(self, results: Iterator[T]) -> Iterator[T]:
        """These results; until they end the model is in use, and is not released."""
        return self._idle.until_the_end(results)

    @property
    def concurrency(self) -> int:
        """For a pipeline: how many batches should be under way side by side."""
        return self.network.concurrency

    @property
    def serializes_runs(self) -> bool:
        """For a pipeline: whether these run one after the other on a device."""
        return self.network.serializes_runs


class PipelineHolder:
    """The pipeline of a wrapper, once there is one."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._pipeline: Any = None
        self._lock = Lock()

    def get(self, model: Servable[Any]) -> Any:
        if self._pipeline is None:
            with self._lock:
                if self._pipeline is None:
                    self._pipeline = self._new(model, {})
        return self._pipeline

    def make(self, model: Servable[Any], settings: Mapping[str, Any]) -> Any:
        with self._lock:
            if self._pipeline is not None:
                raise ConfigError(
                    f"{model!r} has its pipeline already; call configure_pipeline() before the first submit(), map() "
                    "or infer()"
                )
            self._pipeline = self._new(model, settings)
            self.settings = {**self.settings, **settings}
            return self._pipeline

    def _new(self, model: Servable[Any], settings: Mapping[str, Any]) -> Any:
        from ..pipeline import Pipeline

        return Pipeline(model, **{**self.settings, **settings})

    @property
    def requests(self) -> int:
        """How many are on their way."""
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
