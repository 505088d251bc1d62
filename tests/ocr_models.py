"""Small networks for tests of reading text: dark pixels are text, and a line reads as the brightness of its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
from onnx_models import node, value


def save(path: Path, nodes: list[Any], output: list[Any], weights: dict[str, Any], **metadata: str) -> Path:
    return onnx_models.save(
        path, nodes, [value("x", ["n", 3, "h", "w"])], [value("y", output)], weights, metadata=metadata
    )


def finder(path: Path) -> Path:
    """A map that is 1 where the image is black, and 0 where it is white."""
    nodes = [
        node("ReduceMean", "x", "mean", axes=[1], keepdims=1),
        node("Mul", "mean steep", "scaled"),
        node("Sigmoid", "scaled", "y"),
    ]
    return save(path, nodes, ["n", 1, "h", "w"], {"steep": np.float32([-9.0])})


def reads(path: Path, characters: str = "a\nb\nc") -> Path:
    """One step for each 8 columns, and 5 classes: blank, and four shades from black to white."""
    nodes = [
        node("ReduceMean", "x", "mean", axes=[1, 2], keepdims=1),
        node("AveragePool", "mean", "steps", kernel_shape=[1, 8], strides=[1, 8]),
        node("Squeeze", "steps one", "rows"),
        node("Transpose", "rows", "columns", perm=[0, 2, 1]),
        node("Sub", "columns shades", "difference"),
        node("Abs", "difference", "distance"),
        node("Neg", "distance", "near"),
        node("Softmax", "near", "y", axis=2),
    ]
    weights = {"one": np.int64([1]), "shades": np.float32([[[0.0, -1.0, -0.5, 0.5, 1.0]]])}
    return save(path, nodes, ["n", "t", 5], weights, character=characters)


def page(*lines: tuple[int, int, int, int], size: tuple[int, int] = (800, 760)) -> np.ndarray:
    """White, with black lines: (left, top, right, bottom)."""
    image = np.full((size[1], size[0], 3), 255, np.uint8)
    for left, top, right, bottom in lines:
        image[top:bottom, left:right] = 0
    return image
