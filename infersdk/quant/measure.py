"""What quantisation has cost and brought: agreement of two models' results, and their speed side by side."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..registry import load

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

__all__ = ["Speed", "agreement", "compare_speed"]


def agreement(reference: Sequence[Any], results: Sequence[Any], *, iou: float = 0.5) -> float:
    """How far results of wrappers agree, in per cent; the first are taken for the truth.

    - Detections: F1 of the boxes, those of one class that overlap by `iou` and more being the same (each once, the
      best-scored first). Two images without any box agree.
    - Classifications: images whose best class is the same.

    Raises:
        InputError: there are no results, or not as many on both sides.
    """
    if len(reference) != len(results) or not reference:
        raise InputError(f"{len(reference)} results against {len(results)}; give one or more, as many on both sides")
    if hasattr(reference[0], "xyxy"):
        matched = sum(_matches(a, b, iou) for a, b in zip(reference, results, strict=True))
        boxes = sum(len(a) + len(b) for a, b in zip(reference, results, strict=True))
        return 200 * matched / boxes if boxes else 100.0
    same = sum(int(a.class_ids[0]) == int(b.class_ids[0]) for a, b in zip(reference, results, strict=True))
    return 100 * same / len(reference)


def _matches(reference: Any, found: Any, iou: float) -> int:
    taken: set[int] = set()
    overlaps = _overlaps(found.xyxy, reference.xyxy) * (found.class_ids[:, None] == reference.class_ids[None])
    for row in overlaps:  # boxes come best first
        free = [i for i in np.argsort(-row) if i not in taken and row[i] >= iou]
        taken.update(free[:1])
    return len(taken)


def _overlaps(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """IoU of each box with each, `[len(a), len(b)]`."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = np.prod(np.clip(high - low, 0, None), axis=-1)
    area_a, area_b = np.prod(a[:, 2:] - a[:, :2], axis=-1), np.prod(b[:, 2:] - b[:, :2], axis=-1)
    return inner / np.maximum(area_a[:, None] + area_b[None] - inner, 1e-9)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Speed:
    """Milliseconds a run of two models on one backend of this machine: medians of runs that took turns."""

    backend: str
    device: str
    fp32: float
    int8: float

    @property
    def ratio(self) -> float:
        """How many times faster INT8 is; below 1 it is slower."""
        return self.fp32 / self.int8


def compare_speed(
    fp32: str | os.PathLike[str],
    int8: str | os.PathLike[str],
    inputs: Iterable[Mapping[str, npt.NDArray[Any]]],
    *,
    backend: str = "onnxruntime",
    runs: int = 20,
    **options: Any,
) -> Speed:
    """Runs two models in turns on the same data, so that what else the machine does falls on both.

    Args:
        fp32, int8: the model files.
        inputs: arrays by input name; the first is used.
        backend, options: as `infersdk.load()` takes them.
        runs: of each model, after two that are not counted.

    Raises:
        InputError: there is no data.
        BackendError, ModelError: a model does not load there.
    """
    feeds = next(iter(inputs), None)
    if feeds is None:
        raise InputError("there is no data to measure the speed with")
    seconds: tuple[list[float], list[float]] = ([], [])
    with contextlib.ExitStack() as stack:
        infers = [stack.enter_context(load(path, backend, **options)) for path in (fp32, int8)]
        for infer in infers:
            infer(feeds)
        for turn in range(runs + 1):
            for infer, spent in zip(infers, seconds, strict=True):
                start = perf_counter()
                infer.forward()
                if turn:
                    spent.append(perf_counter() - start)
        first, second = (statistics.median(spent) * 1e3 for spent in seconds)
        return Speed(infers[0].backend, str(infers[0].device), first, second)
