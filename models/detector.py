"""The settings that all detectors share, and the choice of the best boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..ops import DetectStats
from .names import find_classes
from .preprocessor import ImageInput, Preprocessor
from .results import Detections
from .vision import VisionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..image import Geometry
    from .description import ModelDescription

__all__ = ["Detector", "Fraction", "best_boxes"]

Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Detector(VisionModel[Detections]):
    """Base class of detectors.

    Args:
        conf: minimum score of a box, 0 to 1; a box must exceed it.
        max_det: maximum number of boxes of an image, the best ones; others are counted in `Detections.stats`.
        classes: the classes that count, by name or number; None: all. Boxes of others take no place in `max_det`.
        size: the input size, a number or (width, height), for models that leave it open.
    """

    conf: Fraction = 0.5
    max_det: Annotated[int, msgspec.Meta(ge=1)] = 300
    classes: int | str | tuple[int | str, ...] | None = None
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "detect"
    per_call: ClassVar[frozenset[str]] = frozenset({"conf", "max_det", "classes"})
    #: The class names of a model whose file has none.
    _usual_names: ClassVar[tuple[str, ...]] = ()

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        scale = 1.0 if input.dtype == "uint8" else 1 / 255
        return Preprocessor.letterbox(input, channel_order=self.channel_order, order="rgb", fill=114, scale=scale)

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
        """The numbers of the classes that count; None for all.

        Raises:
            ConfigError: the model has no such class.
        """
        return find_classes(self.classes, self.class_names, self._learned.class_count)

    def _varied(self) -> None:
        self._wanted()


def best_boxes(
    scores: npt.NDArray[Any], classes: npt.NDArray[Any], conf: float, wanted: Sequence[int] | None, max_det: int
) -> tuple[npt.NDArray[np.intp], DetectStats]:
    """The rows of the boxes that count, best first; equal scores keep their order. Counts what `max_det` leaves out.

    Args:
        scores, classes: (N,), of the boxes of one image.
        conf: the score that a box must exceed.
        wanted: the numbers of the classes that count; None is all.
        max_det: maximum number of boxes.
    """
    above = scores > conf
    if wanted is not None:
        above &= np.isin(classes, wanted)
    rows = np.flatnonzero(above)
    chosen = rows[np.argsort(-scores[rows], kind="stable")][:max_det]
    return chosen, DetectStats(len(rows), 0, len(rows), len(rows) - len(chosen))
