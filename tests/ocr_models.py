"""Small networks for tests of reading text: dark pixels are text, and a line reads as the brightness of its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, nodes: list[Any], output: list[Any], weights: list[Any], **metadata: str) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "graph", [value("x", TensorProto.FLOAT, ["n", 3, "h", "w"])], [value("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(np.asarray(array, kind), name) for name, array, kind in weights],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def finder(path: Path) -> Path:
    """A map that is 1 where the image is black, and 0 where it is white."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["mean", "steep"], ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["y"]),
    ]
    return save(path, nodes, ["n", 1, "h", "w"], [("steep", [-9.0], np.float32)])


def reads(path: Path, characters: str = "a\nb\nc") -> Path:
    """One step for each 8 columns, and 5 classes: blank, and four shades from black to white."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=1),
        helper.make_node("AveragePool", ["mean"], ["steps"], kernel_shape=[1, 8], strides=[1, 8]),
        helper.make_node("Squeeze", ["steps", "one"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("Sub", ["columns", "shades"], ["difference"]),
        helper.make_node("Abs", ["difference"], ["distance"]),
        helper.make_node("Neg", ["distance"], ["near"]),
        helper.make_node("Softmax", ["near"], ["y"], axis=2),
    ]
    weights = [("one", [1], np.int64), ("shades", [[[0.0, -1.0, -0.5, 0.5, 1.0]]], np.float32)]
    return save(path, nodes, ["n", "t", 5], weights, character=characters)


def page(*lines: tuple[int, int, int, int], size: tuple[int, int] = (800, 760)) -> np.ndarray:
    """White, with black lines: (left, top, right, bottom)."""
    image = np.full((size[1], size[0], 3), 255, np.uint8)
    for left, top, right, bottom in lines:
        image[top:bottom, left:right] = 0
    return image
