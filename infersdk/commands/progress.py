"""Progress of a long command on stderr: a bar on a terminal, a line for each stage in a pipe or file.

::

    with show_progress(quiet=arguments.json) as progress:
        report = bench(combinations, progress=progress.report)     # the share of all work
        with progress.stage("calibrating", len(images)) as advance:  # the share of one stage
            observe(images, progress=lambda step, done: advance(done))
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, TextIO

from ..core.text import printable
from .common import console

__all__ = ["ProgressReporter", "duration", "show_progress"]

#: In a pipe: seconds between lines of a stage, and before its first estimate.
EVERY, FIRST = 30.0, 2.0
#: The remaining time is estimated from this share on.
KNOWN = 0.05


class ProgressReporter:
    """Receives the progress of a command. This one shows nothing."""

    def report(self, stage: str, share: float, detail: str = "") -> None:
        """Reports the stage, the completed share (0 to 1) of all work, and a detail of the stage."""

    @contextlib.contextmanager
    def stage(self, title: str, total: float | None = 1.0, unit: str = "") -> Iterator[Callable[[float], None]]:
        """A context manager for one stage; call its value with the completed part of `total`.

        Args:
            total: None if it is unknown, as for a camera.
            unit: the counted items, such as "frames"; counts and rate are then shown.
        """
        yield lambda done: None


@contextlib.contextmanager
def show_progress(*, quiet: bool = False, expected: float | None = None) -> Iterator[ProgressReporter]:
    """Shows progress on stderr.

    Args:
        quiet: show nothing, as with `--json`.
        expected: estimated total seconds, used until the progress is known better.
    """
    if quiet:
        yield ProgressReporter()
    elif not sys.stderr.isatty():
        yield _Lines(sys.stderr, expected=expected)
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
        )  # fmt: skip
        with Progress(*columns, console=console(stderr=True), transient=True) as bars:
            yield _Bars(bars, expected)


def duration(seconds: float) -> str:
    """Formats seconds: `"45 s"`, `"3 min 20 s"`, `"1 h 05 min"`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Estimate:
    """Estimates the remaining time from the elapsed time and the completed share."""

    def __init__(self, clock: Callable[[], float], expected: float | None = None) -> None:
        self._clock, self._start, self._expected = clock, clock(), expected

    @property
    def passed(self) -> float:
        return self._clock() - self._start

    def left(self, share: float) -> float | None:
        """The remaining seconds; None if unknown."""
        if share >= KNOWN and self.passed > 0.5:
            return self.passed * (1 - share) / min(share, 1.0)
        return None if self._expected is None else max(self._expected - self.passed, 0.0)

    def text(self, share: float) -> str:
        left = self.left(share)
        return "" if left is None else f"about {duration(left)} left"


def _counted(done: float, total: float | None, unit: str, seconds: float) -> str:
    """`120 of 1,394 frames, 45.1 a second`."""
    count = f"{done:,.0f} of {total:,.0f}" if total else f"{done:,.0f}"
    return f"{count} {unit}, {done / max(seconds, 1e-9):.1f} a second"


class _Lines(ProgressReporter):
    """A line when a stage begins, and then one from time to time."""

    def __init__(
        self, out: TextIO, *, expected: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:  # fmt: skip
        self._out, self._clock = out, clock
        self._all = _Estimate(clock, expected)
        self._stage: str | None = None
        self._said = 0.0

    def report(self, stage: str, share: float, detail: str = "") -> None:
        if stage == self._stage and self._clock() - self._said < EVERY:
            return
        self._stage = stage
        self._say(stage, detail, self._all.text(share))

    @contextlib.contextmanager
    def stage(self, title: str, total: float | None = 1.0, unit: str = "") -> Iterator[Callable[[float], None]]:
        own = _Estimate(self._clock)
        self._say(title)
        first = self._said

        def advance(done: float) -> None:
            passed, share = self._clock() - self._said, done / total if total else KNOWN
            if passed >= (FIRST if self._said == first else EVERY) and KNOWN <= share < 1:
                text = _counted(done, total, unit, own.passed) if unit else f"{share:.0%}"
                self._say(title, text, own.text(share) if total else "")

        yield advance
        if own.passed >= FIRST:
            self._say(title, f"done in {duration(own.passed)}")

    def _say(self, stage: str, detail: str = "", left: str = "") -> None:
        self._said = self._clock()
        text = ": ".join(part for part in (stage, detail) if part)
        line = f"[{duration(self._all.passed)}] {', '.join(part for part in (text, left) if part)}"
        print(printable(line), file=self._out)
        self._out.flush()


class _Bars(ProgressReporter):
    """A bar for the whole command, and one for each stage."""

    def __init__(self, bars: Any, expected: float | None) -> None:
        self._bars = bars
        self._all = _Estimate(monotonic, expected)
        self._task: Any = None

    def report(self, stage: str, share: float, detail: str = "") -> None:
        text = ": ".join(part for part in (stage, detail) if part)
        if self._task is None:
            self._task = self._bars.add_task(text, total=1.0, left="")
        self._bars.update(self._task, description=text, completed=share, left=self._all.text(share))

    @contextlib.contextmanager
    def stage(self, title: str, total: float | None = 1.0, unit: str = "") -> Iterator[Callable[[float], None]]:
        own = _Estimate(monotonic)
        task = self._bars.add_task(title, total=total, left="")

        def advance(done: float) -> None:
            left = own.text(done / total) if total else ""
            text = f"{title}: {_counted(done, total, unit, own.passed)}" if unit else title
            self._bars.update(task, completed=done, left=left, description=text)

        yield advance
        self._bars.remove_task(task)
