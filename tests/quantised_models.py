"""Small networks made INT8, by this package and by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import quant


def quantised(model: Path, target: Any, shape: tuple[int, ...], name: str = "q.onnx") -> tuple[Path, list[Any]]:
    """The file beside the model, and the samples of its input `x` that it was calibrated on."""
    rng = np.random.default_rng(4)
    samples = [{"x": rng.random(shape, np.float32)} for _ in range(8)]
    table = quant.calibrate(model, samples, target="portable", method="minmax")
    return quant.quantize(model, model.with_name(name), table, target=target).path, samples


def quantised_by_onnxruntime(model: Path, samples: Iterable[Any], name: str = "int8.onnx", **options: Any) -> Path:
    """The file in the folder of the model, calibrated on these samples of its input `x`.

    Args:
        options: of `quantize_static`.
    """
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self._left = iter([{"x": x} for x in samples])

        def get_next(self) -> Any:
            return next(self._left, None)

    path = model.with_name(name)
    quantization.quantize_static(str(model), str(path), Reader(), **options)
    return path
