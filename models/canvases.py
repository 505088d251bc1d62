"""Canvases: the input sizes of a network.

With `canvas="fixed"` there is one, the whole input. With `canvas="fit"` there are several. An image is put on the
smallest one that holds it at the size that it has on the whole input: a 16:9 frame on 640 x 384 of 640 x 640. Images of
one canvas share a batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from ..errors import ConfigError, UnsupportedModelError
from ..graph.info import FREE_SIZE, onnx_info
from ..image import Geometry
from ..infer import Infer
from ..loading.registry import backend_class, option_names
from .preprocessor import ImageInput, image_sides

if TYPE_CHECKING:
    from ..core.model_source import ModelSource
    from ..graph.info import ModelInfo
    from .preprocessor import Preprocessor

__all__ = ["CanvasPlan", "Canvases", "check_free_size", "choose_canvases", "open_size", "profiles", "usual_canvases"]

Size = tuple[int, int]
_Positive = Annotated[int, msgspec.Meta(gt=0)]

#: A side of a canvas is a multiple of this many pixels, unless the model's metadata says otherwise.
STRIDE = 32
#: The shorter side by the longer one, of frames and photographs: 16:9, 3:2, 4:3.
_USUAL = (9 / 16, 2 / 3, 3 / 4)


class Canvases:
    """The canvases of a model, each with its preprocessor.

    Args:
        input: the whole input.
        make: makes the preprocessor of an input.
        sizes: (width, height) of further canvases.
        border: minimum total padding of a canvas that is shorter than the whole input, in pixels.

    Attributes:
        whole: the preprocessor of the whole input.
        sizes: (width, height) of each canvas; the whole input is the last one.
        several: whether there is more than one.
    """

    def __init__(
        self, input: ImageInput, make: Callable[[ImageInput], Preprocessor], sizes: Iterable[Size], border: int = 0
    ) -> None:
        self.whole, self._border = make(input), border
        smaller = _by_area(set(sizes) - {input.size})
        self._preprocessors = {size: self._for(make(replace(input, size=size))) for size in smaller}
        self._preprocessors[input.size] = self.whole
        self.sizes = tuple(self._preprocessors)
        self.several = len(self.sizes) > 1
        self._cached = lru_cache(maxsize=256)(self._smallest)

    def on(self, canvas: Size) -> Preprocessor:
        """The preprocessor for this canvas."""
        return self._preprocessors[canvas]

    def of(self, size: Size) -> Preprocessor:
        """The preprocessor for an image of (width, height)."""
        return self._cached(size) if self.several else self.whole

    def _smallest(self, size: Size) -> Preprocessor:
        whole = self.whole.geometry_of(size)
        return next(
            (one for canvas, one in self._preprocessors.items() if _offset_on(canvas, whole, self._border) is not None),
            self.whole,
        )

    def _for(self, preprocessor: Preprocessor) -> Preprocessor:
        """The preprocessor of a canvas, with images as large as they are on the whole, where they fit."""
        canvas, own = preprocessor.input.size, preprocessor.geometry

        def geometry(size: Size) -> Geometry:
            whole = self.whole.geometry_of(size)
            offset = _offset_on(canvas, whole)
            if offset is None or whole.resized is None:
                return own(size)
            return Geometry.resize(size, canvas, whole.resized, offset)

        return replace(preprocessor, geometry=geometry)


def _offset_on(canvas: Size, whole: Geometry, border: int = 0) -> Size | None:
    """The corner of an image on a canvas, at the size that it has on the whole input; None where it does not fit.

    It is centred, unless it is in the upper left corner of the whole input.

    Args:
        border: minimum total padding along a side that is shorter than the whole input.
    """
    if whole.resized is None or whole.offset is None:  # it is warped
        return None
    padding = [side - own for side, own in zip(canvas, whole.resized, strict=True)]
    shorter = [a < b for a, b in zip(canvas, whole.canvas, strict=True)]
    if min(*whole.offset) < 0 or any(rest < border * less for rest, less in zip(padding, shorter, strict=True)):
        return None
    x, y = (0 if at == 0 else rest // 2 for at, rest in zip(whole.offset, padding, strict=True))
    return x, y


def _by_area(sizes: Iterable[Size]) -> list[Size]:
    return sorted(sizes, key=lambda size: (size[0] * size[1], size))


class CanvasPlan(NamedTuple):
    """How a network is loaded for several canvases.

    Attributes:
        source: the model, with the passes that free its height and width.
        sizes: (width, height) of the canvases, the smallest first and the whole input last.
        border: see `Canvases`.
    """

    source: ModelSource
    sizes: tuple[Size, ...]
    border: int = 0

    @classmethod
    def of(
        cls,
        model: ModelSource | Infer,
        asked: Size | None,
        fallback: int,
        sizes: Sequence[Size] | None,
        border: int = 0,
    ) -> CanvasPlan:
        """The plan for a model file, or for a network that is loaded already and leaves its height and width free.

        Args:
            asked: the requested (width, height) of the whole input; None is that of the model.
            fallback: the sides of a model that leaves them open.
            sizes: the requested canvases; None are the usual ones.
        """
        if isinstance(model, Infer):
            source, inputs, metadata = model.model, model.input_specs, model.metadata
        elif model.is_onnx:
            info = onnx_info(model)
            source, inputs, metadata = model, info.inputs, info.metadata
        else:
            raise UnsupportedModelError(
                f"canvas='fit' needs an ONNX model, and {model.name} is "
                f"{model.format.title if model.format else 'of an unknown format'}; use canvas='fixed'"
            )
        if (reason := ImageInput.refuses(inputs)) is not None:
            raise UnsupportedModelError(f"canvas='fit' is not for {source.name}: {reason}")
        stride = int(float(metadata.get("stride") or STRIDE))
        height, width = image_sides(inputs[0].shape)
        if isinstance(model, Infer) and (isinstance(height, int) or isinstance(width, int)):
            raise UnsupportedModelError(
                f"canvas='fit' needs a free height and width, and the input of {source.name} is {inputs[0].text}; give "
                "the ONNX file in place of the loaded model, or write one of a free size (infersdk graph free-size)"
            )
        whole = ImageInput.of(inputs, asked, fallback).size
        if isinstance(height, int) and isinstance(width, int):
            from ..graph.passes import FreeSize

            source = source.with_passes(FreeSize(stride))
        for wide, high in sizes or ():
            within = 0 < wide <= whole[0] and 0 < high <= whole[1]
            if wide % stride or high % stride or not within:
                raise ConfigError(
                    f"canvas_sizes: {wide} x {high} has to be multiples of {stride} within {whole[0]} x {whole[1]}, "
                    "the model's input"
                )
        chosen = usual_canvases(whole, stride, border) if sizes is None else sizes
        return cls(source, (*_by_area(set(chosen) - {whole}), whole), border)


def check_free_size(input: ImageInput, metadata: Mapping[str, str], name: str) -> None:
    """Checks the size of the input of a model whose height and width `FreeSize` has made free."""
    try:
        width, height, stride = msgspec.json.decode(metadata[FREE_SIZE], type=tuple[_Positive, _Positive, _Positive])
    except (KeyError, ValueError):
        return
    is_free = not any(isinstance(side, int) for side in image_sides(input.spec.shape))
    fits = all(side <= most and side % stride == 0 for side, most in zip(input.size, (width, height), strict=True))
    if is_free and not fits and input.size != (width, height):
        raise ConfigError(
            f"{name} takes images up to {width} x {height}, in multiples of {stride}, not {input.size[0]} x "
            f"{input.size[1]}; give size=({width}, {height}) or a smaller one"
        )


def open_size(model: ModelInfo, asked: Size | None, fallback: int) -> list[Size]:
    """The (width, height) of a model that leaves a side open, see `ImageInput.of()`; nothing for other models."""
    specs = model.inputs
    if ImageInput.refuses(specs) is not None or all(isinstance(side, int) for side in image_sides(specs[0].shape)):
        return []
    return [ImageInput.of(specs, asked, fallback).size]


def profiles(
    source: ModelSource, backend: str, sizes: Callable[[ModelInfo], Iterable[Size]], max_batch: int | None
) -> Mapping[str, Any]:
    """The option `profiles` for a backend that builds for ranges of shapes: one profile for each size; nothing for a
    backend that takes any shape.
    """
    if not source.is_onnx or "profiles" not in option_names(backend):
        return {}
    kind, model = backend_class(backend), onnx_info(source)
    ranges = []
    for size in sizes(model):
        image = replace(ImageInput.of(model.inputs, None, 0), size=size)  # the passes that free its size come later
        largest = image.spec.fixed_batch or max_batch or kind.declaration.default_max_batch or 1
        low, high = [image.spec.fixed_batch or 1, *image.image_shape], [largest, *image.image_shape]
        ranges.append({"min": low, "opt": high, "max": high})
    return {"profiles": {model.inputs[0].name: ranges}} if ranges else {}


def usual_canvases(whole: Size, stride: int = STRIDE, border: int = 0) -> list[Size]:
    """(width, height) of the canvases for frames and photographs: 16:9, 3:2 and 4:3, landscape and portrait, and the
    whole input. Their sides are multiples of `stride`.
    """
    width, height = whole
    across = {(width, _rounded_up(width * ratio + border, stride)) for ratio in _USUAL}
    upright = {(_rounded_up(height * ratio + border, stride), height) for ratio in _USUAL}
    return sorted(size for size in {*across, *upright, whole} if size[0] <= width and size[1] <= height)


def choose_canvases(
    sizes: Iterable[Size], whole: Size = (640, 640), *, count: int = 4, stride: int = STRIDE
) -> list[Size]:
    """The canvases that leave the least padding to images of these sizes, for `canvas_sizes`.

    Args:
        sizes: (width, height) of images, as often as they come.
        whole: (width, height) of the whole input; it is one of the canvases.
        count: maximum number of canvases, 1 to 8.
        stride: the sides of canvases are multiples of it.

    Returns:
        (width, height) of each canvas, the whole input last.

    Raises:
        ConfigError: `count` is not a whole number from 1 to 8, or `stride` not one from 1 to 2**20.
    """
    for name, number, most in (("count", count, 8), ("stride", stride, 2**20)):
        if not isinstance(number, Integral) or not 1 <= number <= most:
            raise ConfigError(f"{name} is a whole number from 1 to {most}, not {number!r}")
    needed: Counter[Size] = Counter()
    for size in sizes:
        resized = Geometry.letterbox(size, whole).resized
        assert resized is not None
        fit = (_rounded_up(resized[0], stride), _rounded_up(resized[1], stride))
        if fit != whole and fit[0] <= whole[0] and fit[1] <= whole[1]:
            needed[fit] += 1
    # The 12 most frequent ones are enough to choose from: there are 495 choices of 4 of them at most.
    candidates = [size for size, _ in needed.most_common(12)]
    most = min(count - 1, len(candidates))
    choices = (choice for some in range(most + 1) for choice in itertools.combinations(candidates, some))
    best = min(choices, key=lambda choice: _area(needed, (*choice, whole)))
    return [*sorted(best), whole]


def _area(needed: Mapping[Size, int], canvases: Sequence[Size]) -> int:
    """The pixels of all images on the smallest canvas that takes each."""
    return sum(
        times * min(width * height for width, height in canvases if width >= fit[0] and height >= fit[1])
        for fit, times in needed.items()
    )


def _rounded_up(side: float, stride: int) -> int:
    # A letterboxed side is rounded to whole pixels before.
    return -(-round(side) // stride) * stride
