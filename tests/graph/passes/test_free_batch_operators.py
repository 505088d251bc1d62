"""A free batch, operator by operator: each gives every image its own result, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

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


def build(path: Path, case: Case) -> Path:
    weights: dict[str, Any] = {}
    made = []
    for index, (kind, inputs, names, attributes) in enumerate(case.nodes):
        called = []
        for place, given in enumerate(inputs):
            called.append(given if isinstance(given, str) else f"w{index}_{place}")
            if not isinstance(given, str):
                weights[called[-1]] = np.asarray(given)
        made.append(onnx.helper.make_node(kind, called, names.split(), f"n{index}", **attributes))
    # ONNX infers no shape of this operator.
    results = [models.value("y", case.shape if case.nodes[-1][0] == "GroupNormalization" else None)]
    path = models.save(path, made, [models.value("x", case.shape)], results, weights, opset=case.opset)
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
ELEMENTWISE = """
    Abs Acos Asin Asinh Atan Celu Clip Cos Cosh Elu Erf Exp HardSigmoid HardSwish Identity LeakyRelu Log Mish Neg
    Reciprocal Relu Round Selu Shrink Sigmoid Sin Sinh Softplus Softsign Sqrt Tan Tanh Sum Mean Max Min
"""
REDUCTIONS = "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"


class Case(NamedTuple):
    nodes: tuple[Any, ...]
    shape: tuple[int, ...]
    opset: int


def case(*nodes: Any, shape: tuple[int, ...] = ROWS, opset: int = 18) -> Case:
    return Case(nodes, shape, opset)


KEEPS: dict[str, Case] = {
    **{name: case(op(name, "x")) for name in ELEMENTWISE.split()},
    **{
        name: case(op("Mul", "x", np.float32(3), outputs="m"), op(name, "m"))
        for name in ("Ceil", "Floor", "ThresholdedRelu")
    },
    "Sign": case(op("Sub", "x", np.float32(0.5), outputs="m"), op("Sign", "m")),
    "Atanh": case(op("Mul", "x", np.float32(0.9), outputs="m"), op("Atanh", "m")),
    "Acosh": case(op("Add", "x", np.float32(1), outputs="m"), op("Acosh", "m")),
    "Gelu": case(op("Gelu", "x"), opset=20),
    "Swish": case(op("Swish", "x"), opset=24),
    **{name: case(op(name, "x", noise(4, 1))) for name in ("Add", "Sub", "Mul", "Div", "Pow", "PRelu")},
    "Add-image": case(op("Add", "x", "x")),
    "Add-more-axes": case(op("Add", "x", noise(2, 1, 4, 6), outputs="a"), op("Transpose", "a", perm=[1, 0, 2, 3])),
    "Mod": case(op("Mod", "x", np.float32(0.3), fmod=1)),
    **{
        name: case(op(name, "x", noise(4, 1), outputs="c"), op("Cast", "c", to=1))
        for name in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Equal": case(*as_int(op("Equal", "i", np.int64(4), outputs="c"))),
    "IsInf": case(
        *as_int(op("Cast", "i", outputs="f", to=1), op("Log", "f", outputs="l"), op("IsInf", "l", outputs="c"))
    ),
    "IsNaN": case(
        op("Sub", "x", np.float32(0.5), outputs="m"),
        op("Sqrt", "m", outputs="r"),
        op("IsNaN", "r", outputs="c"),
        op("Cast", "c", to=1),
    ),
    **{
        name: case(*as_bool(op("Less", "x", np.float32(limit), outputs="d"), op(name, "b", "d", outputs="c")))
        for name, limit in (("And", 0.7), ("Or", 0.3), ("Xor", 0.7))
    },
    "Not": case(*as_bool(op("Not", "b", outputs="c"))),
    "Where": case(op("Greater", "x", np.float32(0.5), outputs="b"), op("Where", "b", "x", noise(4, 6))),
    **{
        name: case(*as_int(op("Cast", "i", outputs="u", to=2), op(name, "u", np.uint8(3), outputs="c")))
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    "BitwiseNot": case(*as_int(op("BitwiseNot", "i", outputs="c"))),
    "BitShift": case(
        *as_int(op("Cast", "i", outputs="u", to=2), op("BitShift", "u", np.uint8(1), outputs="c", direction="LEFT"))
    ),
    "Cast": case(*as_int(op("Cast", "i", outputs="c", to=6))),
    "CastLike": case(op("CastLike", "x", np.float64(1), outputs="c"), op("Cast", "c", to=1), opset=19),
    "Dropout": case(op("Dropout", "x")),
    "ConstantOfShape": case(
        op("Shape", "x", outputs="s"), op("ConstantOfShape", "s", outputs="o"), op("Add", "x", "o")
    ),
    "Expand": case(op("Unsqueeze", "x", ints(1), outputs="u"), op("Expand", "u", ints(1, 3, 4, 6))),
    "Expand-constant": case(
        op("Shape", "x", outputs="s"), op("Expand", noise(1, 1, 6), "s", outputs="o"), op("Concat", "x", "o", axis=1)
    ),
    "Tile": case(op("Tile", "x", ints(1, 2, 3))),
    "Conv": case(op("Conv", "x", noise(3, 4, 3, 3)), shape=IMAGE),
    "ConvTranspose": case(op("ConvTranspose", "x", noise(4, 3, 3, 3)), shape=IMAGE),
    "DeformConv": case(
        op("Conv", "x", noise(8, 4, 2, 2), outputs="o"),
        op("DeformConv", "x", noise(3, 4, 2, 2), "o"),
        shape=IMAGE,
        opset=19,
    ),
    **{name: case(op(name, "x", kernel_shape=[2, 2]), shape=IMAGE) for name in ("AveragePool", "MaxPool", "LpPool")},
    **{name: case(op(name, "x"), shape=IMAGE) for name in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")},
    "BatchNormalization": case(op("BatchNormalization", "x", noise(4), noise(4), noise(4), noise(4)), shape=IMAGE),
    "InstanceNormalization": case(op("InstanceNormalization", "x", noise(4), noise(4)), shape=IMAGE),
    "GroupNormalization": case(op("GroupNormalization", "x", noise(4), noise(4), num_groups=2), shape=IMAGE, opset=21),
    "LRN": case(op("LRN", "x", size=3), shape=IMAGE),
    "DepthToSpace": case(op("DepthToSpace", "x", blocksize=2), shape=IMAGE),
    "SpaceToDepth": case(op("SpaceToDepth", "x", blocksize=2), shape=IMAGE),
    "Col2Im": case(op("Col2Im", "x", ints(3, 4), ints(2, 2)), shape=(1, 8, 6)),
    "GridSample": case(
        op("Transpose", "x", outputs="t", perm=[0, 2, 3, 1]),
        op("Slice", "t", ints(0), ints(2), ints(3), outputs="g"),
        op("GridSample", "x", "g"),
        shape=IMAGE,
    ),
    "AffineGrid": case(
        op("Shape", "x", outputs="s", end=1),
        op("Concat", "s", ints(1, 4, 5), outputs="t", axis=0),
        op("AffineGrid", "x", "t"),
        shape=(1, 2, 3),
        opset=20,
    ),
    "Flatten": case(op("Flatten", "x"), shape=IMAGE),
    "Flatten-rows": case(op("Flatten", "x", axis=2), shape=IMAGE),
    "Reshape": case(op("Reshape", "x", ints(1, 2, 12))),
    "Squeeze": case(op("Unsqueeze", "x", ints(0), outputs="u"), op("Squeeze", "u", ints(0))),
    "Unsqueeze": case(op("Unsqueeze", "x", ints(2))),
    "Transpose": case(op("Transpose", "x", outputs="t", perm=[1, 0, 2]), op("Transpose", "t", perm=[1, 2, 0])),
    "OneHot": case(*as_int(op("OneHot", "i", ints(9), ints(0, 1), outputs="c"))),
    **{name: case(op(name, "x", axes=[1, -1]), shape=IMAGE, opset=13) for name in REDUCTIONS.split()},
    "ReduceSum": case(op("ReduceSum", "x", ints(1)), shape=IMAGE),
    **{name: case(op(name, "x")) for name in ("Hardmax", "Softmax", "LogSoftmax")},
    "Softmax-11": case(op("Softmax", "x"), opset=11),
    "LayerNormalization": case(op("LayerNormalization", "x", noise(4, 6), axis=1)),
    "RMSNormalization": case(op("RMSNormalization", "x", noise(6)), opset=23),
    "MeanVarianceNormalization": case(op("MeanVarianceNormalization", "x", axes=[1, 2])),
    "LpNormalization": case(op("LpNormalization", "x")),
    **{name: case(op(name, "x", outputs="c", axis=1), op("Cast", "c", to=1)) for name in ("ArgMax", "ArgMin")},
    "Split": case(op("Split", "x", outputs="a b", axis=1, num_outputs=2), op("Sub", "a", "b")),
    "TopK": case(op("TopK", "x", ints(3), outputs="y i")),
    "CumSum": case(op("CumSum", "x", np.asarray(1))),
    "Trilu": case(op("Trilu", "x")),
    "Pad": case(op("Pad", "x", ints(0, 1, 0, 0, 0, 2))),
    "Pad-axes": case(op("Pad", "x", ints(1, 1), "", ints(1))),
    "Slice": case(op("Slice", "x", ints(-1), ints(-9), ints(1), ints(-1))),
    "Slice-whole": case(op("Slice", "x", ints(0, 1), ints(1, 3))),
    "Resize": case(op("Resize", "x", "", np.asarray([1, 1, 2, 2], np.float32), mode="linear"), shape=IMAGE),
    "Upsample": case(op("Upsample", "x", np.asarray([1, 1, 2, 2], np.float32)), shape=IMAGE, opset=9),
    "Concat": case(op("Concat", "x", "x", noise(1, 4, 2), axis=2)),
    "Gather": case(op("Gather", "x", ints(3, 1), axis=1)),
    "Gather-table": case(*as_int(op("Gather", noise(9, 2), "i", outputs="c"))),
    "GatherElements": case(op("TopK", "x", ints(2), outputs="v i", axis=1), op("GatherElements", "x", "i", axis=1)),
    "ScatterElements": case(
        op("TopK", "x", ints(2), outputs="v i", axis=1, largest=0), op("ScatterElements", "x", "i", "v", axis=1)
    ),
    "GatherND": case(
        op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
        op("GatherND", "t", ints(2, 0).reshape(2, 1), outputs="g"),
        op("Transpose", "g", perm=[1, 0, 2]),
    ),
    "GatherND-batched": case(
        op("ArgMax", "x", outputs="i", axis=1, keepdims=0),
        op("Unsqueeze", "i", ints(2), outputs="u"),
        op("GatherND", "x", "u", batch_dims=1),
    ),
    "ScatterND": case(
        op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
        op("Slice", "t", ints(0), ints(2), ints(0), outputs="s"),
        op("ScatterND", "t", ints(3, 1).reshape(2, 1), "s", outputs="g"),
        op("Transpose", "g", perm=[1, 0, 2]),
    ),
    "MatMul": case(op("MatMul", "x", noise(6, 2))),
    "MatMul-images": case(op("Transpose", "x", outputs="t", perm=[0, 2, 1]), op("MatMul", "x", "t")),
    "MatMul-right": case(
        op("Transpose", "x", outputs="t", perm=[1, 2, 0]),
        op("MatMul", noise(2, 6), "t", outputs="m"),
        op("Transpose", "m", perm=[2, 0, 1]),
    ),
    "Gemm": case(op("Gemm", "x", noise(2, 6), noise(2), transB=1), shape=(1, 6)),
    "Einsum": case(op("Einsum", "x", "x", equation="bij,bkj->bik")),
    "MatMulInteger": case(
        *as_uint8(op("MatMulInteger", "i", np.ones((6, 2), np.uint8), outputs="c"), op("Cast", "c", to=1))
    ),
    "ConvInteger": case(
        *as_uint8(op("ConvInteger", "i", np.ones((2, 4, 2, 2), np.uint8), outputs="c"), op("Cast", "c", to=1)),
        shape=IMAGE,
    ),
    "QLinearMatMul": case(
        *as_uint8(
            op("QLinearMatMul", "i", SCALE, ZERO, np.ones((6, 2), np.uint8), SCALE, ZERO, SCALE, ZERO, outputs="c"),
            op("DequantizeLinear", "c", SCALE, ZERO),
        )
    ),
    "QLinearConv": case(
        *as_uint8(
            op("QLinearConv", "i", SCALE, ZERO, np.ones((2, 4, 2, 2), np.uint8), SCALE, ZERO, SCALE, ZERO, outputs="c"),
            op("DequantizeLinear", "c", SCALE, ZERO),
        ),
        shape=IMAGE,
    ),
    "QuantizeLinear": case(*as_uint8(op("DequantizeLinear", "i", np.full(4, 0.1, np.float32), np.zeros(4, np.uint8)))),
    "DequantizeLinear": case(*as_uint8(op("DequantizeLinear", "i", SCALE, ZERO))),
    **{
        name: case(
            op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
            op(name, "t", *WEIGHTS[name], outputs="h", hidden_size=3),
            op("Transpose", "h", perm=[2, 0, 1, 3]),
        )
        for name in WEIGHTS
    },
    "Attention": case(op("Attention", "x", "x", "x", q_num_heads=2, kv_num_heads=2), opset=23),
}

MIXES: dict[str, Case] = {
    "Tile": case(op("Tile", "x", ints(2, 1, 1))),
    "Pad": case(op("Pad", "x", ints(1, 0, 0, 0, 0, 0))),
    "Pad-shifts": case(op("Pad", "x", ints(1, 0, 0, -1, 0, 0))),
    "Pad-attribute": case(op("Pad", "x", pads=[1, 0, 0, -1, 0, 0]), opset=9),
    "Slice-reversed": case(op("Slice", "x", ints(-1), ints(-(1 << 62)), ints(0), ints(-1))),
    "Trilu": case(op("Reshape", "x", ints(1, 24), outputs="r"), op("Trilu", "r")),
    "EyeLike": case(op("Reshape", "x", ints(1, 24), outputs="r"), op("EyeLike", "r", outputs="e"), op("Mul", "r", "e")),
    "LayerNormalization": case(op("LayerNormalization", "x", noise(4, 6), axis=0)),
    "LayerNormalization-inner": case(
        op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
        op("LayerNormalization", "t", noise(6), axis=1, outputs="n"),
        op("Transpose", "n", perm=[1, 0, 2]),
    ),
    "RMSNormalization": case(op("RMSNormalization", "x", noise(4, 6), axis=0), opset=23),
    "MeanVarianceNormalization": case(op("MeanVarianceNormalization", "x"), shape=IMAGE),
    "LpNormalization": case(op("LpNormalization", "x", axis=0)),
    "Softmax": case(op("Softmax", "x", axis=0)),
    "Softmax-11": case(op("Softmax", "x", axis=0), opset=11),
    "Softmax-11-inner": case(
        op("Transpose", "x", outputs="t", perm=[1, 0, 2]),
        op("Softmax", "t", outputs="s"),
        op("Transpose", "s", perm=[1, 0, 2]),
        opset=11,
    ),
    "ReduceMean": case(op("ReduceMean", "x", axes=[0], outputs="m"), op("Sub", "x", "m"), opset=13),
    "ReduceMax-all": case(op("ReduceMax", "x", outputs="m"), op("Div", "x", "m")),
    "CumSum": case(op("CumSum", "x", np.asarray(0))),
    "TopK": case(op("TopK", "x", ints(1), outputs="v i", axis=0), op("Sub", "x", "v")),
    "ArgMax": case(op("ArgMax", "x", outputs="i"), op("Cast", "i", outputs="c", to=1), op("Add", "x", "c")),
    "MaxPool-indices": case(op("MaxPool", "x", outputs="v i", kernel_shape=[2, 2]), op("Cast", "i", to=1), shape=IMAGE),
    "BatchNormalization": case(
        op("BatchNormalization", "x", noise(4), noise(4), noise(4), noise(4), outputs="y m v", training_mode=1),
        shape=IMAGE,
    ),
    "DynamicQuantizeLinear": case(
        op("DynamicQuantizeLinear", "x", outputs="q s z"), op("DequantizeLinear", "q", "s", "z")
    ),
    "Concat": case(op("Concat", "x", "x", axis=0)),
    "Gather": case(op("Gather", "x", ints(0))),
    "Range": case(
        op("Shape", "x", outputs="s"),
        op("Gather", "s", np.asarray(0), outputs="n"),
        op("Range", np.asarray(0), "n", np.asarray(1), outputs="r"),
        op("Cast", "r", outputs="f", to=1),
        op("Reshape", "f", ints(-1, 1, 1), outputs="g"),
        op("Add", "x", "g"),
    ),
    "number-of-images": case(
        op("Shape", "x", outputs="s"),
        op("Gather", "s", np.asarray(0), outputs="n"),
        op("Cast", "n", outputs="f", to=1),
        op("Div", "x", "f"),
    ),
    "MatMul": case(
        op("Reshape", "x", ints(1, 24), outputs="r"),
        op("Transpose", "r", outputs="t", perm=[1, 0]),
        op("MatMul", "t", "r", outputs="m"),
        op("MatMul", "r", "m"),
    ),
    "Einsum": case(op("Einsum", "x", "x", equation="bij,bkj->ik", outputs="e"), op("MatMul", "e", "x")),
    "InstanceNormalization": case(
        op("Transpose", "x", outputs="t", perm=[1, 0, 2, 3]),
        op("InstanceNormalization", "t", noise(1), noise(1), outputs="i"),
        op("Transpose", "i", perm=[1, 0, 2, 3]),
        shape=IMAGE,
    ),
    "LSTM": case(op("LSTM", "x", *WEIGHTS["LSTM"], outputs="h", hidden_size=3), op("Squeeze", "h", ints(1))),
    "Reshape-order": case(op("Transpose", "x", outputs="t", perm=[1, 0, 2]), op("Reshape", "t", ints(-1, 6))),
    "NonZero": case(
        op("NonZero", "x", outputs="n"),
        op("Cast", "n", outputs="f", to=1),
        op("Transpose", "f", perm=[1, 0]),
        shape=(1, 6),
    ),
    "Compress": case(op("Compress", "x", np.asarray([True]), axis=0)),
    "SplitToSequence": case(op("SplitToSequence", "x", outputs="s"), op("ConcatFromSequence", "s", axis=1)),
    "Unique": case(op("Unique", "x", axis=0)),
    "RandomNormalLike": case(op("RandomNormalLike", "x", seed=1.0, outputs="r"), op("Add", "x", "r")),
}


def test_all_operators_have_a_case() -> None:
    assert {node[0] for one in KEEPS.values() for node in one.nodes} >= batch_rows.OPERATORS


@pytest.mark.parametrize("name", KEEPS)
def test_images_have_their_own_results(tmp_path: Path, name: str) -> None:
    if name in ("DeformConv", "Swish"):
        models.need_runtime((1, 27), "does not run this operator")
    path = build(tmp_path / "m.onnx", KEEPS[name])
    graph = open_graph(path)
    assert graph.apply(FreeBatch())
    x = np.random.default_rng(1).random((4, *KEEPS[name].shape[1:]), dtype=np.float32)
    (together,) = models.run(graph, x)
    apart = np.concatenate([models.run(path, row[None])[0] for row in x])
    assert apart.std() > 0, "the result depends on the images"
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXES)
def test_mixed_images_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^(node 'n\d+' \(|output 'y' |the first axis of output)"):
        open_graph(build(tmp_path / "m.onnx", MIXES[name])).apply(FreeBatch())
