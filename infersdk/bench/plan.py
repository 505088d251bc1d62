"""The combinations to measure, and the settings of a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import msgspec

from ..config import convert
from ..core.stream import device_count
from ..core.target import Target, check_precision
from ..errors import ConfigError
from ..loading.registry import backend_class, list_backends

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["SCENARIOS", "BenchSettings", "Combination", "Scenario", "combine", "usable_backends"]

T = TypeVar("T", bound=msgspec.Struct)

#: Seconds or milliseconds; a scenario of infinite time would not end.
Above0 = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
From0 = Annotated[int, msgspec.Meta(ge=0)]
From1 = Annotated[int, msgspec.Meta(ge=1)]

#: The scenarios in the order of a round. The last four are the scenarios of MLPerf Inference (Reddi et al.,
#: *MLPerf inference benchmark*, 2020).
Scenario = Literal["engine", "engine_parallel", "single_stream", "multi_stream", "offline", "server"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)

#: Options that change the speed of a model and not its results.
_SPEED_ALONE = ("threads", "streams", "performance_hint", "cuda_graph")


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a report: a model, and how it is run.

    Attributes:
        model: the path of the file.
        target: backend, device and precision; a precision of None is the model's own.
        batch: images (or rows) in a run.
        options: the backend's own. Options that it does not have are an error.
        threads: for each backend that has the option; 0 is the backend's own choice.
    """

    model: str
    target: Target = Target("onnxruntime")
    batch: From1 = 1
    options: dict[str, Any] = {}
    threads: From0 = 0

    @property
    def name(self) -> str:
        """The combination in one line, without the folder of the file. It identifies a row; see `check_files()`."""
        text = "".join(f" {key}={value}" for key, value in sorted(self.settings.items()))
        return f"{Path(self.model).name} {self.target} batch {self.batch}{text}"

    @property
    def settings(self) -> dict[str, Any]:
        """The threads, if they are given, and the options."""
        return {**({"threads": self.threads} if self.threads else {}), **self.options}

    @property
    def judged_as(self) -> str:
        """A key that all combinations with the same results share: accuracy is measured once for each."""
        options = {key: value for key, value in sorted(self.options.items()) if key not in _SPEED_ALONE}
        return f"{self.model}\0{self.target}\0{options}"


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a measurement.

    Attributes:
        type: the wrapper, a name of `models.TYPES`; `"arrays"` measures the network alone; None takes the wrapper that
            fits, and arrays where none does.
        wrapper: settings of the wrapper, by name: `{"names": "coco.txt", "legacy": True}`.
        scenarios: those that are run; None is all that the combination can run, `"server"` only with a
            `latency_bound_ms`.
        latency_bound_ms: for `"server"`: the latency in milliseconds that 99 % of the requests must keep.
        time: seconds for each scenario of a combination, over all rounds.
        rounds: how often all combinations are measured, in an order that changes.
        warmup: maximum seconds of a warm-up that does not get steady.
        starts: number of measured cold starts, limited to one for each round; 0 disables them.
        data: a folder of images or arrays; None is the packaged image, or random arrays.
        annotations: boxes in COCO's format for the images of `data`: accuracy is mAP.
        labels: a file of labels for the images of `data`, or `"folder"` for labels by folder or file name: accuracy is
            top-1. Or a folder of label maps, `NAME.png` for each image: accuracy is the mean IoU.
        shapes: by input name, for inputs with other free axes than the batch.
        seed: of random inputs, of arrivals, and of the order in a round.
        from_files: images are read from their files each time, instead of once before.
        timeout: seconds that one step of one combination (loading, a round) may take.
        max_samples: maximum number of images or arrays of `data` for speed and agreement.
    """

    type: str | None = None
    wrapper: dict[str, Any] = {}
    scenarios: list[Scenario] | None = None
    latency_bound_ms: Above0 | None = None
    time: Above0 = 5.0
    rounds: From1 = 5
    warmup: Above0 = 10.0
    starts: From0 = 3
    data: str | None = None
    annotations: str | None = None
    labels: str | None = None
    shapes: dict[str, list[int]] = {}
    seed: From0 = 0
    from_files: bool = False
    timeout: Above0 = 900.0
    max_samples: From1 = 16

    def shapes_of(self, batch: int) -> dict[str, tuple[int, ...]]:
        """`shapes`, whose first sizes are those of a single row, with the batch of a combination."""
        return {name: (batch, *sizes[1:]) for name, sizes in self.shapes.items()}


def combine(
    models: Sequence[str | os.PathLike[str]],
    targets: Sequence[str | Target] = ("onnxruntime",),
    *,
    precisions: Sequence[str | None] = (None,),
    batches: Sequence[int] = (1,),
    options: dict[str, Any] | None = None,
    threads: int = 0,
) -> list[Combination]:
    """Every model on every target in every precision with every batch, each once.

    Args:
        targets: backends, as `Target.parse()` reads them: `"openvino"`, `"onnxruntime@cuda:0"`, `"openvino/bf16"`.
        precisions: for the targets that name none.

    Raises:
        ConfigError: a target that cannot be read, or a number out of its range, or threads that are given twice.
    """
    check_lists(models, targets, precisions, batches)
    if threads and "threads" in (options or {}):
        raise ConfigError(f"threads are given twice, also as an option of the backend: {options}; leave one out")
    result = [
        checked(
            Combination(
                model=str(model), target=Target(target.backend, target.device, precision), batch=batch,
                options=dict(options or {}), threads=threads,
            ),
            Combination,
        )
        for model in models
        for target in map(Target.parse, targets)
        for precision in ((target.precision,) if target.precision else precisions)
        for batch in batches
    ]  # fmt: skip
    return list({combination.name + combination.model: combination for combination in result}.values())


def check_lists(
    models: Sequence[Any], targets: Sequence[Any], precisions: Sequence[str | None], batches: Sequence[int]
) -> None:
    """Raises ConfigError if an argument is not a list or is empty, a batch is below 1, or a precision is unknown."""
    for what, given in (("models", models), ("backends", targets), ("precisions", precisions), ("batches", batches)):
        if isinstance(given, str) or not isinstance(given, Collection):
            raise ConfigError(f"{what} is a list, not {given!r}")
        if not len(given):
            raise ConfigError(f"there are no {what} to measure")
    for batch in batches:
        if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1:
            raise ConfigError(f"a batch is a whole number from 1, not {batch!r}")
    for precision in precisions:
        check_precision(precision)


def check_files(combinations: Sequence[Combination]) -> None:
    """Raises ConfigError for two files of the same name in different folders, whose rows would have the same name."""
    files: dict[str, Path] = {}
    for file in (Path(combination.model) for combination in combinations):
        other = files.setdefault(file.name, file)
        if other.resolve() != file.resolve():
            raise ConfigError(
                f"{str(other)!r} and {str(file)!r} have the same name, and rows have no folder; rename one of them"
            )


def checked(given: object, kind: type[T]) -> T:
    """A combination or the settings, whose values Python may have set to others than their types.

    Raises:
        ConfigError: it is of another type, or a field is wrong.
    """
    if not isinstance(given, kind):
        raise ConfigError(f"{given!r} is a {type(given).__name__}, not a {kind.__name__} of infersdk.bench")
    return convert(msgspec.structs.asdict(given), kind, kind.__name__)


def usable_backends() -> list[str]:
    """Targets that are installed and find a device here, `"onnxruntime"` first. A backend that runs on a processor by
    default and can use the first GPU too is there twice."""
    gpu = device_count() > 0
    result = []
    for name in sorted(list_backends(), key=lambda name: (name != "onnxruntime", name)):
        with contextlib.suppress(Exception):  # a BackendError, or any exception of a runtime
            declaration = backend_class(name).declaration
            result += targets_of(name, declaration.probe().devices, declaration.default_device, gpu=gpu)
    return result or ["onnxruntime"]


def targets_of(name: str, devices: Sequence[str], default: str, *, gpu: bool) -> list[str]:
    """Where a backend is measured: where it runs by default, and on an NVIDIA GPU.

    Args:
        devices: those that it reports. A runtime may report "cuda" because it was built for it.
        gpu: whether there is one.
    """
    if not devices:
        return []
    again = gpu and "cuda" in devices and not default.startswith("cuda")
    return [name, f"{name}@cuda:0"] if again else [name]
