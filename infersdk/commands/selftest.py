"""`infersdk doctor --selftest BACKEND`: builds a packaged model, runs it, and compares the outputs."""

from __future__ import annotations

import json
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..accuracy.compare import Loader, Tolerance, compare
from ..bench.machine import describe_machine
from ..core.target import Target, arithmetic_of
from ..data import CLASSIFIER, DETECTOR, IMAGE
from ..errors import BackendUnavailableError, DeviceUnavailableError, PrecisionUnavailableError, ShapeError
from ..loading.registry import backend_class, load
from ..models import Detections, YOLOv5
from ..models.results.agreement import best_matches, overlaps

__all__ = ["SelfTest", "line_of", "text_of"]

#: The largest difference of an output that is taken for the same: scores lie in 0 to 1, edges in 0 to 320 pixels. GPUs
#: may round the factors of FP32 products to TF32.
TOLERANCES = {"fp32": 2e-2, "tf32": 0.5, "fp16": 4.0, "bf16": 16.0}
#: Minimum share of the digits found in the packaged image, and maximum number of wrong ones.
FOUND, WRONG = 0.9, 2
BATCH = 4


class _SkippedError(Exception):
    """The step does not apply to this backend; the message has the reason."""


class SelfTest:
    """The steps of a self-test and their results.

    Args:
        target: the backend: `"tensorrt"`, `"onnxruntime@cuda:0"`.
        say: called with a line after each step.

    Attributes:
        steps: for each step its `name`, `result` (`"passed"`, `"failed"`, `"skipped"`), `seconds` and `detail`.
    """

    def __init__(self, target: str, say: Callable[[str], None]) -> None:
        self.target = Target.parse(target)
        self.steps: list[dict[str, Any]] = []
        self._say = say
        self._started = perf_counter()

    @property
    def passed(self) -> bool:
        return all(step["result"] != "failed" for step in self.steps)

    def report(self) -> dict[str, Any]:
        """The report: machine, versions and steps."""
        return {
            "target": str(self.target),
            "passed": self.passed,
            "seconds": round(perf_counter() - self._started, 1),
            "machine": describe_machine(),
            "steps": self.steps,
        }

    def run(self) -> None:
        """Runs all steps; a step that fails is noted, and the next one begins.

        Raises:
            BackendError: the backend, or its device, is not available here.
        """
        declaration = backend_class(self.target.backend).declaration
        info = declaration.probe()
        self._note("runtime", "passed", 0.0, f"{info.version}, devices: {', '.join(info.devices) or 'none'}")
        self._device = self.target.device or declaration.default_device
        # A temporary cache, so that engines are built now.
        with tempfile.TemporaryDirectory(prefix="infersdk-selftest-") as folder:
            self._cache: dict[str, Any] = {"cache_dir": folder} if declaration.options.has("cache_dir") else {}
            self._step("load, built", self._load)
            if self._cache:
                self._step("load again, from the cache", self._load)
            self._step("outputs, batch 1", lambda: self._outputs(DETECTOR, (1, 3, 320, 320)))
            self._step(f"outputs, batch {BATCH}", lambda: self._outputs(DETECTOR, (BATCH, 3, 320, 320)))
            self._step("another model", lambda: self._outputs(CLASSIFIER, (1, 3, 32, 32)))
            self._step("a wrong shape is refused", self._wrong_shape)
            self._step("digits of the packaged image", self._digits)
            self._step("32 requests side by side", self._requests)
            self._step("fp16", lambda: self._outputs(DETECTOR, (1, 3, 320, 320), "fp16"))
            if declaration.options.has("cuda_graph"):
                self._step("CUDA graphs", self._graphs)

    # ---- steps: each returns its detail ----

    def _load(self) -> str:
        images = np.zeros((1, 3, 320, 320), np.float32)
        with self._network() as infer:
            for _ in range(3):
                start = perf_counter()
                infer(images)
                seconds = perf_counter() - start
            return f"{infer.device}, {infer.precision}, max_batch {infer.max_batch}; a run takes {1e3 * seconds:.2f} ms"

    def _outputs(self, model: Path, shape: tuple[int, ...], precision: str | None = None) -> str:
        """Random inputs, against ONNX Runtime on the processor."""
        if self.target.backend == "onnxruntime" and self._device == "cpu":
            raise _SkippedError("ONNX Runtime on the processor is what others are compared with")
        try:
            backend_class("onnxruntime")
        except BackendUnavailableError as error:
            raise _SkippedError(f"nothing to compare with: {error}") from None
        images = np.random.default_rng(7).random(shape).astype(np.float32)
        own = precision or self.target.precision
        arithmetic = arithmetic_of(own or "fp32", self._device)
        # The packaged models do not run in int8.
        tolerance = Tolerance(TOLERANCES.get(arithmetic, 0.0), 0.0, 2.0)
        sides: dict[str, str | Loader] = {
            "onnxruntime": "onnxruntime@cpu",
            "own": lambda file: self._network(file, precision=own),
        }
        try:
            report = compare(model, sides, lambda specs: [{specs[0].name: images}], tolerance=tolerance)
        except PrecisionUnavailableError as error:
            raise _SkippedError(str(error)) from None
        for found in report.sides[0].outputs:
            if not found.within:
                apart = found.note or f"differs by {found.max_abs:.3g} from ONNX Runtime's"
                raise AssertionError(f"{found.name} {apart}; {tolerance.atol:g} is allowed")
        return ", ".join(
            f"{found.name} differs by {found.max_abs:.2g} from ONNX Runtime's" for found in report.sides[0].outputs
        )

    def _wrong_shape(self) -> str:
        with self._network() as infer:
            try:
                infer(np.zeros((1, 3, 100, 320), np.float32))
            except ShapeError as error:
                message = str(error)
            else:
                raise AssertionError("an input of a wrong shape was taken")
            infer(np.zeros((1, 3, 320, 320), np.float32))
            return message

    def _digits(self) -> str:
        with self._detector() as detector:
            return self._check_digits(detector(IMAGE))

    def _requests(self) -> str:
        with self._detector() as detector, detector.clone() as twin:
            alone = twin(IMAGE)
            for future in [detector.submit(IMAGE) for _ in range(32)]:
                result = future.result(60)
                if result.class_ids.tolist() != alone.class_ids.tolist():
                    raise AssertionError(f"a batch gives {result}, and the image alone {alone}")
            batches = detector.pipeline.stats().batch_sizes
        return f"batches by size: {dict(batches)}"

    def _graphs(self) -> str:
        if self._device == "cpu":
            raise _SkippedError("not on the processor")
        with self._detector(cuda_graph=True) as detector:
            for _ in range(3):  # as it is, captured, replayed
                detail = self._check_digits(detector(IMAGE))
            return detail

    # ---- helpers ----

    def _network(self, model: Path = DETECTOR, **settings: Any) -> Any:
        return load(model, **{**self.target.arguments, "max_batch": BATCH, **settings}, **self._cache)

    def _detector(self, **options: Any) -> Any:
        return YOLOv5(DETECTOR, **self.target.arguments, max_batch=BATCH, conf=0.5, **self._cache, **options)

    @staticmethod
    def _check_digits(found: Detections) -> str:
        truth = json.loads(IMAGE.with_suffix(".json").read_text("utf-8"))["objects"]
        boxes, class_ids = (np.asarray([one[name] for one in truth]) for name in ("box", "class_id"))
        ious = overlaps(boxes, found.xyxy) * (class_ids[:, None] == found.class_ids)
        hits = len(list(best_matches(ious)))
        wrong = len(found) - hits
        if hits < FOUND * len(truth) or wrong > WRONG:
            raise AssertionError(f"{hits} of {len(truth)} digits are found, and {wrong} wrong ones: {found}")
        return f"{hits} of {len(truth)} digits, {wrong} wrong"

    def _step(self, name: str, work: Callable[[], str]) -> None:
        start = perf_counter()
        try:
            result, detail = "passed", work()
        except (BackendUnavailableError, DeviceUnavailableError):
            raise  # there is nothing to test
        except _SkippedError as reason:
            result, detail = "skipped", str(reason)
        except Exception as error:  # a runtime may raise any exception; the report shows it
            where = traceback.extract_tb(error.__traceback__)[-1]
            result = "failed"
            detail = f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
        self._note(name, result, perf_counter() - start, detail)

    def _note(self, name: str, result: str, seconds: float, detail: str) -> None:
        step = {"name": name, "result": result, "seconds": round(seconds, 2), "detail": " ".join(detail.split())}
        self.steps.append(step)
        self._say(line_of(step))


def line_of(step: dict[str, Any]) -> str:
    """A step as a line of the report."""
    return f"[{step['result']:>7}] {step['name']} ({step['seconds']:.2f} s): {step['detail']}"


def text_of(report: dict[str, Any]) -> str:
    """A report as text to paste into an issue."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    gpus = "; ".join(machine["gpus"]) or "none"
    outcome = "PASSED" if report["passed"] else "FAILED"
    return "\n".join(
        [
            f"infersdk {machine['infersdk']} self-test of {report['target']}: {outcome} in {report['seconds']:.1f} s",
            f"{machine['system']}, Python {machine['python']}, {machine['processor']}, SIMD {machine['simd']}",
            f"GPUs: {gpus}",
            f"packages: {packages}",
            *map(line_of, report["steps"]),
        ]
    )
