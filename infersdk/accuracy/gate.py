"""The gate: contenders measured by a task, and held against the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ConfigError, UnsupportedModelError
from ..target import Target
from .classification import read_labels, top_figures
from .detection import coco_evaluator, coco_figures, read_coco

if TYPE_CHECKING:
    import os

    from ..infer import Infer

__all__ = ["ClassifyTask", "Contender", "DetectTask", "GateReport", "Score", "Task", "gate"]


class Task(Protocol):
    """What a gate measures by."""

    @property
    def metric(self) -> str:
        """The figure that must not drop."""

    @property
    def images(self) -> int:
        """How many there are."""

    def measure(self, contender: Contender) -> Score:
        """The figures of one contender."""


class DetectTask:
    """Detection by COCO annotations.

    Args:
        annotations, folder: as `read_coco` takes them.
        type: the wrapper, a name of `models.TYPES`; None decides by the file.
        settings: further settings of the wrapper, such as `legacy` of a YOLOX.
        names: the class names, or the path of a file of them; None takes the model's own.
        conf, iou, max_det, multi_label: the settings of the detector. The defaults are those by which mAP is commonly
            given for YOLOv5; a threshold that suits an application would cut the recall that mAP counts.
        max_batch: images that go through together at most.

    Raises:
        ConfigError: as `read_coco`.
    """

    metric = "mAP"

    def __init__(
        self,
        annotations: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        *,
        type: str | None = None,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        conf: float = 0.001,
        iou: float = 0.6,
        max_det: int = 300,
        multi_label: bool = True,
        max_batch: int | None = None,
        **settings: Any,
    ) -> None:
        self.truth = read_coco(annotations, folder)
        coco_evaluator()  # better now than after the images
        self._type, self._names, self._max_batch = type, names, max_batch
        self._settings = {"conf": conf, "iou": iou, "max_det": max_det, "multi_label": multi_label, **settings}

    @property
    def images(self) -> int:
        return len(self.truth.files)

    def measure(self, contender: Contender) -> Score:
        with self._wrapper(contender.model, **contender.arguments(), max_batch=self._max_batch) as model:
            return _score(contender, model, lambda: coco_figures(model, self.truth))

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return coco_figures(model, self.truth)

    def _wrapper(self, model: str | os.PathLike[str] | Infer, **load: Any) -> Any:
        from ..models import load as load_wrapper

        return load_wrapper(model, type=self._type, names=self._names, **self._settings, **load)


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
            return _score(contender, model, lambda: top_figures(model, self.labelled))

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with self._wrapper(infer.clone()) as model:
            return top_figures(model, self.labelled)

    def _wrapper(self, model: str | os.PathLike[str] | Infer, **load: Any) -> Any:
        from ..models import load as load_wrapper

        return load_wrapper(model, **{"type": "classifier", "top_k": 5, **self._settings}, **load)


@dataclass(frozen=True)
class Contender:
    """A model file, and what runs it: `"backend"`, `"backend@device"`, `"backend/precision"`, or both."""

    model: str | os.PathLike[str]
    side: str = "onnxruntime"

    @property
    def label(self) -> str:
        return f"{Path(self.model).name} on {self.side}"

    def arguments(self) -> dict[str, Any]:
        """Backend, device and precision as the wrappers take them.

        Raises:
            ConfigError: `side` is not understood.
        """
        return Target.parse(self.side).arguments


@dataclass(frozen=True)
class Score:
    """What came out for one contender.

    Attributes:
        label, model: who it is.
        backend, device, precision: where and in what it ran, read back.
        layers: how many of its layers ran in each precision, where the backend can tell.
        figures: the metric and what goes with it, 0 to 1.
        seconds: for all images, with reading them.
    """

    label: str
    model: str
    backend: str
    device: str
    precision: str
    layers: Mapping[str, int]
    figures: Mapping[str, float]
    seconds: float


def _score(contender: Contender, model: Any, figures: Callable[[], dict[str, float]]) -> Score:
    infer, start = model.network, perf_counter()
    found = figures()
    return Score(
        contender.label, str(contender.model), infer.backend, infer.device, infer.precision,
        dict(infer.layer_precisions), found, perf_counter() - start,
    )  # fmt: skip


@dataclass(frozen=True)
class GateReport:
    """What `gate()` found. The first of `scores` is the reference."""

    metric: str
    images: int
    max_drop: float
    scores: tuple[Score, ...]

    @property
    def reference(self) -> Score:
        return self.scores[0]

    def drop(self, score: Score) -> float:
        """How much less than the reference; negative where it is more."""
        return self.reference.figures[self.metric] - score.figures[self.metric]

    def within(self, score: Score) -> bool:
        # The figures are sums of floats: what is allowed exactly shall not fail by their rounding.
        return self.drop(score) <= self.max_drop + 1e-9

    @property
    def passes(self) -> bool:
        """Whether no contender drops by more than is allowed."""
        return all(self.within(score) for score in self.scores)


def gate(
    contenders: Iterable[Contender],
    task: Task,
    *,
    max_drop: float = 0.01,
    progress: Callable[[Contender], None] | None = None,
) -> GateReport:
    """Measures each contender, and holds it against the first.

    Args:
        contenders: two or more, the reference first. Each is loaded, measured and freed before the next.
        task: what to measure by: `DetectTask` or `ClassifyTask`.
        max_drop: how much less than the reference's its metric may be: 0.01 is one point of mAP, or one image of 100.
        progress: called before each is measured.

    Raises:
        ConfigError: fewer than two contenders or two the same, or a drop that is none.
        BackendError, ModelError, InferenceError: one of them cannot be loaded or run as it should.
    """
    sides = list(contenders)
    if len(sides) < 2 or len(set(sides)) < len(sides):
        labels = ", ".join(contender.label for contender in sides) or "none"
        raise ConfigError(f"a gate takes two or more different contenders (files, backends, precisions), not {labels}")
    if not 0 <= max_drop < 1:
        raise ConfigError(f"max_drop is a number from 0 to 1, 0.01 say, not {max_drop!r}")
    for contender in sides:
        contender.arguments()
    scores = []
    for contender in sides:
        if progress is not None:
            progress(contender)
        try:
            scores.append(task.measure(contender))
        except (ConfigError, UnsupportedModelError) as error:
            raise type(error)(f"{contender.label}: {error}") from error
    return GateReport(task.metric, task.images, max_drop, tuple(scores))
