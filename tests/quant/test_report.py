"""The report of a quantisation: a row for each layer, measured, with the reason of those in floating point."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from infersdk import errors, quant
from infersdk.data import DETECTOR, IMAGE
from infersdk.graph.quantization import QuantizationRecord
from infersdk.models import load

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> quant.Workflow:
    folder = tmp_path_factory.mktemp("report")
    images = []
    with Image.open(IMAGE) as whole:
        width, height = whole.size
        for i in range(12):
            left, top = width * (i % 4) // 8, height * (i // 4) // 6
            images.append(folder / f"{i}.png")
            whole.crop((left, top, left + width // 2, top + height // 2)).save(images[-1])
    excluded = quant.plan(DETECTOR, "onnxruntime").layers[3]
    made = quant.Workflow(DETECTOR, images, load, target="onnxruntime", method="mse", exclude=[excluded])
    made.run(folder / "int8.onnx")
    return made


def test_the_page(work: quant.Workflow) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    page = quant.quantization_report(work, [("tensorrt-rtx", load), ("portable", load)])
    kept = re.search(r'id="data">(.*?)</script>', page)
    data = json.loads(kept[1])
    assert data["record"]["target"] == "onnxruntime"
    rows = {row["name"]: row for row in data["layers"]}
    assert list(rows) == list(work.planned.functions)
    for name, row in rows.items():
        assert row["fp32_ms"] > 0
        if name in work.planned.layers:
            assert row["reason"] == ""
            assert 0 < row["error"] < 0.1
            assert row["low"] <= 0 < row["high"]
        else:
            assert row["reason"]
            assert (row["error"], row["low"], row["high"]) == (None, None, None)
    assert rows[work.planned.excluded[0]]["reason"] == "it is excluded"
    assert any("faster in floating point" in row["reason"] for row in rows.values())
    assert page.count("<svg") == 2  # errors and times; nothing was searched
    assert "computes Conv in floating point" in page  # why there is no file for TensorRT-RTX
    assert re.search(r"<td>portable</td><td>[\d.]+ %</td>", page)


def test_files_for_other_targets_are_made_as_the_table_was(work: quant.Workflow, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    table = work.seen.table("percentile", 99.9, bias_correction=False)
    again = quant.Workflow(DETECTOR, work.images, load, target="onnxruntime", table=table)
    again.run(tmp_path / "int8.onnx")
    records = []

    def opened(path: Path) -> Any:
        model = load(path)
        records.append(QuantizationRecord.read(model.network.metadata))
        return model

    quant.quantization_report(again, [("portable", opened)])
    (record,) = {record for record in records if record is not None}
    assert (record.method, record.percentile, record.bias_correction) == ("percentile", 99.9, False)


def test_nothing_to_report_on(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    table = quant.CalibrationTable(tensors={})
    work = quant.Workflow(DETECTOR, [], load, target="onnxruntime", table=table)
    with pytest.raises(errors.ConfigError, match="a finished workflow with images"):
        quant.quantization_report(work)
