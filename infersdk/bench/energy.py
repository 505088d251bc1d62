"""Energy counters of GPUs (NVML) and processors (RAPL, through Linux' powercap).

They count the whole chip, including idle power and other processes, and only that chip: the figure of a model on a GPU
excludes the processor. The figures are meaningful only on an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import perf_counter

from .nvidia import cuda_index, nvml_handle

__all__ = ["NOT_MEASURABLE", "EnergyMeter", "Watch", "open_meter"]

NOT_MEASURABLE = "not measurable here"

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True)
class EnergyMeter:
    """A counter: its name, and a function that returns the joules since any start."""

    source: str
    joules: Callable[[], float]


class Watch:
    """The mean power while it is open.

    Counters change in irregular steps, those of NVML a few times a second. The power is therefore measured between the
    first and the last step, and not between the ends of the measurement.
    """

    #: Seconds between readings of the counter.
    INTERVAL = 0.01

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter
        self._steps: list[tuple[float, float]] = []
        self._error: Exception | None = None
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
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
        return (last - first) / (end - start)

    @property
    def source(self) -> str:
        """The counter, or the reason of a failure."""
        if self._error is not None:
            return f"{NOT_MEASURABLE}: {self._meter.source} says {self._error}"
        return self._meter.source if len(self._steps) > 1 else f"{self._meter.source} did not move twice in a round"

    def _look(self) -> None:
        try:
            shown = self._meter.joules()
            while not self._done.wait(self.INTERVAL):
                now = self._meter.joules()
                if now != shown:
                    shown = now
                    self._steps.append((perf_counter(), now))
        except Exception as error:  # exceptions of the driver, whose classes exist only with its package
            self._error = error


def _nvml(index: int) -> EnergyMeter:
    nvml, handle = nvml_handle(index)
    meter = EnergyMeter("NVML: the whole GPU", lambda: 1e-3 * float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))
    meter.joules()  # raises if the GPU has no counter
    return meter


def _rapl(folder: Path) -> EnergyMeter:
    """The counters of the processor packages, which wrap at a limit that the system reports."""
    # intel-rapl:0 is a package and includes its parts, such as intel-rapl:0:0.
    zones = [
        (zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()))
        for zone in sorted(folder.glob("*-rapl:*"))
        if zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
    ]
    if not zones:
        raise OSError(f"no processor package in {folder}")
    last, total = [int(counter.read_text()) for counter, _ in zones], 0

    def joules() -> float:
        nonlocal last, total
        now = [int(counter.read_text()) for counter, _ in zones]
        total += sum((end - start) % limit for start, end, (_, limit) in zip(last, now, zones, strict=True))
        last = now
        return total * 1e-6

    return EnergyMeter("RAPL: the whole processor package", joules)


def open_meter(device: str) -> tuple[EnergyMeter | None, str]:
    """The meter for a device (`"cuda:0"`, `"cpu"`), or None with the reason why there is none."""
    index = cuda_index(device)
    if index is not None:
        try:
            return _nvml(index), ""
        except ImportError:
            return None, f'{NOT_MEASURABLE}: NVML needs nvidia-ml-py: pip install "infersdk[bench]"'
        except Exception as error:  # exceptions of the driver, whose classes exist only with its package
            return None, f"{NOT_MEASURABLE}: NVML says {error}"
    if device.partition(":")[0] != "cpu":
        return None, f"{NOT_MEASURABLE}: no counter is known for the energy of {device}"
    try:
        return _rapl(_POWERCAP), ""
    except PermissionError:
        return None, f"{NOT_MEASURABLE}: only root may read the counters in {_POWERCAP}"
    except (OSError, ValueError):
        return None, f"{NOT_MEASURABLE}: no RAPL counters in {_POWERCAP}"
