"""Calls with one image, or with a list of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from ..image import HostImage, ImageSource

__all__ = ["ImageCalls"]

Result = TypeVar("Result")


class ImageCalls(Generic[Result]):
    """A call with an image returns its result; a call with a list or tuple of images returns a list of results."""

    @overload  # a HostImage is a tuple, too
    def __call__(self, images: ImageSource | HostImage, **parameters: Any) -> Result: ...
    @overload
    def __call__(self, images: list[Any] | tuple[ImageSource | HostImage, ...], **parameters: Any) -> list[Result]: ...
    def __call__(
        self, images: ImageSource | HostImage | Sequence[ImageSource | HostImage], **parameters: Any
    ) -> Result | list[Result]:
        """Takes an image (path, bytes, PIL image or uint8 array) or a list of them.

        Args:
            images: what `read_image()` takes; a model on a GPU also takes arrays that lie there.
            parameters: settings for this call alone, such as `conf=0.5`: those that `per_call` names.

        Raises:
            ImageError: an image cannot be read.
            InferenceError: the runtime failed.
            ConfigError: a parameter has a wrong value, or cannot be given with a call.
        """
        if isinstance(images, (list, tuple)) and not isinstance(images, HostImage):
            return self._run_all(images, parameters)
        return self._run_one(images, parameters)  # type: ignore[arg-type]

    def _run_one(self, source: ImageSource | HostImage, parameters: Mapping[str, Any]) -> Result:
        """The result of one image."""
        return self._run_all([source], parameters)[0]

    @abstractmethod
    def _run_all(self, sources: Sequence[ImageSource | HostImage], parameters: Mapping[str, Any]) -> list[Result]:
        """The results of images, in order."""
