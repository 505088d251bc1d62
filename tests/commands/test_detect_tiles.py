"""`infersdk detect --tile`."""

from __future__ import annotations

import json

import pytest

from infersdk import models
from infersdk.cli import main
from infersdk.data import DETECTOR, IMAGE

DETECT = ["detect", str(IMAGE), "--model", str(DETECTOR), "--json"]


def test_tiles_are_those_of_the_wrapper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DETECT, "--tile", "120x100", "--overlap", "0.4", "--merge", "union"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    with models.load(DETECTOR) as model:
        expected = models.Tiled(model, tile=(120, 100), overlap=0.4, merge="union")(IMAGE)
        assert expected.to_dicts() != model(IMAGE).to_dicts()
    assert row["detections"] == json.loads(expected.to_json())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--overlap", "0.5"], "--overlap is about tiles; give their size with --tile"),
        (["--tile", "big"], "'big' is not a size; use 640 or 640x480"),
        (["--tile", "64", "--overlap", "1"], "overlap is a share of a tile's side, from 0 to below 1, not 1.0"),
        (["--tile", "0"], "not (0, 0)"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([*DETECT, *flags])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert words in capsys.readouterr().err
