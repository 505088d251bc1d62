"""Detectors with queries: DETR, RT-DETR (also v2), D-FINE, RF-DETR. They differ in their scores and their pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..errors import UnsupportedModelError
from ..ops import resize_map
from .declaration import Fraction
from .description import ModelDescription, Recognition, Shape, is_open
from .detector import Detector, best_boxes, box_outputs
from .output_checks import (
    check_centred_fractions,
    check_class_logits,
    check_exclusive,
    check_floats,
    check_logits,
    check_scores,
)
from .preprocessor import ImageInput, Preprocessor
from .presets import PRESETS, pixel_options
from .results import Detections, Masks
from .results.masks import edges

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..image import Geometry

    #: Queries, and the class and score of each.
    Candidates = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float32]]

__all__ = ["DETR", "RFDETR", "RTDETR", "RFDETRSeg", "UltralyticsRTDETR"]

#: Logits and boxes of detectors with queries, as exporters call them: transformers, DETR's authors, RF-DETR.
QUERY_NAMES = (("logits", "pred_boxes"), ("pred_logits", "pred_boxes"), ("labels", "dets"))
#: Queries that a detector has, at most.
MOST_QUERIES = 1000
#: The share of queries that are "no object" at least, where a network has that class, and the probability that counts.
LEAST_WITHOUT_OBJECT, SURE = 0.3, 0.7
#: The share of queries of one class above which that class is "no object", and the logit that counts: a score of 12 %.
MOST_OF_ONE_CLASS, LEAST_OF_ONE_CLASS = 0.9, -2.0


class DETR(Detector):
    """DETR and others with a class "no object": logits [batch, queries, classes + 1] and boxes [batch, queries, 4] of
    centre and size, as fractions of the input.

    A query's score is the highest of softmax over its classes, "no object" aside; with `classes` the highest of these.
    The image is stretched to the input.

    Args:
        preset: how pixels are normalised, `"imagenet"` or `"unit"` (0 to 1); None is the family's own: ImageNet's for
            DETR and RF-DETR, 0 to 1 for RT-DETR and D-FINE. A network of uint8 input takes none.

    Further arguments: see `Detector` and `VisionModel`.
    """

    preset: Literal["imagenet", "unit"] | None = None

    fallback_size: ClassVar[int] = 800
    #: The values of `model_type` in the metadata, as transformers calls them.
    model_types: ClassVar[frozenset[str]] = frozenset({"detr", "table-transformer", "yolos"})
    #: Names of outputs that an exporter of another family gives.
    other_names: ClassVar[tuple[tuple[str, str], ...]] = (("labels", "dets"),)
    #: Classes of the logits that are no class: the last one is "no object".
    no_object: ClassVar[int] = 1
    normalization: ClassVar[str] = "imagenet"
    #: The quantiles of the boxes' values that lie in 0 to 1.
    quantiles: ClassVar[tuple[float, float]] = (0.0, 1.0)
    #: Outputs of four dimensions.
    maps: ClassVar[int] = 0

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        shapes = model.shapes
        if (names := query_outputs(shapes)) is None:
            return Recognition.no("it has no two outputs of queries: logits, and boxes of four values")
        family = "a detector with queries (DETR: logits and boxes)"
        if (maps := sum(len(shape) == 4 for shape in shapes.values())) != cls.maps:
            why = "it gives maps as well as boxes" if maps else "it gives no masks"
            return Recognition.no(why, family)
        if model.model_type is not None:
            if model.model_type in cls.model_types:
                return Recognition.yes(family)
            return Recognition.nearly(f"its metadata says that its model_type is {model.model_type!r}", family)
        if names in cls.other_names:
            return Recognition.nearly(f"its outputs are called {names[0]!r} and {names[1]!r}", family)
        classes = shapes[names[0]][2]
        if model.names and isinstance(classes, int) and classes != len(model.names) + cls.no_object:
            return Recognition.nearly(
                f"its logits are for {classes - cls.no_object} classes, and its metadata has {len(model.names)} names",
                family,
            )
        return Recognition.yes(family)

    def preprocessing(self, input: ImageInput) -> Preprocessor:
        pixels = pixel_options(input, PRESETS[self.preset or self.normalization], preset=self.preset)
        return Preprocessor.stretch(input, **pixels)

    def _of_image(self, outputs: Mapping[str, npt.NDArray[Any]], geometry: Geometry) -> Detections:
        logits, boxes = (outputs[name].astype(np.float32, copy=False) for name in (self._logits, self._boxes))
        queries, classes, scores = self.candidates(logits)
        order, stats = best_boxes(
            boxes[queries], scores, classes, self.conf, self._wanted(), min(self.max_det, len(logits))
        )
        best = boxes[queries[order]]
        half = best[:, 2:] * np.float32(0.5)
        xyxy = np.hstack([best[:, :2] - half, best[:, :2] + half]) * np.tile(self.input_size, 2)
        columns = self.columns(outputs, queries[order], geometry)
        return self._detections_of(xyxy, scores[order], classes[order], geometry, stats, **columns)

    def columns(
        self, outputs: Mapping[str, npt.NDArray[Any]], queries: npt.NDArray[np.intp], geometry: Geometry
    ) -> dict[str, Any]:
        """Further columns of `Detections` from the outputs of an image, for these queries."""
        return {}

    def candidates(self, logits: npt.NDArray[np.float32]) -> Candidates:
        """The queries that may be boxes, with their classes and scores.

        Args:
            logits: (queries, classes) of one image.
        """
        return self._best_classes(softmax(logits)[:, :-1])

    def _best_classes(self, scores: npt.NDArray[np.float32]) -> Candidates:
        """Each query with the best class of those that count, and its score, by the scores (queries, classes)."""
        if (wanted := self._wanted()) is not None:
            scores = np.where(np.isin(np.arange(scores.shape[1]), wanted), scores, np.float32(0))
        return np.arange(len(scores)), scores.argmax(axis=1), scores.max(axis=1)

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
        return classes - self.no_object

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        for name in (self._logits, self._boxes):
            check_floats(name, outputs[name])
        logits, boxes = outputs[self._logits], outputs[self._boxes]
        check_class_logits(logits)
        check_centred_fractions(boxes, self.quantiles)
        if (logits == logits[:, :1]).all() and (boxes == boxes[:, :1]).all():
            raise UnsupportedModelError(f"all of its {logits.shape[1]} queries are alike in its first run")
        self.verify_classes(logits)

    def verify_classes(self, logits: npt.NDArray[Any]) -> None:
        """Checks the classes of the first run, (batch, queries, classes)."""
        share = (softmax(logits) > SURE).mean(axis=(0, 1))
        if share[-1] < LEAST_WITHOUT_OBJECT:
            raise UnsupportedModelError(
                f'{share[-1]:.0%} of its {logits.shape[1]} queries are "no object", its last class, in its first run, '
                f"where at least {LEAST_WITHOUT_OBJECT:.0%} should be"
            )
        if share[:-1].max() > MOST_OF_ONE_CLASS:
            raise UnsupportedModelError(
                f"{share.max():.0%} of its queries are of its class {share.argmax()} in its first run, which may be "
                '"no object" in place of the last one'
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

    def candidates(self, logits: npt.NDArray[np.float32]) -> Candidates:
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and the score 0
            scores = (1 / (1 + np.exp(-logits))).astype(np.float32, copy=False)
        queries, classes = np.nonzero(scores > self.conf)
        return queries, classes, scores[queries, classes]

    def verify_classes(self, logits: npt.NDArray[Any]) -> None:
        share = (logits > LEAST_OF_ONE_CLASS).mean(axis=(0, 1))
        if logits.shape[2] > 1 and share.max() > MOST_OF_ONE_CLASS:
            raise UnsupportedModelError(
                f"{share.max():.0%} of its queries are of its class {share.argmax()} in its first run, which may be "
                '"no object"'
            )


class RFDETR(RTDETR):
    """RF-DETR, and Deformable and Conditional DETR: as `RTDETR`, with pixels normalised by ImageNet's mean and standard
    deviation. RF-DETR's own exporter calls the outputs `labels` (logits) and `dets`.

    Arguments: see `DETR` and `VisionModel`.
    """

    fallback_size: ClassVar[int] = 560
    other_names = ()
    #: A box may be larger than the image: its size is the exponential of a number.
    quantiles: ClassVar[tuple[float, float]] = (0.25, 0.75)
    model_types: ClassVar[frozenset[str]] = frozenset({"rf_detr", "lw_detr", "deformable_detr", "conditional_detr"})
    normalization: ClassVar[str] = "imagenet"


class RFDETRSeg(RFDETR):
    """RF-DETR with masks: `dets`, `labels` and `masks`, logits [batch, queries, height, width]. The mask of a query is
    resized bilinearly to the image, and is where its logits are above 0.

    Arguments: see `DETR` and `VisionModel`.
    """

    task: ClassVar[str] = "segment"
    fallback_size: ClassVar[int] = 432
    maps: ClassVar[int] = 1
    _masks: str

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        if (known := super()._recognises_outputs(model)).answer != "yes" or model.model_type is not None:
            return known
        if query_outputs(model.shapes) != QUERY_NAMES[-1]:
            return Recognition.nearly("its outputs are not called 'labels' and 'dets'", known.family)
        return known

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        self._masks = next(name for name, shape in shapes.items() if len(shape) == 4)
        count = super().count_classes(shapes)
        masks, queries = shapes[self._masks][1], shapes[self._logits][1]
        if isinstance(masks, int) and isinstance(queries, int) and masks != queries:
            raise UnsupportedModelError(f"its output {self._masks!r} has {masks} masks for {queries} queries")
        return count

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        super().verify(outputs)
        check_floats(self._masks, outputs[self._masks])
        check_logits(outputs[self._masks])

    def columns(
        self, outputs: Mapping[str, npt.NDArray[Any]], queries: npt.NDArray[np.intp], geometry: Geometry
    ) -> dict[str, Any]:
        masks = outputs[self._masks]
        cropped = []
        for query in queries:
            pixels = resize_map(masks[query], geometry) > 0
            left, top, right, bottom = edges(pixels)
            cropped.append(Masks.of(pixels[None, top:bottom, left:right]).placed((left, top), geometry.source))
        return {"mask": Masks.concatenate(cropped, geometry.source)}


class UltralyticsRTDETR(RTDETR):
    """RT-DETR by Ultralytics' exporter: output [batch, queries, 4 + classes] of centre and size as fractions of the
    input, and scores. A query gives a box of its best class of those in `classes`. The image is stretched to the input.

    Arguments: see `DETR` and `VisionModel`.
    """

    conf: Fraction = 0.25

    _boxes, _logits = "boxes", "scores"

    @classmethod
    def _recognises_outputs(cls, model: ModelDescription) -> Recognition:
        leaves_open = model.head is not None and is_open(model.head.shape)
        if model.head is None or not (model.has_chosen_rows or leaves_open) or len(model.outputs) != 1:
            return Recognition.no("its output is not rows of a box and a score for each class")
        values, family = model.head.shape[2], "a detector with queries (RT-DETR of Ultralytics)"
        if leaves_open or model.task is None or not model.names:
            return Recognition.nearly("its metadata does not say that its rows are boxes with scores of classes")
        if isinstance(values, int) and values != 4 + len(model.names):
            return Recognition.no(f"its rows have {values} values, not 4 of a box and {len(model.names)} scores")
        return Recognition.yes(family)

    def postprocess(self, outputs: Mapping[str, npt.NDArray[Any]], geometries: Sequence[Geometry]) -> list[Detections]:
        rows = outputs[self._output]
        return super().postprocess({self._boxes: rows[..., :4], self._logits: rows[..., 4:]}, geometries)

    def candidates(self, logits: npt.NDArray[np.float32]) -> Candidates:
        return self._best_classes(logits)

    def count_classes(self, shapes: Mapping[str, Shape]) -> int | None:
        self._output, shape = next((name, shape) for name, shape in shapes.items() if len(shape) == 3)
        return shape[2] - 4 if isinstance(shape[2], int) else None

    def verify(self, outputs: Mapping[str, npt.NDArray[Any]]) -> None:
        rows = outputs[self._output]
        check_floats(self._output, rows)
        boxes, scores = rows[..., :4], rows[..., 4:]
        check_scores(scores)
        check_exclusive(scores)
        check_centred_fractions(boxes)


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Over the last axis; NaN where a logit is infinite."""
    with np.errstate(invalid="ignore"):
        exps = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(exps / exps.sum(axis=-1, keepdims=True))


def query_outputs(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    """The names of the outputs of logits and boxes of a detector with queries, by the names that exporters give them,
    else by their shapes; see `box_outputs()`. It has up to 1000 queries.
    """
    for logits, boxes in QUERY_NAMES:
        if len(shapes.get(logits, ())) == len(shapes.get(boxes, ())) == 3:
            return logits, boxes
    found = box_outputs(shapes)
    queries = None if found is None else shapes[found[0]][1]
    return None if isinstance(queries, int) and queries > MOST_QUERIES else found
