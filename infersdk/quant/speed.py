"""The speed of two models side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..registry import load

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..infer import Infer

__all__ = ["Speed", "compare_runs", "compare_speed"]

#: Rounds that are measured at least, however long they take.
_LEAST_ROUNDS = 5


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
    rounds: int = 20,
    seconds: float = 1.0,
    **options: Any,
) -> Speed:
    """Runs two models in turns on the same data, so that what else the machine does falls on both.

    Args:
        fp32, int8: the model files.
        inputs: arrays by input name; the first is used.
        backend, options: as `infersdk.load()` takes them.
        rounds: runs of each model at most, after two that are not counted.
        seconds: after which no further round begins, once there are five.

    Raises:
        InputError: there is no data.
        BackendError, ModelError: a model does not load there.
    """
    feeds = next(iter(inputs), None)
    if feeds is None:
        raise InputError("there is no data to measure the speed with")
    with load(fp32, backend, **options) as plain, load(int8, backend, **options) as quantized:
        return compare_runs(plain, quantized, feeds, rounds=rounds, seconds=seconds)


def compare_runs(
    fp32: Infer, int8: Infer, feeds: Mapping[str, npt.NDArray[Any]], *, rounds: int = 20, seconds: float = 1.0
) -> Speed:
    """The same for two models that are loaded.

    Args:
        fp32, int8: on one backend and device.
        feeds: arrays by input name.
        rounds, seconds: as `compare_speed` takes them.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for infer in (fp32, int8):
        infer(feeds)
    began = perf_counter()
    for number in range(rounds + 1):
        for infer, spent in zip((fp32, int8), times, strict=True):
            start = perf_counter()
            infer.forward()
            if number:
                spent.append(perf_counter() - start)
        if number >= _LEAST_ROUNDS and perf_counter() - began > seconds:
            break
    first, second = (statistics.median(spent) * 1e3 for spent in times)
    return Speed(fp32.backend, str(fp32.device), first, second)
