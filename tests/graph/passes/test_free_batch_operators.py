"""A free batch, operator by operator: each gives every image its own result, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import UnsupportedModelError
from infersdk.graph import batch_rows
from infersdk.graph import open as open_graph
from infersdk.graph.passes import FreeBatch

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

IMAGE, ROWS = (1, 4, 6, 6), (1, 4, 6)
RNG = np.random.default_rng(0)


def noise(*shape: int) -> Any:
    return RNG.random(shape, dtype=np.float32)


def ints(*numbers: int) -> Any:
    return np.asarray(numbers, np.int64)


def op(kind: str, *inputs: Any, outputs: str = "y", **attributes: Any) -> tuple[str, tuple[Any, ...], str, Any]:
    """A node. Its inputs are names, "" for an absent one, and arrays."""
    return kind, inputs, outputs, attributes


def build(path: Path, nodes: Any, shape: tuple[int, ...], opset: int) -> Path:
    weights: dict[str, Any] = {}
    made = []
    for index, (kind, inputs, names, attributes) in enumerate(nodes):
        called = []
        for place, given in enumerate(inputs):
            called.append(given if isinstance(given, str) else f"w{index}_{place}")
            if not isinstance(given, str):
                weights[called[-1]] = np.asarray(given)
        made.append(onnx.helper.make_node(kind, called, names.split(), f"n{index}", **attributes))
    # ONNX infers no shape of this operator.
    results = [models.value("y", shape if nodes[-1][0] == "GroupNormalization" else None)]
    path = models.save(path, made, [models.value("x", shape)], results, weights, opset=opset)
    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    onnx.save(model, str(path))
    return path


def as_bool(*nodes: Any) -> list[Any]:
    return [op("Greater", "x", np.float32(0.5), outputs="b"), *nodes, op("Cast", "c", to=1)]


def as_int(*nodes: Any) -> list[Any]:
    return [
        op("Mul", "x", np.float32(9), outputs="m"), op("Cast", "m", outputs="i", to=7), *nodes, op("Cast", "c", to=1)
    ]  # fmt: skip


def as_uint8(*nodes: Any) -> list[Any]:
    return [op("QuantizeLinear", "x", np.float32(0.01), np.uint8(0), outputs="i"), *nodes]


SCALE, ZERO = np.float32(0.01), np.uint8(0)
WEIGHTS = {
    "LSTM": (noise(1, 12, 6), noise(1, 12, 3)),
    "GRU": (noise(1, 9, 6), noise(1, 9, 3)),
    "RNN": (noise(1, 3, 6), noise(1, 3, 3)),
}
Case = tuple[list[Any], tuple[int, ...], int]

KEEPS: dict[str, Case] = {
    **{
        name: ([op(name, "x")], ROWS, 18)
        for name in [
            "Abs",
            "Acos",
            "Asin",
            "Asinh",
            "Atan",
            "Celu",
            "Clip",
            "Cos",
            "Cosh",
            "Elu",
            "Erf",
            "Exp",
            "HardSigmoid",
            "HardSwish",
            "Identity",
            "LeakyRelu",
            "Log",
            "Mish",
            "Neg",
            "Reciprocal",
            "Relu",
            "Round",
            "Selu",
            "Shrink",
            "Sigmoid",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
            "Sqrt",
            "Tan",
            "Tanh",
            "Sum",
            "Mean",
            "Max",
            "Min",
        ]
    },
    **{
        name: ([op("Mul", "x", np.float32(3), outputs="m"), op(name, "m")], ROWS, 18)
        for name in ("Ceil", "Floor", "ThresholdedRelu")
    },
    "Sign": ([op("Sub", "x", np.float32(0.5), outputs="m"), op("Sign", "m")], ROWS, 18),
    "Atanh": ([op("Mul", "x", np.float32(0.9), outputs="m"), op("Atanh", "m")], ROWS, 18),
    "Acosh": ([op("Add", "x", np.float32(1), outputs="m"), op("Acosh", "m")], ROWS, 18),
    "Gelu": ([op("Gelu", "x")], ROWS, 20),
    "Swish": ([op("Swish", "x")], ROWS, 24),
    **{name: ([op(name, "x", noise(4, 1))], ROWS, 18) for name in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")},
    "Add-image": ([op("Add", "x", "x")], ROWS, 18),
    "Add-more-axes": (
        [op("Add", "x", noise(2, 1, 4, 6), outputs="a"), op("Transpose", "a", perm=[1, 0, 2, 3])],
        ROWS,
        18,
    ),
    "Mod": ([op("Mod", "x", np.float32(0.3), fmod=1)], ROWS, 18),
    **{
        name: ([op(name, "x", noise(4, 1), outputs="c"), op("Cast", "c", to=1)], ROWS, 18)
        for name in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Equal": (as_int(op("Equal", "i", np.int64(4), outputs="c")), ROWS, 18),
    "IsInf": (
        as_int(op("Cast", "i", outputs="f", to=1), op("Log", "f", outputs="l"), op("IsInf", "l", outputs="c")),
        ROWS,
        18,
    ),
    "IsNaN": (
        [
            op("Sub", "x", np.float32(0.5), outputs="m"),
            op("Sqrt", "m", outputs="r"),
            op("IsNaN", "r", outputs="c"),
            op("Cast", "c", to=1),
        ],
        ROWS,
        18,
    ),
    **{
        name: (as_bool(op("Less", "x", np.float32(limit), outputs="d"), op(name, "b", "d", outputs="c")), ROWS, 18)
        for name, limit in (("And", 0.7), ("Or", 0.3), ("Xor", 0.7))
    },
    "Not": (as_bool(op("Not", "b", outputs="c")), ROWS, 18),
    "Where": ([op("Greater", "x", np.float32(0.5), outputs="b"), op("Where", "b", "x", noise(4, 6))], ROWS, 18),
    **{
        name: (as_int(op("Cast", "i", outputs="u", to=2), op(name, "u", np.uint8(3), outputs="c")), ROWS, 18)
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    "BitwiseNot": (as_int(op("BitwiseNot", "i", outputs="c")), ROWS, 18),
    "BitShift": (
        as_int(op("Cast", "i", outputs="u", to=2), op("BitShift", "u", np.uint8(1), outputs="c", direction="LEFT")),
        ROWS,
        18,
    ),
    "Cast": (as_int(op("Cast", "i", outputs="c", to=6)), ROWS, 18),
    "CastLike": ([op("CastLike", "x", np.float64(1), outputs="c"), op("Cast", "c", to=1)], ROWS, 19),
    "Dropout": ([op("Dropout", "x")], ROWS, 18),
    "ConstantOfShape": (
        [op("Shape", "x", outputs="s"), op("ConstantOfShape", "s", outputs="o"), op("Add", "x", "o")],
        ROWS,
        18,
    ),
    "Expand": ([op("Unsqueeze", "x", ints(1), outputs="u"), op("Expand", "u", ints(1, 3, 4, 6))], ROWS, 18),
    "Expand-constant": (
        [op("Shape", "x", outputs="s"), op("Expand", noise(1, 1, 6), "s", outputs="o"), op("Concat", "x", "o", axis=1)],
        ROWS,
        18,
    ),
    "Tile": ([op("Tile", "x", ints(1, 2, 3))], ROWS, 18),
    "Conv": ([op("Conv", "x", noise(3, 4, 3, 3))], IMAGE, 18),
    "ConvTranspose": ([op("ConvTranspose", "x", noise(4, 3, 3, 3))], IMAGE, 18),
    "DeformConv": (
        [op("Conv", "x", noise(8, 4, 2, 2), outputs="o"), op("DeformConv", "x", noise(3, 4, 2, 2), "o")],
        IMAGE,
        19,
    ),
    **{name: ([op(name, "x", kernel_shape=[2, 2])], IMAGE, 18) for name in ("AveragePool", "MaxPool", "LpPool")},
    **{name: ([op(name, "x")], IMAGE, 18) for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "BatchNormalization": ([op("BatchNormalization", "x", noise(4), noise(4), noise(4), noise(4))], IMAGE, 18),
    "InstanceNormalization": ([op("InstanceNormalization", "x", noise(4), noise(4))], IMAGE, 18),
    "GroupNormalization": ([op("GroupNormalization", "x", noise(4), noise(4), num_groups=2)], IMAGE, 21),
    "LRN": ([op("LRN", "x", size=3)], IMAGE, 18),
    "DepthToSpace": ([op("DepthToSpace", "x", blocksize=2)], IMAGE, 18),
    "SpaceToDepth": ([op("SpaceToDepth", "x", blocksize=2)], IMAGE, 18),
    "Col2Im": ([op("Col2Im", "x", ints(3, 4), ints(2, 2))], (1, 8, 6), 18),
    "GridSample": (
        [
            op("Transpose", "x", outputs="t", perm=[0, 2, 3, 1]),
            op("Slice", "t", ints(0), ints(2), ints(3), outputs="g"),
            op("GridSample", "x", "g"),
        ],
        IMAGE,
        18,
    ),
    "AffineGrid": (
        [
            op("Shape", "x", outputs="s", end=1),
            op("Concat", "s", ints(1, 4, 5), outputs="t", axis=0),
            op("AffineGrid", "x", "t"),
        ],
        (1, 2, 3),
        20,
    ),
    "Flatten": ([op("Flatten", "x")], IMAGE, 18),
    "Flatten-rows": ([op("Flatten", "x", axis=2)], IMAGE, 18),
    "Reshape": ([op("Reshape", "x", ints(1, 2, 12))], ROWS, 18),
    "Squeeze": ([op("Unsqueeze", "x", ints(0), outputs="u"), op("Squeeze", "u", ints(0))], ROWS, 18),
    "Unsqueeze": ([op("Unsqueeze", "x", ints(2))], ROWS, 18),
    "Transpose": ([op("Transpose", "x", outputs="t", perm=[1, 0, 2]), op("Transpose", "t", perm=[1, 2, 0])], ROWS, 18),
    "OneHot": (as_int(op("OneHot", "i", ints(9), ints(0, 1), outputs="c")), ROWS, 18),
    **{
        name: ([op(name, "x", axes=[1, -1])], IMAGE, 13)
        for name in [
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSumSquare",
        ]
    },
    "ReduceSum": ([op("ReduceSum", "x", ints(1))], IMAGE, 18),
    **{name: ([op(name, "x")], ROWS, 18) for name in ("Hardmax", "Softmax", "LogSoftmax")},
    "Softmax-11": ([op("Softmax", "x")], ROWS, 11),
    "LayerNormalization": ([op("LayerNormalization", "x", noise(4, 6), axis=1)], ROWS, 18),
    "RMSNormalization": ([op("RMSNormalization", "x", noise(6))], ROWS, 23),
    "MeanVarianceNormalization": ([op("MeanVarianceNormalization", "x", axes=[1, 2])], ROWS, 18),
    "LpNormalization": ([op("LpNormalization", "x")], ROWS, 18),
    **{name: ([op(name, "x", outputs="c", axis=1), op("Cast", "c", to=1)], ROWS, 18) for name in ("ArgMax", "ArgMin")},
    "Split": ([op("Split", "x", outputs="a b", axis=1, num_outputs=2), op("Sub", "a", "b")], ROWS, 18),
    "TopK": ([op("TopK", "x", ints(3), outputs="y i")], ROWS, 18),
    "CumSum": ([op("CumSum", "x", np.asarray(1))], ROWS, 18),
    "Trilu": ([op("Trilu", "x")], ROWS, 18),
    "Pad": ([op("Pad", "x", ints(0, 1, 0, 0, 0, 2))], ROWS, 18),
    "Pad-axes": ([op("Pad", "x", ints(1, 1), "", ints(1))], ROWS, 18),
    "Slice": ([op("Slice", "x", ints(-1), ints(-9), ints(1), ints(-1))], ROWS, 18),
    "Slice-whole": ([op("Slice", "x", ints(0, 1), ints(1, 3))], ROWS, 18),
    "Resize": ([op("Resize", "x", "", np.asarray([1, 1, 2, 2], np.float32), mode="linear")], IMAGE, 18),
    "Upsample": ([op("Upsample", "x", np.asarray([1, 1, 2, 2], np.float32))], IMAGE, 9),
    "Concat": ([op("Concat", "x", "x", noise(1, 4, 2), axis=2)], ROWS, 18),
    "Gather": ([op("Gather", "x", ints(3, 1), axis=1)], ROWS, 18),
    "Gather-table": (as_int(op("Gather", noise(9, 2), "i", outputs="c")), ROWS, 18),
    "GatherElements": (
        [op("TopK", "x", ints(2), outputs="v i", axis=1), op("GatherElements", "x", "i", axis=1)],
        ROWS,
        18,
    ),
    "ScatterElements": (
        [op("TopK", "x", ints(2), outputs="v i", axis=1, largest=0), op("ScatterElements", "x", "i", "v", axis=1)],
        ROWS,
        18,
    ),
    "GatherND": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
            op("GatherND", "t", ints(2, 0).reshape(2, 1), outputs="g"),
            op("Transpose", "g", perm=[1, 0, 2]),
        ],
        ROWS,
        18,
    ),
    "GatherND-batched": (
        [
            op("ArgMax", "x", outputs="i", axis=1, keepdims=0),
            op("Unsqueeze", "i", ints(2), outputs="u"),
            op("GatherND", "x", "u", batch_dims=1),
        ],
        ROWS,
        18,
    ),
    "ScatterND": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
            op("Slice", "t", ints(0), ints(2), ints(0), outputs="s"),
            op("ScatterND", "t", ints(3, 1).reshape(2, 1), "s", outputs="g"),
            op("Transpose", "g", perm=[1, 0, 2]),
        ],
        ROWS,
        18,
    ),
    "MatMul": ([op("MatMul", "x", noise(6, 2))], ROWS, 18),
    "MatMul-images": ([op("Transpose", "x", outputs="t", perm=[0, 2, 1]), op("MatMul", "x", "t")], ROWS, 18),
    "MatMul-right": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 2, 0]),
            op("MatMul", noise(2, 6), "t", outputs="m"),
            op("Transpose", "m", perm=[2, 0, 1]),
        ],
        ROWS,
        18,
    ),
    "Gemm": ([op("Gemm", "x", noise(2, 6), noise(2), transB=1)], (1, 6), 18),
    "Einsum": ([op("Einsum", "x", "x", equation="bij,bkj->bik")], ROWS, 18),
    "MatMulInteger": (
        as_uint8(op("MatMulInteger", "i", np.ones((6, 2), np.uint8), outputs="c"), op("Cast", "c", to=1)),
        ROWS,
        18,
    ),
    "ConvInteger": (
        as_uint8(op("ConvInteger", "i", np.ones((2, 4, 2, 2), np.uint8), outputs="c"), op("Cast", "c", to=1)),
        IMAGE,
        18,
    ),
    "QLinearMatMul": (
        as_uint8(
            op("QLinearMatMul", "i", SCALE, ZERO, np.ones((6, 2), np.uint8), SCALE, ZERO, SCALE, ZERO, outputs="c"),
            op("DequantizeLinear", "c", SCALE, ZERO),
        ),
        ROWS,
        18,
    ),
    "QLinearConv": (
        as_uint8(
            op("QLinearConv", "i", SCALE, ZERO, np.ones((2, 4, 2, 2), np.uint8), SCALE, ZERO, SCALE, ZERO, outputs="c"),
            op("DequantizeLinear", "c", SCALE, ZERO),
        ),
        IMAGE,
        18,
    ),
    "QuantizeLinear": (
        as_uint8(op("DequantizeLinear", "i", np.full(4, 0.1, np.float32), np.zeros(4, np.uint8))),
        ROWS,
        18,
    ),
    "DequantizeLinear": (as_uint8(op("DequantizeLinear", "i", SCALE, ZERO)), ROWS, 18),
    **{
        name: (
            [
                op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
                op(name, "t", *WEIGHTS[name], outputs="h", hidden_size=3),
                op("Transpose", "h", perm=[2, 0, 1, 3]),
            ],
            ROWS,
            18,
        )
        for name in WEIGHTS
    },
    "Attention": ([op("Attention", "x", "x", "x", q_num_heads=2, kv_num_heads=2)], ROWS, 23),
}

BATCH_TO_ROWS = op("Transpose", "x", outputs="t", perm=[1, 2, 0])
MIXES: dict[str, Case] = {
    "Tile": ([op("Tile", "x", ints(2, 1, 1))], ROWS, 18),
    "Pad": ([op("Pad", "x", ints(1, 0, 0, 0, 0, 0))], ROWS, 18),
    "Pad-shifts": ([op("Pad", "x", ints(1, 0, 0, -1, 0, 0))], ROWS, 18),
    "Pad-attribute": ([op("Pad", "x", pads=[1, 0, 0, -1, 0, 0])], ROWS, 9),
    "Slice-reversed": ([op("Slice", "x", ints(-1), ints(-(1 << 62)), ints(0), ints(-1))], ROWS, 18),
    "Trilu": ([op("Reshape", "x", ints(1, 24), outputs="r"), op("Trilu", "r")], ROWS, 18),
    "EyeLike": (
        [op("Reshape", "x", ints(1, 24), outputs="r"), op("EyeLike", "r", outputs="e"), op("Mul", "r", "e")],
        ROWS,
        18,
    ),
    "LayerNormalization": ([op("LayerNormalization", "x", noise(4, 6), axis=0)], ROWS, 18),
    "LayerNormalization-inner": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
            op("LayerNormalization", "t", noise(6), axis=1, outputs="n"),
            op("Transpose", "n", perm=[1, 0, 2]),
        ],
        ROWS,
        18,
    ),
    "RMSNormalization": ([op("RMSNormalization", "x", noise(4, 6), axis=0)], ROWS, 23),
    "MeanVarianceNormalization": ([op("MeanVarianceNormalization", "x")], IMAGE, 18),
    "LpNormalization": ([op("LpNormalization", "x", axis=0)], ROWS, 18),
    "Softmax": ([op("Softmax", "x", axis=0)], ROWS, 18),
    "Softmax-11": ([op("Softmax", "x", axis=0)], ROWS, 11),
    "Softmax-11-inner": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
            op("Softmax", "t", outputs="s"),
            op("Transpose", "s", perm=[1, 0, 2]),
        ],
        ROWS,
        11,
    ),
    "ReduceMean": ([op("ReduceMean", "x", axes=[0], outputs="m"), op("Sub", "x", "m")], ROWS, 13),
    "ReduceMax-all": ([op("ReduceMax", "x", outputs="m"), op("Div", "x", "m")], ROWS, 18),
    "CumSum": ([op("CumSum", "x", np.asarray(0))], ROWS, 18),
    "TopK": ([op("TopK", "x", ints(1), outputs="v i", axis=0), op("Sub", "x", "v")], ROWS, 18),
    "ArgMax": ([op("ArgMax", "x", outputs="i"), op("Cast", "i", outputs="c", to=1), op("Add", "x", "c")], ROWS, 18),
    "MaxPool-indices": ([op("MaxPool", "x", outputs="v i", kernel_shape=[2, 2]), op("Cast", "i", to=1)], IMAGE, 18),
    "BatchNormalization": (
        [op("BatchNormalization", "x", noise(4), noise(4), noise(4), noise(4), outputs="y m v", training_mode=1)],
        IMAGE,
        18,
    ),
    "DynamicQuantizeLinear": (
        [op("DynamicQuantizeLinear", "x", outputs="q s z"), op("DequantizeLinear", "q", "s", "z")],
        ROWS,
        18,
    ),
    "Concat": ([op("Concat", "x", "x", axis=0)], ROWS, 18),
    "Gather": ([op("Gather", "x", ints(0))], ROWS, 18),
    "Range": (
        [
            op("Shape", "x", outputs="s"),
            op("Gather", "s", np.asarray(0), outputs="n"),
            op("Range", np.asarray(0), "n", np.asarray(1), outputs="r"),
            op("Cast", "r", outputs="f", to=1),
            op("Reshape", "f", ints(-1, 1, 1), outputs="g"),
            op("Add", "x", "g"),
        ],
        ROWS,
        18,
    ),
    "number-of-images": (
        [
            op("Shape", "x", outputs="s"),
            op("Gather", "s", np.asarray(0), outputs="n"),
            op("Cast", "n", outputs="f", to=1),
            op("Div", "x", "f"),
        ],
        ROWS,
        18,
    ),
    "MatMul": (
        [
            op("Reshape", "x", ints(1, 24), outputs="r"),
            op("Transpose", "r", outputs="t", perm=[1, 0]),
            op("MatMul", "t", "r", outputs="m"),
            op("MatMul", "r", "m"),
        ],
        ROWS,
        18,
    ),
    "Einsum": ([op("Einsum", "x", "x", equation="bij,bkj->ik", outputs="e"), op("MatMul", "e", "x")], ROWS, 18),
    "InstanceNormalization": (
        [
            op("Transpose", "x", outputs="t", perm=[1, 0, 2, 3]),
            op("InstanceNormalization", "t", noise(1), noise(1), outputs="i"),
            op("Transpose", "i", perm=[1, 0, 2, 3]),
        ],
        IMAGE,
        18,
    ),
    "LSTM": ([op("LSTM", "x", *WEIGHTS["LSTM"], outputs="h", hidden_size=3), op("Squeeze", "h", ints(1))], ROWS, 18),
    "Reshape-order": ([op("Transpose", "x", outputs="t", perm=[1, 0, 2]), op("Reshape", "t", ints(-1, 6))], ROWS, 18),
    "NonZero": (
        [op("NonZero", "x", outputs="n"), op("Cast", "n", outputs="f", to=1), op("Transpose", "f", perm=[1, 0])],
        (1, 6),
        18,
    ),
    "Compress": ([op("Compress", "x", np.asarray([True]), axis=0)], ROWS, 18),
    "SplitToSequence": ([op("SplitToSequence", "x", outputs="s"), op("ConcatFromSequence", "s", axis=1)], ROWS, 18),
    "Unique": ([op("Unique", "x", axis=0)], ROWS, 18),
    "RandomNormalLike": ([op("RandomNormalLike", "x", seed=1.0, outputs="r"), op("Add", "x", "r")], ROWS, 18),
}


def test_all_operators_have_a_case() -> None:
    assert {node[0] for nodes, *_ in KEEPS.values() for node in nodes} >= batch_rows.OPERATORS


@pytest.mark.parametrize("name", KEEPS)
def test_images_have_their_own_results(tmp_path: Path, name: str) -> None:
    nodes, shape, opset = KEEPS[name]
    path = build(tmp_path / "m.onnx", nodes, shape, opset)
    graph = open_graph(path)
    assert graph.apply(FreeBatch())
    x = np.random.default_rng(1).random((4, *shape[1:]), dtype=np.float32)
    (together,) = models.run(graph, x)
    apart = np.concatenate([models.run(path, row[None])[0] for row in x])
    assert apart.std() > 0, "the result depends on the images"
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXES)
def test_mixed_images_are_refused(tmp_path: Path, name: str) -> None:
    nodes, shape, opset = MIXES[name]
    with pytest.raises(UnsupportedModelError, match=r"^(node 'n\d+' \(|output 'y' |the first axis of output)"):
        open_graph(build(tmp_path / "m.onnx", nodes, shape, opset)).apply(FreeBatch())
