"""Resizing with a bicubic filter, against Pillow, whose bytes it gives: a 1080p image, one thread.

Run: `pytest benchmarks/bench_resample.py` (pytest-benchmark). Each contender is checked to give the same bytes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from infersdk.ops import resample

pytest.importorskip("pytest_benchmark")

PIXELS = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
RESIZED, CROP = (455, 256), (115, 16, 339, 240)
CONTENDERS: dict[str, Any] = {
    "pillow": lambda: np.asarray(Image.fromarray(PIXELS).resize(RESIZED, Image.Resampling.BICUBIC).crop(CROP)),
    "ours, whole": lambda: resample(PIXELS, RESIZED)[CROP[1] : CROP[3], CROP[0] : CROP[2]],
    "ours": lambda: resample(PIXELS, RESIZED, crop=CROP),
}


@pytest.mark.parametrize("name", CONTENDERS)
def test_resize_and_crop(benchmark: Any, name: str) -> None:
    np.testing.assert_array_equal(CONTENDERS[name](), CONTENDERS["pillow"]())
    benchmark.group = "1920 x 1080 to the centre 224 x 224 of 455 x 256, bicubic"
    benchmark(CONTENDERS[name])
