"""Embedding models: an image becomes a vector; images alike have vectors near to one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from ..errors import ConfigError
from .description import ModelDescription, Recognition
from .output_checks import check_finite
from .preprocessor import ImageInput, Preprocessor
from .presets import PRESETS, Preset, pixel_options
from .results import Embedding
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["Embedder"]

#: The dimensions of a vector are a multiple of this; it distinguishes vectors from classes in files that do not say.
STEP = 64
#: Parts of the names that exporters give the output of vectors: `image_embeds`, `pooler_output`, `features`.
OUTPUTS = ("embed", "pooler", "feature")


class Embedder(VisionModel[Embedding]):
    """An image becomes a vector of length 1: re-identification (OSNet), faces, image search. Output [batch, D], also
    with further axes of 1.

    Args:
        preset: the normalisation of pixels (see `PRESETS`): `"imagenet"`, `"unit"` (0 to 1), `"inception"` (-1 to 1,
            the usual one for faces), `"clip"`, `"centred"` (-0.5 to 0.5) or `"caffe"`. A network of uint8 input takes
            the order of the channels alone.
        fit: how an image is put on the input: `"stretch"`, `"letterbox"`, which keeps its proportions, or `"crop"`,
            which resizes it to cover the input and crops the centre.
        resize: for `fit="crop"`: the shorter side is brought to this before the crop (DINOv2: 256 for a crop of 224).
            None is the input's shorter side (CLIP).
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    preset: Preset = "imagenet"
    fit: Literal["stretch", "letterbox", "crop"] = "stretch"
    resize: Annotated[int, msgspec.Meta(ge=1)] | None = None
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "embed"
    other_tasks = frozenset({"embedding", "reid", "feature-extraction", "image-feature-extraction"})
    fallback_size: ClassVar[int] = 224
    _outputs: ClassVar[int] = 1

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        spec = model.outputs[0]
        if len(spec.shape) < 2 or sum(d != 1 for d in spec.shape[1:] if isinstance(d, int)) > 1:
            return Recognition.no(f"its output {spec} is not a vector for each image")
        fixed = [d for d in spec.shape[1:] if isinstance(d, int)]
        is_vector = len(fixed) == len(spec.shape) - 1 and math.prod(fixed) % STEP == 0
        is_row = all(isinstance(side, int) for side in spec.shape[2:])
        is_named = is_row and any(part in spec.name.lower() for part in OUTPUTS)
        if model.task is None and (model.names or not (is_vector or is_named)):
            return Recognition.nearly("its values may be those of classes")
        return Recognition.yes("a model that gives vectors")

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        pixels = pixel_options(input, PRESETS[self.preset])
        if self.fit == "crop":
            return Preprocessor.crop(input, resize=self.resize, **pixels)
        if self.resize is not None:
            raise ConfigError(f"resize={self.resize} is for fit='crop'; with fit={self.fit!r} leave it out")
        make: Callable[..., Preprocessor] = getattr(Preprocessor, self.fit)
        return make(input, **pixels)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Embedding]:
        output = outputs[self.network.output_specs[0].name]
        return Embedding.of_rows(output.reshape(len(output), -1)[: len(geometries)])

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        check_finite(*next(iter(outputs.items())))
