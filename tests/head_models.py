"""Networks that give the same outputs for each image, whatever it shows: heads of every family, made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx_models import node, onnx, save, value


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
    int64 = onnx.TensorProto.INT64
    nodes = [
        node("ReduceMean", "images", "mean", axes=[1, 2, 3], keepdims=1),
        node("Mul", "mean zero", "nothing"),
    ]
    weights: dict[str, Any] = {"zero": np.float32(0)}
    infos = []
    for i, output in enumerate(outputs):
        declared_name = names[i] if names else f"output{i}"
        integers = output.dtype.kind in "iu"
        name = f"floats{i}" if integers else declared_name
        weights[f"shape{i}"] = np.array([-1, *[1] * output.ndim], np.int64)
        weights[f"value{i}"] = output.astype(np.float32)[None]
        nodes.append(node("Reshape", f"nothing shape{i}", f"flat{i}"))
        if (
            open_shapes or declared
        ):  # through a shape that does not follow from the graph, so that a runtime has to believe it
            weights[f"whole{i}"] = np.array([-1, *output.shape], np.int64)
            nodes += [
                node("Add", f"flat{i} value{i}", f"all{i}"),
                node("ReduceSum", "nothing", f"sum{i}", keepdims=0),
                node("Cast", f"sum{i}", f"none{i}", to=int64),
                node("Add", f"none{i} whole{i}", f"found{i}"),
                node("Reshape", f"all{i} found{i}", name),
            ]
        else:
            nodes.append(node("Add", f"flat{i} value{i}", name))
        dimensions = [f"d{i}_{axis}" for axis in range(output.ndim)] if open_shapes else declared or output.shape
        if integers:
            nodes.append(node("Cast", name, declared_name, to=int64))
        infos.append(value(declared_name, [batch, *dimensions], "int64" if integers else "float32"))
    images = value("images", [batch, *(input or (3, size, size))])
    return save(path, nodes, [images], infos, weights, opset=13, metadata=dict(metadata))
