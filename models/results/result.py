"""The base class of all results: a result type owns all its forms.

A wrapper's `postprocess()` returns one result for each image. Calls, streams, requests, the command line, the server,
`compare` and `quantize` use the members of this class, and know no result type::

    @dataclass(frozen=True, slots=True, eq=False)
    class DepthMap(Result):
        depth: npt.NDArray[np.float32]

        def to_dicts(self):
            return [{"nearest": float(self.depth.min()), "farthest": float(self.depth.max())}]

        def _tensors(self):
            return {"depth": ResultTensor(lambda: self.depth, open_axes=2, fill=np.nan)}
"""

from __future__ import annotations

import dataclasses
import io
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ...core.files import atomic_path, atomic_write
from ...core.text import json_text
from ...errors import ConfigError, ImageError, InputError, OutputError, ShapeError, UnsupportedModelError
from ...image import HostImage, ImageSource, read_image
from .habits import Hints
from .plain import plain_data

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

    from .agreement import Agreement

__all__ = [
    "ImageReference", "Result", "ResultTensor", "ResultTensorSpec", "bytes_array", "check_pixels", "check_result_path",
]  # fmt: skip


class ResultTensor(NamedTuple):
    """A tensor of a result.

    Attributes:
        values: computes the array for one image, without an axis for images.
        open_axes: how many of its first axes have a length that depends on the image.
        fill: what fills up these axes where results of several images become one array.
    """

    values: Callable[[], Any]
    open_axes: int = 0
    fill: Any = 0


class ResultTensorSpec(NamedTuple):
    """The specification of a tensor of a result.

    Attributes:
        shape: of one image, with -1 for axes whose length depends on the image.
        fill: what fills up these axes in an array of several images.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill: Any


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result(Hints, ABC):
    """The result of a model for one image. A subclass is a frozen dataclass, and gives at least `to_dicts()`.

    It may override: `_drawn()` for drawing, files and notebooks; `_tensors()` for the tensors that a server returns;
    `_agreement()` for `compare`, `quantize` and `accuracy`; `summary()` for the terminal.

    Attributes:
        image: the image of the result, where it is known; `draw()` uses it.
        decoder: the decoder of the image file (`"pillow"`, `"simplejpeg"`, `"nvimgcodec"`); None for pixels that came
            as an array.
    """

    #: Whether the drawing replaces the image, so that other results are drawn over it.
    _replaces_image: ClassVar[bool] = False

    image: ImageReference | None = dataclasses.field(default=None, kw_only=True)
    decoder: str | None = dataclasses.field(default=None, kw_only=True)

    # ---- plain data ----

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts of plain Python values."""

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dicts()` as JSON; with an indent, the coordinates of a box are on one line.

        Raises:
            InputError: a value that JSON cannot hold, such as infinity, NaN or bytes; the message has its name.
        """
        rows = self.to_dicts()
        try:
            return json_text(rows, indent=indent, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{_not_json(rows)} cannot be written as JSON: {error}; leave it out or convert it"
            ) from None

    def summary(self) -> str:
        """The result in plain text for a terminal, a line for each row."""
        return "\n".join("  ".join(f"{name} {_short(value)}" for name, value in row.items()) for row in self.to_dicts())

    # ---- tensors ----

    def _tensors(self) -> Mapping[str, ResultTensor]:
        """The tensors by name. All results of a model have the same ones."""
        return {"result": ResultTensor(lambda: bytes_array([msgspec.json.encode(plain_data(self.to_dicts()))])[0])}

    def to_tensors(self, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """The result as arrays by name, without an axis for images. Text is an array of `bytes` objects.

        Args:
            names: those to compute; None is all.

        Raises:
            InputError: the result has no array of a name.
        """
        tensors = self._tensors()
        names = tensors.keys() if names is None else names
        if unknown := [name for name in names if name not in tensors]:
            raise InputError(f"{type(self).__name__} has no array {unknown[0]!r}; it has {', '.join(tensors)}")
        return {name: _array(tensors[name].values()) for name in names}

    def tensor_specs(self) -> tuple[ResultTensorSpec, ...]:
        """The specifications of the arrays of `to_tensors()`, the same for all results of the model."""
        specs = []
        for name, (values, open_axes, fill) in self._tensors().items():
            array = _array(values())
            shape = (-1,) * open_axes + array.shape[open_axes:]
            specs.append(ResultTensorSpec(name, array.dtype, shape, fill))
        return tuple(specs)

    # ---- images ----

    def _drawn(self, pil: Image.Image) -> Image.Image:
        """The result over an RGB image, which may be changed."""
        kind = type(self).__name__
        raise UnsupportedModelError(f"{kind} results are not drawn; use to_dicts(), or define {kind}._drawn(pil)")

    def draw(self, image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr") -> Image.Image:
        """The result over an image, as a new PIL image.

        Args:
            image: the image of the result; None uses `image` of the result.
            channel_order: of an array.

        Raises:
            InputError: the result does not know its image, or this one has another size.
            ImageError: the image cannot be read.
            UnsupportedModelError: results of this type are not drawn.
        """
        return self._drawn(self._pil(image, channel_order))

    def save(
        self, path: str | os.PathLike[str], image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr"
    ) -> Path:
        """Writes the result to a file, by its suffix: `.json` holds `to_dicts()`, any image format the drawn image.

        Raises:
            OutputError: the suffix is of no such format, or the file cannot be written.
            ConfigError: there is no suffix, or it is that of an image, and results of this type are not drawn.
            InputError, ImageError: as `draw()` and `to_json()`.
        """
        target = Path(path)
        if target.suffix.lower() == ".json":
            return atomic_write(target, self.to_json(indent=2) + "\n")
        if not target.suffix:
            raise ConfigError(f"{str(target)!r} has no suffix, which decides the format; use a name such as out.png")
        if not self._is_drawn():
            raise ConfigError(f"{str(target)!r}: {type(self).__name__} are saved as JSON; use a name such as out.json")
        check_result_path(target)
        with atomic_path(target) as sibling:
            drawn = self.draw(image, channel_order=channel_order)
            try:
                drawn.save(sibling)
            except (OverflowError, RuntimeError) as error:  # of some formats, for sides above their limits
                raise OutputError(f"cannot write {str(target)!r}: {error}") from None
        return target

    def _repr_png_(self) -> bytes | None:
        """For notebooks: drawn over the image, or over grey where the image is not known any more or has changed its
        size. None where the size of the result is not known either.
        """
        if not self._is_drawn():
            return None
        from PIL import Image

        try:
            pil = self._pil(None, "bgr")
        except (ImageError, InputError):
            if not hasattr(self, "size"):
                return None
            pil = Image.new("RGB", self.size, (96, 96, 96))
        buffer = io.BytesIO()
        self._drawn(pil).save(buffer, "PNG")
        return buffer.getvalue()

    @classmethod
    def _is_drawn(cls) -> bool:
        return cls._drawn is not Result._drawn

    def _pil(self, image: ImageSource | HostImage | None, channel_order: str) -> Image.Image:
        """The image that was given, or the one that the result knows, as a new RGB image."""
        from ..draw import to_pil

        if image is not None:
            given: HostImage | None = read_image(image, channel_order=channel_order)
        else:
            given = None if self.image is None else self.image.read()
        if given is None:
            raise InputError(
                "the image is not known any more: the result of a call knows it while it exists, and other results do "
                "not; give it: draw(image), save(path, image)"
            )
        width, height = getattr(self, "size", given.size)
        if (width, height) != given.size:
            raise InputError(
                f"the image has {given.size[0]} x {given.size[1]} pixels, and the {type(self).__name__} {width} x "
                f"{height}; give the image that the result was made of"
            )
        return to_pil(given)

    def with_image(self, source: Any) -> Self:
        """The same result with a reference to this image; see `ImageReference`."""
        return dataclasses.replace(self, image=ImageReference.of(source))

    def _remember(self, name: str, value: Any) -> None:
        """Sets `image` or `decoder` in place: for the wrapper that has just made this result. A copy takes longer."""
        object.__setattr__(self, name, value)
        for part in self._parts():
            part._remember(name, value)

    def _parts(self) -> Iterable[Result]:
        """The results of the same image that this one is made of."""
        return ()

    # ---- comparison ----

    def agreement(self, other: Result, *, min_score: float = 0.0) -> Agreement:
        """The agreement of another result for the same image with this one, which is the reference.

        Args:
            min_score: rows of this result that score less are left out, and those of the other one that score less
                and match none; of classes the best one counts always.

        Raises:
            InputError: the other result is of another type, or of an image of another size.
            UnsupportedModelError: results of this type, or classes with scores below 0, have no measure.
        """
        if not isinstance(other, type(self)):
            raise InputError(
                f"{type(other).__name__} cannot be compared with {type(self).__name__}; give results of one model"
            )
        if (size := getattr(self, "size", None)) != (theirs := getattr(other, "size", None)):
            raise InputError(
                f"a {type(self).__name__} of {theirs} cannot be compared with one of {size}; give results of one image"
            )
        return self._agreement(other, min_score)

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """See `agreement()`."""
        kind = type(self).__name__
        raise UnsupportedModelError(
            f"results of {kind} have no measure of agreement; compare their to_dicts(), or define {kind}._agreement()"
        )


def bytes_array(values: Collection[bytes | str]) -> npt.NDArray[Any]:
    """Texts as an array of `bytes` objects, (N,)."""
    array = np.empty(len(values), np.object_)
    array[:] = [value.encode() if isinstance(value, str) else value for value in values]
    return array


def check_result_path(path: Path) -> None:
    """Raises OutputError for a path whose suffix is neither `.json` nor that of an image format that Pillow writes."""
    from PIL import Image

    suffix = path.suffix.lower()
    if suffix != ".json" and Image.registered_extensions().get(suffix) not in Image.SAVE:
        raise OutputError(
            f"cannot write {str(path)!r}: unknown file extension; use .json, or that of an image, such as .png or .jpg"
        )


def check_pixels(name: str, pixels: npt.NDArray[Any], dtype: npt.DTypeLike, *channels: int) -> None:
    """Raises ShapeError for pixels that are no array of this dtype and of the shape (height, width, *channels)."""
    if not isinstance(pixels, np.ndarray):
        raise ShapeError(f"{name} are a {type(pixels).__name__}; use an array of {np.dtype(dtype)}")
    if pixels.ndim != 2 + len(channels) or pixels.shape[2:] != channels or pixels.dtype != dtype:
        words = ", ".join(["height", "width", *map(str, channels)])
        raise ShapeError(f"{name} are {pixels.dtype} of shape {pixels.shape}; use {np.dtype(dtype)} ({words})")


def _array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, bytes):  # NumPy would make it a string of a fixed length
        return np.array(values, np.object_)
    return np.asarray(values)


def _not_json(rows: Iterable[Mapping[str, Any]]) -> str:
    """The first value that JSON cannot hold, in words."""
    for number, row in enumerate(rows):
        for name, value in row.items():
            try:
                json_text(value, allow_nan=False)
            except (TypeError, ValueError):
                return f"{name!r} of row {number}"
    return "a row"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class ImageReference(msgspec.Struct, frozen=True, eq=False):
    """The source of an image: a path, or a weak reference to the object with its pixels. Only the path is pickled."""

    _path: str | None
    _holder: weakref.ref[Any] | None
    _channel_order: str

    @classmethod
    def of(cls, source: Any, channel_order: str = "bgr") -> ImageReference | None:
        """The reference to an image source; None for bytes, streams and other sources without weak references, and for
        images that were decoded at a reduced size.
        """
        if isinstance(source, (str, os.PathLike)):
            return cls(os.fspath(source), None, channel_order)
        if isinstance(source, HostImage):
            return None if source.reduced_from else cls(None, weakref.ref(source.pixels), source.format)
        if hasattr(source, "read"):
            return None
        try:
            return cls(None, weakref.ref(source), channel_order)
        except TypeError:
            return None

    def read(self) -> HostImage | None:
        """The image; None if its pixels are gone.

        Raises:
            ImageError: the file cannot be read any more.
        """
        if self._path is not None:
            return read_image(self._path)
        source = None if self._holder is None else self._holder()
        if source is None:
            return None
        if self._channel_order in ("bgr", "rgb", "nv12"):
            return read_image(source, channel_order=self._channel_order)
        return HostImage(source, self._channel_order)

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageReference, (self._path, None, self._channel_order)
