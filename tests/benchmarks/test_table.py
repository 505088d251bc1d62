"""README's table of speed says what the results say."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="table", scope="module")
def _table() -> ModuleType:
    spec = util.spec_from_file_location("infersdk_benchmark_table", ROOT / "benchmarks" / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_readme_shows_the_results_that_are_there() -> None:
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "table.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), "run python benchmarks/table.py"


def test_each_row_has_its_figure(table: ModuleType) -> None:
    results = json.loads(table.RESULTS.read_text())
    assert [row.what for row in table.ROWS if row.cell(results) is None] == []


def test_ratios(table: ModuleType) -> None:
    def timed(name: str, median: float) -> dict[str, object]:
        return {"name": name, "time": {"median": median}, "claims": []}

    kept = {"name": "t", "claims": [{"name": "share", "ratio": 0.991, "low": 0.97, "high": 1.0}]}
    results = {
        "created": "2026-01-02T03:04:05+00:00",
        "machine": {"cores": 2, "processor": "Some Processor", "python": "3.11.7"},
        "files": {"bench_a.py": {"tests": [timed("ours[b]", 2.0), timed("theirs", 9.0), kept]}},
    }
    row = table.Row("a", "b", "bench_a.py", ("ours[a]", "ours[b]"), "theirs")
    assert row.cell(results) == "4.5 x"
    assert table.Row("a", "b", "bench_a.py", "share", share=True).cell(results) == "99.1% (97.0% to 100.0%)"
    assert table.Row("a", "b", "bench_b.py", "share").cell(results) is None
    assert table.Row("a", "b", "bench_a.py", ("none",), "theirs").cell(results) is None
    assert "Measured on 2026-01-02 on 2 cores (Some Processor), Python 3.11.7" in table.table(results)
    with pytest.raises(ValueError, match="has no lines"):
        table.replaced("# a README without marks", "")
