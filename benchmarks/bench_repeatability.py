"""Two runs of `infersdk bench` after each other: is each ratio within its own stated interval of 1?

    pytest benchmarks/bench_repeatability.py -q -s

What the intervals know is the noise within a run, so this is a measure of the machine as well. INFERSDK_BENCH_SECONDS
is how long each scenario of a combination runs (default 10).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from infersdk.bench import BenchSettings, Combination, bench
from infersdk.bench.compare import compare_reports
from infersdk.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = float(os.environ.get("INFERSDK_BENCH_SECONDS", "10"))


def test_two_runs(assets: Path, claim: Callable[..., None]) -> None:
    model = str(assets / "models" / "yolov5n.onnx")
    what = [
        Combination(model=model, target=Target(backend, precision="fp32"), batch=batch)
        for backend in ("onnxruntime", "openvino")
        for batch in (1, 8)
    ]
    settings = BenchSettings(time=SECONDS, rounds=10)
    reports = [bench(what, settings, accuracy=False, loading=False) for _ in range(2)]
    for report in reports:
        for row in report.rows:
            assert row.status == "ok", row.reason
    changes = [change for change in compare_reports(*reports).changes if change.ratio is not None]
    inside = 0
    print()
    for change in changes:
        assert change.ratio is not None
        low, high = change.ratio.low, change.ratio.high
        if low is None or high is None:
            continue
        holds = low <= 1 <= high
        inside += holds
        print(
            f"{change.row}, {change.figure}: {change.ratio.value:.3f} (95 %: {low:.3f} to {high:.3f}), "
            f"{change.verdict}{'' if holds else ', not within it'}"
        )
    share = inside / len(changes)
    claim("two runs", share)
    moved = sum(change.verdict != "same" for change in changes)
    print(f"{inside} of {len(changes)} ratios within their own intervals; {moved} moved")
