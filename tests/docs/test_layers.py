"""The options on the page about layers exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


def test_each_option_of_the_page_exists(capsys: pytest.CaptureFixture[str]) -> None:
    from infersdk import cli

    with pytest.raises(SystemExit):
        cli.parser().parse_args(["layers", "--help"])
    text = capsys.readouterr().out
    table = PAGE.read_text().partition("| option |")[2].partition("\n\n")[0]
    options = set(re.findall(r"`(--[a-z-]+)", table))
    assert len(options) >= 11
    assert all(option in text for option in options)
