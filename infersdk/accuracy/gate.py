"""The gate: measures contenders by a task, and compares each with the first. `tasks.py` has the tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.target import Target
from ..errors import ConfigError, InputError, UnsupportedModelError
from ..models import ModelDescription, load
from ..models.registry import looks_like
from ..models.results import Agreement, Result

if TYPE_CHECKING:
    import os

    from ..infer import Infer

__all__ = ["Contender", "GateReport", "Score", "Task", "agreement", "gate"]

#: The minimum score of the reference's boxes whose change counts as a shift.
VISIBLE = 0.25


@dataclass(frozen=True)
class Contender:
    """A model file and its target: `"backend"`, `"backend@device"`, `"backend/precision"`, or both."""

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
    """The figures of one contender.

    Attributes:
        label, model: the contender.
        backend, device, precision: as reported by the runtime.
        layers: how many of its layers ran in each precision, where the backend reports it.
        figures: the metric and what goes with it, 0 to 1.
        seconds: for all images, with reading them.
        results: boxes or classes of each image; () for a task whose results have no scores.
        decode_head: `"native"` where boxes were decoded outside of the network, as `models.load()` loads it, `"graph"`
            where the network decoded them; None for wrappers that do not distinguish these.
    """

    label: str
    model: str
    backend: str
    device: str
    precision: str
    layers: Mapping[str, int]
    figures: Mapping[str, float]
    seconds: float
    results: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    decode_head: str | None = None


class Task(ABC):
    """A measure of labelled images; the base of the tasks.

    Args:
        settings: of the wrapper, as `models.load()` takes them. Of those in `defaults` that are not given, each call
            gets the ones that the wrapper has.

    Attributes:
        metric: the figure that must not drop.
        options: the options of `infersdk compare --task` for this task.
        needs: descriptions of the required ones.
        result_type, gives: the type of the results that a wrapper must have, and its name in errors.
        images: the number of images.
    """

    name: ClassVar[str]
    metric: ClassVar[str]
    options: ClassVar[frozenset[str]]
    needs: ClassVar[Mapping[str, str]] = {}
    result_type: ClassVar[type[Any]] = object
    gives: ClassVar[str] = "results"
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, images: int, settings: Mapping[str, Any]) -> None:
        self.images, self._settings = images, settings

    def measure(self, contender: Contender) -> Score:
        """The figures of one contender, loaded by `models.load()`."""
        with self._load(contender.model, **contender.arguments()) as model:
            infer, start = model.network, perf_counter()
            calls = _Calls(model, self._parameters(model), keep="max_score_shift" in self.options)
            figures = self._figures(calls)
            return Score(
                contender.label, str(contender.model), infer.backend, infer.device, infer.precision,
                dict(infer.layer_precisions), figures, perf_counter() - start, tuple(calls.results),
                getattr(model, "decode_head_used", None),
            )  # fmt: skip

    def figures(self, infer: Infer) -> dict[str, float]:
        """The figures of a network that is loaded already; a clone of it is run."""
        with infer.clone() as twin, self._load(twin) as model:
            return self._figures(_Calls(model, self._parameters(model), keep=False))

    @abstractmethod
    def _figures(self, model: Any) -> dict[str, float]:
        """The figures of a wrapper."""

    def _load(self, path: str | os.PathLike[str] | Infer, **target: Any) -> Any:
        model = load(path, **self._settings, **target)
        if issubclass(model.result_type(), self.result_type):
            return model
        model.close()
        raise UnsupportedModelError(
            f"{model.network.model.name} looks like {looks_like(ModelDescription.of(model.network))}; "
            f"{type(model).__name__} gives no {self.gives}"
        )

    def _parameters(self, model: Any) -> dict[str, Any]:
        """The settings of the calls."""
        own = model.settings.__struct_fields__
        given = {name: value for name, value in self.defaults.items() if name in own and name not in self._settings}
        if fixed := sorted(given.keys() - model.per_call):
            raise ConfigError(
                f"{self.metric} is measured with {fixed[0]}={given[fixed[0]]}, which is not in per_call of "
                f"{type(model).__name__}; add it there, or give a value of {fixed[0]} for the measurement"
            )
        return given


class _Calls:
    """A wrapper with settings for its calls, that records its results."""

    def __init__(self, model: Any, parameters: Mapping[str, Any], *, keep: bool) -> None:
        self._model, self._parameters, self._keep = model, parameters, keep
        self.results: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def stream(self, images: Iterable[Any]) -> Iterator[Any]:
        for result in self._model.stream(images, **self._parameters):
            if self._keep:
                self.results.append(result)
            yield result


@dataclass(frozen=True)
class GateReport:
    """The result of `gate()`. The first of `scores` is the reference."""

    metric: str
    images: int
    max_drop: float
    scores: tuple[Score, ...]
    max_score_shift: float | None = None

    @property
    def reference(self) -> Score:
        return self.scores[0]

    def drop(self, score: Score) -> float:
        """How much less than the reference; negative where it is more."""
        return self.reference.figures[self.metric] - score.figures[self.metric]

    def within(self, score: Score) -> bool:
        # The tolerance covers rounding errors of exact limits.
        shift, limit = self.score_shift(score), self.max_score_shift
        kept = limit is None or shift is None or abs(shift) <= limit + 1e-9  # not for NaN
        return self.drop(score) <= self.max_drop + 1e-9 and kept

    def score_shift(self, score: Score) -> float | None:
        """The mean score change of the reference's boxes with at least `VISIBLE`, or of the best classes; None without
        results. Boxes that are found again with any score count. It is NaN where boxes are visible and none is in both
        results.
        """
        if not score.results or score is self.reference:
            return None
        return agreement(self.reference.results, score.results, min_score=VISIBLE).score_shift

    @property
    def passes(self) -> bool:
        """Whether no contender drops by more than is allowed."""
        return all(self.within(score) for score in self.scores)


def gate(
    contenders: Iterable[Contender],
    task: Task,
    *,
    max_drop: float = 0.01,
    max_score_shift: float | None = None,
    progress: Callable[[Contender], None] | None = None,
) -> GateReport:
    """Measures each contender, and compares it with the first.

    Args:
        contenders: two or more, the reference first. Each is loaded, measured and freed before the next.
        task: the measure: `DetectTask`, `ClassifyTask` or another of `infersdk.accuracy`.
        max_drop: how much less than the reference's its metric may be: 0.01 is one point of mAP, or one image of 100.
        max_score_shift: maximum mean change of the scores of the reference's results, such as 0.02; mAP hardly reflects
            such changes. None is no limit.
        progress: called before each is measured.

    Raises:
        ConfigError: fewer than two contenders, two the same or one of another type, or a limit that is not a number in
            its range.
        BackendError, ModelError, InferenceError: one of them cannot be loaded or run as it should.
    """
    sides = list(contenders)
    for side in sides:
        if not isinstance(side, Contender):
            raise ConfigError(f"a contender is Contender(model, side), not {side!r}")
    if len(sides) < 2 or len(set(sides)) < len(sides):
        labels = ", ".join(contender.label for contender in sides) or "none"
        raise ConfigError(f"a gate takes two or more different contenders (files, backends, precisions), not {labels}")
    if not (isinstance(max_drop, Real) and 0 <= max_drop < 1):
        raise ConfigError(f"max_drop is a number from 0 to 1, 0.01 say, not {max_drop!r}")
    if max_score_shift is not None and not (isinstance(max_score_shift, Real) and max_score_shift >= 0):
        raise ConfigError(f"max_score_shift is a number from 0, not {max_score_shift!r}")
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
    return GateReport(task.metric, task.images, max_drop, tuple(scores), max_score_shift)


def agreement(reference: Sequence[Any], results: Sequence[Any], *, min_score: float = 0.0) -> Agreement:
    """The agreement of the results of wrappers; the first ones are the reference.

    It includes changes of scores and small moves of boxes, which need not change mAP. Each result type has its own
    measure: `infersdk.models.Result.agreement()`.

    Args:
        min_score: ignore rows of the reference with lower scores, and such rows of the others that match none; the best
            class always counts.

    Raises:
        InputError: there are no results, or not as many on both sides.
        UnsupportedModelError: the results have no measure.
    """
    if len(reference) != len(results) or not reference:
        raise InputError(f"{len(reference)} results against {len(results)}; give one or more, as many on both sides")
    if not isinstance(reference[0], Result):
        raise UnsupportedModelError(
            f"results of {type(reference[0]).__name__} have no measure of agreement; let postprocess() return a "
            "subclass of infersdk.models.Result that defines _agreement()"
        )
    pairs = zip(reference, results, strict=True)
    return Agreement.joined(one.agreement(other, min_score=min_score) for one, other in pairs)
