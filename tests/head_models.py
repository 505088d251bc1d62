"""Networks that give the same outputs for each image, whatever it shows: heads of every family, made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def head_model(
    path: Path,
    outputs: Sequence[np.ndarray[Any, Any]],
    metadata: Mapping[str, str],
    *,
    size: int = 64,
    open_shapes: bool = False,
    names: Sequence[str] = (),
    input: Sequence[int | str] = (),
    declared: Sequence[int | str] = (),
    batch: int | str = "batch",
) -> Path:
    """An ONNX file with an input `images` [batch, 3, size, size] and outputs of [batch, *shape].

    Args:
        outputs: what each output gives for an image: int64 for arrays of integers, and else float32.
        metadata: of the file.
        names: of the outputs; `output0`, `output1` and so on where there are none.
        open_shapes: the file declares names in place of the outputs' dimensions.
        input: the dimensions of an image of the input, in place of (3, size, size).
        declared: dimensions that the file declares for a single output, in place of its own.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
    ]
    weights, infos = [numpy_helper.from_array(np.float32(0), "zero")], []
    for i, output in enumerate(outputs):
        declared_name = names[i] if names else f"output{i}"
        integers = output.dtype.kind in "iu"
        name = f"floats{i}" if integers else declared_name
        shape = np.array([-1, *[1] * output.ndim], np.int64)
        weights += [
            numpy_helper.from_array(shape, f"shape{i}"),
            numpy_helper.from_array(output.astype(np.float32)[None], f"value{i}"),
        ]
        nodes += [helper.make_node("Reshape", ["nothing", f"shape{i}"], [f"flat{i}"])]
        if (
            open_shapes or declared
        ):  # through a shape that does not follow from the graph, so that a runtime has to believe it
            weights.append(numpy_helper.from_array(np.array([-1, *output.shape], np.int64), f"whole{i}"))
            nodes += [
                helper.make_node("Add", [f"flat{i}", f"value{i}"], [f"all{i}"]),
                helper.make_node("ReduceSum", ["nothing"], [f"sum{i}"], keepdims=0),
                helper.make_node("Cast", [f"sum{i}"], [f"none{i}"], to=TensorProto.INT64),
                helper.make_node("Add", [f"none{i}", f"whole{i}"], [f"found{i}"]),
                helper.make_node("Reshape", [f"all{i}", f"found{i}"], [name]),
            ]
        else:
            nodes.append(helper.make_node("Add", [f"flat{i}", f"value{i}"], [name]))
        dimensions = [f"d{i}_{axis}" for axis in range(output.ndim)] if open_shapes else declared or output.shape
        if integers:
            nodes.append(helper.make_node("Cast", [name], [declared_name], to=TensorProto.INT64))
        dtype = TensorProto.INT64 if integers else TensorProto.FLOAT
        infos.append(helper.make_tensor_value_info(declared_name, dtype, [batch, *dimensions]))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, *(input or (3, size, size))])
    graph = helper.make_graph(nodes, "head", [images], infos, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    if metadata:
        helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path
