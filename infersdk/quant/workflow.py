"""The quantisation workflow: calibration, selection of a method, search of layers, and comparison with FP32
in results and speed."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..accuracy import Agreement, agreement
from ..core.executed_layers import seconds_of
from ..core.files import check_output
from ..core.model_source import ModelSource
from ..errors import CalibrationError, ConfigError, UnsupportedModelError
from ..graph.files import files_of, write_model
from ..image.sources import check_several
from .layer_times import layer_times
from .observe import ImageInputs, Observations, Observer, check_samples
from .plan import Plan, plan
from .quantize import QuantizedGraph, quantize
from .ranges import PERCENTILE, check_method
from .search import CANDIDATES, ENOUGH, Candidate, Choice, SearchReport, check_limits, choose, search
from .table import check_table

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..image import ImageSource
    from ..infer import Infer
    from ..models.vision import VisionModel
    from .table import CalibrationTable

__all__ = ["MAX_DROP", "OpenWrapper", "Speed", "Stage", "Workflow", "compare_speed", "silent_stage"]

#: The maximum number of images to compare results on.
_COMPARED = 32
#: With fewer images, all are used for both calibration and comparison.
_MIN_TO_SPLIT = 32
#: The minimum interval of images that are reserved for comparison.
_ONE_IN = 5

#: The time limit of a speed measurement in seconds.
_SPEED_SECONDS = 0.3

#: The default maximum drop of the agreement with FP32, in per cent. Boxes with low scores count too: detectors lost
#: .007 mAP at 93 % agreement, .012 at 81 %, and .09 at 46 %.
MAX_DROP = 25.0


#: Opens the wrapper of a model file, for a `with` statement.
OpenWrapper = Callable[[Path], "VisionModel[Any]"]


class Stage(Protocol):
    """Shows the progress of a step: `with stage("calibrating", 40) as advance: advance(3)`."""

    def __call__(self, title: str, total: float = 1.0) -> AbstractContextManager[Callable[[float], None]]: ...


class Workflow:
    """Quantises a model for a backend and measures the agreement and speed.

    Candidates are calibrated on some of the images and compared on the others. The final ranges are those of all
    images.

    Args:
        model: an ONNX file in FP32.
        images: images for the wrapper; [] if `table` is given and nothing is measured.
        open_wrapper: opens the wrapper of a model file on the backend of the target.
        target: `"onnxruntime"`, `"openvino"`, `"tensorrt"`, `"tensorrt-rtx"` or `"portable"`.
        method: the calibration method, see `calibrate`; `"auto"` compares `CANDIDATES`.
        percentile: the percentile for `"percentile"`.
        bias_correction: as in `quantize`. By default, `"auto"` decides, and other methods use it.
        exclude: the names of nodes that stay in floating point.
        max_drop: the maximum drop of the agreement with FP32, in per cent. If it is larger, layers are kept in floating
            point. 100 disables this.
        max_score_shift: the maximum mean change of scores, with the same effect; None means no limit.
        table: an existing calibration table.

    Attributes:
        planned: the quantisation plan for the target and `exclude`.
        seen, choice, table, search, made, agreement, speed: the results of the steps; None before.
        decode_heads: where the boxes of the FP32 and the quantised model are decoded, `"native"` or `"graph"`. `speed`
            excludes native decoding. None before, and for wrappers without this distinction.
        model: the path of the model.
        images: all images.
        compared: the images for comparison.

    Raises:
        ConfigError: the method or target is unknown, or a percentile or limit is out of range.
        CalibrationError: there are too few images, or the table is for another model.
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
        check_several(images)
        images = list(images)
        check_limits(max_drop, max_score_shift)
        self.candidates: Sequence[Candidate] = _candidates(method, percentile, bias_correction)
        self.planned: Plan = plan(model, target, exclude=exclude)
        if table is not None:
            check_table(table)
            table.check(model)
            if bias_correction is not None:
                table = msgspec.structs.replace(table, bias_correction=bias_correction)
        else:
            check_samples(len(images))
        if max_score_shift is not None and not images:
            raise ConfigError(f"max_score_shift={max_score_shift:g} needs images to compare results on; give some")
        self.model, self.images, self.open_wrapper = Path(model), images, open_wrapper
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
        """Runs all steps. Raises the errors of calibration, the backend and writing.

        Results are compared if the FP32 model finds something in the images. Otherwise `agreement` is None after a
        RuntimeWarning, or CalibrationError is raised for `max_score_shift`.
        """
        show = stage or silent_stage
        check_output(self.model, output, *files_of(ModelSource.of(self.model)))
        if not self.compared:
            return self.write(output)
        with self.open_wrapper(self.model) as wrapper:
            self._reference = _results(wrapper, self.compared)
            identity = None  # the agreement of the results with themselves, if they can be compared
            with contextlib.suppress(UnsupportedModelError):
                identity = agreement(self._reference, self._reference)
            if self._max_score_shift is not None and (identity is None or not identity.shifts):
                raise ConfigError(
                    f"results of {type(self._reference[0]).__name__} have no scores; remove "
                    f"max_score_shift={self._max_score_shift:g}"
                )
            found = identity is not None and identity.total.any()
            if identity is not None and not found:
                text = (
                    f"{self.model.name} finds nothing in the {len(self.compared)} images for comparison, so results "
                    "are not compared; give images in which it finds something, or a lower conf"
                )
                if self._max_score_shift is not None:
                    raise CalibrationError(f"{text}, or remove max_score_shift={self._max_score_shift:g}")
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            if self.table is None:
                self._calibrate(wrapper, show)
            made = self.write(output)
            if found and self.search is None:
                made = self._improve(wrapper, made, show)
            with _without_target_warnings(), self.open_wrapper(made.path) as quantized:
                self._compare_speed(wrapper, quantized, show)
        return made

    def write(self, output: str | os.PathLike[str]) -> QuantizedGraph:
        """Writes the file with the present table and search result."""
        if self.table is None:
            raise CalibrationError("there is no calibration table; run the workflow or give a table")
        left = self.search.exclude if self.search else ()
        self.made = quantize(self.planned, output, self.table, exclude=left)
        return self.made

    def measure(self, path: Path) -> Agreement:
        """The agreement of a model file with FP32 on the images for comparison."""
        with _without_target_warnings(), self.open_wrapper(path) as wrapper:
            return agreement(self._reference, _results(wrapper, self.compared))

    # ---- the steps ----

    def _calibrate(self, wrapper: VisionModel[Any], stage: Stage) -> None:
        """Observes all images and creates the table of the first candidate."""
        count = len(self.images)
        inputs = ImageInputs(wrapper, self.images)
        with stage(f"calibrating on {count} images", count) as advance:
            self.seen = Observer(self.model, self.planned).observe(inputs, progress=advance)
        self.table = self.candidates[0].table(self.seen)

    def _improve(self, wrapper: VisionModel[Any], made: QuantizedGraph, stage: Stage) -> QuantizedGraph:
        """Selects another method and searches layers if the agreement is too low; returns the file, written again."""
        whole = self._compare(made, stage)
        if self.seen is not None and len(self.candidates) > 1:
            self.choice = self._choose(wrapper, self.seen, whole, stage)
            if self.choice.candidate is not self.candidates[0]:
                self.table = self.choice.candidate.table(self.seen)
                made = self.write(made.path)
                whole = self._compare(made, stage)
        self.search = self._search(wrapper, whole, stage)
        self.agreement = self.search.agreement
        return self.write(made.path) if self.search.exclude else made

    def _compare(self, made: QuantizedGraph, stage: Stage) -> Agreement:
        with stage("comparing results"):
            self.agreement = self.measure(made.path)
        return self.agreement

    def _choose(self, wrapper: VisionModel[Any], seen: Observations, whole: Agreement, stage: Stage) -> Choice:
        """Compares the candidates if the agreement of the first one is below `ENOUGH`."""
        default = self.candidates[0]
        if whole.percent >= ENOUGH:
            return Choice(default, {default.name: whole})
        with stage("comparing methods", len(self.candidates)) as advance:
            if self._kept is not None:
                seen = Observer(self.model, self.planned).observe(ImageInputs(wrapper, self._kept))
            return choose(self.planned, seen, self.measure, candidates=self.candidates, progress=advance)

    def _search(self, wrapper: VisionModel[Any], whole: Agreement, stage: Stage) -> SearchReport:
        assert self.table is not None
        with contextlib.ExitStack() as stack:
            steps: list[Callable[[float], None]] = []

            def progress(done: int) -> None:
                if not steps:  # shown only if a file is tried
                    steps.append(stack.enter_context(stage("searching layers")))
                steps[0](1 - 1 / done)

            return search(
                self.planned, self.table, self.measure, self._max_drop, whole=whole,
                max_score_shift=self._max_score_shift, times=lambda: self.layer_times(wrapper),
                progress=progress,
            )  # fmt: skip

    def layer_times(
        self, wrapper: VisionModel[Any], planned: Plan | None = None
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """The milliseconds of each layer in FP32 and in INT8 on the backend of the wrapper; None if unsupported.

        Args:
            wrapper: the wrapper of the FP32 model.
            planned: the quantisation plan, by default that of the workflow.
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
            self.speed = compare_speed(wrapper.network, quantized.network, feeds, seconds=_SPEED_SECONDS)


def _results(wrapper: VisionModel[Any], images: Sequence[ImageSource]) -> list[Any]:
    """The results for images, one by one to save memory."""
    return [wrapper([image])[0] for image in images]


def _candidates(method: str, percentile: float, bias_correction: bool | None) -> tuple[Candidate, ...]:
    if method != "auto":
        known = check_method(method, percentile)
        return (Candidate(known, bias_correction is not False, percentile),)
    wanted = [one for one in CANDIDATES if bias_correction in (None, one.bias_correction)]
    return tuple(wanted)


def _split(images: Sequence[ImageSource]) -> tuple[list[ImageSource] | None, list[ImageSource]]:
    """Splits images into those for calibration only and evenly spaced ones for comparison.

    With few images, the first part is None and all images are used for both.
    """
    if len(images) < _MIN_TO_SPLIT:
        return None, list(images)
    step = max(_ONE_IN, len(images) // _COMPARED)
    apart = set(range(0, len(images), step)[:_COMPARED])
    return [one for i, one in enumerate(images) if i not in apart], [images[i] for i in sorted(apart)]


@contextlib.contextmanager
def _without_target_warnings() -> Iterator[None]:
    """Suppresses the warning about running a file on another backend than its target."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*it was quantised for", RuntimeWarning)
        yield


@contextlib.contextmanager
def silent_stage(title: str, total: float = 1.0) -> Iterator[Callable[[float], None]]:
    """A `Stage` that shows nothing."""
    yield lambda done: None


#: The minimum number of measured rounds.
_MIN_ROUNDS = 5


@dataclass(frozen=True)
class Speed:
    """The median milliseconds of runs of two models in turns on one backend."""

    backend: str
    device: str
    fp32: float
    int8: float

    @property
    def ratio(self) -> float:
        """The speed-up of INT8; below 1 it is slower."""
        return self.fp32 / self.int8


def compare_speed(
    fp32: Infer, int8: Infer, feeds: Mapping[str, npt.NDArray[Any]], *, rounds: int = 20, seconds: float = 1.0
) -> Speed:
    """Runs two loaded models in turns on the same data, so that other load on the machine affects both.

    Args:
        fp32, int8: the models, on one backend and device.
        feeds: arrays by input name.
        rounds: the maximum number of rounds, after a warm-up.
        seconds: the time limit, once there are five rounds.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for infer in (fp32, int8):
        infer(feeds)
        infer.forward()
    began = perf_counter()
    for number in range(1, rounds + 1):
        for infer, spent in zip((fp32, int8), times, strict=True):
            spent.extend(seconds_of(infer.forward, 1))
        if number >= _MIN_ROUNDS and perf_counter() - began > seconds:
            break
    first, second = (statistics.median(spent) * 1e3 for spent in times)
    return Speed(fp32.backend, str(fp32.device), first, second)
