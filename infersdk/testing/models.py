"""The small ONNX models that the contract is tested on."""

from __future__ import annotations

import re

import numpy as np

__all__ = ["contract_model"]

#: By name: the shapes of the weights w0, w1, ..., and the graph in ONNX's text format, where N is the batch.
_GRAPHS: dict[str, tuple[list[tuple[int, ...]], str]] = {
    "net": (
        [(8, 3, 3, 3), (8,), (16, 8, 3, 3), (16,), (7, 16), (7,)],
        """(float[N, 3, 12, 10] x) => (float[N, 7] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w0, w1)
            b = Relu (a)
            c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
            d = Conv <strides = [2, 2]> (c, w2, w3)
            e = Relu (d)
            f = GlobalAveragePool (e)
            g = Flatten (f)
            h = Gemm <transB = 1> (g, w4, w5)
            y = Softmax <axis = 1> (h)
        }""",
    ),
    "two": (
        [],
        """(float[N, 3, 4, 6] image, float[N, 3, 1, 1] scale) => (float[N, 3, 4, 6] scaled, float[N, 3, 1, 1] mean) {
            scaled = Mul (image, scale)
            mean = GlobalAveragePool (scaled)
        }""",
    ),
    "wide": ([(512, 512)], "(float[N, 512] x) => (float[N, 512] y) { y = Gemm <transB = 1> (x, w0) }"),
    "any_size": (
        [(4, 3, 3, 3)],
        """(float[N, 3, height, width] x) => (float[N, 4, ?, ?] y) {
            a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w0)
            y = Relu (a)
        }""",
    ),
    "nonzero": ([], "(float[N, 4] x) => (int64[2, found] y) { y = NonZero (x) }"),
    "reshape": ([], "(float[6] x, int64[2] shape) => (float[rows, columns] y) { y = Reshape (x, shape) }"),
    "type_bool": ([], "(bool[N, 7] x) => (bool[N, 7] y) { y = Not (x) }"),
}
#: The names in that format of types with another name in NumPy.
_TYPES = {"float32": "float", "float64": "double"}


def contract_model(name: str, batch: str | int = "batch") -> bytes:
    """An ONNX file by name, with `batch` as the first dimension.

    `net`: convolutions, pooling, a fully connected layer, softmax. `two`: two inputs and two outputs. `wide`: one layer
    of 1 MiB. `any_size`: convolutions over a free height and width. `nonzero`, `reshape`: shapes out of data.
    `type_<dtype>`: y = x + x, or not x for bool.
    """
    import onnx

    if name in _GRAPHS:
        shapes, graph = _GRAPHS[name]
    elif name.startswith("type_"):
        dtype = name.removeprefix("type_")
        kind = _TYPES.get(dtype, dtype)
        shapes, graph = [], f"({kind}[N, 7] x) => ({kind}[N, 7] y) {{ y = Add (x, x) }}"
    else:
        raise ValueError(f"no contract model {name!r}")
    header = f'<ir_version: 8, opset_import: ["": 17]> {name}'
    made = onnx.parser.parse_model(header + re.sub(r"\bN\b", str(batch), graph))
    rng = np.random.default_rng(42)
    for number, shape in enumerate(shapes):
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        made.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), f"w{number}"))
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())
