"""One result out of several requests to a model."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..declaration import argument
from .base import Composed

if TYPE_CHECKING:
    from ...image import HostImage, ImageSource
    from ..image_model import ImageModel
    from .image_request import ImageRequest

__all__ = ["Composition", "Plan"]

Part = TypeVar("Part")
Result = TypeVar("Result")


class Plan(Generic[Part, Result]):
    """The requests of one image to a model, and the function that joins their results.

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
        """The requests to the model for this image.

        Raises:
            ImageError: the image cannot be read.
        """

    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Result]:
        """The parts of successive images fill the batches together."""
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

    def _begin(
        self,
        image: ImageSource | HostImage,
        request: ImageRequest,
        parameters: Mapping[str, Any] | None,
        timeout: float | None,
        wait: bool | None,
    ) -> None:
        """The parts go into the model's pipeline together. The first part that fails fails the image, and those that
        have not left are cancelled.
        """
        plan = self.plan(image)
        if not plan.sources:
            request.end(plan.join([]))
            return
        request.submit(
            self.model, plan.sources, lambda parts: request.end(plan.join(parts)), parameters, timeout=timeout,
            wait=wait, fail_early=True,
        )  # fmt: skip

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
        yield from _joined(plans, parts)  # images at the end without requests


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
