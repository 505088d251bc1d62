"""Prometheus gets what the pipeline counts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from idle_backend import idle

from infersdk import Pipeline
from infersdk.errors import ConfigError, ShapeError
from infersdk.pipeline.prometheus import export


def test_export(tmp_path: Path) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    registry = prometheus.CollectorRegistry()
    with idle(tmp_path, 4, side=2) as infer, Pipeline(infer, max_delay=0.05) as pipeline:
        export({"idle": pipeline}, registry)
        futures = pipeline.submit_many([np.zeros((3, 2, 2), np.float32)] * 8)
        bad = pipeline.submit(np.zeros((1,), np.float32))
        with pytest.raises(ShapeError):
            bad.result(30)
        for future in futures:
            future.result(30)
        text = prometheus.generate_latest(registry).decode()

        def value(name: str, **labels: str) -> float | None:
            found: float | None = registry.get_sample_value(name, {"pipeline": "idle", **labels})
            return found

        assert value("infersdk_requests_total", outcome="done") == 8
        assert value("infersdk_requests_total", outcome="failed") == 1
        assert value("infersdk_requests_now", state="running") == 0
        assert value("infersdk_slots") == pipeline.slots
        assert value("infersdk_batches_total", size="4") == 2
        assert value("infersdk_stage_seconds_count", stage="total") == 8
        assert value("infersdk_stage_seconds_bucket", stage="run", le="+Inf") == 2
        assert value("infersdk_stage_seconds_sum", stage="total") == pytest.approx(pipeline.stats().total.mean * 8)
        buckets = [
            float(line.split()[-1]) for line in text.splitlines() if "bucket{" in line and 'stage="total"' in line
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == 8


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"infersdk\[prometheus\]"):
        export({})
