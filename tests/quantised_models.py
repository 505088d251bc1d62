"""Small networks made INT8 with the ranges of random samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from infersdk import quant


def quantised(model: Path, target: Any, shape: tuple[int, ...], name: str = "q.onnx") -> tuple[Path, list[Any]]:
    """The file beside the model, and the samples of its input `x` that it was calibrated on."""
    rng = np.random.default_rng(4)
    samples = [{"x": rng.random(shape, np.float32)} for _ in range(8)]
    table = quant.calibrate(model, samples, target="portable", method="minmax")
    return quant.quantize(model, model.with_name(name), table, target=target).path, samples
