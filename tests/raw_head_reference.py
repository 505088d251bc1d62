"""Networks as a runtime alone runs them, and the decoding of raw heads in float64, as the formulas say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest

from infersdk.graph.files import load_proto, model_bytes, read_model
from infersdk.graph.graph_end import UnprovenError
from infersdk.graph.passes import EndAtHead, prepared_model
from infersdk.graph.raw_head import RawHead


def ended(model: Path | bytes) -> tuple[bytes, RawHead]:
    """A model that ends at the maps of its head, or at features, and that head."""
    content = prepared_model(model, [EndAtHead()])
    assert content is not None
    head = RawHead.read(read_model(content).metadata_props)
    assert head is not None
    return content, head


def run(model: Any, images: np.ndarray, *, optimized: bool = True) -> dict[str, np.ndarray]:
    """The outputs of a file, or of its content, from ONNX Runtime."""
    names = [output.name for output in load_proto(model).graph.output]
    return dict(zip(names, onnx_models.run(model, images, optimized=optimized), strict=True))


def check_stays(path: Path, reason: str) -> None:
    """The model is not cut, for this reason, and the pass leaves it as it is."""
    with pytest.raises(UnprovenError, match=reason):
        EndAtHead().find(load_proto(path))
    model = read_model(path)
    before = model_bytes(model)
    assert not EndAtHead().apply(model)
    assert model_bytes(model) == before


def decoded_yolov5(head: RawHead, maps: dict[str, np.ndarray]) -> np.ndarray:
    """What the decoding makes of the maps, in float64: [n, rows, values]."""
    parts = []
    for level in head.levels:
        one = maps[level.maps[0]].astype(np.float64)
        if (convolution := level.convolution()) is not None:
            weights, bias = convolution
            one = np.einsum("of,nfhw->nohw", weights.astype(np.float64), one) + bias[:, None, None]
        n, _, height, width = one.shape
        s = 1 / (1 + np.exp(-one.reshape(n, len(level.anchors), head.values, height, width).transpose(0, 1, 3, 4, 2)))
        cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1)
        s[..., :2] = (2 * s[..., :2] - 0.5 + cells) * level.stride
        s[..., 2:4] = (2 * s[..., 2:4]) ** 2 * np.array(level.anchors)[:, None, None]
        parts.append(s.reshape(n, -1, head.values))
    return np.concatenate(parts, axis=1)


def decoded_yolov8(head: RawHead, maps: dict[str, np.ndarray]) -> np.ndarray:
    """The same of YOLOv8: [n, values, rows]."""
    parts = []
    for level in head.levels:
        logits, classes = (maps[name].astype(np.float64) for name in level.maps)
        n, _, height, width = logits.shape
        logits = logits.reshape(n, 4, len(head.bins), -1)
        share = np.exp(logits - logits.max(axis=2, keepdims=True))
        left, upper, right, lower = (share / share.sum(axis=2, keepdims=True)).transpose(1, 0, 3, 2) @ np.array(
            head.bins
        )
        x, y = (one.reshape(-1) + 0.5 for one in np.meshgrid(np.arange(width), np.arange(height)))
        box = np.stack([x + (right - left) / 2, y + (lower - upper) / 2, left + right, upper + lower], axis=1)
        scores = 1 / (1 + np.exp(-classes.reshape(n, head.values - 4, -1)))
        parts.append(np.concatenate([box * level.stride, scores], axis=1))
    return np.concatenate(parts, axis=2)
