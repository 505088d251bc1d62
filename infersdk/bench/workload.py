"""What a combination runs: the network alone, whole calls one after another, and requests through a pipeline."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _files
from ..errors import ConfigError, UnsupportedModelError
from ..samples import random_inputs, read_samples
from .statistics import Steady

if TYPE_CHECKING:
    from ..infer import Infer
    from ..models import ModelDescription
    from .plan import BenchSettings, Combination

__all__ = ["ENERGY_WAYS", "WAYS", "Slice", "Workload", "check_batch", "kind_of", "samples_of"]

#: How a combination is run, in the order of a round.
WAYS = ("engine", "engine_parallel", "single", "pipelined")
#: The one whose energy is counted: the first of these that there is.
ENERGY_WAYS = ("pipelined", "single", "engine")
#: The images that a folder of samples may hold.


@dataclass
class Slice:
    """What one turn of one way gave.

    Attributes:
        images: images (rows) that were run in `seconds`.
        latencies: seconds of each request: a run of a whole batch, or in a pipeline one image.
        stages: seconds by stage, for each of the requests.
    """

    images: int
    seconds: float
    latencies: list[float]
    stages: dict[str, list[float]] = field(default_factory=dict)


class Workload:
    """A loaded model with what it is fed.

    Args:
        infer: the network; it is closed with this.
        combination, settings: what is to be run.

    Raises:
        ConfigError: the batch does not fit the model, or there is nothing to feed it.
        UnsupportedModelError: it is no model for the wrapper.
    """

    def __init__(self, infer: Infer, combination: Combination, settings: BenchSettings) -> None:
        self.infer, self.batch = infer, combination.batch
        self._settings = settings
        check_batch(infer, self.batch)
        self.kind = settings.type if settings.type != "auto" else self._find_kind()
        self.model = make_wrapper(infer, self.kind, settings)
        self._twins: list[Infer] = []
        self._pipeline: Any = None
        self.pipeline_note = ""
        if self.model is not None:
            self.items: list[Any] = self._images()
            self._next = itertools.cycle(self.items)
            self._fill()
        else:
            self._feeds = self._arrays()
            for name, array in self._feeds.items():
                infer.inputs[name].resize(array.shape)
                np.copyto(infer.inputs[name].numpy(writable=True), array)
            infer.forward()
            self.items = self._rows()

    def _find_kind(self) -> str:
        """As `kind_of`, by what one run gives: runtimes differ in how much they know of an output's shape before."""
        from ..models import ModelDescription

        infer, model = self.infer, ModelDescription.of(self.infer)
        if len(infer.input_specs) != 1 or any(not isinstance(d, int) for d in infer.input_specs[0].shape[1:]):
            return kind_of(model)
        found = infer(random_inputs(infer.input_specs, batch=self.batch))
        specs = [
            dataclasses.replace(spec, shape=np.shape(found[spec.name])) if spec.kind == "tensor" else spec
            for spec in infer.output_specs
        ]
        return kind_of(dataclasses.replace(model, outputs=specs))

    def _images(self) -> list[Any]:
        from ..image import read_image

        files = image_files(self._settings)
        return list(map(str, files)) if self._settings.from_files else [read_image(file) for file in files]

    def _arrays(self) -> dict[str, Any]:
        """What the data has, as many samples as the batch takes; else random."""
        specs, settings, batch = self.infer.input_specs, self._settings, self.batch
        shapes = {name: (batch, *sizes[1:]) for name, sizes in settings.shapes.items()} or None
        if settings.data is None:
            # A shape that is given is one of a single row: the batch is this combination's.
            return random_inputs(specs, batch=batch, seed=settings.seed, shapes=shapes)
        found = list(itertools.islice(read_samples(settings.data, specs, shapes=settings.shapes or None), batch))
        if batch == 1 or not all(spec.has_free_batch for spec in specs):
            return dict(found[0])
        rows = {name: np.concatenate([sample[name] for sample in found]) for name in found[0]}
        return {name: np.resize(array, (batch, *array.shape[1:])) for name, array in rows.items()}

    def _fill(self) -> None:
        """What real images become, for the network alone to run on."""
        from ..image import read_image

        assert self.model is not None
        images = [read_image(item) for _, item in zip(range(self.batch), itertools.cycle(self.items), strict=False)]
        for name, array in next(self.model.network_inputs(images, batch=self.batch)).items():
            self.infer.inputs[name].resize(array.shape).numpy(writable=True)[:] = array
        self.infer.forward()

    def _rows(self) -> list[Any]:
        """Requests for a pipeline: rows of the arrays, without their batch axis."""
        arrays = self._feeds
        if any(not spec.shape for spec in self.infer.input_specs):
            return []
        return [{name: array[i] for name, array in arrays.items()} for i in range(self.batch)]

    # ---- the ways ----

    def ways(self) -> list[str]:
        """Those that this combination can be run in; `pipeline_note` says why the last may be missing."""
        found = [way for way in WAYS if self._settings.ways is None or way in self._settings.ways]
        if self.infer.concurrency == 1 and "engine_parallel" in found:
            found.remove("engine_parallel")
        if "pipelined" in found:
            try:
                self._open_pipeline()
            except (UnsupportedModelError, ConfigError) as error:
                self.pipeline_note = str(error)
                found.remove("pipelined")
        return found

    def run(self, way: str, seconds: float) -> Slice:
        """One turn of so many seconds at least."""
        turns: dict[str, Callable[[float], Slice]] = {
            "engine": self._engine, "engine_parallel": self._parallel, "single": self._single,
            "pipelined": self._pipelined,
        }  # fmt: skip
        return turns[way](seconds)

    def warm_up(self, way: str, window: float, limit: float) -> tuple[float, bool]:
        """Runs until it is steady, `limit` seconds at most: (seconds, whether it got steady).

        A window is `window` seconds long and has five runs at least; its figure is the median run, or where several
        go side by side the time for each image.
        """
        steady, start = Steady(), perf_counter()
        while perf_counter() - start < limit:
            if way in ("engine", "single"):
                latencies: list[float] = []
                while len(latencies) < 5:
                    latencies += self.run(way, window).latencies
                figure = float(np.median(latencies))
            else:
                turn = self.run(way, window)
                figure = turn.seconds / turn.images
            if steady.add(figure):
                return perf_counter() - start, True
        return perf_counter() - start, False

    def settle(self, way: str) -> None:
        """On a device, calls that are not counted: some runtimes plan anew when the shapes are others than in the run
        before, which in these turns was another way's, and that takes as long as hundreds of runs.
        """
        if self.infer.stream is None:
            return
        if way == "engine":
            self.infer.forward()
        elif way == "engine_parallel":
            for twin in self._twins:
                twin.forward()
        elif way == "single":
            self._call()

    def _engine(self, seconds: float) -> Slice:
        latencies, elapsed = _repeat(self.infer.forward, seconds)
        return Slice(len(latencies) * self.batch, elapsed, latencies)

    def _parallel(self, seconds: float) -> Slice:
        """As many runs side by side as the backend makes, each on a clone with the same input."""
        while len(self._twins) < self.infer.concurrency:
            self._twins.append(twin := self.infer.clone())
            for name, tensor in self.infer.inputs.items():
                np.copyto(twin.inputs[name].resize(tensor.shape).numpy(writable=True), tensor.numpy())
            twin.forward()
        found: list[list[float]] = [[] for _ in self._twins]
        failed: list[BaseException] = []
        gate = threading.Barrier(len(self._twins) + 1)

        def work(place: int, twin: Infer) -> None:
            gate.wait()
            try:
                found[place] = _repeat(twin.forward, seconds)[0]
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=entry) for entry in enumerate(self._twins)]
        for thread in threads:
            thread.start()
        gate.wait()
        start = perf_counter()
        for thread in threads:
            thread.join()
        elapsed = perf_counter() - start
        if failed:
            raise failed[0]
        latencies = [latency for each in found for latency in each]
        # Each thread at its own rate: at the end some have stopped while others are still at their last run.
        rate = sum(len(each) * self.batch / sum(each) for each in found)
        return Slice(round(rate * elapsed), elapsed, latencies)

    def _single(self, seconds: float) -> Slice:
        stages: dict[str, list[float]] = {}

        def call() -> None:
            for stage, spent in self._call().items():
                stages.setdefault(stage, []).append(spent)

        latencies, elapsed = _repeat(call, seconds)
        return Slice(len(latencies) * self.batch, elapsed, latencies, stages)

    def _call(self) -> dict[str, float]:
        """One call: the seconds of its stages."""
        return self._call_model() if self.model is not None else self._call_arrays()

    def _call_model(self) -> dict[str, float]:
        assert self.model is not None
        self.model([next(self._next) for _ in range(self.batch)])
        spent = self.model.timings
        if self.infer.stream is not None:
            # Its stages are queued on the device one behind the other, and only the last is waited for. `run.py` takes
            # off what the way "engine" needs.
            return {"whole": spent.infer}
        read = {"read": spent.read} if self._settings.from_files else {}
        after = {"copy": 0.0, "engine": spent.infer, "postprocess": spent.postprocess}
        return {**read, "preprocess": spent.preprocess, **after}

    def _call_arrays(self) -> dict[str, float]:
        """What `infer(x)` does, stage by stage."""
        infer, start = self.infer, perf_counter()
        for name, array in self._feeds.items():
            tensor = infer.inputs[name]
            np.copyto(tensor.numpy(writable=True), array)
            if infer.stream is not None:
                tensor.device_ptr()  # brings it over
        filled = perf_counter()
        infer.forward()
        ran = perf_counter()
        for tensor in infer.outputs.values():
            tensor.numpy().copy()
        return {"copy": perf_counter() - ran + filled - start, "engine": ran - filled}

    # ---- the pipeline ----

    def _open_pipeline(self) -> None:
        from ..pipeline import Pipeline

        if self._pipeline is None:
            if not self.items:
                raise UnsupportedModelError("an input has no batch axis, so requests cannot share a run")
            self._pipeline = Pipeline(self.model if self.model is not None else self.infer, max_batch=self.batch)

    def _pipelined(self, seconds: float) -> Slice:
        """Under full load: a request goes in as soon as there is a slot.

        What is counted begins when all slots have been filled and emptied once, and ends with the last request that
        was done while others still came in.
        """
        self._open_pipeline()
        pipeline, ended = self._pipeline, []
        fill = pipeline.slots + self.batch
        least = fill + 3 * self.batch
        lock = threading.Lock()
        failed: list[BaseException] = []

        def done(future: Any, begun: float) -> None:
            now = perf_counter()
            with lock:
                if not future.cancelled() and (error := future.exception()) is not None:
                    failed.append(error)
                ended.append((now, now - begun))

        futures = []
        start = perf_counter()
        for item in itertools.cycle(self.items):
            now = perf_counter()
            if failed or (now - start >= seconds and len(ended) >= least):
                break
            future = pipeline.submit(item)
            future.add_done_callback(lambda f, begun=now: done(f, begun))
            futures.append(future)
            if len(futures) > 4 * pipeline.slots:
                del futures[: pipeline.slots]
        stopped = perf_counter()
        for future in futures:
            future.exception()
        if failed:
            raise failed[0]
        with lock:
            times = sorted(entry for entry in ended if entry[0] <= stopped)
        # Results come a batch at a time: from the end of one to the end of a later one.
        counted = (len(times) - fill) // self.batch * self.batch
        first, last = times[len(times) - 1 - counted], times[-1]
        latencies = [latency for _, latency in times[-counted:]]
        return Slice(counted, last[0] - first[0], latencies)

    @property
    def requests_in_pipeline(self) -> int | None:
        """The slots of the pipeline: so many requests are in it under full load."""
        return self._pipeline.slots if self._pipeline is not None else None

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close(drain=False)
        for twin in self._twins:
            twin.close()
        if self.model is not None:
            self.model.close()
        else:
            self.infer.close()


def _repeat(call: Callable[[], Any], seconds: float) -> tuple[list[float], float]:
    """Calls until the seconds are over, once at least: the seconds of each call, and of all."""
    latencies, start = [], perf_counter()
    before = start
    while True:
        call()
        now = perf_counter()
        latencies.append(now - before)
        before = now
        if now - start >= seconds:
            return latencies, now - start


# ---- models and samples ----


def check_batch(infer: Infer, batch: int) -> None:
    """Raises ConfigError unless the model can be run with that batch."""
    for spec in infer.input_specs:
        if spec.fixed_batch not in (None, batch):
            raise ConfigError(
                f"input {spec} has a fixed batch of {spec.fixed_batch}, not {batch}; export it with a free batch axis"
            )


def kind_of(model: ModelDescription) -> str:
    """The name of the wrapper that fits a model; `"arrays"` where none does.

    Raises:
        UnsupportedModelError: several fit, and the file does not say which is right.
    """
    from ..models import fitting_types, wrapper_type

    fitting = fitting_types(model)
    if len(fitting) > 1:
        wrapper_type(model)  # says what to do
    return fitting[0] if fitting else "arrays"


def make_wrapper(infer: Infer, kind: str, settings: BenchSettings) -> Any:
    """The wrapper of that kind over `infer`; None for arrays."""
    if kind == "arrays":
        return None
    from ..models import load

    own: dict[str, Any] = {"names": settings.names}
    if kind == "classifier":
        own |= {"preset": settings.preset, "resize": settings.resize}
    return load(infer, type=kind, **{key: value for key, value in own.items() if value is not None})


def image_files(settings: BenchSettings) -> list[Path]:
    """The images that are run for speed: of the data, spread evenly, or the packaged one.

    Raises:
        ConfigError: the folder has none.
    """
    if settings.data is None:
        from ..data import IMAGE

        return [IMAGE]
    place = Path(settings.data)
    if not place.exists():
        raise ConfigError(f"no data at {str(place)!r}")
    every = _files.image_files(place, recursive=True) if place.is_dir() else [place]
    if not every:
        raise ConfigError(f"no image in {str(place)!r}")
    step = max(len(every) / settings.max_samples, 1.0)
    return [every[int(i * step)] for i in range(min(len(every), settings.max_samples))]


def samples_of(infer: Infer, kind: str, settings: BenchSettings) -> Iterator[Mapping[str, Any]]:
    """Inputs on which outputs are compared, the same for each combination of a model: images for a model of images,
    as its wrapper prepares them; else what lies in the data; else random arrays."""
    if kind != "arrays":
        model = make_wrapper(infer.clone(), kind, settings)
        try:
            yield from model.network_inputs(image_files(settings), batch=1)
        finally:
            model.close()
    elif settings.data is not None:
        shapes = settings.shapes or None
        yield from itertools.islice(read_samples(settings.data, infer.input_specs, shapes=shapes), settings.max_samples)
    else:
        fixed = any(spec.fixed_batch is not None for spec in infer.input_specs)
        for i in range(4):
            yield random_inputs(
                infer.input_specs, batch=None if fixed else 1, seed=settings.seed + i, shapes=settings.shapes or None
            )
