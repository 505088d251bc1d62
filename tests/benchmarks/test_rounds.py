"""The harness of the benchmarks: contenders in turns, ratios within a round, workers, and the rows of two states."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare
import pytest
from rounds import ENVIRONMENT as BENCH_ENVIRONMENT
from rounds import Turns, Worker, interval, text

from infersdk.bench.statistics import median_of_rounds

#: Within a worker of xdist, pytest-benchmark would measure nothing.
ENVIRONMENT = {name: value for name, value in BENCH_ENVIRONMENT.items() if not name.startswith("PYTEST_XDIST")}
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Pedantic:
    """The parts of pytest-benchmark's fixture that `Turns` uses."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, function: Callable[[], Any], rounds: int = 1, warmup_rounds: int = 0) -> Any:
        results = [function() for _ in range(warmup_rounds + rounds)]
        return results[-1]


def test_rates_are_compared_within_a_round() -> None:
    benchmark, order = Pedantic(), []
    ours, theirs = iter([999.0, 10.0, 20.0, 30.0, 40.0]), iter([1.0, 5.0, 10.0, 10.0, 20.0])

    def contender(name: str, values: Any) -> Callable[[], float]:
        return lambda: order.append(name) or next(values)

    contenders = {"ours": contender("ours", ours), "theirs": contender("theirs", theirs)}
    found = Turns(benchmark).rates(contenders, rounds=4, warm_up=1)
    assert order[:6] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert found["theirs"].value == 2.0
    info = benchmark.extra_info
    assert (info["unit"], info["figures"]) == ("/s", {"ours": 25.0, "theirs": 10.0})
    assert info["worst"] == {"ours": 10.0, "theirs": 5.0}
    assert info["ratios"]["theirs"][0] == 2.0


def test_times_count_calls() -> None:
    benchmark, calls = Pedantic(), []
    ratios = Turns(benchmark).times(
        {"one": lambda: calls.append(1), "other": lambda: calls.append(2)}, calls=5, rounds=3, warm_up=2
    )
    assert (calls.count(1), calls.count(2)) == (25, 25)
    assert list(ratios) == ["other"]
    assert benchmark.extra_info["unit"] == "s"


def test_figures_of_a_scenario_are_kept() -> None:
    benchmark = Pedantic()
    turns = Turns(benchmark)
    turns.once(lambda: {"loaded": 640.0}, " MB")
    turns.note("mAP", 0.3)
    assert benchmark.extra_info == {"figures": {"loaded": 640.0}, "unit": " MB", "ratios": {}, "mAP": 0.3}


def test_a_worker_answers_each_line() -> None:
    program = (
        "import sys, json\nprint(json.dumps('ready'), flush=True)\nfor x in sys.stdin: print(int(x) + 1, flush=True)"
    )
    with Worker(sys.executable, "-c", program) as worker:
        assert worker.ready == "ready"
        assert [worker.ask(number) for number in (1, 41)] == [2, 42]


@pytest.mark.parametrize(
    ("figure", "unit", "expected"),
    [(0.00202, "s", "2.02 ms"), (3.1e-6, "s", "3.1 us"), (1.5, "s", "1.5 s"), (9116, "/s", "9,116/s")],
)
def test_figures_as_text(figure: float, unit: str, expected: str) -> None:
    assert text(figure, unit) == expected


def test_a_ratio_has_an_interval_from_five_rounds_on() -> None:
    assert interval(median_of_rounds([2.0] * 4)) == "2.000"
    assert interval(median_of_rounds([2.0] * 5)) == "2.000 (2.000 to 2.000)"


def test_the_rows_of_a_report() -> None:
    info = {"rounds": {"ours": [7.0, 8.0], "theirs": [8.0, 9.0]}, "unit": "/s"}
    scenario = {"fullname": "benchmarks/bench_a.py::test_a", "extra_info": {"figures": {"loaded": 1.0}, "unit": " MB"}}
    turns = {"fullname": "benchmarks/bench_b.py::test_b[1]", "extra_info": info}
    assert compare.rows({"benchmarks": [scenario, turns]}) == {
        "bench_b.py::test_b[1] ours": ([7.0, 8.0], "/s"),
        "bench_b.py::test_b[1] theirs": ([8.0, 9.0], "/s"),
    }


BENCHMARK = """
def test_sleep(turns):
    import time
    turns.times({"sleep": lambda: time.sleep(%s)}, rounds=5)
"""


def state(folder: Path, seconds: float) -> Path:
    (folder / "benchmarks").mkdir(parents=True)
    for name in ("conftest.py", "rounds.py"):
        shutil.copy(BENCHMARKS / name, folder / "benchmarks")
    (folder / "benchmarks" / "bench_sleep.py").write_text(BENCHMARK % seconds)
    (folder / "pytest.ini").write_text("[pytest]\npython_files = bench_*.py\npythonpath = benchmarks\n")
    return folder


@pytest.mark.slow
def test_the_slower_state_is_seen(tmp_path: Path) -> None:
    before, after = state(tmp_path / "before", 0.002), state(tmp_path / "after", 0.05)
    command = [sys.executable, BENCHMARKS / "compare.py", before, after, "--pairs", "1", "bench_sleep.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("slower  bench_sleep.py::test_sleep sleep: 0.0")


def test_a_state_without_benchmarks(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "compare.py", tmp_path, tmp_path, "bench_sleep.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 1
    assert "has no folder benchmarks/; give the root of a source tree" in done.stderr
