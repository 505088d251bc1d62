"""Compares the speed of two installed states of the project on one machine, in alternation.

    python benchmarks/compare_states.py BEFORE AFTER [--minutes 15] [--output states.json]
    python benchmarks/compare_states.py BEFORE AFTER --set gpu

A state is `SOURCES:SITE`: a source tree, whose own `benchmarks/` are run, and where its package is installed: a folder
for PYTHONPATH (a wheel unpacked into it, say), or the interpreter of a virtual environment; without `:SITE` it is the
package that this program imports. For example

    python benchmarks/compare_states.py ../old:/tmp/old-site .:/tmp/new-site

Each file of benchmarks runs in two processes at the same time, one a state, of which only one works at any moment: they
measure each row in slices that alternate, and so does who comes first (`lockstep/pytest_lockstep.py`). What else the
machine does falls on both alike. All of it is repeated in new processes until the time is up, since a process may by
chance be a slow one. The ratio of a row is speed after over speed before, so more than 1 is faster; it is the median
over the pairs of processes, and its 95 % interval is that of resampled pairs. A row that ran in fewer than three pairs
has the median over its slices, and is marked so: where the pages of a process happen to lie moves a letterbox by up to
a quarter, so its interval says nothing of other processes.

A row is `slower` where its whole interval lies below 0.98; rows of `forward()` where it lies below 1. A row of slices
whose interval lies there has to be `repeated`, with --files and more time. Rows of other libraries' code are controls:
they are the same code in both states, and show what the machine adds. The exit code is 1 if a row is slower or fails in
the second state alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import subprocess
import sys
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

from infersdk.bench.machine import Load, describe_machine
from infersdk.bench.statistics import Estimate, median_of_rounds

HERE = Path(__file__).resolve().parent
#: Pairs of processes that the quick files have before the long ones run.
ENOUGH = 5
#: A row is slower where its whole interval lies below.
LIMIT, FORWARD_LIMIT = 0.98, 1.0
FORWARD = re.compile(r"test_forward\b|infer_forward")
CONTROL = re.compile(
    r"by_hand|session_run|bound_request|compiled_call|runtime_alone|engine alone|opencv_(numpy|torch)"
    r"|\[(numpy|torch|ultralytics)"
)


class Selection(NamedTuple):
    """Files that run in one process.

    Attributes:
        files: of `benchmarks/`.
        without: tests that are left out, by name: other libraries' code, what takes minutes, what has no figure.
        most: so many pairs of processes at most; None is as many as there is time for.
    """

    files: tuple[str, ...]
    without: str = r"$^"
    most: int | None = None


#: By set: first what runs longest, then the calls over and over.
SETS: dict[str, list[Selection]] = {
    "cpu": [
        Selection(
            (
                "bench_infer.py", "bench_infer_openvino.py", "bench_preprocess.py", "bench_postprocess.py",
                "bench_detector.py", "bench_calibration.py",
            ),
            without=r"opencv|torch|numpy|ultralytics|plain_c|test_thresholds_onnxruntime|memory_does_not_grow|test_speed"
            r"|compiled_call|import_stays|its_budget",
        ),
        Selection(("bench_pipeline.py",), without="openvinos_queue", most=1),
        Selection(("bench_video.py",), most=1),
    ],
    "gpu": [
        Selection(("bench_cuda_path.py",), without="usual_path"),
        Selection(("bench_cuda_kernels.py", "bench_tensorrt.py")),
    ],
}  # fmt: skip


class Printed(NamedTuple):
    """A figure that a test prints: the last group of `pattern`, in `unit` seconds, or a rate where that is None.

    The row's name comes from `name` with the other groups in it.
    """

    file: str
    name: str
    pattern: str
    unit: float | None


_PATH, _N = "bench_cuda_path.py", r"([\d.,]+)"
PRINTED = [
    Printed("bench_detector.py", "around the engine", rf"around the engine {_N} ms", unit=1e-3),
    Printed("bench_pipeline.py", "p50 of random arrivals", rf"requests: p50 {_N} ms", unit=1e-3),
    Printed("bench_pipeline.py", "p99 of random arrivals", rf"requests: p50 [\d.]+ ms, p99 {_N} ms", unit=1e-3),
    Printed(_PATH, "engine alone, batch 32", rf"engine alone: .*batch 32 {_N} ms", unit=1e-3),
    Printed(_PATH, "streamed", rf"streamed: {_N} img/s", unit=None),
    Printed(_PATH, "map()", rf"one thread with map\(\) {_N} img/s", unit=None),
    Printed(
        _PATH, "{} submitters with {} under way", rf"(\d+) submitters with (\d+) under way each: {_N} img/s", unit=None
    ),
    Printed(
        _PATH, "preprocess={}, page-locked, batch 32", rf"preprocess=(\w+) \S+: page-locked {_N} img/s", unit=None
    ),
    Printed(_PATH, "preprocess={}, ordinary, batch 32", rf"preprocess=(\w+) .*; ordinary {_N} img/s", unit=None),
    Printed(_PATH, "preprocess={}, {}, batch 1", rf"batch 1, preprocess=(\w+), ([\w-]+): {_N} ms", unit=1e-3),
    Printed("bench_cuda_kernels.py", "kernel", rf"^(?:letterbox|detect|softmax) .*?: {_N} us", unit=1e-6),
]  # fmt: skip


# ---- the two processes ----


@dataclass
class State:
    """One of the two: where its sources are, and how its package is imported."""

    name: str
    sources: Path
    python: str = sys.executable
    site: str = ""

    @classmethod
    def parse(cls, name: str, text: str) -> State:
        sources, _, site = text.partition(":")
        folder = Path(sources).resolve()
        if not (folder / "benchmarks").is_dir():
            raise SystemExit(f"{name}: {sources!r} has no folder benchmarks/; give the root of a source tree")
        if site and not Path(site).exists():
            raise SystemExit(f"{name}: no {site!r}; give the folder or the interpreter that has the package")
        if site and Path(site).is_file():
            return cls(name, folder, python=os.path.abspath(site))  # of a virtual environment: not its target
        return cls(name, folder, site=os.path.abspath(site) if site else "")

    def environment(self) -> dict[str, str]:
        assets = os.environ.get("INFERSDK_ASSETS") or str(HERE.parents[1] / "shared" / "assets")
        own = {"PYTHONPATH": self.site} if self.site or self.python != sys.executable else {}
        return {**os.environ, "INFERSDK_ASSETS": assets, **own}

    def check(self) -> str:
        """Where the package comes from; ends the program where it does not import."""
        command = [self.python, "-P", "-c", "import infersdk, infersdk._native; print(infersdk.__file__)"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=self.environment())
        if done.returncode:
            raise SystemExit(f"{self.name}: infersdk does not import: {done.stderr.strip().splitlines()[-1]}")
        return done.stdout.strip()


class Process:
    """The tests of some files of one state, waiting to be let on."""

    def __init__(self, state: State, files: list[str], slices: int, seconds: float) -> None:
        self.state, self._rest = state, b""
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        environment = state.environment() | {
            "LOCKSTEP_IN": str(their_in), "LOCKSTEP_OUT": str(their_out), "LOCKSTEP_SLICES": str(slices),
            "LOCKSTEP_SECONDS": str(seconds),
        }  # fmt: skip
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [environment.get("PYTHONPATH"), str(HERE / "lockstep")])
        )
        self._process = subprocess.Popen(
            [
                state.python, "-P", "-m", "pytest", *(str(state.sources / "benchmarks" / file) for file in files), "-q",
                *("-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:randomly", "-p", "pytest_lockstep"),
                "--timeout=0",
            ],
            cwd=state.sources, env=environment, pass_fds=(their_in, their_out), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.close(their_in)
        os.close(their_out)
        self._in, self._out = our_in, our_out
        self.output = b""  # the end of what pytest prints
        self.ended = False

    def next(self) -> dict[str, Any] | None:
        """The next message; None at the end. What pytest prints is read along, so that its pipe never fills up."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_READ)
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                for key, _ in ready.select():
                    part = os.read(key.fd, 1 << 16)
                    if key.fd != self._in:
                        self.output = (self.output + part)[-4000:]
                        if not part:
                            ready.unregister(key.fd)
                    elif part:
                        self._rest += part
                    else:
                        self.ended = True
                        return None
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def answer(self, message: dict[str, Any]) -> None:
        try:
            os.write(self._out, json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            self.ended = True

    def step(self) -> list[dict[str, Any]]:
        """Lets it work until it waits again: what it says meanwhile."""
        self.answer({})
        return self.until_it_waits()

    def until_it_waits(self) -> list[dict[str, Any]]:
        said = []
        while (message := self.next()) is not None and "wait" not in message:
            said.append(message)
        return said

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


# ---- rows ----


@dataclass
class Row:
    """A figure of a test. By pair of processes and by state: what each slice gave."""

    name: str
    rate: bool
    pairs: list[tuple[list[float], list[float]]] = field(default_factory=list)

    def ratios(self) -> tuple[list[float], bool]:
        """Speed after over speed before; and whether each is of a pair of processes, rather than of a slice."""
        both = [(before, after) for before, after in self.pairs if before and after]
        if len(both) >= 3:
            return [self._ratio(median(before), median(after)) for before, after in both], True
        slices = [(b, a) for before, after in both for b, a in zip(before, after, strict=False)]
        return [self._ratio(b, a) for b, a in slices], False

    def _ratio(self, before: float, after: float) -> float:
        return after / before if self.rate else before / after

    def result(self) -> dict[str, Any] | None:
        ratios, by_pair = self.ratios()
        if not ratios:
            return None
        estimate = median_of_rounds(ratios)
        return {
            "row": self.name, "ratio": estimate.value, "low": estimate.low, "high": estimate.high,
            "verdict": self._verdict(estimate, by_pair=by_pair), "by": "pair" if by_pair else "slice", "ratios": ratios,
            **{
                name: median([v for pair in self.pairs for v in pair[index]])
                for index, name in enumerate(("before", "after"))
            },
            "unit": "/s" if self.rate else "s",
        }  # fmt: skip

    def _verdict(self, ratio: Estimate, *, by_pair: bool) -> str:
        if CONTROL.search(self.name):
            return "control"
        if ratio.low is None or ratio.high is None:
            return "too few"
        if ratio.high < (FORWARD_LIMIT if FORWARD.search(self.name) else LIMIT):
            return "slower" if by_pair else "repeat"
        return "faster" if ratio.low > 1 else "same"


class Comparison:
    """What has been measured so far."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.failures: dict[str, dict[str, str]] = {}
        self.only: dict[str, set[str]] = {"before": set(), "after": set()}
        self.pairs = 0

    def run(self, selection: Selection, states: tuple[State, State], slices: int, seconds: float) -> None:
        """One pair of processes."""
        files = [
            [file for file in selection.files if (state.sources / "benchmarks" / file).exists()] for state in states
        ]
        processes = [Process(state, own, slices, seconds) for state, own in zip(states, files, strict=True)]
        try:
            tests = [process.next() or {"tests": []} for process in processes]
            left_out = re.compile(selection.without)
            names = [[name for name in entry["tests"] if not left_out.search(name)] for entry in tests]
            common = [name for name in names[0] if name in names[1]]
            for state, own in zip(states, names, strict=True):
                self.only[state.name] |= set(own) - set(common)
                if not own:
                    process = processes[states.index(state)]
                    process.next()
                    raise SystemExit(f"{state.name}: no tests: {process.output.decode(errors='replace')}")
            for process in processes:
                process.answer({"run": common})
            for index, process in enumerate(processes):
                self._keep(index, process.until_it_waits())
            first = self.pairs % 2
            while not all(process.ended for process in processes):
                for index in (first, 1 - first):
                    if not processes[index].ended:
                        self._keep(index, processes[index].step())
                first = 1 - first
        finally:
            for process in processes:
                process.close()
        self.pairs += 1

    def _keep(self, index: int, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if "figure" in message:
                name = f"{message['test']}" + ("" if message["figure"] == "time" else f" {message['figure']}()")
                self._add(name, index, message["value"], rate=message["rate"])
            elif message["outcome"] == "passed":
                self._keep_printed(index, message)
            elif message["outcome"] == "failed":
                self.failures.setdefault(message["test"], {})[("before", "after")[index]] = message["reason"]

    def _keep_printed(self, index: int, message: dict[str, Any]) -> None:
        file = message["test"].partition("::")[0]
        for printed in PRINTED:
            if printed.file == file:
                for match in re.finditer(printed.pattern, message["printed"], re.MULTILINE):
                    *keys, value = match.groups()
                    name = f"{message['test']} {printed.name.format(*keys)}"
                    figure = float(value.replace(",", "")) * (printed.unit or 1)
                    self._add(name, index, figure, rate=printed.unit is None)

    def _add(self, name: str, index: int, value: float, *, rate: bool) -> None:
        row = self.rows.setdefault(name, Row(name, rate))
        while len(row.pairs) <= self.pairs:
            row.pairs.append(([], []))
        row.pairs[self.pairs][index].append(value)

    def results(self) -> list[dict[str, Any]]:
        return [result for row in self.rows.values() if (result := row.result()) is not None]

    def forward_above_binding(self) -> dict[str, Any] | None:
        """Seconds that `forward()` takes beyond the binding by hand, in both states, and how much more after."""
        ours = self.rows.get("bench_infer.py::test_forward")
        theirs = self.rows.get("bench_infer.py::test_binding_by_hand")
        if ours is None or theirs is None:
            return None
        above = [
            [
                median(f[index]) - median(h[index])
                for f, h in zip(ours.pairs, theirs.pairs, strict=True)
                if all((*f, *h))
            ]
            for index in (0, 1)
        ]
        more = median_of_rounds([a - b for b, a in zip(*above, strict=True)])
        return {"before": median(above[0]), "after": median(above[1]), "more": more.value, "low": more.low,
                "high": more.high}  # fmt: skip


# ---- the whole ----


def measure(comparison: Comparison, selections: list[Selection], states: tuple[State, State], a: Any) -> None:
    """What may run often five times, what is long, and then again what may run often, until the time is up."""
    until = inf if a.pairs else monotonic() + 60 * a.minutes
    lasted, done = dict[Selection, float](), dict.fromkeys(selections, 0)
    while True:
        due = [s for s in selections if s.most is None or done[s] < s.most]
        due = [s for s in due if monotonic() + lasted.get(s, 0) <= until]
        if not due:
            return
        selection = min(due, key=lambda s: (s.most is None and done[s] >= ENOUGH, s.most is not None, done[s]))
        start = monotonic()
        print(f"pair {comparison.pairs + 1}: {', '.join(selection.files)} ...", file=sys.stderr, flush=True)
        comparison.run(selection, states, a.slices, a.seconds)
        lasted[selection] = monotonic() - start
        done[selection] += 1
        print(f"    {lasted[selection]:.0f} s", file=sys.stderr, flush=True)


def show(comparison: Comparison) -> bool:
    """Prints the rows; tells whether all is well."""
    order = {"slower": 0, "repeat": 1, "too few": 1, "same": 2, "faster": 3, "control": 4}
    results = sorted(comparison.results(), key=lambda r: (order[r["verdict"]], r["ratio"]))
    width = max((len(r["row"]) for r in results), default=0)
    for r in results:
        interval = f"{r['low']:.3f} to {r['high']:.3f}" if r["low"] is not None else "no interval"
        both = f"{_figure(r['before'], r['unit'])} -> {_figure(r['after'], r['unit'])}"
        one = "" if r["by"] == "pair" else f" (of {len(r['ratios'])} slices)"
        print(f"{r['verdict']:8} {r['row']:{width}} {r['ratio']:.3f} ({interval}) {both}{one}")
    if result := comparison.forward_above_binding():
        interval = (
            f" (95 %: {result['low'] * 1e6:+.2f} to {result['high'] * 1e6:+.2f})" if result["low"] is not None else ""
        )
        print(
            f"forward() above a binding by hand: {result['before'] * 1e6:.2f} us before, {result['after'] * 1e6:.2f} "
            f"us after, {result['more'] * 1e6:+.2f} us{interval}"
        )
    for state, names in comparison.only.items():
        if names:
            print(f"only in the state {state}: {', '.join(sorted(names))}")
    for test, reasons in comparison.failures.items():
        print(f"failed: {test}, {' and '.join(reasons)}: {' '.join(next(iter(reasons.values())).split())[-300:]}")
    slower = [r["row"] for r in results if r["verdict"] == "slower"]
    broken = [test for test, reasons in comparison.failures.items() if set(reasons) == {"after"}]
    repeat = sum(r["verdict"] == "repeat" for r in results)
    print(f"{len(results)} rows; {len(slower)} slower, {repeat} to be repeated, {len(broken)} fail after alone")
    return not slower and not broken


def _figure(value: float, unit: str) -> str:
    if unit == "/s":
        return f"{value:.4g}/s"
    scale, name = next((s, n) for s, n in ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (0, "ns")) if value >= s)
    return f"{value / (scale or 1e-9):.4g} {name}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s BEFORE AFTER [options]",
    )
    parser.add_argument("before", metavar="BEFORE", help="SOURCES:SITE")
    parser.add_argument("after", metavar="AFTER", help="SOURCES:SITE")
    parser.add_argument("--set", choices=sorted(SETS), default="cpu", help="what is measured (default: %(default)s)")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="these files of benchmarks/ instead, whole")
    parser.add_argument("--minutes", type=float, default=15, help="no pair of processes starts that would end later")
    parser.add_argument("--pairs", type=int, help="so many pairs of each, however long that takes")
    parser.add_argument("--slices", type=int, default=6, help="of a row in a process (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.02, help="of a slice (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="the rows as JSON")
    a = parser.parse_args()
    states = State.parse("before", a.before), State.parse("after", a.after)
    for state in states:
        print(f"{state.name}: {state.check()}", file=sys.stderr)
    selections = [Selection((file,)) for file in a.files] if a.files else SETS[a.set]
    if a.pairs:
        selections = [selection._replace(most=a.pairs) for selection in selections]
    comparison, load = Comparison(), Load()
    try:
        measure(comparison, selections, states, a)
    except KeyboardInterrupt:
        print("interrupted: the rows so far", file=sys.stderr)
    well = show(comparison)
    others = load.since().others
    if others is not None:
        print(f"other processes had {others:.0%} of the processors")
    if a.output is not None:
        a.output.write_text(json.dumps({
            "machine": describe_machine(), "others": others, "rows": comparison.results(),
            "forward_above_binding": comparison.forward_above_binding(), "failures": comparison.failures,
        }, indent=2) + "\n")  # fmt: skip
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
