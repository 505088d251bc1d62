"""The base class of all compositions: calls, asyncio, and their models."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...errors import ConfigError, ImageError, InputError, UnsupportedModelError
from ...image import DeviceImage, HostImage, ImageSource, SharedImage, read_image
from ...image.images import for_other_threads
from ...image.sources import check_several
from ...image.uploads import UploadPools
from ...pipeline.request import RequestFuture, check_seconds, results_in_order
from ..declaration import Declared
from ..details import ComposedDetails
from ..image_model import ImageModel
from ..results import Detections
from .image_request import ImageRequest

if TYPE_CHECKING:
    from ...core.backend import Progress
    from ...core.device import Device
    from ..execution import Timings

__all__ = ["Composed", "check_models", "require_boxes", "whole_image"]

Result = TypeVar("Result")


def check_models(models: Mapping[str, Any]) -> None:
    """Raises ConfigError for a model that is not a wrapper."""
    for name, model in models.items():
        if not isinstance(model, ImageModel):
            raise ConfigError(f"{name} is a wrapper of infersdk.models, not {type(model).__name__}; use models.load()")


class Composed(ImageModel[Result], Declared, ABC):
    """A composition of models, with the interface of a wrapper.

    A composition declares its settings as a wrapper does (see `declaration`), names its models in `parts`, and checks
    both in `_prepare()`.

    Args:
        models: those of `parts`, in order. The first one takes the images, and defines class names and parameters.
        settings: those of `Settings`, by name.

    The composition owns its models: `close()` closes them, and so does the end of `with`.

    Attributes:
        models: the models by the names in `parts`.
        settings: all settings, as a frozen struct of the type `Settings`.
        task, per_call, channel_order, class_names: as of the first model.
    """

    #: The names of the models.
    parts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *models: ImageModel[Any], **settings: Any) -> None:
        named = self.parts[len(models) :]
        if len(models) > len(self.parts) or any(name not in settings for name in named):
            raise TypeError(
                f"{type(self).__name__} takes {' and '.join(self.parts)} by position, and settings by name; it "
                f"was given {len(models)} by position"
            )
        given = (*models, *(settings.pop(name) for name in named))
        self.models: dict[str, ImageModel[Any]] = dict(zip(self.parts, given, strict=True))
        check_models(self.models)
        self.__dict__.update(self.models)
        self._set(settings)
        first = given[0]
        self.__dict__.update(task=first.task, per_call=first.per_call)
        self.channel_order = first.channel_order
        self.class_names = tuple(first.class_names)
        self._pools = UploadPools()
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Checks the models and the settings.

        Raises:
            ConfigError, UnsupportedModelError: they cannot be used; the message has the reason.
        """

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """One image, in the pipelines of the models. See `Pipeline.submit()`.

        The image is read in the calling thread. The deadline holds for all requests of the image. Cancelling the future
        cancels those that have not left.
        """
        return self._submit(_future(parameters, deadline, timeout), image)

    def _submit(self, future: RequestFuture, image: Any) -> Future[Result]:
        """Begins the request of a future, and returns the future."""
        request: ImageRequest = future.request
        try:
            self._begin(image, request)
        except BaseException:
            request.refuse()
            raise
        return future

    def submit_batch(
        self,
        images: Sequence[Any],
        on_done: Callable[[int, Any], object],
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        wait: bool | None = None,
    ) -> list[ImageRequest]:
        """Several images, without futures. See `Pipeline.submit_batch()`. An image that cannot be read ends in its
        ImageError.
        """
        check_several(images)
        deadline, timeout = check_seconds("deadline", deadline), check_seconds("timeout", timeout)
        requests: list[ImageRequest] = []
        try:
            for index, image in enumerate(images):
                request = ImageRequest(partial(on_done, index), parameters, deadline, timeout, wait)
                requests.append(request)
                self._begin_or_fail(image, request)
        except BaseException:
            for request in requests:
                request.refuse()
            raise
        return requests

    def _map(
        self, images: Iterable[Any], in_flight: int | None, return_exceptions: bool, parameters: Mapping[str, Any]
    ) -> Iterator[Result]:
        def begin(image: Any, future: RequestFuture) -> None:
            future.request = request = ImageRequest(future.end, parameters, wait=True)
            self._begin_or_fail(image, request)

        return results_in_order(images, begin, self._slots if in_flight is None else in_flight, return_exceptions)

    @property
    def _slots(self) -> int:
        """The number of requests that the pipelines of the models hold."""
        return sum(model.details.pipelines[0].slots for model in self.models.values())

    def _begin_or_fail(self, image: Any, request: ImageRequest) -> None:
        """Begins a request, or ends it with the error of an image that cannot be read."""
        try:
            self._begin(image, request)
        except (ImageError, InputError) as error:
            request.end(error)

    @abstractmethod
    def _begin(self, image: ImageSource | HostImage, request: ImageRequest) -> None:
        """Submits the first requests of an image; their results are submitted to the next model, and end `request`.

        Raises:
            ImageError: the image cannot be read.
            PipelineError, ClosedError: see `Pipeline.submit_batch()`.
        """

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio: the result of one image. Neither reading it nor waiting for slots blocks the event loop."""
        future = _future(parameters, deadline)  # here: the deadline does not wait until a thread is free
        submitting = asyncio.ensure_future(asyncio.to_thread(self._submit, future, image))
        try:
            await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_cancel)  # the thread goes on, and has its future later
            raise
        return await asyncio.wrap_future(future)

    # ---- the models ----

    @property
    def _first(self) -> ImageModel[Any]:
        return next(iter(self.models.values()))

    def result_type(self) -> type[Any]:
        """The type of the result of an image."""
        return self._first.result_type()

    @property
    def timings(self) -> Timings:
        """Those of the first model; zeros as long as the program does not call that model itself."""
        return self._first.timings

    @property
    def details(self) -> ComposedDetails:
        """Its details, for commands, the server and benchmarks."""
        return ComposedDetails(tuple(self.models.values()))

    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Runs batches of all sizes of each model; see `Pipeline.warm_up()`.

        Args:
            example: an image that goes through the whole composition after that.
        """
        for model in self.models.values():
            model.warm_up(progress)
        if example is not None:
            self.submit(example).result()

    def close(self) -> None:
        """Closes the models. Requests whose batch has not started raise ClosedError."""
        with ExitStack() as closing:  # it goes on after an exception of a callback
            closing.callback(self._pools.clear)
            for model in reversed(self.models.values()):
                closing.callback(model.close)


def _future(parameters: Mapping[str, Any], deadline: float | None, timeout: float | None = None) -> RequestFuture:
    """A future with the request of an image, whose deadline counts from this call."""
    future, deadline = RequestFuture(), check_seconds("deadline", deadline)
    future.request = ImageRequest(future.end, parameters, deadline, check_seconds("timeout", timeout))
    return future


def _cancel(submitting: asyncio.Future[Future[Any]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()


def whole_image(
    source: Any, channel_order: str, device: Device | None = None, pools: UploadPools | None = None
) -> HostImage | DeviceImage:
    """An image at full size, whose parts will be taken.

    Args:
        source: what `read_image()` takes, or an image on a CUDA device.
        channel_order: of arrays.
        device: the image is copied there once, when the first of its parts is used; None leaves an image of the host
            there.
        pools: the memory for that, which images share one after the other; None is memory of its own.
    """
    if DeviceImage.is_one(source):
        return source if isinstance(source, DeviceImage) else DeviceImage(for_other_threads(source), channel_order)
    if device is None:
        return read_image(source, channel_order=channel_order)
    shared = source if isinstance(source, SharedImage) else SharedImage(source, pools)  # others may use the same copy
    return shared.on_device(device, channel_order)


def require_boxes(model: ImageModel[Any]) -> None:
    """Raises UnsupportedModelError for a model whose results are not `Detections`."""
    kind = model.result_type()
    if kind is not object and not issubclass(kind, Detections):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives {kind.__name__}, and no boxes; use a model of boxes or keypoints"
        )
