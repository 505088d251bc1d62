"""The tasks of a gate: boxes, masks, keypoints, class maps or classes of labelled images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..models import Classifier, Detections
from ..models.results.class_maps import MapResult
from .classification import read_labels, top_figures
from .detection import CocoTruth, check_annotated, coco_evaluator, coco_figures, lacking, read_coco
from .gate import Task
from .segmentation import iou_figures, read_label_maps

if TYPE_CHECKING:
    import os

__all__ = ["TASKS", "ClassifyTask", "DetectTask", "PoseTask", "SegmentTask", "SemanticTask", "labelled_task"]


class DetectTask(Task):
    """Boxes by COCO annotations: mAP over IoU 0.5 to 0.95.

    Args:
        annotations, folder: as `read_coco` takes them; `annotations` may also be its result.
        settings: see `Task`: `type`, `names`, `conf`, `max_batch` and so on.

    Attributes:
        defaults: settings by which mAP is commonly given for such models. A threshold that suits an application would
            cut the recall that mAP counts.

    Raises:
        ConfigError: as `read_coco`, or the annotations lack the compared field.
    """

    name = "detect"
    metric = "mAP"
    options = frozenset(("annotations", "max_score_shift"))
    needs: ClassVar[Mapping[str, str]] = {"annotations": "a file in COCO's format"}
    result_type = Detections
    gives = "boxes to compare with the annotations"
    #: The `kinds` of `coco_figures`.
    kinds: ClassVar[tuple[str, ...]] = ("bbox",)
    defaults: ClassVar[Mapping[str, Any]] = {"conf": 0.001, "iou": 0.6, "max_det": 300, "multi_label": True}

    def __init__(
        self, annotations: str | os.PathLike[str] | CocoTruth, folder: str | os.PathLike[str], **settings: Any
    ) -> None:
        self.truth = annotations if isinstance(annotations, CocoTruth) else read_coco(annotations, folder)
        check_annotated(self.truth, self.kinds)
        coco_evaluator()  # raises before the images are run
        super().__init__(len(self.truth.files), settings)

    def _figures(self, model: Any) -> dict[str, float]:
        return coco_figures(model, self.truth, self.kinds)


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
    options = SegmentTask.options
    kinds = ("keypoints", "bbox")
    defaults: ClassVar[Mapping[str, Any]] = {**DetectTask.defaults, "iou": 0.7}


def labelled_task(
    folder: str | os.PathLike[str],
    *,
    annotations: str | os.PathLike[str] | None = None,
    labels: str | os.PathLike[str] | None = None,
    task: str = "",
    **settings: Any,
) -> Task:
    """The task for the available labels of images.

    Args:
        folder: the images.
        annotations: a file in COCO's format.
        labels: without `annotations`: a folder of label maps, or a file of classes; `"folder"` uses the labels given by
            the names of folders and files.
        task: the task of the wrapper: with `"segment"` and `"pose"`, masks or keypoints are measured where the
            annotations have them, otherwise boxes.
        settings: settings of the wrapper, as in the tasks.

    Raises:
        ConfigError: the labels cannot be read.
    """
    if annotations is not None:
        truth = read_coco(annotations, folder)
        kind = next((one for one in (SegmentTask, PoseTask) if one.name == task), DetectTask)
        return (DetectTask if any(lacking(truth, one) for one in kind.kinds) else kind)(truth, folder, **settings)
    if labels not in (None, "folder") and Path(labels).is_dir():
        return SemanticTask(folder, labels, **settings)
    return ClassifyTask(folder, labels=None if labels == "folder" else labels, **settings)


class SemanticTask(Task):
    """Class maps by label maps: the mean intersection over union of the classes.

    Args:
        folder, labels: as `read_label_maps` takes them.
        settings: see `Task`.

    Raises:
        ConfigError: as `read_label_maps`.
    """

    name = "semantic"
    metric = "mIoU"
    options = frozenset(("labels",))
    needs: ClassVar[Mapping[str, str]] = {"labels": "the folder of the label maps"}
    result_type = MapResult
    gives = "class maps to compare with the label maps"

    def __init__(self, folder: str | os.PathLike[str], labels: str | os.PathLike[str], **settings: Any) -> None:
        self.mapped = read_label_maps(folder, labels)
        super().__init__(len(self.mapped), settings)

    def _figures(self, model: Any) -> dict[str, float]:
        return iou_figures(model, self.mapped)


class ClassifyTask(Task):
    """Classification of labelled images.

    Args:
        folder, labels: as `read_labels` takes them.
        settings: those of `models.Classifier`: preset, resize, crop, names and so on.

    Raises:
        ConfigError: as `read_labels`.
    """

    name = "classify"
    metric = "top1"
    options = frozenset(("labels", "max_score_shift"))
    result_type = Classifier.result_type()
    gives = "classes to compare with the labels"
    defaults: ClassVar[Mapping[str, Any]] = {"top_k": 5}

    def __init__(
        self, folder: str | os.PathLike[str], *, labels: str | os.PathLike[str] | None = None, **settings: Any
    ) -> None:
        self.labelled = read_labels(folder, labels)
        super().__init__(len(self.labelled), {"type": "classifier", **settings})

    def _figures(self, model: Any) -> dict[str, float]:
        return top_figures(model, self.labelled)


#: By name.
TASKS: dict[str, type[DetectTask | SemanticTask | ClassifyTask]] = {
    kind.name: kind for kind in (DetectTask, SegmentTask, PoseTask, SemanticTask, ClassifyTask)
}
