"""Methods that models of other programs have: the error names what to use."""

from __future__ import annotations

from typing import Any

import pytest

from infersdk import models
from infersdk.data import DETECTOR
from infersdk.models import Tiled

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
