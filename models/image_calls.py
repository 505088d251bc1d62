"""Calls with one image, or with a list of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

from ..errors import ConfigError
from ..image import HostImage, ImageSource

__all__ = ["ImageCalls"]

Result = TypeVar("Result")


class ImageCalls(Generic[Result]):
    """A call with an image returns its result; a call with a list or tuple of images returns a list of results."""

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
            images: what `read_image()` takes; a model on a GPU also takes arrays that lie there.
            return_exceptions: of a list: return the exception of an image in place of its result, instead of raising
                it. The images are requests then, as with `map()`.
            parameters: settings for this call alone, such as `conf=0.5`: those that `per_call` names.

        Raises:
            ImageError: an image cannot be read.
            InferenceError: the runtime failed.
            ConfigError: a parameter has a wrong value, or cannot be given with a call.
        """
        is_list = isinstance(images, (list, tuple)) and not isinstance(images, HostImage)
        if return_exceptions:
            if not is_list:
                raise ConfigError("return_exceptions is for a list of images; catch the exception of one image")
            return self._run_each(images, parameters)  # type: ignore[arg-type]
        if is_list:
            return self._run_all(images, parameters)  # type: ignore[arg-type]
        return self._run_one(images, parameters)  # type: ignore[arg-type]

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        """The result of one image."""
        return self._run_all([source], parameters)[0]

    def _run_each(
        self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]
    ) -> list[Result | Exception]:
        """The results of images, or their exceptions, in order."""
        results = list(self.stream(sources, return_exceptions=True, **parameters))  # type: ignore[attr-defined]
        for source, result in zip(sources, results, strict=True):
            if hasattr(result, "_remember_image"):
                result._remember_image(source)
        return results

    @abstractmethod
    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        """The results of images, in order."""
