"""From an FP32 model and images to the best INT8 file for a backend: all steps in their order."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..accuracy.agreement import Agreement, agreement, can_compare
from ..errors import CalibrationError, ConfigError
from ..graph.files import write_model
from .choose import CANDIDATES, ENOUGH, Candidate, Choice, choose
from .inputs import ImageInputs
from .layer_times import layer_times
from .observe import MIN_SAMPLES, Observations, Observer, check_samples
from .plan import Plan, plan
from .quantize import QuantizedGraph, quantize
from .ranges import PERCENTILE, check_method
from .search import SearchReport, check_limits, search
from .speed import Speed, compare_runs

if TYPE_CHECKING:
    import os

    from ..image import ImageSource
    from ..models.vision import VisionModel
    from .table import CalibrationTable

__all__ = ["MAX_DROP", "OpenWrapper", "Stage", "Workflow", "silent_stage"]

#: Images that results are compared on, at most.
_COMPARED = 32
#: With fewer images than this none is kept apart: all of them calibrate, and are compared on.
_FEW = 32
#: One image in so many is kept apart, at least.
_ONE_IN = 5

#: Seconds after which the speed is known well enough.
_SPEED_SECONDS = 0.3

#: By how many per cent results may differ from FP32 before layers are left in floating point. Boxes of low scores count
#: as well: detectors that agreed by 93 % lost .007 of mAP, by 81 % .012, and by 46 % .09.
MAX_DROP = 25.0


#: Makes the wrapper of a model file, for a `with` statement.
OpenWrapper = Callable[[Path], "VisionModel[Any]"]


class Stage(Protocol):
    """Shows a step: `with stage("calibrating", 40) as advance: advance(3)`."""

    def __call__(self, title: str, total: float = 1.0) -> AbstractContextManager[Callable[[float], None]]: ...


class Workflow:
    """Quantises a model for a backend, and measures what that costs and brings.

    ::

        work = quant.Workflow("yolov5n.onnx", images, lambda path: YOLOv5(path, "openvino"), target="openvino")
        work.run("yolov5n.int8.onnx")
        work.agreement.percent, work.agreement.score_shift, work.speed.ratio

    Some of the images are kept apart while candidates are compared, so that none is judged by what it was made of. The
    ranges of the file are then of all images.

    Args:
        model: an ONNX file in FP32.
        images: what the wrapper takes; [] if `table` is given and nothing is to be measured.
        open_wrapper: makes the wrapper of a model file on the backend that matters.
        target: what the file is for: `"onnxruntime"`, `"openvino"`, `"tensorrt"` or `"portable"`.
        method: how ranges are chosen, see `calibrate`; `"auto"` compares `CANDIDATES`.
        percentile: for that method.
        bias_correction: as `quantize` takes it; None leaves it to `"auto"`, and is True for other methods.
        exclude: names of nodes that stay in floating point.
        max_drop: per cent by which results may differ from FP32. Where they differ by more, layers are left in floating
            point until they do not. 100 leaves none.
        max_score_shift: by how much scores may change on average, likewise; None is no limit.
        table: ranges that are known already.

    Attributes:
        planned: what is quantised, by the target and `exclude`.
        seen, choice, table, search, made, agreement, speed: the result of each step; None before it.
        decode_heads: what decoded the boxes, `"native"` or `"graph"`, of the FP32 model and of the file. The runs that
            `speed` compares are without what is native. None before, and for wrappers that do not tell these apart.
        model: the path of the model.
        images: all of them.
        compared: the images that results are compared on.

    Raises:
        ConfigError: an unknown method or target, or a percentile or a limit out of range.
        CalibrationError: there are too few images, or the table is of another model.
        ModelError, BackendUnavailableError: as `plan`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        images: Sequence[ImageSource],
        open_wrapper: OpenWrapper,
        *,
        target: str = "portable",
        method: str = "auto",
        percentile: float = PERCENTILE,
        bias_correction: bool | None = None,
        exclude: Sequence[str] = (),
        max_drop: float = MAX_DROP,
        max_score_shift: float | None = None,
        table: CalibrationTable | None = None,
    ) -> None:
        check_limits(max_drop, max_score_shift)
        self.candidates: Sequence[Candidate] = _candidates(method, percentile, bias_correction)
        self.planned: Plan = plan(model, target, exclude=exclude)
        if table is not None:
            table.check(model)
        elif len(images) < MIN_SAMPLES:
            check_samples(len(images))
        if max_score_shift is not None and not images:
            raise ConfigError(f"max_score_shift={max_score_shift:g} needs images to compare results on; there are 0")
        self.model, self.images, self.open_wrapper = Path(model), list(images), open_wrapper
        self._max_drop, self._max_score_shift = max_drop, max_score_shift
        self._kept, self.compared = _split(images)
        self.table = table
        self.seen: Observations | None = None
        self.choice: Choice | None = None
        self.search: SearchReport | None = None
        self.made: QuantizedGraph | None = None
        self.agreement: Agreement | None = None
        self.speed: Speed | None = None
        self.decode_heads: tuple[str, str] | None = None
        self._reference: list[Any] = []

    def run(self, output: str | os.PathLike[str], *, stage: Stage | None = None) -> QuantizedGraph:
        """All steps. Raises what calibration, the backend and writing raise."""
        show = stage or silent_stage
        if not self.compared:
            return self.write(output)
        with self.open_wrapper(self.model) as wrapper:
            self._reference = _results(wrapper, self.compared)
            comparable = can_compare(self._reference[0])
            if self._max_score_shift is not None and not comparable:
                raise ConfigError(
                    f"results of {type(self._reference[0]).__name__} have no scores to limit; leave out "
                    f"max_score_shift={self._max_score_shift:g}"
                )
            first = self._calibrate(wrapper, show) if self.table is None else None
            self._write_measured(wrapper, output, show, first, comparable=comparable)
        assert self.made is not None
        return self.made

    def write(self, output: str | os.PathLike[str]) -> QuantizedGraph:
        """Writes the file with what is known so far."""
        if self.table is None:
            raise CalibrationError("there is no calibration table yet; run the workflow, or give a table")
        left = self.search.exclude if self.search else ()
        self.made = quantize(self.planned, output, self.table, exclude=left)
        return self.made

    def measure(self, path: Path) -> Agreement:
        """How far the results of a model file agree with FP32 on the images that are compared."""
        with _without_target_warnings(), self.open_wrapper(path) as wrapper:
            return agreement(self._reference, _results(wrapper, self.compared))

    # ---- the steps ----

    def _calibrate(self, wrapper: VisionModel[Any], stage: Stage) -> Observations:
        """Observes all images, and makes the table of the first candidate; returns what candidates are judged by."""
        first = self._kept if self._kept is not None else self.compared
        count = len(self.images)
        with Observer(self.model, self.planned) as observer, stage(f"calibrating on {count} images", count) as advance:
            seen = observer.observe(ImageInputs(wrapper, first), progress=advance)
            self.seen = seen
            if self._kept is not None:
                rest = observer.observe(
                    ImageInputs(wrapper, self.compared), progress=lambda done: advance(len(first) + done)
                )
                self.seen = seen.merged(rest)
        self.table = self.candidates[0].table(self.seen)
        return seen

    def _write_measured(
        self,
        wrapper: VisionModel[Any],
        output: str | os.PathLike[str],
        stage: Stage,
        first: Observations | None,
        *,
        comparable: bool,
    ) -> None:
        """Writes the file and measures it; where its results differ by too much, what else there is is tried.

        Args:
            first: what candidates are judged by; None if there is nothing to choose.
        """
        while True:
            made = self.write(output)
            with _without_target_warnings(), self.open_wrapper(made.path) as quantized:
                if comparable and self.search is None:
                    with stage("comparing results"):
                        self.agreement = agreement(self._reference, _results(quantized, self.compared))
                if not self._changed(wrapper, first, stage):
                    self._compare_speed(wrapper, quantized, stage)
                    return

    def _changed(self, wrapper: VisionModel[Any], first: Observations | None, stage: Stage) -> bool:
        """Whether the file is to be another one: by another method, or with layers in floating point."""
        if self.agreement is None:
            return False
        if first is not None and self.choice is None and len(self.candidates) > 1:
            self._choose(first, self.agreement, stage)
            if self.choice is not None and self.choice.candidate is not self.candidates[0]:
                return True
        if self.search is None:
            self._search(wrapper, self.agreement, stage)
            return self.search is not None and bool(self.search.exclude)
        return False

    def _choose(self, first: Observations, whole: Agreement, stage: Stage) -> None:
        """Compares the candidates if the first one does not agree well enough."""
        assert self.seen is not None
        default = self.candidates[0]
        if whole.percent >= ENOUGH:
            self.choice = Choice(default, {default.name: whole})
            return
        with stage("comparing methods", len(self.candidates)) as advance:
            self.choice = choose(self.planned, first, self.measure, candidates=self.candidates, progress=advance)
        self.table = self.choice.candidate.table(self.seen)

    def _search(self, wrapper: VisionModel[Any], whole: Agreement, stage: Stage) -> None:
        assert self.table is not None
        with contextlib.ExitStack() as stack:
            steps: list[Callable[[float], None]] = []

            def progress(done: int) -> None:
                if not steps:  # only a search that tries a file is shown
                    steps.append(stack.enter_context(stage("searching layers")))
                steps[0](1 - 1 / done)

            self.search = search(
                self.planned, self.table, self.measure, self._max_drop, whole=whole,
                max_score_shift=self._max_score_shift, times=lambda: self.layer_times(wrapper),
                progress=progress,
            )  # fmt: skip
        self.agreement = self.search.agreement

    def layer_times(
        self, wrapper: VisionModel[Any], planned: Plan | None = None
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """Milliseconds of each layer in FP32 and in INT8 on the wrapper's backend; None where it does not tell.

        Args:
            wrapper: of the FP32 model.
            planned: what is quantised; that of the workflow if not given.
        """
        assert self.table is not None
        infer = wrapper.network
        feeds = next(iter(ImageInputs(wrapper, self.compared[:1])))
        with tempfile.TemporaryDirectory() as folder:
            plain = write_model(self.planned.model.clone(), Path(folder, "fp32.onnx"))
            made = quantize(planned or self.planned, Path(folder, "int8.onnx"), self.table).path
            fp32, int8 = (
                layer_times(self.planned, path, feeds, infer.backend, str(infer.device)) for path in (plain, made)
            )
        return None if fp32 is None or int8 is None else (fp32, int8)

    def _compare_speed(self, wrapper: VisionModel[Any], quantized: VisionModel[Any], stage: Stage) -> None:
        with stage("comparing speed"):
            feeds = next(iter(ImageInputs(wrapper, self.compared[:1])))
            heads = [getattr(one, "decode_head_used", None) for one in (wrapper, quantized)]
            self.decode_heads = (heads[0], heads[1]) if heads[0] and heads[1] else None
            self.speed = compare_runs(wrapper.network, quantized.network, feeds, seconds=_SPEED_SECONDS)


def _results(wrapper: VisionModel[Any], images: Sequence[ImageSource]) -> list[Any]:
    """The results for images, which go through one by one: a large batch would take more memory than it saves time."""
    return [wrapper([image])[0] for image in images]


def _candidates(method: str, percentile: float, bias_correction: bool | None) -> tuple[Candidate, ...]:
    if method != "auto":
        known = check_method(method, percentile)
        return (Candidate(known, bias_correction is not False, percentile),)
    wanted = [one for one in CANDIDATES if bias_correction in (None, one.bias_correction)]
    return tuple(wanted)


def _split(images: Sequence[ImageSource]) -> tuple[list[ImageSource] | None, list[ImageSource]]:
    """Those that calibrate alone, spread evenly, and those that results are compared on.

    With few images none is kept apart (None).
    """
    if len(images) < _FEW:
        return None, list(images)
    step = max(_ONE_IN, len(images) // _COMPARED)
    apart = set(range(0, len(images), step)[:_COMPARED])
    return [one for i, one in enumerate(images) if i not in apart], [images[i] for i in sorted(apart)]


@contextlib.contextmanager
def _without_target_warnings() -> Iterator[None]:
    """No warning for a measurement on another backend than the target's: the caller chose both."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*it was quantised for", RuntimeWarning)
        yield


@contextlib.contextmanager
def silent_stage(title: str, total: float = 1.0) -> Iterator[Callable[[float], None]]:
    """Shows nothing."""
    yield lambda done: None
