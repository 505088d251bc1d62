"""Progress of a long command on stderr: a bar on a terminal, a line for each stage in a pipe or file.

::

    with show_progress(quiet=arguments.json) as progress:
        report = bench(combinations, progress=progress.report)     # the share of all work
        with progress.stage("calibrating", len(images)) as advance:  # the share of one stage
            observe(images, progress=lambda step, done: advance(done))
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any, TextIO, TypeAlias

from ..core.text import printable
from .common import console

__all__ = ["ProgressReporter", "show_progress"]

#: In a pipe: seconds between lines of a stage, and the duration from which its end has a line.
EVERY, LONG = 30.0, 2.0


@contextlib.contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[ProgressReporter]:
    """Shows progress on stderr; nothing with `quiet`, as for `--json`."""
    if quiet or not sys.stderr.isatty():
        yield _Lines(io.StringIO() if quiet else sys.stderr)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    out = console(stderr=True)
    # A step of a long command may take minutes: the remaining time is estimated from its last hour.
    with Progress(*columns, console=out, transient=True, speed_estimate_period=3600) as bars:
        yield _Bars(bars)


def _joined(stage: str, detail: str) -> str:
    return f"{stage}: {detail}" if detail else stage


def _counted(done: float, total: float | None, unit: str, seconds: float) -> str:
    """`120 of 1,394 frames, 45.1 a second`; `9%` without a unit."""
    if not unit:
        return f"{done / total:.0%}" if total else ""
    count = f"{done:,.0f} of {total:,.0f}" if total else f"{done:,.0f}"
    return f"{count} {unit}, {done / max(seconds, 1e-9):.1f} a second"


class _Lines:
    """A line when a stage begins, and then one from time to time."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = monotonic) -> None:
        self._out, self._clock, self._start = out, clock, clock()
        self._stage: str | None = None
        self._said = 0.0

    def report(self, stage: str, share: float, detail: str = "") -> None:
        """Reports the stage, the completed share (0 to 1) of all work, and a detail of the stage."""
        if stage != self._stage or self._clock() - self._said >= EVERY:
            self._stage = stage
            self._say(f"{stage} ({share:.0%})", detail)

    @contextlib.contextmanager
    def stage(self, title: str, total: float | None = 1.0, unit: str = "") -> Iterator[Callable[[float], None]]:
        """A context manager for one stage; call its value with the completed part of `total`.

        Args:
            total: None if it is unknown, as for a camera.
            unit: the counted items, such as "frames"; counts and rate are then shown.
        """
        self._say(title)
        start = self._said

        def advance(done: float) -> None:
            if self._clock() - self._said >= EVERY:
                self._say(title, _counted(done, total, unit, self._clock() - start))

        yield advance
        if (passed := self._clock() - start) >= LONG:
            self._say(title, f"done in {timedelta(seconds=round(passed))}")

    def _say(self, stage: str, detail: str = "") -> None:
        self._said = self._clock()
        passed = timedelta(seconds=round(self._said - self._start))
        print(printable(f"[{passed}] {_joined(stage, detail)}"), file=self._out, flush=True)


class _Bars:
    """A bar for the whole command, and one for each stage. It has the methods of `_Lines`."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._task: Any = None

    def report(self, stage: str, share: float, detail: str = "") -> None:
        if self._task is None:
            self._task = self._bars.add_task("", total=1.0)
        self._bars.update(self._task, description=_joined(stage, detail), completed=share)

    @contextlib.contextmanager
    def stage(self, title: str, total: float | None = 1.0, unit: str = "") -> Iterator[Callable[[float], None]]:
        start, task = monotonic(), self._bars.add_task(title, total=total)

        def advance(done: float) -> None:
            text = _counted(done, total, unit, monotonic() - start)
            self._bars.update(task, completed=done, description=_joined(title, text))

        yield advance
        self._bars.remove_task(task)


#: The progress of a command; `report()` and `stage()` receive it.
ProgressReporter: TypeAlias = _Lines | _Bars
