"""Requests of images to any model, without a future for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import ImageError, InputError
from ...pipeline.futures import RequestGroup
from ..requests import Requests
from .base import Composed
from .outcomes import CancellableRequest, EndedRequest, FutureEnd, RequestFuture

if TYPE_CHECKING:
    from ..image_model import ImageModel

__all__ = ["beginner", "submit_for", "submit_group"]


def beginner(model: ImageModel[Any], parameters: Mapping[str, Any]) -> Callable[[Any], EndedRequest]:
    """What takes an image in for a model, for the thread that waits for its result. It waits for slots, whatever the
    settings of the model's pipelines say.
    """
    if isinstance(model, Requests):
        return partial(model.begin, parameters=parameters)

    def begin(image: Any) -> EndedRequest:
        future = RequestFuture()
        future.request = submit_for(model, future.end, image, parameters, {}, patient=True)
        return FutureEnd(future)

    return begin


def submit_for(
    model: ImageModel[Any],
    on_end: Callable[[EndedRequest], object],
    image: Any,
    parameters: Mapping[str, Any],
    limits: Mapping[str, float | None],
    *,
    patient: bool = False,
) -> CancellableRequest:
    """The request of an image; `on_end` is called with its end. See `Pipeline.submit_for()`."""
    if isinstance(model, (Requests, Composed)):
        return model.submit_for(on_end, image, parameters, patient=patient, **limits)
    future = model.submit(image, **limits, **parameters)
    future.add_done_callback(lambda done: on_end(FutureEnd.of(done)))
    return future


def submit_group(
    model: ImageModel[Any],
    on_end: Callable[[RequestGroup], object],
    images: Sequence[Any],
    parameters: Mapping[str, Any] | None = None,
    *,
    timeout: float | None = None,
    deadline: float | None = None,
    patient: bool = False,
    wait: bool = True,
    ends_early: bool = False,
) -> RequestGroup:
    """The requests of several images, which end together. See `Pipeline.submit_group()`.

    An image that a composition refuses has the reason as its outcome.
    """
    if isinstance(model, Requests):
        return model.submit_group(
            on_end, images, parameters, timeout=timeout, deadline=deadline, patient=patient, wait=wait,
            ends_early=ends_early,
        )  # fmt: skip
    group = RequestGroup(len(images), on_end, ends_early)
    group.requests = requests = list[CancellableRequest]()
    limits = {"timeout": timeout, "deadline": deadline}
    try:
        for index, image in enumerate(images):
            ended = partial(_one_ended, group, index)
            try:
                requests.append(submit_for(model, ended, image, parameters or {}, limits, patient=patient))
            except (ImageError, InputError) as error:
                group.ended(index, error)
    except BaseException:
        group.cancel()
        raise
    return group


def _one_ended(group: RequestGroup, index: int, end: EndedRequest) -> None:
    group.ended(index, end.result if end.error is None else end.error)
