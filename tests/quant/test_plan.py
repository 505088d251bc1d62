"""Which layers of a network each backend computes faster in floating point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import node, save, value

from infersdk import quant

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def chain(path: Path, shapes: list[tuple[int, ...]], pooled: bool = False) -> Path:
    """Convolutions of these shapes, each with a ReLU, perhaps a pooling after the first; then a sigmoid."""
    rng = np.random.default_rng(1)
    weights, nodes, source = {}, list[Any](), "x"
    for index, shape in enumerate(shapes):
        weights[f"w{index}"] = rng.normal(size=shape).astype(np.float32)
        side = shape[-1]
        group = shapes[index - 1][0] if index and shape[1] == 1 else 1
        pads = [side // 2] * 4
        nodes.append(node("Conv", f"{source} w{index}", f"c{index}", kernel_shape=[side, side], pads=pads, group=group))
        nodes.append(node("Relu", f"c{index}", f"r{index}"))
        source = f"r{index}"
        if pooled and not index:
            nodes.append(node("MaxPool", source, "p", kernel_shape=[2, 2], strides=[2, 2]))
            source = "p"
    nodes.append(node("Sigmoid", source, "y"))
    for each in nodes:
        each.name = f"{each.op_type}_{each.output[0]}"
    return save(path, nodes, [value("x", [1, 3, 16, 16])], [value("y", None)], weights)


# 27 products for each value, 9, 16, 144, 8, and the last one, which gives floating point.
SHAPES = [(16, 3, 3, 3), (16, 1, 3, 3), (16, 16, 1, 1), (8, 16, 3, 3), (16, 8, 1, 1), (4, 16, 3, 3)]


def test_from_the_image_on_layers_of_few_products_stay_in_floating_point(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", SHAPES)
    planned = quant.plan(model, "onnxruntime")
    assert planned.layers == ("Conv_c3", "Conv_c4")  # Conv_c4 has few as well, but is behind 8 bits
    assert planned.left["Conv_c0"] == "onnxruntime computes 27 products a value faster in floating point"
    assert list(planned.left)[:3] == ["Conv_c0", "Conv_c1", "Conv_c2"]
    assert quant.plan(model, "portable").layers == tuple(f"Conv_c{i}" for i in range(6))
    assert quant.plan(model, "openvino").layers == tuple(f"Conv_c{i}" for i in (0, 2, 3, 4, 5))
    # What is excluded ends nothing: behind it there are no 8 bits.
    assert quant.plan(model, "onnxruntime", exclude=["Conv_c0"]).layers == ("Conv_c3", "Conv_c4")


def test_a_layer_before_a_pooling_is_quantised(tmp_path: Path) -> None:
    planned = quant.plan(chain(tmp_path / "m.onnx", SHAPES, pooled=True), "onnxruntime")
    assert planned.layers == tuple(f"Conv_c{i}" for i in range(5))


def test_where_no_layer_is_worth_it_all_are_quantised(tmp_path: Path) -> None:
    planned = quant.plan(chain(tmp_path / "m.onnx", SHAPES[:3]), "onnxruntime")
    assert planned.layers == ("Conv_c0", "Conv_c1")
