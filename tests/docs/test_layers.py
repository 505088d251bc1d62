"""The code on the page about layers does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
from layers.models import small_network

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


def test_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    small_network(tmp_path / "model.onnx")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    space: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), space)
    out = capsys.readouterr().out
    assert "onnxruntime" in out
    assert "'/branch/Conv'" in out
    assert (tmp_path / "layers.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "layers.trace.json").read_text())["traceEvents"]


def test_each_option_of_the_page_exists(capsys: pytest.CaptureFixture[str]) -> None:
    from infersdk import cli

    with pytest.raises(SystemExit):
        cli.parser().parse_args(["layers", "--help"])
    text = capsys.readouterr().out
    table = PAGE.read_text().partition("| option |")[2].partition("\n\n")[0]
    options = set(re.findall(r"`(--[a-z-]+)", table))
    assert len(options) >= 11
    assert all(option in text for option in options)
