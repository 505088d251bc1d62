"""The export scripts of the page Getting started, with random weights in place of downloaded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docs.page_code import blocks

import infersdk

pytest.importorskip("torch")
pytest.importorskip("onnxscript")


@pytest.mark.slow
def test_the_export_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    kind = transformers.RTDetrForObjectDetection

    def random_weights(name: str) -> Any:
        return kind(transformers.RTDetrConfig(num_queries=100, decoder_layers=1))

    monkeypatch.setattr(kind, "from_pretrained", random_weights)
    monkeypatch.chdir(tmp_path)
    (code,) = (one.code for one in blocks("getting-started.md") if one.title == "transformers: export.py")
    exec(code, {"__name__": "page"})
    with infersdk.load("rtdetr.onnx", backend="onnxruntime") as infer:  # wrappers refuse outputs of random weights
        outputs = infer({"images": np.full((1, 3, 640, 640), 0.3, np.float32)})
    assert {name: array.shape[:2] for name, array in outputs.items()} == {"logits": (1, 100), "pred_boxes": (1, 100)}
