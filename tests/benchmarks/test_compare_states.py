"""Two states of the project compared in turns: the slower one is seen, and what differs between them is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

BENCHMARK = """
import time
import pytest

@pytest.mark.benchmark(group="calls")
def test_call(benchmark):
    benchmark(lambda: time.sleep({call}))

def test_by_hand(benchmark):
    assert benchmark.pedantic(lambda x: time.sleep(0.001) or x, (5,), rounds=10) == 5

def test_{own}(benchmark):
    raise AssertionError("not in both, so it does not run")
"""

FAILS = """
def test_works(benchmark):
    assert {value} > 0
"""


def state(folder: Path, **parts: Any) -> Path:
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "bench_calls.py").write_text(BENCHMARK.format(**parts))
    (folder / "benchmarks" / "bench_fails.py").write_text(FAILS.format(**parts))
    return folder


def compare(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "compare_states.py"), *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_the_slower_state_is_seen(tmp_path: Path) -> None:
    before = state(tmp_path / "before", call=0.001, own="old", value=1)
    after = state(tmp_path / "after", call=0.003, own="new", value=1)
    found = tmp_path / "found.json"
    more = ("--files", "bench_calls.py", "--slices", 3, "--seconds", 0.01, "--pairs", 3, "--output", found)
    done = compare(before, after, *more)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    rows = {row["row"]: row for row in json.loads(found.read_text())["rows"]}
    call, control = rows["bench_calls.py::test_call"], rows["bench_calls.py::test_by_hand"]
    assert call["verdict"] == "slower"
    assert 0.2 < call["low"] <= call["ratio"] <= call["high"] < 0.6
    assert call["before"] < call["after"]
    assert control["verdict"] == "control"
    assert 0.5 < control["ratio"] < 2
    assert "only in the state before: bench_calls.py::test_old" in done.stdout
    assert "only in the state after: bench_calls.py::test_new" in done.stdout


@pytest.mark.slow
def test_what_fails_in_the_second_state_alone_is_seen(tmp_path: Path) -> None:
    before = state(tmp_path / "before", call=0.001, own="old", value=1)
    after = state(tmp_path / "after", call=0.001, own="new", value=-1)
    done = compare(before, after, "--files", "bench_fails.py", "--pairs", 1)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "failed: bench_fails.py::test_works, after: " in done.stdout
    assert "0 to be repeated, 1 fail after alone" in done.stdout


def test_a_state_that_is_not_there(tmp_path: Path) -> None:
    done = compare(tmp_path, ROOT)
    assert done.returncode == 1
    assert "has no folder benchmarks/; give the root of a source tree" in done.stderr
    done = compare(ROOT, f"{ROOT}:{tmp_path / 'site'}")
    assert "give the folder or the interpreter that has the package" in done.stderr
