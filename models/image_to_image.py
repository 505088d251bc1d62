"""From an image to an image: super-resolution, style; and background removal, whose result is a matte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..errors import InputError, UnsupportedModelError
from ..image import Geometry
from ..ops import resize_map
from .description import ModelDescription, Recognition, Shape
from .output_checks import check_finite, check_logits, check_scores
from .preprocessor import ImageInput, Preprocessor
from .preset_input import PresetInput, plane_rows, single_map
from .results import ImageResult, Matte
from .vision import VisionModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt


__all__ = ["BackgroundRemoval", "ImageToImage"]

#: Pixels of the networks, in and out: (scale, offset) from 0 to 1, and how far outside a trained network's output lies.
_RANGES = {"unit": (1.0, 0.0), "byte": (255.0, 0.0), "signed": (2.0, -1.0)}
#: The share of 0 to 1 that outputs may lie outside of it, as networks end without a limit.
OVERSHOOT = 2.0


class ImageToImage(VisionModel[ImageResult]):
    """A network that gives an image: super-resolution (Real-ESRGAN, Swin2SR), style, restoration. Output [batch, 3,
    height, width] or [batch, height, width, 3], of the input's proportions. NaN becomes 0.

    Args:
        pixels: the numbers of pixels, in and out: `"unit"` (0 to 1), `"byte"` (0 to 255) or `"signed"` (-1 to 1).
        output_pixels: those of the output, where they differ; None is `pixels`.
        order: the order of the network's channels, in and out.
        fit: `"exact"` puts the image at its own size into the upper left corner, and refuses a larger one; give
            `size=`, or tile the image. `"stretch"` stretches it to the input, and the result has the size of the
            output.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    pixels: Literal["unit", "byte", "signed"] = "unit"
    output_pixels: Literal["unit", "byte", "signed"] | None = None
    order: Literal["rgb", "bgr"] = "rgb"
    fit: Literal["exact", "stretch"] = "exact"
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "image-to-image"
    _outputs: ClassVar[int] = 1

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        spec = model.outputs[0]
        if len(spec.shape) != 4 or (3 not in (spec.shape[1], spec.shape[3]) and isinstance(spec.shape[1], int)):
            return Recognition.no(f"its output {spec} is not an image of three channels")
        scale = _scale(spec.shape, model.input_size)
        if scale == 0:
            return Recognition.no(f"its output {spec} is not a multiple of its input in size")
        if model.task == cls.task or (scale is not None and scale > 1):
            return Recognition.yes("a network that enlarges images")
        return Recognition.nearly(
            "nothing in the file says that its maps are the channels of an image", "a model that gives an image or maps"
        )

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        scale, bias = _RANGES["byte" if input.dtype == "uint8" else self.pixels]
        made = Preprocessor.stretch(input, order=self.order, scale=scale / 255, bias=bias, fill=0)
        if self.fit == "stretch":
            return made

        def exact(size: tuple[int, int]) -> Geometry:
            if size[0] > input.size[0] or size[1] > input.size[1]:
                raise InputError(
                    f"an image of {size[0]} x {size[1]} is larger than the network's input of {input.size[0]} x "
                    f'{input.size[1]}; give size= for a model that leaves it open, or fit="stretch"'
                )
            return Geometry.resize(size, input.size, size)

        return Preprocessor(input, made.transform, exact)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[ImageResult]:
        images = next(iter(outputs.values()))
        if images.shape[1] == 3:
            images = np.moveaxis(images, 1, 3)
        return [self._image(images[row], geometry) for row, geometry in enumerate(geometries)]

    def _image(self, image: npt.NDArray[Any], geometry: Geometry) -> ImageResult:
        height, width = image.shape[:2]
        canvas, source = geometry.canvas, geometry.source
        if self.fit == "exact":
            width, height = source[0] * width // canvas[0], source[1] * height // canvas[1]
        image = image[:height, :width, :: 1 if self.order == "rgb" else -1]
        if image.dtype != np.uint8:
            scale, offset = _RANGES[self.output_pixels or self.pixels]
            unit = (image.astype(np.float32) - np.float32(offset)) * np.float32(255 / scale)
            image = np.rint(np.minimum(np.fmax(unit, 0), 255))  # fmax() makes 0 of NaN
        pixels = image.astype(np.uint8, order="C")  # a copy: the next run overwrites outputs of uint8
        return ImageResult(pixels, (width / source[0], height / source[1]))

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name, values = next(iter(outputs.items()))
        if values.dtype == np.uint8:
            return
        check_finite(name, values)
        pixels = self.output_pixels or self.pixels
        scale, offset = _RANGES[pixels]
        low, high = float(values.min()), float(values.max())
        if low < offset - OVERSHOOT * scale or high > offset + (1 + OVERSHOOT) * scale:
            raise UnsupportedModelError(
                f"its pixels, from {offset:g} to {offset + scale:g}, reach from {low:.4g} to {high:.4g} in its "
                f'first run; give pixels= or output_pixels="byte" (0 to 255), "unit" (0 to 1) or "signed" (-1 to 1)'
            )


class BackgroundRemoval(PresetInput[Matte]):
    """A network that gives the foreground's share of each point, [batch, 1, height, width]: U2-Net, IS-Net, RMBG,
    MODNet, BiRefNet. Of several outputs of this shape the first one counts. The map is resized bilinearly to the image.

    Args:
        scores: `"probability"`, or `"logit"`, to which sigmoid is applied (BiRefNet).
        stretch: whether the map of each image is stretched to 0 to 1 after it is resized, as IS-Net's and RMBG's
            authors do it. U2-Net's authors do it before.
        preset: see `PresetInput`. U2-Net has `"imagenet"`, IS-Net and RMBG `"centred"`, MODNet
            `"inception"`.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    scores: Literal["probability", "logit"] = "probability"
    stretch: bool = False

    task: ClassVar[str] = "matte"
    per_call: ClassVar[frozenset[str]] = frozenset({"stretch"})
    fallback_size: ClassVar[int] = 1024
    presets_by_family: ClassVar[dict[str, str]] = {"birefnet": "imagenet"}

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        kinds = {single_map(spec.shape, model.input_size) for spec in model.outputs}
        if False in kinds:
            return Recognition.no("its outputs are not one number for each point of its input")
        if model.task == cls.task:
            return Recognition.yes("a model of mattes (one map of numbers)")
        return Recognition.nearly(
            "nothing in the file says that its map is the foreground", "a model that gives one map"
        )

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Matte]:
        maps = plane_rows(next(iter(outputs.values())))
        return [self._matte(maps[row], geometry) for row, geometry in enumerate(geometries)]

    def _matte(self, values: npt.NDArray[Any], geometry: Geometry) -> Matte:
        values = values.astype(np.float32, copy=False)
        if self.scores == "logit":
            with np.errstate(over="ignore"):  # exp of a large number is infinite, and the share 0
                values = 1 / (1 + np.exp(-values))
        resized = resize_map(values, geometry)
        if self.stretch:
            low, high = Matte(resized).range
            resized = (resized - low) / (high - low) if high > low else resized - low
        return Matte(resized)

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name, values = next(iter(outputs.items()))
        check_finite(name, values)
        if self.scores == "logit":
            check_logits(values)
        else:
            check_scores(values, "probabilities", '; for logits, give scores="logit"')


def _scale(shape: Shape, size: tuple[int, int] | None) -> int | None:
    """How many times the output is larger than the input; None where it is open, 0 for no whole number."""
    height, width = shape[2:] if shape[1] == 3 else shape[1:3]
    if size is None or not isinstance(height, int) or not isinstance(width, int):
        return None
    scale = width // size[0]
    return scale if (width, height) == (scale * size[0], scale * size[1]) else 0
