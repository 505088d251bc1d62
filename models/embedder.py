"""Embedding models: an image becomes a vector; images alike have vectors near to one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..errors import UnsupportedModelError
from ..image import PixelTransform
from .classifier import PRESETS
from .output_checks import check_floats
from .preprocessor import ImageInput, Preprocessor, as_size
from .results import Embedding
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from .description import ModelDescription

__all__ = ["Embedder"]

#: Words for this task in a file's metadata.
TASKS = frozenset({"embed", "embedding", "reid", "feature-extraction", "image-feature-extraction"})
#: Vectors have a multiple of so many dimensions, where nothing else tells them from the classes of a classifier.
STEP = 64


class Embedder(VisionModel[Embedding]):
    """An image becomes a vector of length 1: re-identification (OSNet), faces, image search. Output [batch, D], also
    with further axes of 1.

    Args:
        preset: how the network wants its pixels: `"imagenet"`, `"unit"` (0 to 1), `"inception"` (-1 to 1, as networks
            for faces often want them) or `"caffe"`; see `PRESETS`.
        fit: how an image comes onto the input: `"stretch"`, `"letterbox"`, which keeps its proportions, or `"crop"`:
            it is scaled to cover the input, and the centre is cropped.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    preset: Literal["imagenet", "caffe", "inception", "unit"] = "imagenet"
    fit: Literal["stretch", "letterbox", "crop"] = "stretch"
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "embed"
    fallback_size: ClassVar[int] = 224

    @classmethod
    def refuses(cls, model: ModelDescription) -> str | None:
        reason = ImageInput.refuses(model.inputs) if model.task in TASKS else super().refuses(model)
        if reason is not None:
            return reason
        if len(model.outputs) != 1:
            return f"it has {len(model.outputs)} outputs, not one of vectors"
        spec = model.outputs[0]
        if len(spec.shape) < 2 or sum(d != 1 for d in spec.shape[1:] if isinstance(d, int)) > 1:
            return f"its output {spec} is not a vector for each image"
        return None

    @classmethod
    def recognizes(cls, model: ModelDescription) -> bool:
        return model.task in TASKS or may_be_vector(model)

    # ---- the three statements ----

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        known = PRESETS[self.preset]
        pixels = PixelTransform.normalize(
            known["mean"], known["std"], max_value=1 / known["scale"], order=known["input_order"]
        )
        settings: dict[str, Any] = {"order": pixels.order, "scale": pixels.scale, "bias": pixels.bias}
        if input.dtype == "uint8":  # the network normalises by itself
            settings = {"order": pixels.order, "scale": 1.0}
        make: Callable[..., Preprocessor] = {
            "stretch": Preprocessor.stretch,
            "letterbox": Preprocessor.letterbox,
            "crop": Preprocessor.crop,
        }[self.fit]
        return make(input, channel_order=self.channel_order, **settings)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Embedding]:
        output = outputs[self.network.output_specs[0].name]
        return Embedding.of_rows(output.reshape(len(output), -1)[: len(geometries)])

    # ---- what follows from the output ----

    def asked_size(self) -> tuple[int, int] | None:
        return as_size(self.size, "size")

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name, values = next(iter(outputs.items()))
        check_floats(name, values)
        if not np.isfinite(values).all():
            raise UnsupportedModelError(f"its output {name!r} has values that are not finite in its first run")


def may_be_vector(model: ModelDescription) -> bool:
    """Whether nothing in a file says that its row of numbers for each image are classes, rather than a vector."""
    if model.task is not None or model.names or len(model.outputs) != 1:
        return False
    sizes = model.outputs[0].shape[1:]
    known = [d for d in sizes if isinstance(d, int)]
    return len(known) == len(sizes) > 0 and math.prod(known) >= STEP and math.prod(known) % STEP == 0
