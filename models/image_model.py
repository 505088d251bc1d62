"""The interface of models that take images: wrappers, compositions and readers of text.

The server, configurations and compositions use these members alone, so they take any of these models.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar, overload

from ..errors import ConfigError
from ..image import HostImage, ImageSource
from ..image.sources import check_several
from .results.result import ImageReference
from .results.result import Result as ImageResult

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self

    from ..core.backend import Progress
    from .details import ComposedDetails, ModelDetails
    from .execution import Timings

__all__ = ["CancellableRequest", "ImageModel"]

Result = TypeVar("Result")

#: What to use for the methods that models of other programs have, and compositions have not.
_FOREIGN_METHODS = {
    **dict.fromkeys(("predict", "detect", "forward"), "call it: model(image)"),
    "track": "Tracker().update(model(frame)) numbers the objects of a video",
    **dict.fromkeys(("to", "cuda", "cpu", "half"), "device= and precision= are arguments of a wrapper's constructor"),
    "export": "the commands `infersdk build` and `infersdk convert` write other formats",
    **dict.fromkeys(("submit_many", "release", "configure_pipeline", "pipeline"), "each of its `models` has its own"),
}


class CancellableRequest(Protocol):
    """A request that may be cancelled."""

    def cancel(self) -> bool: ...


class ImageModel(Generic[Result]):
    """Base of models that take images, and give a result for each of them.

    A call with an image returns its result; a call with a list or tuple of images returns a list of results. The end of
    a `with` block closes the model.

    Attributes:
        task: the kind of its results: `"detect"`, `"classify"`, `"ocr"`, ...
        class_names: the class names by class_id; `()` if there are none.
        per_call: the settings that one call or request may change.
        channel_order: of NumPy arrays that are given as images.
    """

    task: ClassVar[str]
    per_call: ClassVar[frozenset[str]]
    class_names: Sequence[str]
    channel_order: str

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _FOREIGN_METHODS and not hasattr(type(self), name):
                raise AttributeError(f"{type(self).__name__} has no {name!r}; {_FOREIGN_METHODS[name]}", name=name)
            return object.__getattribute__(self, name)  # raises the error again, also that of a property

    @overload  # a HostImage is a tuple, too
    def __call__(self, images: ImageSource | HostImage, **parameters: Any) -> Result: ...
    @overload
    def __call__(
        self,
        images: list[Any] | tuple[ImageSource | HostImage, ...],
        *,
        return_exceptions: Literal[False] = False,
        **parameters: Any,
    ) -> list[Result]: ...
    @overload
    def __call__(
        self, images: list[Any] | tuple[ImageSource | HostImage, ...], *, return_exceptions: bool, **parameters: Any
    ) -> list[Result | Exception]: ...
    def __call__(
        self,
        images: ImageSource | HostImage | Sequence[ImageSource | HostImage],
        *,
        return_exceptions: bool = False,
        **parameters: Any,
    ) -> Result | list[Result] | list[Result | Exception]:
        """Takes an image (path, bytes, PIL image or uint8 array) or a list of them.

        Args:
            images: an image source, see `read_image()`; a model on a GPU also takes arrays on it.
            return_exceptions: for a list: return the exception of an image in place of its result. The images then
                become requests, as with `map()`.
            parameters: settings for this call, such as `conf=0.5`; `per_call` lists their names.

        Raises:
            ImageError: an image cannot be read.
            InferenceError: the runtime failed.
            ConfigError: a parameter has a wrong value, or cannot be given with a call.
        """
        is_list = isinstance(images, (list, tuple)) and not isinstance(images, HostImage)
        if return_exceptions:
            if not is_list:
                raise ConfigError("return_exceptions is for a list of images; catch the exception of one image")
            results = list(self.stream(images, return_exceptions=True, **parameters))  # type: ignore[arg-type]
            return list(map(self._remembering, images, results))  # type: ignore[arg-type]
        if is_list:
            return list(map(self._remembering, images, self._run_all(images, parameters)))  # type: ignore[arg-type]
        return self._remembering(images, self._run_one(images, parameters))  # type: ignore[arg-type]

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order. An exception of the iterable itself is raised after the
        results of the images before it.

        Args:
            return_exceptions: return the exception of an image in place of its result. The images then become requests,
                as with `map()`.

        Raises:
            InputError: `images` is one image.
        """
        check_several(images)
        if return_exceptions:
            return self._map(images, None, True, parameters)
        return self._stream(images, parameters)

    @abstractmethod
    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Result]:
        """See `stream()`."""

    @abstractmethod
    def submit(
        self,
        image: ImageSource | HostImage,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> Future[Result]:
        """A request of one image. See `Pipeline.submit()`."""

    @abstractmethod
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
        self, images: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """As `stream()`, through the pipelines; those of several models run side by side. Always waits for slots. There
        may be endless images.

        Args:
            in_flight: images that are read ahead of the result that is returned; None is as many as the pipelines have
                slots.
            return_exceptions: return the exception of an image in place of its result, instead of raising it.

        Raises:
            ConfigError: `in_flight` is no whole number from 1.
            InputError: `images` is one image.
        """
        check_several(images)
        return self._map(images, in_flight, return_exceptions, parameters)

    @abstractmethod
    def _map(
        self, images: Iterable[Any], in_flight: int | None, return_exceptions: bool, parameters: Mapping[str, Any]
    ) -> Iterator[Result]:
        """See `map()`."""

    @abstractmethod
    async def infer(
        self, image: ImageSource | HostImage, *, deadline: float | None = None, **parameters: Any
    ) -> Result:
        """From asyncio: the result of one image. See `Pipeline.infer()`."""

    @abstractmethod
    def warm_up(self, progress: Progress | None = None, *, example: ImageSource | HostImage | None = None) -> None:
        """Runs batches of all sizes: the first request takes no longer than later ones."""

    @abstractmethod
    def result_type(self) -> type[Any]:
        """The type of the result of an image; `object` where it is not known."""

    @property
    @abstractmethod
    def timings(self) -> Timings:
        """How long the stages of the last call took."""

    @property
    @abstractmethod
    def details(self) -> ModelDetails | ComposedDetails:
        """Its details, for commands, the server and benchmarks."""

    @abstractmethod
    def close(self) -> None:
        """Frees the model. Requests whose batch has not started raise ClosedError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:  # copy.copy() would make two that close the same networks
        other = "clone() it, or load" if hasattr(self, "clone") else "load"
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled: {other} the model again")

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        """The result of one image."""
        return self._run_all([source], parameters)[0]

    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        """The results of several images, in order."""
        return list(self.stream(sources, **parameters))

    def _remembering(self, source: ImageSource | HostImage, result: Result) -> Result:
        """The result, with a reference to its image."""
        if isinstance(result, ImageResult):
            result._remember("image", ImageReference.of(source, self.channel_order))
        return result
