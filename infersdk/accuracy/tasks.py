"""The tasks of a gate: boxes, masks, keypoints, class maps or classes of labelled images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import UnsupportedModelError
from ..loading.registry import load as load_network
from .classification import read_labels, top_figures
from .detection import CocoTruth, check_annotated, coco_evaluator, coco_figures, has_annotations, read_coco
from .gate import Contender, Score
from .segmentation import iou_figures, read_label_maps

if TYPE_CHECKING:
    import os

    from ..infer import Infer

__all__ = [
    "TASKS",
    "ClassifyTask",
    "DetectTask",
    "PoseTask",
    "SegmentTask",
    "SemanticTask",
    "coco_task",
    "labelled_task",
]


class DetectTask:
    """Boxes by COCO annotations: mAP over IoU 0.5 to 0.95.

    Args:
        annotations, folder: as `read_coco` takes them; `annotations` may also be its result.
        type: the wrapper, a name of `models.TYPES`; None decides by the file.
        names: the class names, or the path of a file of them; None takes the model's own.
        max_batch: maximum batch size.
        settings: further settings of the wrapper: `conf`, `iou`, `legacy` of a YOLOX, and so on. Of those in
            `defaults` that are not given, a wrapper gets the ones that it has.

    Attributes:
        defaults: settings by which mAP is commonly given for such models. A threshold that suits an application would
            cut the recall that mAP counts.

    Raises:
        ConfigError: as `read_coco`, or the annotations lack the compared field.
    """

    name: ClassVar[str] = "detect"
    metric: str = "mAP"
    #: The options of `infersdk compare --task` for this task, and descriptions of the required ones.
    options: ClassVar[frozenset[str]] = frozenset(("annotations", "max_score_shift"))
    needs: ClassVar[Mapping[str, str]] = {"annotations": "a file in COCO's format"}
    #: The `kinds` of `coco_figures`.
    kinds: ClassVar[tuple[str, ...]] = ("bbox",)
    defaults: ClassVar[Mapping[str, Any]] = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}

    def __init__(
        self,
        annotations: str | os.PathLike[str] | CocoTruth,
        folder: str | os.PathLike[str],
        *,
        type: str | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        max_batch: int | None = None,
        **settings: Any,
    ) -> None:
        self.truth = annotations if isinstance(annotations, CocoTruth) else read_coco(annotations, folder)
        check_annotated(self.truth, self.kinds)
        coco_evaluator()  # raises before the images are run
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
            figures = functools.partial(coco_figures, truth=self.truth, kinds=self.kinds)
            return _score(contender, model, figures, keep_results="max_score_shift" in self.options)

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return coco_figures(model, self.truth, self.kinds)

    def _wrapper(self, infer: Infer) -> Any:
        from ..models import Detections, ModelDescription, load, named_type, wrapper_type
        from ..models.registry import looks_like

        try:
            kind = wrapper_type(infer) if self._type is None else named_type(self._type)
            if not issubclass(kind.result_type(), Detections):
                raise UnsupportedModelError(
                    f"{infer.model.name} looks like {looks_like(ModelDescription.of(infer))}; {kind.__name__} gives no "
                    "boxes to compare with the annotations"
                )
            defaults = {name: v for name, v in self.defaults.items() if name in kind.Settings.__struct_fields__}
            return load(infer, type=self._type, names=self._names, **{**defaults, **self._settings})
        except BaseException:
            infer.close()
            raise


class SegmentTask(DetectTask):
    """Masks by COCO annotations: mAP over the IoU of masks, and of boxes. See `DetectTask`."""

    name = "segment"
    metric = "mask_mAP"
    options = DetectTask.options - {"max_score_shift"}  # the results would take too much memory
    kinds = ("segm", "bbox")
    defaults: ClassVar[Mapping[str, Any]] = {**DetectTask.defaults, "iou": 0.7}


class PoseTask(DetectTask):
    """Keypoints by COCO annotations: mAP over their similarity (OKS), and over the IoU of boxes. See `DetectTask`."""

    name = "pose"
    metric = "OKS_mAP"
    options = DetectTask.options - {"max_score_shift"}
    kinds = ("keypoints", "bbox")
    defaults: ClassVar[Mapping[str, Any]] = {**DetectTask.defaults, "iou": 0.7}


def coco_task(
    task: str, annotations: str | os.PathLike[str], folder: str | os.PathLike[str], **settings: Any
) -> DetectTask:
    """The task for a wrapper that the annotations support: masks, keypoints, or boxes.

    Args:
        task: the task of the wrapper: `"segment"`, `"pose"`, ...
        annotations, folder, settings: see `DetectTask`.
    """
    kind = next((one for one in (SegmentTask, PoseTask) if one.name == task), DetectTask)
    truth = read_coco(annotations, folder)
    return (kind if has_annotations(truth, kind.kinds) else DetectTask)(truth, folder, **settings)


def labelled_task(
    folder: str | os.PathLike[str],
    *,
    annotations: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    task: str = "",
    **settings: Any,
) -> DetectTask | SemanticTask | ClassifyTask:
    """The task for the available labels of images.

    Args:
        folder: the images.
        annotations: a file in COCO's format.
        labels: without `annotations`: a folder of label maps, or a file of classes; `"folder"` uses the labels given by
            the names of folders and files.
        task: the task of the wrapper, as in `coco_task()`.
        settings: settings of the wrapper, as in the tasks.

    Raises:
        ConfigError: the labels cannot be read.
    """
    if annotations is not None:
        return coco_task(task, annotations, folder, **settings)
    if labels not in (None, "folder") and Path(labels).is_dir():
        return SemanticTask(folder, labels, **settings)
    return ClassifyTask(folder, labels=None if labels == "folder" else labels, **settings)


class SemanticTask:
    """Class maps by label maps: the mean intersection over union of the classes.

    Args:
        folder, labels: as `read_label_maps` takes them.
        type: the wrapper, a name of `models.TYPES`; None decides by the file.
        settings: further settings of the wrapper.

    Raises:
        ConfigError: as `read_label_maps`.
    """

    name: ClassVar[str] = "semantic"
    metric = "mIoU"
    options: ClassVar[frozenset[str]] = frozenset(("labels",))
    needs: ClassVar[Mapping[str, str]] = {"labels": "the folder of the label maps"}

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
        from ..models import load
        from ..models.results.class_maps import MapResult

        try:
            model = load(infer, type=self._type, **self._settings)
            if not issubclass(model.result_type(), MapResult):
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

    name: ClassVar[str] = "classify"
    metric = "top1"
    options: ClassVar[frozenset[str]] = frozenset(("labels", "max_score_shift"))
    needs: ClassVar[Mapping[str, str]] = {}

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


#: By name.
TASKS: dict[str, type[DetectTask | SemanticTask | ClassifyTask]] = {
    kind.name: kind for kind in (DetectTask, SegmentTask, PoseTask, SemanticTask, ClassifyTask)
}


class _Recorded:
    """A wrapper that records its results."""

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
