"""Detectors with an output of scores and one of boxes for each anchor, and NMS outside: SSD, UltraFace, YOLO-NAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import UnsupportedModelError
from ..ops import DetectStats, nms
from .declaration import Fraction
from .description import GRIDS, Recognition, Shape, cells_of, count_cells
from .detector import Detector, box_outputs, finite_rows
from .output_checks import (
    TOLERANCE,
    check_around_cells,
    check_corners,
    check_exclusive,
    check_finite,
    check_fractions,
    check_no_numbers,
    check_no_objectness,
    check_order,
    check_scores,
)
from .preprocessor import ImageInput, Preprocessor, scaled

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from ..image import Geometry
    from .description import ModelDescription
    from .results import Detections

__all__ = ["SSD", "YOLONAS", "UltraFace"]

#: UltraFace: boxes for each cell of the grid of each stride.
FACE_BOXES = {8: 3, 16: 2, 32: 2, 64: 3}
#: The share of anchors whose class is the background in any image, at least.
LEAST_BACKGROUND = 0.25
#: YOLO-NAS is trained on images of 636 pixels on a canvas of 640.
BORDER = 4


class SSD(Detector):
    """SSD, exported from PyTorch: scores [batch, anchors, classes] after softmax, whose first class is the background,
    and boxes [batch, anchors, 4]. Boxes are left, top, right and bottom as fractions of the input. Images are
    stretched; pixels are (x - 127) / 128, RGB.

    A box counts for each class whose score is above `conf`, and boxes of one class suppress one another. The background
    is no class: the first one after it has number 0.

    Args:
        iou: the overlap above which the worse of two boxes is suppressed, 0 to 1.

    Further arguments: see `Detector` and `VisionModel`.
    """

    iou: Fraction = 0.45

    fallback_size: ClassVar[int] = 300
    per_call: ClassVar[frozenset[str]] = Detector.per_call | {"iou"}
    #: Classes of the scores in front of the first one that counts.
    background: ClassVar[int] = 1
    _scores: str
    _boxes: str

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        shapes = model.shapes
        if len(shapes) != 2 or (names := box_outputs(shapes)) is None:
            return Recognition.no("it has no two outputs for each anchor: scores, and boxes of four values")
        anchors, classes = shapes[names[0]][1:]
        if isinstance(classes, int) and classes <= cls.background:
            return Recognition.no(f"its output {names[0]!r} has {classes} values, which leaves no classes")
        return cls.recognises_anchors(model, anchors, classes)

    @classmethod
    def recognises_anchors(
        cls, model: ModelDescription, anchors: int | str | None, classes: int | str | None
    ) -> Recognition:
        """The answer by the numbers of anchors and classes of the two outputs."""
        family = f"a detector with scores and boxes for each of {anchors} anchors"
        for kind in (UltraFace, YOLONAS):
            if kind.recognises_anchors(model, anchors, classes).answer == "yes":
                return Recognition.no(f"it is {kind.family}")
        return Recognition.nearly(
            "nothing in the file says that its first class is the background, and how it wants its pixels", family
        )

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        scale, bias = (1.0, 0.0) if input.dtype == "uint8" else (1 / 128, -127 / 128)
        return Preprocessor.stretch(input, order="rgb", scale=scale, bias=bias)

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        scores, boxes = (outputs[name].astype(np.float32, copy=False) for name in (self._scores, self._boxes))
        scores = scores[:, self.background :]
        above = scores > self.conf
        if (wanted := self._wanted()) is not None:
            above &= np.isin(np.arange(scores.shape[1]), wanted)
        rows, classes = np.nonzero(above)
        found, best = self.to_pixels(boxes[rows], geometry), scores[rows, classes]
        finite = finite_rows(found, best)
        found, best, rows, classes = found[finite], best[finite], rows[finite], classes[finite]
        kept = nms(found, best, classes, iou=self.iou)
        chosen = kept[: self.max_det]
        stats = DetectStats(len(rows), 0, len(kept), len(kept) - len(chosen))
        return self._detections_of(found[chosen], best[chosen], classes[chosen], geometry, stats)

    def to_pixels(self, boxes: npt.NDArray[np.float32], geometry: Geometry) -> npt.NDArray[np.float32]:
        """Boxes (N, 4) of the output in pixels of the canvas."""
        return boxes * np.tile(np.array(geometry.canvas, np.float32), 2)

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        names = box_outputs(shapes)
        assert names is not None
        self._scores, self._boxes = names
        classes = shapes[self._scores][2]
        return classes - self.background if isinstance(classes, int) else None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in (self._scores, self._boxes):
            check_finite(name, outputs[name])
        check_scores(outputs[self._scores])
        self.verify_values(outputs[self._scores], outputs[self._boxes])

    def verify_values(self, scores: npt.NDArray[Any], boxes: npt.NDArray[Any]) -> None:
        """Checks the scores and boxes of the first run, (batch, anchors, values)."""
        sums = scores.astype(np.float32).sum(axis=2)
        if np.abs(sums - 1).max() > TOLERANCE:
            raise UnsupportedModelError(
                f"its scores add up to {sums.min():.4g} to {sums.max():.4g} in its first run, not to 1 as after softmax"
            )
        share = float(np.mean(scores.argmax(axis=2) == 0))
        if share < LEAST_BACKGROUND:
            raise UnsupportedModelError(
                f"its first class, which should be the background, is that of {share:.0%} of its anchors in its first "
                "run"
            )
        check_fractions(boxes, quantiles=(0.01, 0.99), tolerance=1)
        check_order(boxes)


class UltraFace(SSD):
    """UltraFace (RFB-320, RFB-640, slim): faces. Outputs `scores` [batch, anchors, 2] and `boxes` [batch, anchors, 4],
    as `SSD`.

    Arguments: see `SSD` and `VisionModel`.
    """

    conf: Fraction = 0.7
    iou: Fraction = 0.3

    family: ClassVar[str] = "an UltraFace"
    _usual_names = ("face",)
    fallback_size: ClassVar[int] = 640

    @classmethod
    def recognises_anchors(
        cls, model: ModelDescription, anchors: int | str | None, classes: int | str | None
    ) -> Recognition:
        if isinstance(classes, int) and classes != 2:
            return Recognition.no(f"its scores have {classes} classes, not background and face")
        if (size := model.input_size) is None or not isinstance(anchors, int):
            return Recognition.nearly("its file leaves the size of its input or its outputs open", cls.family)
        expected = sum(n * -(-size[0] // s) * -(-size[1] // s) for s, n in FACE_BOXES.items())
        if anchors != expected:
            return Recognition.no(f"it has {anchors} anchors, and an UltraFace of {size[0]} x {size[1]} has {expected}")
        return Recognition.yes(f"{cls.family} ({anchors} anchors)")


class YOLONAS(SSD):
    """YOLO-NAS, exported without postprocessing: boxes [batch, anchors, 4] and scores [batch, anchors, classes]. Boxes
    are left, top, right and bottom in pixels of the input, one for each cell of the strides 8, 16 and 32. The image is
    scaled to the input less a border of 4 pixels, and centred; pixels are 0 to 1, RGB.

    Arguments: see `SSD` and `VisionModel`.
    """

    conf: Fraction = 0.25
    iou: Fraction = 0.7

    family: ClassVar[str] = "a YOLO-NAS"
    fallback_size: ClassVar[int] = 640
    background: ClassVar[int] = 0

    @classmethod
    def recognises_anchors(
        cls, model: ModelDescription, anchors: int | str | None, classes: int | str | None
    ) -> Recognition:
        if (size := model.input_size) is None or not isinstance(anchors, int):
            return Recognition.nearly("its file leaves the size of its input or its outputs open", cls.family)
        cells = count_cells(size, GRIDS[0])
        if anchors != cells:
            return Recognition.no(
                f"it has {anchors} anchors, and the grids of {size[0]} x {size[1]} have {cells} cells"
            )
        return Recognition.yes(f"{cls.family} ({anchors} anchors)")

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        return nas_preprocessor(input)

    def to_pixels(self, boxes: npt.NDArray[np.float32], geometry: Geometry) -> npt.NDArray[np.float32]:
        return boxes

    def verify_values(self, scores: npt.NDArray[Any], boxes: npt.NDArray[Any]) -> None:
        check_exclusive(scores)
        check_no_numbers(scores)
        check_no_objectness(scores)
        check_corners(boxes)
        check_around_cells(boxes, cells_of(self.input_size, GRIDS[0])[0])


def nas_preprocessor(input: ImageInput) -> Preprocessor:
    """The preprocessing of YOLO-NAS."""

    def bordered(size: tuple[int, int]) -> Geometry:
        return scaled(size, input.size, min((side - BORDER) / own for side, own in zip(input.size, size, strict=True)))

    return Preprocessor(input, input.transform(), bordered)
