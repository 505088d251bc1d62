"""Where images are preprocessed for a device, by what both locations take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from infersdk.image import HostImage
from infersdk.models.execution import PreprocessPlacement, placement

IMAGE = HostImage(np.zeros((4, 4, 3), np.uint8), "bgr")


def taking(device: float, host: float) -> Callable[[str], float]:
    return {"device": device, "host": host}.__getitem__


@pytest.mark.parametrize(
    ("page_locked", "images", "host", "expected"),
    [
        (False, 1, 0.85, "host"),
        (False, 1, 0.95, "device"),
        (False, 8, 0.85, "host"),
        (True, 1, 0.85, "host"),
        (True, 8, 0.85, "device"),  # the copies of a batch overlap with what the processor does
        (True, 8, 0.45, "host"),
    ],
)
def test_auto(monkeypatch: pytest.MonkeyPatch, page_locked: bool, images: int, host: float, expected: str) -> None:
    monkeypatch.setattr(placement, "is_page_locked", lambda pixels: page_locked)
    chosen = PreprocessPlacement("auto")
    assert chosen.choose([IMAGE] * images, taking(1.0, host)) == expected
    assert chosen.choose([IMAGE] * images, taking(host, 1.0)) == expected  # it is measured once


@pytest.mark.parametrize("setting", ["device", "host"])
def test_what_is_set_is_not_measured(setting: str) -> None:
    def refuse(location: str) -> float:
        raise AssertionError(location)

    assert PreprocessPlacement(setting).choose([IMAGE], refuse) == setting
