"""Detectors with queries: DETR, RT-DETR (also v2), D-FINE, RF-DETR. They differ in their scores and their pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ..errors import UnsupportedModelError
from ..image import PixelTransform
from ..ops import DetectStats
from .classifier import PRESETS
from .description import query_outputs
from .names import find_classes
from .output_checks import check_centred, check_floats, check_fractions, check_logits
from .preprocessor import ImageInput, Preprocessor, as_size
from .results import Detections
from .vision import VisionModel

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry
    from .description import ModelDescription

__all__ = ["DETR", "RFDETR", "RTDETR"]

Shape = tuple[int | str | None, ...]

#: The share of queries of one class above which that class is "no object".
MOST_OF_ONE_CLASS = 0.9


class DETR(VisionModel[Detections]):
    """DETR and others with a class "no object": logits [batch, queries, classes + 1] and boxes [batch, queries, 4] of
    centre and size, as fractions of the input.

    A query's score is the highest of softmax over its classes, "no object" aside. The image is stretched to the input.

    Args:
        conf: the score that a box must exceed, 0 to 1.
        max_det: the most boxes an image, the best ones; what is left out is counted in `Detections.stats`.
        classes: the classes that count, by name or number; None: all. Boxes of others take no place in `max_det`.
        preset: how pixels are normalised, `"imagenet"` or `"unit"` (0 to 1); None is the family's own: ImageNet's for
            DETR and RF-DETR, 0 to 1 for RT-DETR and D-FINE.
        size: the input size, a number or (width, height), for models that leave it open.

    `path`, `backend`, `names` and the other arguments: see `VisionModel`.
    """

    conf: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    max_det: Annotated[int, msgspec.Meta(ge=1)] = 300
    classes: int | str | tuple[int | str, ...] | None = None
    preset: Literal["imagenet", "unit"] | None = None
    size: int | tuple[int, int] | None = None

    task: ClassVar[str] = "detect"
    fallback_size: ClassVar[int] = 800
    per_call: ClassVar[frozenset[str]] = frozenset({"conf", "max_det", "classes"})
    #: The values of `model_type` in the metadata, as transformers calls them.
    model_types: ClassVar[frozenset[str]] = frozenset({"detr", "table-transformer", "yolos"})
    #: Classes of the logits that are no class: the last one is "no object".
    no_object: ClassVar[int] = 1
    normalization: ClassVar[str] = "imagenet"
    #: The quantiles of the boxes' values that lie in 0 to 1.
    quantiles: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @classmethod
    def refuses(cls, model: ModelDescription) -> str | None:
        if (reason := super().refuses(model)) is not None:
            return reason
        if model.queries is None:
            return "it has no two outputs of queries: logits, and boxes of four values"
        if any(len(shape) == 4 for shape in model.shapes):
            return "it gives maps as well as boxes"
        return None

    @classmethod
    def recognizes(cls, model: ModelDescription) -> bool:
        if model.model_type is not None:
            return model.model_type in cls.model_types
        assert model.queries is not None
        logits, boxes = model.queries
        if boxes.name == "dets" and cls is not RFDETR:  # as RF-DETR's own exporter calls them
            return False
        classes = logits.shape[2]
        return not model.names or not isinstance(classes, int) or classes == len(model.names) + cls.no_object

    # ---- the three statements ----

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        preset = PRESETS[self.preset or self.normalization]
        if input.dtype == "uint8":  # the network normalises by itself
            return Preprocessor.stretch(input, channel_order=self.channel_order, order="rgb", scale=1.0)
        pixels = PixelTransform.normalize(preset["mean"], preset["std"], order="rgb")
        return Preprocessor.stretch(
            input, channel_order=self.channel_order, order="rgb", scale=pixels.scale, bias=pixels.bias
        )

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        logits, boxes = (outputs[name].astype(np.float32, copy=False) for name in (self._logits, self._boxes))
        return [self._detections(*rows) for rows in zip(logits, boxes, geometries, strict=False)]

    def _detections(
        self, logits: npt.NDArray[np.float32], boxes: npt.NDArray[np.float32], geometry: Geometry
    ) -> Detections:
        queries, classes, scores = self.candidates(logits)
        if (wanted := find_classes(self.classes, self.class_names, self.class_count)) is not None:
            chosen = np.isin(classes, wanted)
            queries, classes, scores = queries[chosen], classes[chosen], scores[chosen]
        order = np.argsort(-scores, kind="stable")[: min(self.max_det, len(logits))]
        best = boxes[queries[order]]
        half = best[:, 2:] * np.float32(0.5)
        xyxy = np.hstack([best[:, :2] - half, best[:, :2] + half]) * np.tile(self.input_size, 2)
        return Detections.of(
            geometry.to_source(xyxy.reshape(-1, 2)).reshape(-1, 4),
            scores[order],
            classes[order],
            names=self.class_names,
            size=geometry.source,
            stats=DetectStats(len(scores), 0, len(scores), len(scores) - len(order)),
        )

    def candidates(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float32]]:
        """The queries whose score is above `conf`, their classes and scores.

        Args:
            logits: (queries, classes) of one image.
        """
        exps = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores = exps[:, :-1] / exps.sum(axis=1, keepdims=True)
        best = scores.argmax(axis=1)
        scores = scores[np.arange(len(scores)), best]
        queries = np.flatnonzero(scores > self.conf)
        return queries, best[queries], scores[queries]

    # ---- what follows from the outputs ----

    def asked_size(self) -> tuple[int, int] | None:
        return as_size(self.size, "size")

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        names = query_outputs(shapes)
        assert names is not None
        self._logits, self._boxes = names
        values = shapes[self._boxes][2]
        if isinstance(values, int) and values != 4:
            raise UnsupportedModelError(f"its output {self._boxes!r} has {values} values a box, not 4")
        classes = shapes[self._logits][2]
        if not isinstance(classes, int):
            return None
        if classes <= self.no_object:
            raise UnsupportedModelError(f"its output {self._logits!r} of shape {shapes[self._logits]} has no classes")
        find_classes(self.classes, self.class_names, classes - self.no_object)  # so that a wrong one is refused now
        return classes - self.no_object

    def _varied(self) -> None:
        find_classes(self.classes, self.class_names, self.class_count)

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in (self._logits, self._boxes):
            check_floats(name, outputs[name])
        logits, boxes = outputs[self._logits], outputs[self._boxes]
        check_logits(logits)
        low, high = (float(edge) for edge in np.quantile(boxes, self.quantiles))
        check_fractions(boxes, low, high)
        check_centred(boxes)
        if (logits == logits[:, :1]).all() and (boxes == boxes[:, :1]).all():
            raise UnsupportedModelError(f"all of its {logits.shape[1]} queries are alike in its first run")
        self.verify_classes(logits)

    def verify_classes(self, logits: npt.NDArray[Any]) -> None:
        """Looks at the classes of the first run, (batch, queries, classes)."""
        if not (logits.argmax(axis=2) == logits.shape[2] - 1).any():
            raise UnsupportedModelError(
                f'none of its {logits.shape[1]} queries is "no object", its last class, in its first run'
            )


class RTDETR(DETR):
    """RT-DETR (also v2), D-FINE and others whose classes are independent: logits [batch, queries, classes] and boxes
    [batch, queries, 4] of centre and size, as fractions of the input.

    Scores are sigmoid(logits). Of all pairs of query and class the best ones are taken, as many as there are queries,
    so that a query may give boxes of several classes. The image is stretched to the input.

    Arguments: see `DETR` and `VisionModel`.
    """

    fallback_size: ClassVar[int] = 640
    model_types: ClassVar[frozenset[str]] = frozenset({"rt_detr", "rt_detr_v2", "d_fine"})
    no_object: ClassVar[int] = 0
    normalization: ClassVar[str] = "unit"

    def candidates(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float32]]:
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and the score 0
            scores = (1 / (1 + np.exp(-logits))).astype(np.float32, copy=False)
        queries, classes = np.nonzero(scores > self.conf)
        return queries, classes, scores[queries, classes]

    def verify_classes(self, logits: npt.NDArray[Any]) -> None:
        last = (logits.argmax(axis=2) == logits.shape[2] - 1) & (logits[..., -1] > 0)
        if logits.shape[2] > 1 and last.mean() > MOST_OF_ONE_CLASS:
            raise UnsupportedModelError(
                f'{last.mean():.0%} of its queries are of its last class in its first run, which may be "no object"'
            )


class RFDETR(RTDETR):
    """RF-DETR, and Deformable and Conditional DETR: as `RTDETR`, with pixels normalised by ImageNet's mean and standard
    deviation. RF-DETR's own exporter calls the outputs `labels` (logits) and `dets`.

    Arguments: see `DETR` and `VisionModel`.
    """

    fallback_size: ClassVar[int] = 560
    #: A box may be larger than the image: its size is the exponential of a number.
    quantiles: ClassVar[tuple[float, float]] = (0.25, 0.75)
    model_types: ClassVar[frozenset[str]] = frozenset({"rf_detr", "lw_detr", "deformable_detr", "conditional_detr"})
    normalization: ClassVar[str] = "imagenet"
