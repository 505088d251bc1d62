"""Requests of one image to several models, without a future for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import ImageError, InputError
from ...pipeline.futures import RequestGroup
from ..requests import Requests

if TYPE_CHECKING:
    from ..image_model import ImageModel

__all__ = ["EndedRequest", "FutureEnd", "beginner", "failed", "submit_for", "submit_group"]


class EndedRequest(Protocol):
    """A request whose end one thread waits for, such as a pipeline's `MapRequest`."""

    @property
    def ended(self) -> bool: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> BaseException | None: ...
    def wait_for_end(self) -> None: ...
    def cancel(self) -> bool: ...


class FutureEnd:
    """A future as a request whose end one thread waits for."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None

    @classmethod
    def of(cls, done: Future[Any]) -> FutureEnd:
        """That of a future which has ended."""
        end = cls(done)
        end.wait_for_end()
        return end

    def wait_for_end(self) -> None:
        try:
            self.error = self._future.exception()
        except CancelledError as error:
            self.error = error
        if self.error is None:
            self.result = self._future.result()
        self.ended = True

    def cancel(self) -> bool:
        return self._future.cancel()


def failed(error: BaseException) -> FutureEnd:
    """A request that has ended in an exception."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return FutureEnd.of(future)


def beginner(model: ImageModel[Any], parameters: Mapping[str, Any]) -> Callable[[Any], EndedRequest]:
    """What takes an image in for a model, for the thread that waits for its result."""
    if isinstance(model, Requests):
        return partial(model.begin, parameters=parameters)
    return lambda image: FutureEnd(model.submit(image, **parameters))


def submit_for(
    model: ImageModel[Any],
    on_end: Callable[[EndedRequest], object],
    image: Any,
    parameters: Mapping[str, Any],
    limits: Mapping[str, float | None],
    *,
    patient: bool = False,
) -> Any:
    """The request of an image, which can be cancelled; `on_end` is called with its end. See `Pipeline.submit_for()`."""
    if isinstance(model, Requests):
        return model.submit_for(on_end, image, parameters, patient=patient, **limits)
    future = model.submit(image, **limits, **parameters)
    future.add_done_callback(lambda done: on_end(FutureEnd.of(done)))
    return future


def submit_group(
    model: ImageModel[Any],
    on_end: Callable[[RequestGroup], object],
    images: Sequence[Any],
    *,
    deadline: float | None,
    patient: bool,
    wait: bool,
) -> RequestGroup:
    """The requests of several images, which end together. See `Pipeline.submit_group()`.

    An image that a composition refuses has the reason as its outcome.
    """
    if isinstance(model, Requests):
        return model.submit_group(on_end, images, deadline=deadline, patient=patient, wait=wait)
    group = RequestGroup(len(images), on_end)
    group.requests = futures = list[Future[Any]]()
    try:
        for index, image in enumerate(images):
            try:
                future = model.submit(image, deadline=deadline)
            except (ImageError, InputError) as error:
                group.ended(index, error)
                continue
            futures.append(future)
            future.add_done_callback(partial(_end_of_future, group, index))
    except BaseException:
        group.cancel()
        raise
    return group


def _end_of_future(group: RequestGroup, index: int, done: Future[Any]) -> None:
    end = FutureEnd.of(done)
    group.ended(index, end.result if end.error is None else end.error)
