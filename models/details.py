"""The details of a model, for pipelines, commands, the server and benchmarks."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ..core.device import Device
from ..image.sources import check_several
from ..pipeline.batch_buffer import runs_side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ..image import HostImage, ImageSource
    from ..infer import Infer
    from ..pipeline import BatchBuffer, Pipeline

__all__ = ["ComposedDetails", "ModelDetails", "VisionDetails"]


class ModelDetails:
    """The details of a model with one pipeline, which it serves. Made by `model.details`.

    Args:
        model: the model, whose parts it reads.
        network: the network; where there are several, one that stands for all.
        networks: all networks that it runs; `()` for the one.
    """

    #: Maximum number of images in one run.
    batch_limit: int = 1
    #: The CUDA device where it reads images; None for a model that reads them on the host.
    image_device: Device | None = None

    def __init__(self, model: Any, network: Infer, networks: tuple[Infer, ...] = ()) -> None:
        self._model, self.network, self.networks = model, network, networks or (network,)

    def batch_buffer(self, capacity: int | None) -> BatchBuffer:
        """A new batch buffer for a pipeline; None is as many rows as the model was loaded for."""
        buffer: BatchBuffer = self._model._batch_buffer(capacity)
        return buffer

    @property
    def parts(self) -> tuple[Any, ...]:
        """The models that it consists of: the model itself."""
        return (self._model,)

    @property
    def pipelines(self) -> tuple[Pipeline[Any], ...]:
        """The pipelines of its requests; the first one takes the images."""
        return (self._model.pipeline,)

    @property
    def concurrency(self) -> int:
        """The number of batches in flight that suits the backend."""
        return runs_side_by_side(self.network)

    @property
    def serializes_runs(self) -> bool:
        """Whether these run one after the other on a device."""
        return self.network.scheduling.serializes_runs

    def set_pipeline_defaults(self, settings: Mapping[str, Any]) -> None:
        """The settings of the pipeline where `configure_pipeline()` says nothing: those of a configuration file."""
        self._model._pipeline_holder.settings = settings


class VisionDetails(ModelDetails):
    """The details of a wrapper."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.network)
        self.batch_limit = model._limit
        on_device = model.network.stream is not None and not model._stages.preprocessor.resizes_on_host
        self.image_device = Device.parse(model.network.device) if on_device else None

    @property
    def decoded(self) -> Mapping[str, int]:
        """How many images each decoder has decoded for this model and its clones, by its name."""
        return dict(self._model._stages.decoded)

    @property
    def class_count(self) -> int | None:
        """How many classes the model tells apart; None where it leaves that open and has not run yet."""
        count: int | None = self._model._learned.class_count
        return count

    def run_once(
        self, image: ImageSource | HostImage, parameters: Mapping[str, Any]
    ) -> tuple[dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]], Callable[[], Any]]:
        """One image through the stages on the host: the inputs and outputs of the network by name, and a function that
        makes the result of them.
        """
        own, preprocessor = self._model._input, self._model._stages.preprocessor
        read = preprocessor.read(image)
        feed = own.feed(preprocessor.array([read], None if own.spec.has_free_batch else self.batch_limit))
        with self.network.clone() as network:
            outputs = network(feed)
        geometry = preprocessor.geometry_of(read.size)
        return feed, outputs, lambda: self._model._stages.results(outputs, [geometry], [parameters or None])[0]

    @property
    def golden_samples(self) -> Any:
        """Those of the bundle that it was loaded from (`infersdk.bundles.loading.GoldenSamples`), or None."""
        return self._model._golden

    @golden_samples.setter
    def golden_samples(self, samples: Any) -> None:
        self._model._golden = samples

    def network_inputs(
        self, images: Iterable[ImageSource | HostImage], *, batch: int | None = None
    ) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """The network's inputs for these images, a batch at a time: `{input: array}`. Nothing is run.

        Args:
            images: on the host, as a call takes them.
            batch: maximum number of images in a batch. A model of a fixed batch keeps to its own, and the last batch is
                filled up with its last image.
        """
        check_several(images)
        self.network.current()  # a closed one raises
        own, preprocessor = self._model._input, self._model._stages.preprocessor
        limit = min(batch or self.batch_limit, self.batch_limit) if own.spec.has_free_batch else self.batch_limit
        sources = iter(images)
        while group := [preprocessor.read(source) for source in islice(sources, limit)]:
            yield own.feed(preprocessor.array(group, None if own.spec.has_free_batch else limit))


class ComposedDetails:
    """The details of several models; the first one takes the images."""

    def __init__(self, models: Sequence[Any]) -> None:
        self._models = models
        #: Maximum number of images in one run of the first model.
        self.batch_limit: int = models[0].details.batch_limit

    @property
    def image_device(self) -> Device | None:
        """The CUDA device where all models take images; None for the host."""
        devices = {model.details.image_device for model in self._models}
        return devices.pop() if len(devices) == 1 else None

    @property
    def networks(self) -> tuple[Infer, ...]:
        """The networks of all models."""
        return tuple(network for model in self._models for network in model.details.networks)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The models that it consists of, those of parts that are composed themselves as well."""
        return tuple(part for model in self._models for part in model.details.parts)

    @property
    def pipelines(self) -> tuple[Pipeline[Any], ...]:
        """The pipelines of all models."""
        return tuple(pipeline for model in self._models for pipeline in model.details.pipelines)
