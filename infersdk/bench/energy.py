"""Energy counters of GPUs (NVML) and processors (RAPL, through Linux' powercap).

They count the whole chip, including idle power and other processes, and only that chip: the figure of a model on a GPU
excludes the processor. The figures are meaningful only on an otherwise idle machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .nvidia import cuda_index, nvml_handle

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NOT_MEASURABLE", "EnergyMeter", "Watch", "open_meter"]

NOT_MEASURABLE = "not measurable here"

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter(ABC):
    """Joules between two readings.

    Attributes:
        source: the counter.
    """

    source = ""

    @abstractmethod
    def read(self) -> Any:
        """The counters now."""

    @abstractmethod
    def joules(self, before: Any, after: Any) -> float:
        """The energy between two readings."""


class Watch:
    """The mean power while it is open.

    Counters change in irregular steps, those of NVML a few times a second. The power is therefore measured between the
    first and the last step, and not between the ends of the measurement.
    """

    #: Seconds between readings of the counter.
    INTERVAL = 0.01

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter
        self._steps: list[tuple[float, Any]] = []
        self._error: Exception | None = None
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def watts(self) -> float | None:
        """None if unknown; `source` has the reason."""
        if self._error is not None or len(self._steps) < 2:
            return None
        (start, first), (end, last) = self._steps[0], self._steps[-1]
        return self._meter.joules(first, last) / (end - start)

    @property
    def source(self) -> str:
        """The counter, or the reason of a failure."""
        if self._error is not None:
            return f"{NOT_MEASURABLE}: {self._meter.source} says {self._error}"
        return self._meter.source if len(self._steps) > 1 else f"{self._meter.source} did not move twice in a round"

    def _look(self) -> None:
        try:
            shown = self._meter.read()
            while not self._done.wait(self.INTERVAL):
                now = self._meter.read()
                if now != shown:
                    shown = now
                    self._steps.append((perf_counter(), now))
        except Exception as error:  # exceptions of the driver, whose classes exist only with its package
            self._error = error


class _Nvml(EnergyMeter):
    def __init__(self, index: int) -> None:
        self._nvml, self._handle = nvml_handle(index)
        self.source = "NVML: the whole GPU"
        self.read()

    def read(self) -> float:
        return float(
            self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        )  # millijoules since the driver was loaded

    def joules(self, before: float, after: float) -> float:
        return (after - before) * 1e-3


class _Rapl(EnergyMeter):
    """The counters of the processor packages, which wrap at a limit that the system reports."""

    def __init__(self, folder: Path = _POWERCAP) -> None:
        # intel-rapl:0 is a package and includes its parts, such as intel-rapl:0:0.
        self._zones = [
            (zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
            for zone in sorted(folder.glob("*-rapl:*"))
            if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
        ]
        if not self._zones:
            raise OSError(f"no processor package in {folder}")
        self.source = "RAPL: the whole processor package"
        self.read()

    def read(self) -> list[int]:
        return [int(counter.read_text()) for counter, _ in self._zones]

    def joules(self, before: list[int], after: list[int]) -> float:
        total = 0
        for (_, limit), first, last in zip(self._zones, before, after, strict=True):
            total += last - first if last >= first else last - first + limit
        return total * 1e-6


def open_meter(device: str) -> tuple[EnergyMeter | None, str]:
    """The meter for a device (`"cuda:0"`, `"cpu"`), or None with the reason why there is none."""
    index = cuda_index(device)
    if index is not None:
        try:
            return _Nvml(index), ""
        except ImportError:
            return None, f'{NOT_MEASURABLE}: NVML needs nvidia-ml-py: pip install "infersdk[bench]"'
        except Exception as error:  # exceptions of the driver, whose classes exist only with its package
            return None, f"{NOT_MEASURABLE}: NVML says {error}"
    if device.partition(":")[0] != "cpu":
        return None, f"{NOT_MEASURABLE}: no counter is known for the energy of {device}"
    try:
        return _Rapl(), ""
    except PermissionError:
        return None, f"{NOT_MEASURABLE}: only root may read the counters in {_POWERCAP}"
    except (OSError, ValueError):
        return None, f"{NOT_MEASURABLE}: no RAPL counters in {_POWERCAP}"
