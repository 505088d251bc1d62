"""Compares two states of the project in alternation, by pytest-benchmark.

    python benchmarks/compare.py BEFORE AFTER [--pairs 9] -- bench_infer.py -k forward

A state is `SOURCES` or `SOURCES:SITE`: a source tree, whose `benchmarks/` run, and a folder for PYTHONPATH that has its
package (a wheel unpacked into it, say). Without SITE it is the installed package. Both may have the same SOURCES.

Each pair is a process of either state at the same time, of which only one works at any moment: they hand over after
each round of a test. The ratio of a row is the speed after over the speed before in the same round. Its figure is the
median over the rounds and then over the pairs. The 95 % interval comes from resampled pairs, or with fewer than five
pairs from resampled rounds. A row is slower if the whole interval is below `--limit`; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from rounds import interval, text

from infersdk.bench.statistics import LEAST, median_of_rounds

Row: TypeAlias = tuple[list[float], str]


def command(state: str, arguments: list[str], report: Path) -> tuple[list[str], Path, dict[str, str]]:
    """The command that runs the benchmarks of a state, its folder and its environment."""
    sources, _, site = state.partition(":")
    folder = Path(sources).resolve() / "benchmarks"
    if not folder.is_dir():
        raise SystemExit(f"{sources!r} has no folder benchmarks/; give the root of a source tree")
    words = [str(folder / word) if word.partition("::")[0].endswith(".py") else word for word in arguments]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--benchmark-json={report}"]
    return [*pytest, *words], folder, {"PYTHONPATH": os.path.abspath(site)} if site else {}


def measured(states: list[str], arguments: list[str]) -> list[dict[str, Row]]:
    """The rows of both states, whose processes take turns; the first one begins."""
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder, f"{number}.json") for number in range(2)]
        pipes = [os.pipe() for _ in states]
        os.write(pipes[0][1], b".")
        running = []
        for number, (state, report) in enumerate(zip(states, reports, strict=True)):
            words, sources, environment = command(state, arguments, report)
            own, other = pipes[number][0], pipes[1 - number][1]
            # The shell waits for the baton before Python starts.
            words = ["sh", "-c", f'head -c 1 <&{own} >/dev/null; exec "$@"', "sh", *words]
            environment = {**os.environ, **environment, "INFERSDK_BENCH_BATON": f"{own},{other}"}
            with open(f"{report}.log", "wb") as log:
                running.append(
                    subprocess.Popen(words, cwd=sources, env=environment, pass_fds=(own, other), stdout=log, stderr=log)
                )
        for end in itertools.chain(*pipes):
            os.close(end)
        for state, process, report in zip(states, running, reports, strict=True):
            if process.wait():
                raise SystemExit(
                    f"{state}: pytest ended with {process.returncode}: {Path(f'{report}.log').read_text()}"
                )
        return [rows(json.loads(report.read_text())) for report in reports]


def rows(report: dict[str, Any]) -> dict[str, Row]:
    """The rounds of each contender, and their unit."""
    found = {}
    for entry in report["benchmarks"]:
        info = entry["extra_info"]
        for name, values in info.get("rounds", {}).items():
            found[f"{entry['fullname'].rpartition('/')[2]} {name}"] = values, info["unit"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--pairs", type=int, default=9, help="pairs of processes (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=0.98, help="a row below it is slower (default: %(default)s)")
    parser.add_argument("pytest", nargs="+", help="files of benchmarks/, and options of pytest")
    a = parser.parse_args()
    kept: dict[str, list[list[float]]] = defaultdict(list)
    last: dict[str, tuple[float, float, str]] = {}
    single: set[str] = set()
    for pair in range(a.pairs):
        order = -1 if pair % 2 else 1
        before, after = measured([a.before, a.after][::order], a.pytest)[::order]
        single |= before.keys() ^ after.keys()
        for name in before.keys() & after.keys():
            (old, unit), (new, _) = before[name], after[name]
            kept[name].append([o / n if unit == "s" else n / o for o, n in zip(old, new, strict=True)])
            last[name] = median(old), median(new), unit
    slower = False
    for name, ratios in sorted(kept.items()):
        ratio = median_of_rounds(
            [median(pair) for pair in ratios] if len(ratios) >= LEAST else list(itertools.chain(*ratios))
        )
        is_slower = ratio.high is not None and ratio.high < a.limit
        slower |= is_slower
        old_median, new_median, unit = last[name]
        figures = f"{text(old_median, unit)} -> {text(new_median, unit)}"
        print(f"{'slower' if is_slower else '':7} {name}: {interval(ratio)}, {figures}")
    for name in sorted(single):
        print(f"in one state alone: {name}")
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
