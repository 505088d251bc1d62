"""The process of one combination: it loads, warms up and measures on request.

It receives the name and the arguments of a step from a `multiprocessing` connection, and sends the response.
`worker_process.py` is the other end.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, InferSDKError, PrecisionUnavailableError
from .nvidia import DeviceMemory, cuda_index, free_share, pci_address, start_cuda

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection as Connection
else:
    from multiprocessing.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from .plan import BenchSettings, Combination, Scenario
    from .report import Accuracy, Memory
    from .statistics import Measurement

__all__ = ["main"]


#: The scenario whose energy is counted is the first of these that is run.
ENERGY_SCENARIOS: tuple[Scenario, ...] = ("offline", "single_stream", "multi_stream", "engine")
#: Wrapper settings that do not apply to accuracy, because mAP needs boxes of low scores.
_THRESHOLDS = ("conf", "iou", "max_det", "multi_label")


class Worker:
    """The steps, one method each; the return value is the response."""

    def __init__(self) -> None:
        # `Scenarios` is imported after the timed import of the runtime.
        self._scenarios: Any = None
        self._bare = 0
        self._device_memory: DeviceMemory | None = None
        self._watched: Scenario | None = None  # the scenario whose energy is counted

    def load(self, combination: Combination, settings: BenchSettings, cache: str | None = None) -> dict[str, Any]:
        """Loads the model. `cache` is the cache folder for backends that have one."""
        from ..loading.registry import backend_class, load
        from .machine import resident_bytes

        self.combination, self._settings, what = combination, settings, combination
        start = perf_counter()
        kind = backend_class(what.target.backend)
        imported = perf_counter() - start
        options, notes, keeps = self._options(kind, cache)
        index = cuda_index(what.target.device or str(kind.declaration.default_device))
        if index is not None:
            # CUDA starts here, so that the load time is that of the model alone.
            start = perf_counter()
            with contextlib.suppress(OSError):  # loading reports the reason
                pci_address(index)
            imported += perf_counter() - start
            self._device_memory = DeviceMemory(index)
        arguments = {**what.target.arguments, "max_batch": what.batch}
        self._load_form: Callable[[Any], Any] = lambda model: load(model, **arguments, **options)
        with self._device_memory or contextlib.nullcontext():
            if index is not None:
                start = perf_counter()
                start_cuda(index)
                imported += perf_counter() - start
            self._bare = resident_bytes()
            start = perf_counter()
            self._infer = infer = self._load_form(what.model)
            seconds = perf_counter() - start
        return {
            "import_seconds": imported, "seconds": seconds, "keeps": keeps, "backend": infer.backend,
            "device": infer.device, "precision": infer.precision, "layers": dict(infer.layer_precisions),
            "concurrency": infer.scheduling.concurrency, "notes": notes, "version": kind.declaration.probe().version,
            "arguments": arguments, "options": options,
        }  # fmt: skip

    def _options(self, kind: Any, cache: str | None) -> tuple[dict[str, Any], list[str], bool]:
        what, options, notes = self.combination, dict(self.combination.options), []
        if what.threads:
            if kind.declaration.options.has("threads"):
                options["threads"] = what.threads
            else:
                notes.append(f"{what.target.backend} has no setting for threads")
        keeps = kind.declaration.options.has("cache_dir") and bool(options.get("cache", True))
        if cache is not None and keeps:
            options.setdefault("cache_dir", cache)
        return options, notes, keeps

    def first_run(self) -> dict[str, Any]:
        """The duration of the first run, in which some runtimes compile; None without possible inputs."""
        from ..loading.samples import random_inputs
        from .workload import check_batch

        settings, infer, batch = self._settings, self._infer, self.combination.batch
        try:
            check_batch(infer, batch)
            shapes = settings.shapes_of(batch)
            feeds = random_inputs(infer.input_specs, batch=batch, seed=settings.seed, shapes=shapes)
            with self._device_memory or contextlib.nullcontext():
                start = perf_counter()
                infer(feeds)
                return {"seconds": perf_counter() - start}
        except InferSDKError:  # `prepare` reports the reason
            return {"seconds": None}

    def prepare(self) -> dict[str, Any]:
        """Creates the workload, and warms up each scenario."""
        from .scenarios import Scenarios
        from .workload import ARRAYS, Workload, image_files

        settings = self._settings
        with self._device_memory or contextlib.nullcontext():
            self._work = work = Workload(self._infer, self.combination, settings, self._load_form)
            self._scenarios = scenarios = Scenarios(work, settings)
            names, warm = scenarios.names(), {}
            window, left = min(0.1, settings.time / settings.rounds), settings.warmup
            for index, name in enumerate(names):  # unused time goes to the following scenarios
                seconds, steady = scenarios.warm_up(name, window, max(left / (len(names) - index), window))
                left -= seconds
                warm[name] = {"seconds": seconds, "steady": steady}
            if not warm.get("server", {"steady": True})["steady"]:
                names.remove("server")
            self._watched = next((name for name in ENERGY_SCENARIOS if name in names), None)
        gpu = cuda_index(self._infer.device)
        return {
            "kind": work.kind, "decode_head": work.decode_head, "scenarios": names, "warmup": warm,
            "slots": scenarios.slots, "notes": [*work.notes, *scenarios.notes],
            "image": None if work.kind == ARRAYS else str(image_files(settings)[0]),
            "device_free_share": free_share(gpu) if gpu is not None else 1.0,
        }  # fmt: skip

    def measure(self, scenario: Scenario, seconds: float) -> Measurement:
        """One scenario in one round."""
        import numpy as np

        from .energy import Watch, open_meter
        from .machine import counters, growth

        meter, why = open_meter(self._infer.device) if scenario == self._watched else (None, "")
        with self._device_memory or contextlib.nullcontext():
            self._scenarios.settle(scenario)
            with Watch(meter) if meter is not None else contextlib.nullcontext() as watch:
                before = counters()
                done: Measurement = self._scenarios.run(scenario, seconds)
                done.load = growth(before)
        done.latencies = np.asarray(done.latencies)  # for the connection
        done.watts, done.energy_source = (None, why) if watch is None else (watch.watts, watch.source)
        return done

    def memory(self) -> Memory:
        """The peak memory of this process."""
        from .machine import peak_resident_bytes
        from .report import Memory

        peak, device = peak_resident_bytes(), self._device_memory
        return Memory(
            host_peak_bytes=peak, host_model_bytes=max(peak - self._bare, 0),
            device_peak_bytes=device.peak if device is not None else None,
            device_source=device.source if device is not None else "",
        )  # fmt: skip

    def accuracy(self) -> Accuracy:
        """The figures of the labelled images."""
        from ..accuracy import labelled_task
        from .report import Accuracy

        settings = self._settings
        own = {key: value for key, value in settings.wrapper.items() if key not in _THRESHOLDS}
        wrapper = self._work.model
        task = labelled_task(
            str(settings.data), annotations=settings.annotations, labels=settings.labels,
            task="" if wrapper is None else wrapper.task, type=None if wrapper is None else self._work.kind, **own,
        )  # fmt: skip
        figures = task.figures(self._infer if wrapper is None else wrapper.network)
        return Accuracy(metric=task.metric, value=figures[task.metric], figures=figures, images=task.images)

    def agreement(self, model: str) -> Accuracy:
        """The difference between the outputs and those of a model file in FP32 on ONNX Runtime."""
        import numpy as np

        from ..accuracy.compare import difference
        from ..loading.registry import load
        from .report import Accuracy

        reference = f"{Path(model).name} on onnxruntime/fp32"
        try:
            first = load(model, "onnxruntime", device="cpu", precision="fp32")
        except InferSDKError as error:
            raise ConfigError(f"{reference} gives nothing to compare with: {error}") from None
        worst = furthest = 0.0
        argmax, count = [], 0
        with first, self._infer.clone() as twin:
            if len(first.input_specs) != len(twin.input_specs) or len(first.output_specs) != len(twin.output_specs):
                raise ConfigError(f"{reference} has other inputs or outputs")
            for sample in self._work.samples():
                arrays = zip(first.input_specs, map(np.asarray, sample.values()), strict=True)
                expected = first({s.name: array.astype(s.dtype, casting="same_kind") for s, array in arrays})
                for (name, array), truth in zip(twin(sample).items(), expected.values(), strict=True):
                    apart = difference(truth, array, name=name)
                    if apart.note:
                        raise ConfigError(f"output {name!r} {apart.note} as {reference} gives it")
                    worst, furthest = max(worst, apart.cosine), max(furthest, apart.max_abs)
                    if apart.max_abs == float("inf"):  # NaN or infinite elements, which the cosine leaves out
                        worst = max(worst, 1.0)
                    if apart.argmax is not None:
                        argmax.append(apart.argmax)
                count += 1
        figures = {"cosine": 1 - worst, "max_abs": furthest}
        if argmax:
            figures["argmax"] = float(np.mean(argmax))
        return Accuracy(metric="agreement", value=1 - worst, figures=figures, images=count, reference=reference)


def _reason(worker: Worker, error: Exception) -> str:
    """The reason of a failed row."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, InferSDKError):
        return f"{type(error).__name__}: {text}"
    if isinstance(error, PrecisionUnavailableError) and worker.combination.target.precision == "int8":
        file = Path(worker.combination.model)
        text += (
            f". An INT8 file is a model of its own: infersdk quantize {file.name} --data FOLDER -o "
            f"{file.stem}.int8.onnx, and then infersdk bench {file.name} {file.stem}.int8.onnx"
        )
    return text


def main(channel: int) -> None:
    """Runs steps until the other end of the connection, a file descriptor or a handle, is closed."""
    worker, connection = Worker(), Connection(channel)
    with contextlib.suppress(EOFError):
        while True:
            do, order = connection.recv()
            try:
                response = True, getattr(worker, do)(**order)
            except Exception as error:  # a runtime may raise any exception
                code = error.code if isinstance(error, InferSDKError) else ""
                if not code:
                    traceback.print_exc()
                response = False, (_reason(worker, error), code)
            connection.send(response)
