"""Compares the speed of two models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..loading.registry import load

if TYPE_CHECKING:
    import os

    import numpy.typing as npt

    from ..infer import Infer

__all__ = ["Speed", "compare_runs", "compare_speed"]

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
    fp32: str | os.PathLike[str],
    int8: str | os.PathLike[str],
    inputs: Iterable[Mapping[str, npt.NDArray[Any]]],
    *,
    backend: str = "onnxruntime",
    rounds: int = 20,
    seconds: float = 1.0,
    **options: Any,
) -> Speed:
    """Runs two models in turns on the same data, so that other load on the machine affects both.

    Args:
        fp32, int8: the model files.
        inputs: arrays by input name; only the first item is used.
        backend, options: as in `infersdk.load()`.
        rounds: the maximum number of rounds, after a warm-up.
        seconds: the time limit, once there are five rounds.

    Raises:
        InputError: there is no data.
        BackendError, ModelError: a model cannot be loaded.
    """
    feeds = next(iter(inputs), None)
    if feeds is None:
        raise InputError("there is no data to measure the speed with; give at least one sample")
    with load(fp32, backend, **options) as plain, load(int8, backend, **options) as quantized:
        return compare_runs(plain, quantized, feeds, rounds=rounds, seconds=seconds)


def compare_runs(
    fp32: Infer, int8: Infer, feeds: Mapping[str, npt.NDArray[Any]], *, rounds: int = 20, seconds: float = 1.0
) -> Speed:
    """`compare_speed` for two loaded models.

    Args:
        fp32, int8: the models, on one backend and device.
        feeds: arrays by input name.
        rounds, seconds: as in `compare_speed`.
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
        if number >= _MIN_ROUNDS and perf_counter() - began > seconds:
            break
    first, second = (statistics.median(spent) * 1e3 for spent in times)
    return Speed(fp32.backend, str(fp32.device), first, second)
