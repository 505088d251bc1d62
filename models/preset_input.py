"""Models whose pixels a preset describes, since most files do not describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from ..errors import UnsupportedModelError
from .preprocessor import ImageInput, Preprocessor
from .presets import PRESETS, Preset, pixel_options
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from .description import ModelDescription, Shape

__all__ = ["PresetInput", "lies_over", "plane_rows", "single_map"]

Result = TypeVar("Result")


class PresetInput(VisionModel[Result]):
    """Base class of models whose pixels a preset describes.

    Args:
        preset: the normalisation of pixels: `"unit"` (0 to 1), `"imagenet"`, `"inception"` (-1 to 1), `"centred"` (-0.5
            to 0.5), `"clip"` or `"caffe"` (see `PRESETS`). None takes that of the file or the family, and refuses
            others. A network of uint8 input takes the order of the channels alone.
        fit: how an image is put on the input: `"stretch"`, or `"letterbox"`, which keeps its proportions; None is the
            usual one of the file or the family.
        size: the input size, a number or (width, height), for models that leave it open.
    """

    preset: Preset | None = None
    fit: Literal["stretch", "letterbox"] | None = None
    size: int | tuple[int, int] | None = None

    #: Presets by `model_type` in the metadata, as transformers calls the families.
    presets_by_family: ClassVar[dict[str, str]] = {}

    def usual_preset(self, model: ModelDescription) -> str | None:
        """The preset of the file or the family; None where it is not known."""
        if model.task == self.task:
            return "unit"  # as Ultralytics' exporters, which write the task, have their pixels
        return self.presets_by_family.get(model.model_type or "")

    def usual_fit(self, model: ModelDescription) -> str:
        """`"stretch"` or `"letterbox"`: that of the file or the family."""
        return "letterbox" if model.task == self.task else "stretch"

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        fit = self.fit or self.usual_fit(self._description)
        make = Preprocessor.stretch if fit == "stretch" else Preprocessor.letterbox
        preset = self.preset or self.usual_preset(self._description)
        if preset is None and input.dtype != "uint8":  # a network that takes uint8 normalises by itself
            raise UnsupportedModelError(
                'nothing in the file says how it wants its pixels; give preset="unit" for 0 to 1, preset="imagenet", '
                'preset="inception" for -1 to 1, preset="centred" for -0.5 to 0.5, preset="clip" or preset="caffe"'
            )
        return make(input, **pixel_options(input, PRESETS[preset or "unit"]))


def plane_rows(maps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The maps of a batch, see `single_map()`, as (batch, height, width)."""
    return maps.reshape(len(maps), *(side for side in maps.shape[1:] if side != 1))


def single_map(shape: Shape, size: tuple[int, int] | None) -> bool | None:
    """Whether an output is one map of numbers for each image: [batch, height, width], or the same with an axis of 1.
    Its sides are in proportion to an input of (width, height) and not larger. None where dimensions are open.
    """
    if len(shape) == 3:
        height, width = shape[1:]
    elif len(shape) == 4 and 1 in (shape[1], shape[3]):
        height, width = shape[2:] if shape[1] == 1 else shape[1:3]
    else:
        is_open = len(shape) == 4 and not (isinstance(shape[1], int) and isinstance(shape[3], int))
        return None if is_open else False
    if not isinstance(height, int) or not isinstance(width, int) or size is None:
        return None
    return lies_over(height, width, size)


def lies_over(height: Any, width: Any, size: tuple[int, int]) -> bool:
    """Whether points of height x width lie over an input of (width, height): in proportion to it and not larger; sides
    may be rounded to whole points.
    """
    if not (1 < height <= size[1] and 1 < width <= size[0]):
        return False
    return bool(abs(height * size[0] - width * size[1]) < max(size))
