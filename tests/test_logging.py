"""What is logged: a line for each load, and the decisions behind it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from infersdk import load, models
from infersdk.data import DETECTOR, IMAGE


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_one_line_for_each_load(
    backend: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(backend)
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.INFO, "infersdk"):
        with load(DETECTOR, backend, precision="fp32") as infer, infer.clone():
            version = infer.declaration.probe().version
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    assert len(lines) == 1
    assert re.fullmatch(
        rf"loaded {re.escape(DETECTOR.name)} on {backend} {re.escape(version)}, cpu, fp32, max_batch None, in "
        r"\d+\.\d\d s, built",
        lines[0],
    ), lines


def test_a_cache_is_named(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    with caplog.at_level(logging.INFO, "infersdk"):
        for _ in range(2):
            load(DETECTOR, "openvino", cache_dir=str(tmp_path)).close()
    assert [record.getMessage().rpartition(", ")[2] for record in caplog.records] == ["built", "cached"]


def test_a_failed_load_logs_no_load(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(DETECTOR.read_bytes()[:1000])
    with caplog.at_level(logging.INFO, "infersdk"), pytest.raises(Exception, match="broken"):
        load(broken)
    assert not caplog.records


def test_decisions(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("onnxruntime")
    with caplog.at_level(logging.DEBUG, "infersdk"), models.load(DETECTOR, max_batch=4) as model:
        model.submit(IMAGE).result(60)
    text = "\n".join(f"{record.name}: {record.getMessage()}" for record in caplog.records)
    assert f"infersdk.models: {DETECTOR.name}: wrapper 'yolov5'" in text
    assert "infersdk.pipeline: a pipeline of " in text
    assert "in batches of 1" in text
