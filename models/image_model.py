"""The interface of models that take images: wrappers, compositions and readers of text.

The server, configurations and compositions use these members alone, so they take any of these models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

    from ..core.backend import Progress
    from ..core.device import Device
    from ..image import HostImage, ImageSource
    from ..infer import Infer
    from ..pipeline import Pipeline
    from .execution import Timings

__all__ = ["CancellableRequest", "ImageModel", "ImageModelDetails"]

Result = TypeVar("Result")


class CancellableRequest(Protocol):
    """A request that may be cancelled."""

    def cancel(self) -> bool: ...


class ImageModelDetails(Protocol):
    """The details of a model that takes images.

    Attributes:
        batch_limit: maximum number of images in one run.
        image_device: the CUDA device where it takes images; None for a model that takes them on the host alone.
        networks: the networks that it runs.
        pipelines: those of its requests; the first one takes the images. A pipeline starts when it is first used.
    """

    @property
    def batch_limit(self) -> int: ...
    @property
    def image_device(self) -> Device | None: ...
    @property
    def networks(self) -> tuple[Infer, ...]: ...
    @property
    def pipelines(self) -> tuple[Pipeline[Any], ...]: ...


class ImageModel(Protocol[Result]):
    """A model that takes images, and gives a result for each of them.

    Attributes:
        task: the kind of its results: `"detect"`, `"classify"`, `"ocr"`, ...
        class_names: the class names by class_id; `()` if there are none.
        per_call: the settings that one call or request may change.
        channel_order: of NumPy arrays that are given as images.
        timings: how long the stages of the last call took.
        details: for commands, the server and benchmarks.
    """

    @property
    def task(self) -> str: ...
    @property
    def class_names(self) -> Sequence[str]: ...
    @property
    def per_call(self) -> frozenset[str]: ...
    @property
    def channel_order(self) -> str: ...
    @property
    def timings(self) -> Timings: ...
    @property
    def details(self) -> ImageModelDetails: ...

    def result_type(self) -> type[Any]:
        """The type of the result of an image; `object` where it is not known."""

    def __call__(self, images: Any, *, return_exceptions: bool = False, **parameters: Any) -> Any:
        """The result of an image, or a list of results for a list of images."""

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order."""

    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """A request of one image. See `Pipeline.submit()`."""

    def submit_batch(
        self,
        images: Sequence[Any],
        on_done: Callable[[int, Any], object],
        parameters: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        wait: bool | None = None,
    ) -> Sequence[CancellableRequest]:
        """Several requests without futures. See `Pipeline.submit_batch()`."""

    def map(
        self,
        images: Iterable[Any],
        *,
        in_flight: int | None = None,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Iterator[Result]:
        """As `stream()`, through the pipelines. See `Pipeline.map()`."""

    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio: the result of one image. See `Pipeline.infer()`."""

    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Runs batches of all sizes: the first request takes no longer than later ones."""

    def close(self) -> None:
        """Frees the model. Requests that have not begun to run are cancelled."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
