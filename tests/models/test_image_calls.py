"""Methods that models of other programs have: the error names what to use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk import models
from infersdk.data import DETECTOR
from infersdk.models import ModelGroup, Tiled

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("make", [lambda model: model, lambda model: Tiled(model, tile=320)], ids=["wrapper", "tiles"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("predict", r"^\w+ has no 'predict'; call it: model\(image\)$"),
        ("track", r"^\w+ has no 'track'; Tracker\(\)\.update\(model\(frame\)\) "),
        ("to", r"^\w+ has no 'to'; device= and precision= are arguments "),
        ("nothing", r"^'\w+' object has no attribute 'nothing'$"),
    ],
)
def test_methods_of_other_programs(make: Any, name: str, message: str) -> None:
    with make(models.YOLOv5(DETECTOR, threads=1)) as model, pytest.raises(AttributeError, match=message):
        getattr(model, name)


@pytest.mark.parametrize(
    ("channel_order", "shape", "drawn"),
    [("bgr", (48, 64, 3), (30, 20, 10)), ("rgb", (48, 64, 3), (10, 20, 30)), ("nv12", (72, 64), (0, 0, 0))],
)
@pytest.mark.parametrize("make", [lambda model: model, lambda model: ModelGroup(only=model)], ids=["wrapper", "group"])
def test_a_result_draws_its_array_in_the_order_of_the_model(
    make: Any, channel_order: str, shape: tuple[int, ...], drawn: tuple[int, int, int]
) -> None:
    pixels = np.full(shape, (10, 20, 30) if len(shape) == 3 else 128, np.uint8)
    if channel_order == "nv12":
        pixels[:48] = 16  # black
    with make(models.YOLOv5(DETECTOR, threads=1, conf=1.0, channel_order=channel_order)) as model:
        for result in (model(pixels), *model([pixels])):
            assert result.draw().size == (64, 48)
            assert result.draw().getpixel((5, 5)) == drawn
