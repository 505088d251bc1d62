"""Detectors whose boxes are chosen inside the model: YOLOv10, YOLO26, exports with NMS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from ..errors import UnsupportedModelError
from ..ops import DetectStats
from .names import find_classes
from .output_checks import TOLERANCE, check_corners, check_floats, check_scores
from .preprocessor import ImageInput, Preprocessor, as_size
from .results import Detections
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from .description import ModelDescription

__all__ = ["EndToEnd"]


class EndToEnd(VisionModel[Detections]):
    """A detector that chooses its boxes itself: output [batch, boxes, 6] of left, top, right, bottom in pixels of the
    network's input, score and class.

    Args:
        conf: the score that a box must exceed, 0 to 1.
        max_det: the most boxes an image, the best ones; what is left out is counted in `Detections.stats`.
        classes: the classes that count, by name or number; None: all. Boxes of others take no place in `max_det`.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend`, `names` and the other arguments: see `VisionModel`.
    """

    conf: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25
    max_det: Annotated[int, msgspec.Meta(ge=1)] = 300
    classes: int | str | tuple[int | str, ...] | None = None
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "detect"
    fits_canvas: ClassVar[bool] = True
    per_call: ClassVar[frozenset[str]] = frozenset({"conf", "max_det", "classes"})

    @classmethod
    def refuses(cls, model: ModelDescription) -> str | None:
        if (reason := super().refuses(model)) is not None:
            return reason
        if not model.has_chosen_rows or model.head is None:
            return "its rows are not boxes that are chosen already"
        if cls.task != "segment" and model.prototypes is not None:
            return "it gives mask prototypes as well as boxes"
        if cls.task == "detect" and model.keypoints is not None:
            return f"its metadata says that its boxes have {model.keypoints[0]} keypoints"
        columns, extra = model.head.shape[2], cls.count_extra(model)
        if isinstance(columns, int) and extra is not None and columns != 6 + extra:
            return f"its rows have {columns} values, not {cls._values(extra)}"
        return None

    @classmethod
    def count_extra(cls, model: ModelDescription) -> int | None:
        """How many values its rows have behind box, score and class; None where the file does not say."""
        return 0

    @staticmethod
    def _values(extra: int) -> str:
        return f"the 6 of a box, a score and a class{f' and {extra} more' if extra else ''}"

    @property
    def extra(self) -> int:
        """The values of a row behind box, score and class: keypoints, mask coefficients."""
        return 0

    def columns(
        self,
        outputs: Mapping[str, npt.NDArray[Any]],
        rows: npt.NDArray[np.float32],
        boxes: npt.NDArray[Any],
        geometry: Geometry,
    ) -> dict[str, Any]:
        """What else the outputs of an image say of its boxes: columns of `Detections`.

        Args:
            outputs: by name, of one image.
            rows: (N, 6 + extra) float32: the rows of the boxes.
            boxes: (N,) of `infersdk.ops.DETECTION`, in pixels of the image.
        """
        return {}

    # ---- the three statements ----

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        scale = 1.0 if input.dtype == "uint8" else 1 / 255
        return Preprocessor.letterbox(input, channel_order=self.channel_order, order="rgb", fill=114, scale=scale)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        return [
            self._detections({name: array[i] for name, array in outputs.items()}, geometry)
            for i, geometry in enumerate(geometries)
        ]

    def _detections(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        rows = outputs[self._output].astype(np.float32, copy=False)
        rows = rows[rows[:, 4] > self.conf]
        if (classes := find_classes(self.classes, self.class_names, None)) is not None:
            rows = rows[np.isin(np.rint(rows[:, 5]), classes)]
        chosen = rows[np.argsort(-rows[:, 4], kind="stable")][: self.max_det]
        xyxy = geometry.to_source(chosen[:, :4].reshape(-1, 2)).reshape(-1, 4)
        stats = DetectStats(len(rows), 0, len(rows), len(rows) - len(chosen))
        result = Detections.of(
            xyxy, chosen[:, 4], np.rint(chosen[:, 5]), names=self.class_names, size=geometry.source, stats=stats
        )
        columns = self.columns(outputs, chosen, result.data, geometry)
        return result.with_columns(**columns) if columns else result

    # ---- what follows from the output ----

    def _varied(self) -> None:
        find_classes(self.classes, self.class_names, None)  # so that a wrong one is refused now

    def asked_size(self) -> tuple[int, int] | None:
        return as_size(self.size, "size")

    def count_classes(self, shapes: Mapping[str, tuple[int | str | None, ...]]) -> int | None:
        """The rows name their class: how many there are stays open."""
        self._output = next(name for name, shape in shapes.items() if len(shape) == 3)
        columns = shapes[self._output][2]
        if isinstance(columns, int) and columns != 6 + self.extra:
            raise UnsupportedModelError(f"its rows have {columns} values, not {self._values(self.extra)}")
        self._varied()
        return None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        name = self._output
        output = outputs[name]
        check_floats(name, output)
        scores, classes = output[..., 4], output[..., 5].astype(np.float64)
        check_scores(scores)
        check_corners(output[scores > 0][:, :4])
        if not (np.abs(classes - np.rint(classes)).max() <= TOLERANCE and classes.min() >= -TOLERANCE):
            raise UnsupportedModelError("what should be classes are not whole numbers from 0 in its first run")
        if self.class_names and classes.max() > len(self.class_names) - 1 + TOLERANCE:
            raise UnsupportedModelError(
                f"it found class {classes.max():.0f} in its first run, and there are {len(self.class_names)} names; "
                "give those that it was trained on, in order"
            )
