"""Image classifiers: images in, the best classes out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..ops import topk
from .description import ModelDescription, Recognition, Shape
from .output_checks import check_floats, lies_in_unit
from .pixel_metadata import pixel_settings
from .preprocessor import ImageInput, Preprocessor, as_size
from .presets import PRESETS, Preset, pixel_options
from .results import Classifications
from .vision import VisionModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..graph.info import ModelInfo
    from ..image import Geometry

__all__ = ["Classifier"]

Triple = tuple[float, float, float]


class Classifier(VisionModel[Classifications]):
    """A classifier: images in, `Classifications` out.

    Settings without a value come from the model's metadata (`pixel_metadata` lists the known entries), else from the
    preset `"imagenet"`. A given preset replaces the mean, std, scale and order of the metadata.

    Args:
        preset: the defaults of the settings below (`PRESETS`): `"imagenet"`, `"caffe"`, `"inception"` (-1 to 1),
            `"centred"` (-0.5 to 0.5), `"clip"` or `"unit"` (0 to 1).
        framing: `"crop"`: the shorter side is resized, and the centre cropped; `"stretch"`: the image is resized to
            the network's input without keeping its proportions.
        resize: the shorter side is brought to this before the crop; None is 256 for a crop of 224, and in proportion
            for others. For an input that is not square, the image is resized to cover the input, as in timm, at a scale
            that is larger by resize / the input's shorter side.
        crop: the network's input, a number or (width, height), for models that leave it open (224 then).
        mean, std, scale: y = (x * scale - mean) / std: a number, or one for each channel in the order of the network's
            input. A network of uint8 input takes neither these nor a preset.
        input_order: the channels that the network wants, `"rgb"` or `"bgr"`.
        top_k: maximum number of classes of a result.
        softmax: whether scores become probabilities by softmax; None does so unless those of the first run are
            probabilities already (none negative, the sum within 0.001 of 1).

    `path`, `backend`, `names` and the other arguments: see `VisionModel`.
    """

    preset: Preset | None = None
    framing: Literal["crop", "stretch"] = "crop"
    resize: Annotated[int, msgspec.Meta(ge=1)] | None = None
    crop: int | tuple[int, int] | None = None
    mean: float | Triple | None = None
    std: float | Triple | None = None
    scale: Annotated[float, msgspec.Meta(gt=0, le=3.4028234663852886e38)] | None = None  # a finite float32
    input_order: Literal["rgb", "bgr"] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1)] = 5
    softmax: bool | None = None

    task: ClassVar[str] = "classify"
    fallback_size: ClassVar[int] = 224
    _outputs: ClassVar[int] = 1
    per_call: ClassVar[frozenset[str]] = frozenset({"top_k", "softmax"})

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        name, shape = model.outputs[0].name, model.outputs[0].shape
        if len(shape) < 2 or sum(d != 1 for d in shape[1:] if isinstance(d, int)) > 1:
            return Recognition.no(f"its output {name!r} of shape {shape} is not a row of classes for each image")
        if model.task is None and not all(isinstance(side, int) for side in shape[2:]):
            return Recognition.nearly(f"its file leaves open whether its output {name!r} is a row of classes")
        return Recognition.yes("a classifier")

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        stated = self._stated
        given = {name: getattr(self, name) for name in ("preset", "mean", "std", "scale")}
        pixels = pixel_options(input, self._pixels(), **given)
        if self.framing == "crop":
            resize = self.resize or stated.get("resize") or round(min(input.size) * 256 / 224)
            made = Preprocessor.crop(input, resize=resize, **pixels)
        elif self.resize is not None:
            raise ConfigError(f"resize={self.resize} is for framing='crop'; with framing='stretch' leave it out")
        else:
            made = Preprocessor.stretch(input, **pixels)
        return replace(made, interpolation=stated.get("interpolation", made.interpolation))

    def postprocess(
        self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]
    ) -> list[Classifications]:
        scores = outputs[self.network.output_specs[0].name]
        if self.softmax is None and self._learned.probabilities is None:
            self._verify(outputs)  # the first run did not show it
        softmax = not self._learned.probabilities if self.softmax is None else self.softmax
        results = []
        for row in scores.reshape(len(scores), -1)[: len(geometries)]:  # (N, classes, 1, 1) is common
            class_ids, best = topk(row, min(self.top_k, row.size), softmax=softmax)
            results.append(Classifications(class_ids, best, self.class_names))
        return results

    def _pixels(self) -> dict[str, Any]:
        """The normalisation of pixels, as `PRESETS` have it."""
        default = PRESETS[self.preset] if self.preset else PRESETS["imagenet"] | self._stated
        return default | {name: value for name in PRESETS["imagenet"] if (value := getattr(self, name)) is not None}

    @cached_property
    def _stated(self) -> dict[str, Any]:
        """The settings that the model's metadata holds, of those that are not given."""
        return self._stated_in(self.network.metadata)

    def _stated_in(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        names = ("mean", "std", "scale", "input_order", "crop", "resize", "interpolation")
        given = {name for name in names if getattr(self, name) is not None}
        if self.preset is not None:
            given |= PRESETS[self.preset].keys()
        if self.framing == "stretch":
            given.add("resize")
        return pixel_settings(metadata, given)

    def asked_size(self) -> tuple[int, int] | None:
        if self.crop is not None:
            return as_size(self.crop, "crop")
        shape = self.network.input_specs[0].shape  # a size in the metadata is for models that leave it open
        return self._stated.get("crop") if sum(isinstance(side, int) for side in shape[1:]) < 3 else None

    def size_to_build(self, model: ModelInfo) -> tuple[int, int] | None:
        return as_size(self.crop, "crop") or self._stated_in(model.metadata).get("crop")

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        shape = next(iter(shapes.values()))
        sizes = [d for d in shape[1:] if isinstance(d, int)]
        return math.prod(sizes) if len(sizes) == len(shape) - 1 else None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name, scores = next(iter(outputs.items()))
        check_floats(name, scores)
        if self.softmax is not None:
            return
        rows = scores.reshape(len(scores), -1)
        if rows.shape[1] == 1:
            raise UnsupportedModelError(
                f"its output {name!r} has one value for each image, of which softmax always makes 1; give "
                "softmax=False for the value as it is"
            )
        if not rows.any() or not np.isfinite(rows).all():  # these may be scores of any kind
            return
        sums = rows.sum(axis=1, dtype=np.float64)
        probabilities = bool(rows.min() >= 0 and (np.abs(sums - 1) < 1e-3).all())
        if lies_in_unit(rows) and not probabilities:
            raise UnsupportedModelError(
                f"its output reaches from {rows.min():.4g} to {rows.max():.4g} in its first run: these are scores that "
                "do not add up to 1, and no logits; give softmax=False for scores that are rounded, or independent of "
                "each other"
            )
        self._learned.probabilities = probabilities
