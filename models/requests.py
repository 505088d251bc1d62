"""Requests to a wrapper: single ones from many threads, batched by a pipeline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
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

__all__ = ["PipelineHolder", "Requests"]

Result = TypeVar("Result")


class Requests(Generic[Result]):
    """What a wrapper offers beside calls: `submit()`, `map()` and `infer()`, through a pipeline of its own."""

    network: Infer
    _pipeline_holder: PipelineHolder

    @abstractmethod
    def batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """For a pipeline: a new batch buffer on a clone of the network."""

    @property
    def pipeline(self) -> Pipeline[Result]:
        """What runs the requests of `submit()`, `map()` and `infer()`; it is made when it is first asked for."""
        pipeline: Pipeline[Result] = self._pipeline_holder.get(self)
        return pipeline

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
        return self.pipeline.submit(image, timeout=timeout, deadline=deadline, **parameters)

    def submit_many(
        self,
        images: Iterable[Any],
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> list[Future[Result]]:
        """Several of them. See `Pipeline.submit_many()`."""
        return self.pipeline.submit_many(images, timeout=timeout, deadline=deadline, **parameters)

    def map(
        self, images: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order; they may be endless. See `Pipeline.map()`."""
        return self.pipeline.map(images, in_flight=in_flight, return_exceptions=return_exceptions, **parameters)

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio. See `Pipeline.infer()`."""
        return await self.pipeline.infer(image, deadline=deadline, **parameters)

    def warm_up(self, progress: Progress | None = None) -> None:
        """Makes the pipeline, and runs batches of all sizes on all of its instances: the first request takes no longer
        than later ones. See `infersdk.pipeline.Pipeline.warm_up()`.
        """
        self.pipeline.warm_up(progress)

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
            return self._pipeline

    def _new(self, model: Servable[Any], settings: Mapping[str, Any]) -> Any:
        from ..pipeline import Pipeline

        return Pipeline(model, **{**self.settings, **settings})

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close(drain=False)
