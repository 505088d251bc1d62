"""Semantic segmentation: a class for each pixel, by argmax over classes or by the probability of one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np

from ..errors import ConfigError, UnsupportedModelError
from ..ops import NO_CLASS, class_map, class_numbers
from ..ops.device_masks import DeviceClassMaps
from .description import ModelDescription, Recognition, Shape, is_open
from .device_variants import DeviceDecoder, DeviceVariants
from .output_checks import check_finite, check_logits, check_scores
from .preprocessor import ImageInput, Preprocessor
from .preset_input import PresetInput, lies_over, plane_rows, single_map
from .results import ClassMap, ClassMaps
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from ..infer import Infer
    from .execution import DevicePostprocess

__all__ = ["SemanticSegmentation", "TwinLiteNet"]

Result = TypeVar("Result")
Layout = Literal["chw", "hwc"]


class _MapModel(VisionModel[Result]):
    """Base class of models that give scores for each class at each point."""

    task: ClassVar[str] = "semantic"

    #: The names of the outputs whose maps the result has, in order.
    _maps: tuple[str, ...] = ()

    @abstractmethod
    def result(self, maps: Sequence[npt.NDArray[Any]]) -> Result:
        """The result of one image from the class map of each output."""

    def map_layout(self, name: str) -> Layout:
        """How an output lies."""
        layout = layout_of(self._learned.shapes[name], self.input_size)
        if layout is None:
            raise UnsupportedModelError(
                f"its output {name!r} of shape {self._learned.shapes[name]} has no scores for each class at points of "
                f"its input of {self.input_size[0]} x {self.input_size[1]}, or could have them in two ways"
            )
        return layout

    @property
    def map_threshold(self) -> float:
        """The threshold of the output of a single class."""
        return 0.5

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Result]:
        threshold, layouts = self.map_threshold, [self.map_layout(name) for name in self._maps]
        return [
            self.result([
                class_map(outputs[name][row], geometry, layout=layout, threshold=threshold)
                for name, layout in zip(self._maps, layouts, strict=True)
            ])
            for row, geometry in enumerate(geometries)
        ]  # fmt: skip

    def device_postprocess(self, infer: Infer, capacity: int) -> DevicePostprocess | None:
        return DeviceVariants(_DeviceMaps, self, infer, capacity, self._maps[0])

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in self._maps:
            check_finite(name, outputs[name])
            self.map_layout(name)


class _DeviceMaps(DeviceDecoder["_MapModel[Any]"]):
    """Class maps on the device of a network: the maps alone are copied to the host."""

    def __init__(self, model: _MapModel[Any], infer: Infer, capacity: int) -> None:
        super().__init__(model, infer, capacity)
        device, threshold = self._stream.device, model.map_threshold
        self._maps = {
            name: DeviceClassMaps(capacity, device, layout=model.map_layout(name), threshold=threshold)
            for name in model._maps
        }

    def queue(self, geometries: Sequence[Geometry]) -> None:
        for name, maps in self._maps.items():
            maps.run(self._infer.outputs[name], geometries, stream=self._stream)
            maps.fetch(self._stream)

    def results(self, rows: Sequence[int], geometries: Sequence[Geometry]) -> Iterator[Any]:
        return (self._model.result([maps.unpack(row) for maps in self._maps.values()]) for row in rows)

    def close(self) -> None:
        for maps in self._maps.values():
            maps.close()


class SemanticSegmentation(_MapModel[ClassMap], PresetInput[ClassMap]):
    """Scores for each class at each point, [batch, classes, height, width] or [batch, height, width, classes], become a
    class for each pixel of the image. The scores are resized bilinearly to the image, then the highest one wins.

    A model of a single class gives its probability, or its logit: the class map is 1 above the threshold, else 0.
    A model that ends with argmax gives class numbers: integers [batch, height, width], or the same with an axis of 1.
    Each pixel has the class of the nearest point. The number of classes is not known from the file.

    Args:
        preset: the normalisation of pixels; see `PresetInput`. Nothing in most files says it; None takes 0 to 1
            for models whose metadata has the task "semantic", and refuses others.
        fit: how an image is put on the input: `"stretch"`, or `"letterbox"`, which keeps its proportions; None
            stretches, and letterboxes for the task "semantic".
        scores: of a single class: `"probability"`, or `"logit"`, to which sigmoid is applied; None is `"probability"`,
            and `"logit"` for the task "semantic".
        threshold: the probability that a single class exceeds, 0 to 1.
        background: the class that is not drawn; `"auto"` is 0 for one or two classes, and none for more, or where the
            number of classes is not known.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend`, `names` and the other arguments: see `VisionModel`. For a single class, give two names: that of
    the background first.
    """

    scores: Literal["probability", "logit"] | None = None
    threshold: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    background: int | Literal["auto"] | None = "auto"

    per_call: ClassVar[frozenset[str]] = frozenset({"threshold"})
    _outputs: ClassVar[int] = 1

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        spec = model.outputs[0]
        if is_integer(spec.dtype):
            if (fits := single_map(spec.shape, model.input_size)) is False:
                return Recognition.no(f"its output {spec} has integers, and is no map of class numbers over its input")
            family = "a model that gives a map of class numbers"
            return Recognition.yes(family) if fits else Recognition.nearly("its file leaves open its sizes", family)
        if len(spec.shape) != 4:
            return Recognition.no(f"its output {spec} does not have four dimensions")
        layout = None if model.input_size is None else layout_of(spec.shape, model.input_size)
        if layout is None and model.input_size is not None and not is_open(spec.shape):
            return Recognition.no(f"its output {spec} has no scores for each class at points of its input")
        classes, sides = classes_and_size(spec.shape, layout)
        single = classes == 1 if layout else 1 in spec.shape[1:]
        may_be_image = classes == 3 and sides == model.input_size if layout else 3 in spec.shape[1:]
        says_mask = any(word in spec.name.lower() for word in ("mask", "seg", "matte"))
        if single and model.task is None and not model.names and not says_mask:
            return Recognition.nearly(
                "its output is one map of numbers, and nothing in the file says that it is the probability of a class",
                "a model that gives one map",
            )
        if may_be_image and model.task is None and not model.names:
            return Recognition.nearly(
                "nothing in the file says that its three maps are classes, and not the channels of an image",
                "a model that gives an image or maps",
            )
        return Recognition.yes("a model that gives maps of classes")

    def _check(self, model: ModelDescription) -> None:
        super()._check(model)
        background, count = self.background, self._learned.class_count or len(self.class_names) or NO_CLASS
        if isinstance(background, int) and not 0 <= background < count:
            raise ConfigError(f'background={background} is no class; use 0 to {count - 1}, "auto", or None for none')

    def result(self, maps: Sequence[npt.NDArray[Any]]) -> ClassMap:
        background = self.background
        if background == "auto":
            background = 0 if 0 < (self._learned.class_count or len(self.class_names)) <= 2 else None
        return ClassMap(maps[0], self.class_names, background)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[ClassMap]:
        output = outputs[self._maps[0]]
        if not is_integer(output.dtype):
            return super().postprocess(outputs, geometries)
        planes = zip(plane_rows(output), geometries, strict=False)
        return [self.result([class_numbers(numbers, geometry)]) for numbers, geometry in planes]

    def device_postprocess(self, infer: Infer, capacity: int) -> DevicePostprocess | None:
        return None if is_integer(infer.output_specs[0].dtype) else super().device_postprocess(infer, capacity)

    @property
    def gives_logits(self) -> bool:
        """Whether a single class is a logit."""
        if self.scores is None:
            return self._description.task == self.task
        return self.scores == "logit"

    @property
    def map_threshold(self) -> float:
        return math.log(self.threshold / (1 - self.threshold)) if self.gives_logits else self.threshold

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        name, shape = next(iter(shapes.items()))
        self._maps = (name,)
        if is_integer(self.network.output_specs[0].dtype):
            return None
        size = vars(self).get("input_size") or self._description.input_size
        if size is None or is_open(shape):
            return None
        classes, _ = classes_and_size(shape, layout_of(shape, size))
        assert isinstance(classes, int)
        if classes > NO_CLASS:
            raise UnsupportedModelError(
                f"its output {name!r} has {classes} classes, and a class map has up to {NO_CLASS}"
            )
        return max(classes, 2)  # a single one is there or not

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        output = outputs[self._maps[0]]
        if is_integer(output.dtype):
            known = len(self.class_names) or NO_CLASS
            if output.min() < 0 or output.max() >= known:
                raise UnsupportedModelError(
                    f"its class numbers reach from {output.min()} to {output.max()} in its first run, and "
                    + (f"there are names for {known} classes" if self.class_names else f"a class map has {known}")
                )
            return
        super().verify(outputs)
        classes, _ = classes_and_size(output.shape, self.map_layout(self._maps[0]))
        if classes == 1 and not self.gives_logits:
            check_scores(output, "probabilities", '; for logits, give scores="logit"')
        elif classes == 1:
            check_logits(output)


class TwinLiteNet(_MapModel[ClassMaps]):
    """TwinLiteNet: two outputs [batch, 2, height, width], argmax: the drivable area, and the lane lines. Images are
    stretched to the input; RGB, 0 to 1.

    The result has the maps `"area"` and `"lanes"`. The network gives the area first. Some exports give their outputs
    names that say the opposite; then `area` and `lanes` have to be given.

    Args:
        area, lanes: the names of the model's outputs; None is the first and the second one.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend` and the other arguments: see `VisionModel`.
    """

    area: str | None = None
    lanes: str | None = None
    size: int | tuple[int, int] | None = None

    _outputs: ClassVar[int] = 2

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        for spec in model.outputs:
            if len(spec.shape) != 4 or (isinstance(spec.shape[1], int) and spec.shape[1] != 2):
                return Recognition.no(f"its output {spec} is not of shape (batch, 2, height, width)")
        if any(spec.shape[1] != 2 for spec in model.outputs):
            return Recognition.nearly("its file leaves open how many classes its maps have")
        return Recognition.yes("a TwinLiteNet (two maps of two classes)")

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.stretch(input)

    def map_layout(self, name: str) -> Layout:
        return "chw"

    def result(self, maps: Sequence[npt.NDArray[Any]]) -> ClassMaps:
        area, lanes = maps
        return ClassMaps({
            "area": ClassMap(area, ("background", "drivable area"), 0, first_colour=2),
            "lanes": ClassMap(lanes, ("background", "lane line"), 0),
        })  # fmt: skip

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        self._maps = self._named_outputs(tuple(shapes))
        return None

    def _named_outputs(self, names: tuple[str, ...]) -> tuple[str, str]:
        """Of the area and of the lane lines."""
        first, second = names
        given = self.area, self.lanes
        if given == (None, None):
            lanes_first = "lane" in first.lower() or first.lower() == "ll"
            area_second = any(word in second.lower() for word in ("area", "drivable", "road")) or second.lower() == "da"
            if lanes_first or area_second:
                raise UnsupportedModelError(
                    f"TwinLiteNet gives the drivable area first and the lane lines second, but its outputs are called "
                    f'{first!r} and {second!r}. Name both: area="{first}", lanes="{second}" if the order is '
                    f'right, area="{second}", lanes="{first}" if the names are'
                )
            return first, second
        if sorted(str(name) for name in given) != sorted(names):
            raise UnsupportedModelError(
                f"area={self.area!r} and lanes={self.lanes!r} do not name its two outputs, {first!r} and {second!r}"
            )
        return str(self.area), str(self.lanes)


def is_integer(dtype: npt.DTypeLike) -> bool:
    return np.dtype(dtype).kind in "iu"


def classes_and_size(shape: Shape, layout: Layout | None) -> tuple[int | str | None, Shape]:
    """The number of classes and (width, height) of scores of four dimensions."""
    return (shape[1], (shape[3], shape[2])) if layout == "chw" else (shape[3], (shape[2], shape[1]))


def layout_of(shape: Shape, size: tuple[int, int]) -> Layout | None:
    """Where scores [batch, ...] have their classes: the other two sides are in proportion to the input's and not
    larger. None where neither or either could be right.

    Args:
        shape: four dimensions, the last three of them known.
        size: (width, height) of the input.
    """
    if len(shape) != 4 or is_open(shape):
        return None
    _, a, b, c = shape
    layouts: dict[Layout, bool] = {"chw": lies_over(b, c, size), "hwc": lies_over(a, b, size)}
    found = [layout for layout, fits in layouts.items() if fits]
    return found[0] if len(found) == 1 else None
