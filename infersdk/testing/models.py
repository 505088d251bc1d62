"""The small ONNX models that the contract is tested on."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["contract_model"]


def contract_model(name: str, batch: str | int = "batch") -> bytes:
    """An ONNX file by name, with `batch` as the first dimension.

    `net`: convolutions, pooling, a fully connected layer, softmax. `two`: two inputs and two outputs. `wide`: one layer
    of 1 MiB. `any_size`: convolutions over a free height and width. `nonzero`, `reshape`: shapes out of data.
    `type_<dtype>`: y = x + x, or not x for bool.
    """
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(42)
    weights: list[Any] = []

    def weight(*shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        weights.append(
            numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), f"w{len(weights)}")
        )
        return str(weights[-1].name)

    def value(name: str, *shape: str | int | None, dtype: str = "float32") -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
        return helper.make_node(kind, inputs.split(), [output], **attributes)

    if name == "net":
        nodes = [
            node("Conv", f"x {weight(8, 3, 3, 3)} {weight(8)}", "a", pads=[1, 1, 1, 1]),
            node("Relu", "a", "b"),
            node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]),
            node("Conv", f"c {weight(16, 8, 3, 3)} {weight(16)}", "d", strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Relu", "d", "e"),
            node("GlobalAveragePool", "e", "f"),
            node("Flatten", "f", "g"),
            node("Gemm", f"g {weight(7, 16)} {weight(7)}", "h", transB=1),
            node("Softmax", "h", "y", axis=1),
        ]
        inputs, outputs = [value("x", batch, 3, 12, 10)], [value("y", batch, 7)]
    elif name == "two":
        nodes = [node("Mul", "image scale", "scaled"), node("GlobalAveragePool", "scaled", "mean")]
        inputs = [value("image", batch, 3, 4, 6), value("scale", batch, 3, 1, 1)]
        outputs = [value("scaled", batch, 3, 4, 6), value("mean", batch, 3, 1, 1)]
    elif name == "wide":
        nodes = [node("Gemm", f"x {weight(512, 512)}", "y", transB=1)]
        inputs, outputs = [value("x", batch, 512)], [value("y", batch, 512)]
    elif name == "any_size":
        nodes = [
            node("Conv", f"x {weight(4, 3, 3, 3)}", "a", strides=[2, 2], pads=[1, 1, 1, 1]),
            node("Relu", "a", "y"),
        ]
        inputs, outputs = [value("x", batch, 3, "height", "width")], [value("y", batch, 4, None, None)]
    elif name == "nonzero":
        nodes = [node("NonZero", "x", "y")]
        inputs, outputs = [value("x", batch, 4)], [value("y", 2, "found", dtype="int64")]
    elif name == "reshape":
        nodes = [node("Reshape", "x shape", "y")]
        inputs = [value("x", 6), value("shape", 2, dtype="int64")]
        outputs = [value("y", "rows", "columns")]
    elif name.startswith("type_"):
        dtype = name.removeprefix("type_")
        nodes = [node("Not", "x", "y") if dtype == "bool" else node("Add", "x x", "y")]
        inputs, outputs = [value("x", batch, 7, dtype=dtype)], [value("y", batch, 7, dtype=dtype)]
    else:
        raise ValueError(f"no contract model {name!r}")
    graph = helper.make_graph(nodes, name, inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())
