"""Calls with one image or with a list of them, and streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from ..errors import ConfigError
from ..image import HostImage, ImageSource
from .results.result import Result as ImageResult

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ImageCalls"]

Result = TypeVar("Result")

#: What to use for the methods that models of other programs have.
_HABITS = {
    **dict.fromkeys(("predict", "detect", "forward"), "call it: model(image)"),
    "track": "Tracker().update(model(frame)) numbers the objects of a video",
    **dict.fromkeys(("to", "cuda", "cpu", "half"), "device= and precision= are arguments of a wrapper's constructor"),
    "export": "the commands `infersdk build` and `infersdk convert` write other formats",
}


class ImageCalls(Generic[Result]):
    """Base of models that take images. A call with an image returns its result; a call with a list or tuple of images
    returns a list of results. The end of a `with` block closes the model.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _HABITS:
                raise AttributeError(f"{type(self).__name__} has no {name!r}; {_HABITS[name]}", name=name)
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
            return list(map(_remembering, images, results))  # type: ignore[arg-type]
        if is_list:
            return list(map(_remembering, images, self._run_all(images, parameters)))  # type: ignore[arg-type]
        return _remembering(images, self._run_one(images, parameters))  # type: ignore[arg-type]

    def stream(
        self, images: Iterable[ImageSource | HostImage], *, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """The results of any number of images, in order.

        Args:
            return_exceptions: return the exception of an image in place of its result. The images then become requests,
                as with `map()`.
        """
        if return_exceptions:
            return self.map(images, return_exceptions=True, **parameters)
        return self._stream(images, parameters)

    @abstractmethod
    def _stream(self, images: Iterable[ImageSource | HostImage], parameters: Mapping[str, Any]) -> Iterator[Result]:
        """See `stream()`."""

    @abstractmethod
    def map(
        self, images: Iterable[Any], *, in_flight: int | None = None, return_exceptions: bool = False, **parameters: Any
    ) -> Iterator[Result]:
        """As `stream()`, through the pipelines. See `Pipeline.map()`."""

    @abstractmethod
    def close(self) -> None:
        """Frees the model. Requests that have not begun to run are cancelled."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        """The result of one image."""
        return self._run_all([source], parameters)[0]

    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        """The results of several images, in order."""
        return list(self.stream(sources, **parameters))


def _remembering(source: ImageSource | HostImage, result: Result) -> Result:
    """The result, with a reference to its image."""
    if isinstance(result, ImageResult):
        result._remember_image(source)
    return result
