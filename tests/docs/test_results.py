"""The result type of docs/results.md: the code of the page, with a wrapper, through what uses results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.accuracy import agreement
from infersdk.models import Preprocessor, VisionModel

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from head_models import head_model

from infersdk.serve.result_tensors import ResultTensors

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "results.md"


@pytest.fixture(scope="module")
def heights() -> Any:
    """The result type of the page."""
    section = PAGE.read_text("utf-8").split("## A result type of your own")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__name__": "page"}
    exec(code.group(1), names)
    return names["Heights"]


def test_a_result_type_of_ones_own(heights: Any, tmp_path: Path) -> None:
    class Surveyor(VisionModel[Any]):
        def preprocessing(self, input: Any) -> Preprocessor:
            return Preprocessor.stretch(input)

        def postprocess(self, outputs: Any, geometries: Any) -> list[Any]:
            (array,) = outputs.values()
            return [heights(array[i, 0].copy()) for i in range(len(geometries))]

    grid = np.linspace(0, 20, 64, dtype=np.float32).reshape(1, 8, 8)
    with Surveyor(head_model(tmp_path / "heights.onnx", [grid], {}), "onnxruntime") as model:
        image = np.full((24, 32, 3), 100, np.uint8)
        results = model([image, image])
        assert results[0].to_dicts() == [{"lowest": 0.0, "highest": 20.0}]
        assert results[0].draw().size == (32, 24)
        assert json.loads(results[0].save(tmp_path / "a.json").read_text()) == results[0].to_dicts()
        assert results[0].summary() == "lowest 0  highest 20"
        assert agreement(results, results).percent == 100
        made = ResultTensors(results[0])
        assert [(info.name, info.datatype, info.shape) for info in made.outputs] == [("heights", "FP32", (-1, -1, -1))]
        small = heights(np.ones((2, 3), np.float32))
        batch = made.tensors([results[0], small], ["heights"])["heights"]
        np.testing.assert_array_equal(batch[0], grid[0])
        assert np.isnan(batch[1, 2:]).all()
        assert np.isnan(batch[1, :, 3:]).all()
        np.testing.assert_array_equal(batch[1, :2, :3], small.metres)
