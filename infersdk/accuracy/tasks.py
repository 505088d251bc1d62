"""What a gate measures by: boxes, masks, keypoints, class maps or classes of labelled images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedModelError
from ..registry import load as load_network
from .classification import read_labels, top_figures
from .detection import check_annotated, coco_evaluator, coco_figures, has_annotations, read_coco
from .gate import Contender, Score
from .segmentation import iou_figures, read_label_maps

if TYPE_CHECKING:
    import os

    from ..infer import Infer

__all__ = ["ClassifyTask", "DetectTask", "PoseTask", "SegmentTask", "SemanticTask", "coco_task"]


class DetectTask:
    """Boxes by COCO annotations: mAP over IoU 0.5 to 0.95.

    Args:
        annotations, folder: as `read_coco` takes them.
        type: the wrapper, a name of `models.TYPES`; None decides by the file.
        names: the class names, or the path of a file of them; None takes the model's own.
        max_batch: images that go through together at most.
        settings: further settings of the wrapper: `conf`, `iou`, `legacy` of a YOLOX, and so on. Of those in
            `defaults` that are not given, a wrapper gets the ones that it has.

    Attributes:
        defaults: settings by which mAP is commonly given for such models. A threshold that suits an application would
            cut the recall that mAP counts.

    Raises:
        ConfigError: as `read_coco`; the annotations do not have what is compared.
    """

    metric: str = "mAP"
    #: What is compared, as `coco_figures` takes it.
    kinds: ClassVar[tuple[str, ...]] = ("bbox",)
    defaults: ClassVar[Mapping[str, Any]] = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}

    def __init__(
        self,
        annotations: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        *,
        type: str | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        max_batch: int | None = None,
        **settings: Any,
    ) -> None:
        self.truth = read_coco(annotations, folder)
        check_annotated(self.truth, self.kinds)
        coco_evaluator()  # better now than after the images
        self._type, self._names, self._max_batch, self._settings = type, names, max_batch, settings

    @property
    def images(self) -> int:
        return len(self.truth.files)

    def measure(self, contender: Contender) -> Score:
        from ..models.loading import source_of_wrapper

        own = {key: value for key, value in self._settings.items() if key == "decode_head"}
        source = source_of_wrapper(contender.model, **contender.arguments(), type=self._type, **own)
        infer = load_network(source, **contender.arguments(), max_batch=self._max_batch)
        with self._wrapper(infer) as model:
            # Masks of many boxes would take too much memory.
            boxes_alone = self.kinds == ("bbox",)
            figures = functools.partial(coco_figures, truth=self.truth, kinds=self.kinds)
            return _score(contender, model, figures, keep_results=boxes_alone)

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return coco_figures(model, self.truth, self.kinds)

    def _wrapper(self, infer: Infer) -> Any:
        from ..models import Detections, ModelDescription, load, named_type, wrapper_type

        try:
            kind = wrapper_type(infer) if self._type is None else named_type(self._type)
            if not issubclass(kind.result_type(), Detections):
                raise UnsupportedModelError(
                    f"{infer.model.name} looks like {ModelDescription.of(infer).looks_like}; {kind.__name__} gives no "
                    "boxes to compare with the annotations"
                )
            defaults = {name: v for name, v in self.defaults.items() if name in kind.Settings.__struct_fields__}
            return load(infer, type=self._type, names=self._names, **{**defaults, **self._settings})
        except BaseException:
            infer.close()
            raise


class SegmentTask(DetectTask):
    """Masks by COCO annotations: mAP over the IoU of masks, and of boxes. See `DetectTask`."""

    metric = "mask_mAP"
    kinds = ("segm", "bbox")
    defaults: ClassVar[Mapping[str, Any]] = {**DetectTask.defaults, "iou": 0.7}


class PoseTask(DetectTask):
    """Keypoints by COCO annotations: mAP over their similarity (OKS), and over the IoU of boxes. See `DetectTask`."""

    metric = "OKS_mAP"
    kinds = ("keypoints", "bbox")
    defaults: ClassVar[Mapping[str, Any]] = {**DetectTask.defaults, "iou": 0.7}


def coco_task(
    task: str, annotations: str | os.PathLike[str], folder: str | os.PathLike[str], **settings: Any
) -> DetectTask:
    """What a wrapper is measured by, as far as the annotations have it: masks, keypoints, or boxes.

    Args:
        task: the wrapper's: `"segment"`, `"pose"`, ...
        annotations, folder, settings: see `DetectTask`.
    """
    kind: type[DetectTask] = {"segment": SegmentTask, "pose": PoseTask}.get(task, DetectTask)
    if kind is not DetectTask and not has_annotations(read_coco(annotations, folder), kind.kinds):
        kind = DetectTask
    return kind(annotations, folder, **settings)


class SemanticTask:
    """Class maps by label maps: the mean intersection over union of the classes.

    Args:
        folder, labels: as `read_label_maps` takes them.
        type: the wrapper, a name of `models.TYPES`; None decides by the file.
        settings: further settings of the wrapper.

    Raises:
        ConfigError: as `read_label_maps`.
    """

    metric = "mIoU"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        labels: str | os.PathLike[str],
        *,
        type: str | None = None,
        max_batch: int | None = None,
        **settings: Any,
    ) -> None:
        self.mapped = read_label_maps(folder, labels)
        self._type, self._max_batch, self._settings = type, max_batch, settings

    @property
    def images(self) -> int:
        return len(self.mapped)

    def measure(self, contender: Contender) -> Score:
        infer = load_network(contender.model, **contender.arguments(), max_batch=self._max_batch)
        with self._wrapper(infer) as model:
            return _score(contender, model, lambda model: iou_figures(model, self.mapped))

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return iou_figures(model, self.mapped)

    def _wrapper(self, infer: Infer) -> Any:
        from ..models import ClassMap, ClassMaps, load

        try:
            model = load(infer, type=self._type, **self._settings)
            if not issubclass(model.result_type(), (ClassMap, ClassMaps)):
                raise UnsupportedModelError(
                    f"{infer.model.name} is a model for {type(model).__name__}, which gives no class maps to compare "
                    "with the label maps"
                )
        except BaseException:
            infer.close()
            raise
        return model


class ClassifyTask:
    """Classification of labelled images.

    Args:
        folder, labels: as `read_labels` takes them.
        settings: those of `models.Classifier`: preset, resize, crop, names and so on.

    Raises:
        ConfigError: as `read_labels`.
    """

    metric = "top1"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        labels: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        self.labelled = read_labels(folder, labels)
        self._settings = settings

    @property
    def images(self) -> int:
        return len(self.labelled)

    def measure(self, contender: Contender) -> Score:
        with self._wrapper(contender.model, **contender.arguments()) as model:
            figures = functools.partial(top_figures, images=self.labelled)
            return _score(contender, model, figures, keep_results=True)

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return top_figures(model, self.labelled)

    def _wrapper(self, model: str | os.PathLike[str] | Infer, **load: Any) -> Any:
        from ..models import load as load_wrapper

        return load_wrapper(model, **{"type": "classifier", "top_k": 5, **self._settings}, **load)


class _Recorded:
    """A wrapper that keeps the results that it gives."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.results: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def stream(self, images: Iterable[Any]) -> Iterator[Any]:
        for result in self._model.stream(images):
            self.results.append(result)
            yield result


def _score(
    contender: Contender, model: Any, figures: Callable[[Any], dict[str, float]], *, keep_results: bool = False
) -> Score:
    infer, start = model.network, perf_counter()
    recorded = _Recorded(model)
    result = figures(recorded if keep_results else model)
    return Score(
        contender.label, str(contender.model), infer.backend, infer.device, infer.precision,
        dict(infer.layer_precisions), result, perf_counter() - start, tuple(recorded.results),
        getattr(model, "decode_head_used", None),
    )  # fmt: skip
