"""The settings that all detectors share, and the choice of the best boxes."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..ops import DetectStats
from .declaration import Fraction
from .description import ModelDescription, Recognition, Shape
from .execution import Outputs
from .names import find_classes
from .preprocessor import ImageInput, Preprocessor
from .results import Detections
from .vision import VisionModel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ..image import Geometry

__all__ = ["Detector", "RowDetector", "best_boxes", "box_outputs", "finite_rows"]


class Detector(VisionModel[Detections]):
    """Base class of detectors.

    Args:
        conf: minimum score of a box, 0 to 1; a box must exceed it.
        max_det: maximum number of boxes of an image, the best ones; others are counted in `Detections.stats`.
        classes: the classes that count, by name or number; None: all. Boxes of others take no place in `max_det`.
        size: the input size, a number or (width, height), for models that leave it open.
    """

    conf: Fraction = 0.5
    max_det: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 300
    classes: int | str | tuple[int | str, ...] | None = None
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "detect"
    per_call: ClassVar[frozenset[str]] = frozenset({"conf", "max_det", "classes"})
    #: The class names of a model whose file has none.
    _usual_names: ClassVar[tuple[str, ...]] = ()

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        return [self._of_image(Outputs(outputs, itemgetter(row)), geometry) for row, geometry in enumerate(geometries)]

    @abstractmethod
    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        """The result of an image from its outputs."""

    def _detections_of(
        self,
        xyxy: npt.NDArray[Any],
        scores: npt.NDArray[Any],
        classes: npt.NDArray[Any] | None,
        geometry: Geometry,
        stats: DetectStats,
        **columns: Any,
    ) -> Detections:
        """The result of an image from boxes (N, 4) in pixels of the canvas."""
        return Detections.of(
            geometry.to_source(xyxy.reshape(-1, 2)).reshape(-1, 4),
            scores,
            classes,
            names=self.class_names or self._usual_names,
            size=geometry.source,
            stats=stats,
            **columns,
        )

    def _check(self, model: ModelDescription) -> None:
        super()._check(model)
        self._varied()  # refuses wrong classes

    def _wanted(self) -> tuple[int, ...] | None:
        """The numbers of the classes that count; None for all."""
        return find_classes(self.classes, self.class_names or self._usual_names, self._learned.class_count)

    def _varied(self) -> None:
        self._wanted()


class RowDetector(Detector):
    """Base class of detectors with an output of a row for each box, which may have values behind those of the box.

    Images are letterboxed; pixels are RGB, 0 to 1.
    """

    conf: Fraction = 0.25

    #: A noun phrase for a file of the family.
    family: ClassVar[str] = "a detector"
    fits_canvas: ClassVar[bool] = True

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        if model.head is None:
            return Recognition.no("no output has the three dimensions (batch, boxes, values)")
        if cls.task == "detect" and model.keypoints is not None:
            return Recognition.no(f"its metadata says that its boxes have {model.keypoints[0]} keypoints")
        if cls.task != "segment" and model.prototypes is not None:
            return Recognition.no("it gives mask prototypes as well as boxes")
        return Recognition.yes()

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        """How many values a row has behind those of the box; None where the file does not say."""
        return 0

    @cached_property
    def extra(self) -> int:
        """The values of a row behind those of the box: keypoints, mask coefficients."""
        return self.count_extra(self._description) or 0

    def columns(
        self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any], geometry: Geometry
    ) -> dict[str, Any]:
        """Further columns of `Detections` from the outputs of an image.

        Args:
            outputs: by name, of one image.
            boxes: the detections; their field `row` is the box's index in the output.
        """
        return {}

    @abstractmethod
    def extra_values(self, outputs: Mapping[str, npt.NDArray[Any]], boxes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """(N, extra) float32: the values behind those of each box. Arguments as those of `columns()`."""

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return Preprocessor.letterbox(input)


def finite_rows(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether all values of each row are finite. Boxes with other coordinates or scores are no candidates.

    The native decoders of YOLO heads have the same rule.
    """
    finite = [np.isfinite(column).all(axis=tuple(range(1, column.ndim))) for column in columns]
    result: npt.NDArray[np.bool_] = np.logical_and.reduce(finite)
    return result


def best_boxes(
    boxes: npt.NDArray[Any], scores: npt.NDArray[Any], classes: npt.NDArray[Any], conf: float,
    wanted: Sequence[int] | None, max_det: int,
) -> tuple[npt.NDArray[np.intp], DetectStats]:  # fmt: skip
    """The rows of the boxes that count, best first; equal scores keep their order. Counts what `max_det` leaves out.

    Args:
        boxes: (N, values) of one image. Rows that are not finite do not count.
        wanted: the numbers of the classes that count; None is all.
    """
    above = scores > conf
    if wanted is not None:
        above &= np.isin(classes, wanted)
    rows = np.flatnonzero(above)
    rows = rows[finite_rows(boxes[rows], scores[rows])]
    chosen = rows[np.argsort(-scores[rows], kind="stable")][:max_det]
    return chosen, DetectStats(len(rows), 0, len(rows), len(rows) - len(chosen))


def box_outputs(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    """The names of the outputs of scores and boxes: two of three dimensions with the same number of rows.

    Boxes have four values. Where both have four, or the file leaves the values open, the name contains "box".
    """
    threes = {name: shape for name, shape in shapes.items() if len(shape) == 3}
    fours = [name for name, shape in threes.items() if shape[2] == 4]
    if len(fours) != 1:
        might = [name for name, shape in threes.items() if shape[2] == 4 or not isinstance(shape[2], int)]
        fours = [name for name in might if "box" in name.lower()]
    rows = {shape[1] for shape in threes.values() if isinstance(shape[1], int)}
    if len(threes) != 2 or len(rows) > 1 or len(fours) != 1:
        return None
    return next(name for name in threes if name != fours[0]), fours[0]
