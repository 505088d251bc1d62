"""One result out of several requests to a model."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..declaration import argument
from .base import Composed

if TYPE_CHECKING:
    from ...image import HostImage, ImageSource
    from ..image_model import ImageModel

__all__ = ["Composition", "Joined", "Plan"]

Part = TypeVar("Part")
Result = TypeVar("Result")


class Plan(Generic[Part, Result]):
    """What one image asks of a model, and how its result comes of that.

    Args:
        sources: the images for the model, in order.
        join: makes the result of theirs, in the same order.
    """

    __slots__ = ("join", "sources")

    def __init__(self, sources: Sequence[Any], join: Callable[[list[Part]], Result]) -> None:
        self.sources, self.join = sources, join


class Composition(Composed[Result], Generic[Part, Result]):
    """Several requests to one model for each image."""

    parts = ("model",)
    model: ImageModel[Part] = argument(kw_only=False)

    @abstractmethod
    def plan(self, image: ImageSource | HostImage) -> Plan[Part, Result]:
        """What is asked of the model for this image.

        Raises:
            ImageError: the image cannot be read.
        """

    def stream(self, images: Iterable[ImageSource | HostImage], **parameters: Any) -> Iterator[Result]:
        """The results of any number of images, in order. The parts of successive images fill the batches together."""
        return self._in_order(images, lambda sources: self.model.stream(sources, **parameters))

    def map(
        self,
        images: Iterable[ImageSource | HostImage],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Result]:
        """As `stream()`, through the model's pipeline. See `Pipeline.map()`.

        Args:
            in_flight: requests to the model that are read ahead.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.
        """
        settings = {"in_flight": in_flight, "return_exceptions": return_exceptions, **parameters}
        return self._in_order(images, lambda sources: self.model.map(sources, **settings), return_exceptions)

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """One image, whose parts run together with whatever else is waiting. See `Pipeline.submit()`.

        The image is read in the calling thread. All parts have to leave by the deadline. Cancelling the future cancels
        the parts that have not left.
        """
        until = None if deadline is None else monotonic() + deadline
        plan = self.plan(image)
        joined: Joined[Part, Result] = Joined(plan.join, len(plan.sources))
        for index, source in enumerate(plan.sources):
            left = None if until is None else max(until - monotonic(), 0.0)
            try:
                part = self.model.submit(source, timeout=timeout, deadline=left, **parameters)
            except BaseException:
                joined.cancel()
                raise
            joined.add(index, part)
        return joined

    def _in_order(
        self,
        images: Iterable[ImageSource | HostImage],
        run: Callable[[Iterator[Any]], Iterator[Any]],
        return_exceptions: bool = False,
    ) -> Iterator[Result]:
        """The results of images. `run` takes the parts of all images, and returns the results of the parts in order."""
        plans: deque[Plan[Part, Result] | BaseException] = deque()

        def sources() -> Iterator[Any]:
            for image in images:
                try:
                    plan = self.plan(image)
                except Exception as error:
                    if not return_exceptions:
                        raise
                    plans.append(error)
                    continue
                plans.append(plan)
                yield from plan.sources

        parts: list[Any] = []
        for part in run(sources()):
            parts.append(part)
            yield from _joined(plans, parts)
        yield from _joined(plans, parts)  # images at the end that ask nothing of the model


def _joined(plans: deque[Any], parts: list[Any]) -> Iterator[Any]:
    """The results of the first images, as far as their parts are there. Takes both from the lists."""
    while plans:
        plan = plans[0]
        if isinstance(plan, BaseException):
            plans.popleft()
            yield plan
            continue
        count = len(plan.sources)
        if len(parts) < count:
            return
        plans.popleft()
        own, parts[:count] = parts[:count], []
        failed = next((part for part in own if isinstance(part, BaseException)), None)
        yield plan.join(own) if failed is None else failed


class Joined(Future[Result], Generic[Part, Result]):
    """The result of several requests, as one future: it ends with the last of them, or with the first that fails.

    Args:
        join: makes the result; called in the thread that ends the last request.
        count: how many requests will be added.
    """

    def __init__(self, join: Callable[[list[Part]], Result], count: int) -> None:
        super().__init__()
        self._join, self._missing = join, count
        self._parts: list[Any] = [None] * count
        self._requests: list[Future[Part]] = []
        self._guard = threading.Lock()
        if count == 0:
            self._end(lambda: join([]))

    def add(self, index: int, request: Future[Part]) -> None:
        """Adds the request for the part at `index`."""
        self._requests.append(request)
        if self.done():  # failed or cancelled meanwhile
            request.cancel()
        request.add_done_callback(lambda done: self._take(index, done))

    def cancel(self) -> bool:
        """Cancels the requests that have not left, and this future."""
        cancelled = super().cancel()
        if cancelled:
            self._cancel_requests()
        return cancelled

    def _cancel_requests(self) -> None:
        for request in list(self._requests):
            request.cancel()

    def _take(self, index: int, request: Future[Part]) -> None:
        error = CancelledError() if request.cancelled() else request.exception()
        if error is not None:
            if self._end(lambda: _raise(error)):
                self._cancel_requests()
            return
        self._parts[index] = request.result()
        with self._guard:
            self._missing -= 1
            last = self._missing == 0
        if last:
            self._end(lambda: self._join(self._parts))

    def _end(self, make: Callable[[], Result]) -> bool:
        """Ends this future with what `make` gives or raises; False if it has ended already."""
        with self._guard:
            if self.done() or not self.set_running_or_notify_cancel():
                return False
        try:
            self.set_result(make())
        except BaseException as error:
            self.set_exception(error)
        return True


def _raise(error: BaseException) -> Any:
    raise error
