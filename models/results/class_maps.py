"""The result of semantic segmentation: a class for each pixel of the image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ConfigError, InputError, ShapeError
from ...ops import NO_CLASS
from ..colours import colour
from ..names import find_classes
from .agreement import Agreement
from .exports import category_of, import_supervision
from .masks import Masks, edges
from .plain import plain_value
from .result import Result, ResultTensor, check_pixels
from .rows import check_names, class_label

if TYPE_CHECKING:
    import numpy.typing as npt
    from PIL import Image
    from typing_extensions import Self

    from ...image import HostImage, ImageSource

__all__ = ["ClassMap", "ClassMaps", "MapResult"]


class MapResult(Result):
    """One map or several, which tint the pixels of their image."""

    __slots__ = ()

    @abstractmethod
    def _tint(self, pixels: npt.NDArray[np.uint8], opacity: float) -> None:
        """Draws into RGB pixels of the image."""

    if TYPE_CHECKING:

        @property
        def maps(self) -> Mapping[str, ClassMap]:
            """The maps by name; a single one has the name `""`."""

    def draw(
        self, image: ImageSource | HostImage | None = None, *, channel_order: str = "bgr", opacity: float = 0.5
    ) -> Image.Image:
        """The image as a new PIL image, tinted by the colours of the classes.

        Args:
            image, channel_order: see `Result.draw()`, also for its errors.
            opacity: of the colours, 0 to 1.

        Raises:
            InputError: the opacity is not 0 to 1.
        """
        if not (isinstance(opacity, (float, Real)) and 0 <= opacity <= 1):
            raise InputError(f"opacity is {opacity!r}; use 0 to 1")
        return self._drawn(self._pil(image, channel_order), opacity)

    def _drawn(self, pil: Image.Image, opacity: float = 0.5) -> Image.Image:
        pixels = np.array(pil)
        self._tint(pixels, opacity)
        from PIL import Image

        return Image.fromarray(pixels)

    def summary(self) -> str:
        """The classes with their share of the pixels, a line each."""
        rows = [(" ".join(filter(None, [row.get("map"), row["label"]])), row["area"]) for row in self.to_dicts()]
        width = max((len(label) for label, _ in rows), default=0)
        return "\n".join(f"{label:<{width}}  {area:.1%}" for label, area in rows) or "no classes"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassMap(MapResult):
    """The class of each pixel of an image.

    Attributes:
        class_ids: uint8 (height, width); `infersdk.ops.NO_CLASS` (255) where the network has not seen the image.
        names: the class names by class_id; a class without one is called by its number.
        background: the class that is not drawn; None draws all.
        first_colour: the number of the colour of the first class that is not the background; the others follow.
    """

    class_ids: npt.NDArray[np.uint8]
    names: Sequence[str]
    background: int | None = None
    first_colour: int = 0

    def __post_init__(self) -> None:
        check_pixels("class_ids", self.class_ids, np.uint8)
        check_names(self.names)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the image."""
        height, width = self.class_ids.shape
        return width, height

    @property
    def maps(self) -> Mapping[str, ClassMap]:
        """This map, by the name `""`."""
        return {"": self}

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """(256,) int64: the pixels of each class."""
        return np.bincount(self.class_ids.reshape(-1), minlength=256)

    @property
    def areas(self) -> dict[str, float]:
        """The share of the image's pixels of each class that is there, the largest first; by its name."""
        areas: dict[str, float] = {}
        for row in self.to_dicts():
            areas[row["label"]] = areas.get(row["label"], 0.0) + row["area"]
        return areas

    @property
    def labels(self) -> list[str]:
        """The classes that are there, the largest first."""
        return [row["label"] for row in self.to_dicts()]

    def area(self, name: str | int) -> float:
        """The share of the pixels of the classes of this name, or of the class of this number. Raises ConfigError for
        an unknown one; where there are names, a number above those of all names and pixels is unknown.
        """
        return float(self.counts[self._numbers(name)].sum() / self.class_ids.size)

    def mask(self, name: str | int) -> npt.NDArray[np.bool_]:
        """(height, width) of bool: the pixels of the classes of this name, or of the class of this number. Raises
        ConfigError for an unknown one; see `area()`.
        """
        return np.isin(self.class_ids, self._numbers(name))

    def _numbers(self, name: str | int) -> list[int]:
        highest = np.max(self.class_ids, where=self.class_ids != NO_CLASS, initial=0)  # it may be without a name
        count = max(len(self.names), int(highest) + 1) if len(self.names) else NO_CLASS
        if not isinstance(name, (str, Integral)):
            raise ConfigError(f"a class is a name or a whole number, not {name!r}; give one that the model has")
        numbers = find_classes(name, self.names, count)
        assert numbers is not None  # a class is given
        return list(numbers)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The classes that are there, the largest first: `class_id`, `label`, `pixels`, and `area`, their share."""
        counts = self.counts[:NO_CLASS]
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        return [
            {
                "class_id": int(i),
                "label": class_label(self.names, int(i)),
                "pixels": int(counts[i]),
                "area": float(counts[i] / self.class_ids.size),
            }
            for i in order
        ]

    def to_masks(self) -> tuple[list[int], Masks]:
        """The classes that are there, the background aside, and a mask of each."""
        result = [row["class_id"] for row in self.to_dicts() if row["class_id"] != self.background]
        planes = [self.class_ids == class_id for class_id in result]
        return result, Masks.of(np.stack(planes) if planes else np.zeros((0, *self.class_ids.shape), bool))

    def to_coco(self, image_id: int, category_ids: Sequence[int] | Mapping[int, int]) -> list[dict[str, Any]]:
        """The masks of the classes in COCO's format for stuff: run lengths in `segmentation`.

        Raises:
            InputError: a class has no category.
        """
        return [
            {
                "image_id": plain_value(image_id),
                "category_id": category_of(category_ids, class_id, self.names),
                "segmentation": mask.to_coco(),
            }
            for class_id, mask in zip(*self.to_masks(), strict=True)
        ]

    def to_supervision(self) -> Any:
        """A `supervision.Detections` of a mask for each class, the background aside."""
        result, masks = self.to_masks()
        planes = masks.numpy()
        return import_supervision().Detections(
            xyxy=np.array([edges(plane) for plane in planes], np.float32).reshape(-1, 4),
            mask=planes,
            class_id=np.array(result, int),
            data={"class_name": np.array([class_label(self.names, i) for i in result], dtype=str)},
        )

    def to_pil(self) -> Image.Image:
        """The map as an image of PIL's with a palette: pixels are class numbers, shown in the classes' colours."""
        from PIL import Image

        pil = Image.fromarray(self.class_ids, mode="P")
        pil.putpalette(self._colours().reshape(-1).tolist())
        return pil

    def _colours(self) -> npt.NDArray[np.uint8]:
        """(256, 3): of each class; black where nothing is drawn."""
        colours = np.zeros((256, 3), np.uint8)
        drawn = [i for i in range(NO_CLASS) if i != self.background]
        colours[drawn] = [colour(self.first_colour + i) for i in range(len(drawn))]
        return colours

    def _tint(self, pixels: npt.NDArray[np.uint8], opacity: float) -> None:
        drawn = self.class_ids != NO_CLASS
        if self.background is not None:
            drawn &= self.class_ids != self.background
        colours = self._colours()[self.class_ids[drawn]].astype(np.float32)
        pixels[drawn] = np.rint(pixels[drawn] * (1 - opacity) + colours * opacity).astype(np.uint8)

    def _tensors(self) -> Mapping[str, ResultTensor]:
        return {"class_map": ResultTensor(lambda: self.class_ids, 2, NO_CLASS)}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """The mean over the classes that are there, in either map, of their intersection over union."""
        pairs = self.class_ids.astype(np.int64) * 256 + other.class_ids
        counts = np.bincount(pairs.reshape(-1), minlength=256 * 256).reshape(256, 256)
        common = np.diag(counts)[:NO_CLASS]
        union = (counts.sum(0) + counts.sum(1))[:NO_CLASS] - common
        there = union > 0
        return Agreement.of(float(np.mean(common[there] / union[there])) if there.any() else 1.0, 1.0)

    def __repr__(self) -> str:
        areas = ", ".join(f"{row['label']} {row['area']:.1%}" for row in self.to_dicts()[:8])
        return f"<{type(self).__name__}: {areas or 'nothing'} in {self.size[0]} x {self.size[1]}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassMaps(MapResult, Mapping[str, ClassMap]):
    """Several maps of one image, by name: classes of different maps may lie over one another.

    Attributes:
        maps: each map by its name, in the order in which they are drawn.
    """

    maps: Mapping[str, ClassMap]

    __eq__, __hash__ = object.__eq__, object.__hash__  # as other results, not as a Mapping

    def __post_init__(self) -> None:
        sizes = {result.size for result in self.maps.values()}
        if len(sizes) != 1:
            raise ShapeError(f"the maps have sizes {sorted(sizes)}; give one map or more, of one image")

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the image."""
        return next(iter(self.maps.values())).size

    @property
    def areas(self) -> dict[str, float]:
        """By map: the share of the image's pixels that are not of its background."""
        return {
            name: 1.0
            if result.background is None
            else float(1 - result.counts[result.background] / result.class_ids.size)
            for name, result in self.maps.items()
        }

    def __getitem__(self, name: str) -> ClassMap:
        return self.maps[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The classes of all maps, as `ClassMap.to_dicts()`, each with the `map` that it is of."""
        return [{"map": name, **row} for name, result in self.maps.items() for row in result.to_dicts()]

    def _tint(self, pixels: npt.NDArray[np.uint8], opacity: float) -> None:
        for result in self.maps.values():
            result._tint(pixels, opacity)

    def _tensors(self) -> Mapping[str, ResultTensor]:
        maps = {name: result._tensors()["class_map"] for name, result in self.maps.items()}
        return {f"class_map_{name}": tensor for name, tensor in maps.items()}

    def _agreement(self, other: Self, min_score: float) -> Agreement:
        """That of each map."""
        if self.maps.keys() != other.maps.keys():
            raise InputError(
                f"the maps {', '.join(other.maps)} cannot be compared with {', '.join(self.maps)}; give results of one "
                "model"
            )
        return Agreement.joined(result.agreement(other[name]) for name, result in self.maps.items())

    def _parts(self) -> Iterable[Result]:
        return self.maps.values()

    def __repr__(self) -> str:
        areas = ", ".join(f"{name} {area:.1%}" for name, area in self.areas.items())
        return f"<{type(self).__name__}: {areas} in {self.size[0]} x {self.size[1]}>"
