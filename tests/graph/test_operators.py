"""The operators at the ends of detectors give the results of ONNX's reference implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infersdk.graph.operators import OPERATORS

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

INT = np.int64
SHAPE = (2, 3, 5, 4)


def data(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).uniform(-4, 4, shape)


def ints(*values: int) -> Any:
    return np.array(values, INT)


#: An operator, its version, its inputs, its attributes, and how many outputs it has.
CASES: list[tuple[str, int, list[Any], dict[str, Any], int]] = [
    *[(name, 13, [data(2, 3, 5), data(3, 1)], {}, 1) for name in ("Add", "Sub", "Mul", "Div")],
    *[(name, 13, [ints(7, -7, 6, 0), ints(2, 2, -3, 5)], {}, 1) for name in ("Add", "Sub", "Mul", "Div")],
    ("Cast", 13, [data(4)], {"to": 1}, 1),
    ("Cast", 13, [data(4)], {"to": 7}, 1),
    ("Cast", 13, [ints(3, 0)], {"to": 9}, 1),
    ("Concat", 13, [data(2, 3), data(2, 1), data(2, 4)], {"axis": -1}, 1),
    ("Conv", 11, [data(*SHAPE), data(1, 3, 1, 1)], {}, 1),
    ("Conv", 11, [data(*SHAPE), data(1, 3, 1, 1), data(1)], {"kernel_shape": [1, 1], "pads": [0] * 4}, 1),
    ("Gather", 13, [data(*SHAPE), ints(2, -1, 0)], {"axis": 1}, 1),
    ("Gather", 13, [ints(4, 5, 6), np.array(1)], {}, 1),
    ("Identity", 13, [data(3)], {}, 1),
    ("Pow", 13, [data(3, 4), np.array(2.0)], {}, 1),
    ("Pow", 13, [data(3, 4), ints(2)], {}, 1),
    ("Reshape", 14, [data(*SHAPE), ints(0, -1, 2)], {}, 1),
    ("Reshape", 14, [data(0, 3), ints(3, 0)], {"allowzero": 1}, 1),
    ("Shape", 13, [data(*SHAPE)], {}, 1),
    ("Shape", 15, [data(*SHAPE)], {"start": 1, "end": -1}, 1),
    ("Shape", 15, [data(*SHAPE)], {"start": -9, "end": 9}, 1),
    ("Sigmoid", 13, [data(3, 4)], {}, 1),
    ("Slice", 9, [data(*SHAPE)], {"starts": [1, 0], "ends": [3, -1], "axes": [2, 3]}, 1),
    ("Slice", 9, [data(*SHAPE)], {"starts": [0, 1], "ends": [1, 99]}, 1),
    ("Slice", 13, [data(*SHAPE), ints(1), ints(99), ints(-2)], {}, 1),
    ("Slice", 13, [data(*SHAPE), ints(0, -1), ints(9, -9), ints(3, 2), ints(2, -1)], {}, 1),
    ("Slice", 13, [data(*SHAPE), ints(0), ints(2), None, ints(1)], {}, 1),
    ("Softmax", 11, [data(2, 3)], {}, 1),
    ("Softmax", 13, [data(*SHAPE)], {}, 1),
    ("Softmax", 13, [data(*SHAPE)], {"axis": 1}, 1),
    ("Split", 11, [data(*SHAPE)], {"axis": 1, "split": [1, 2]}, 2),
    ("Split", 11, [data(*SHAPE)], {"axis": -1}, 2),
    ("Split", 13, [data(*SHAPE), ints(1, 3, 1)], {"axis": 2}, 3),
    ("Split", 13, [data(*SHAPE)], {"axis": 0}, 2),
    ("Split", 18, [data(*SHAPE)], {"axis": 2, "num_outputs": 3}, 3),
    ("Squeeze", 11, [data(1, 3, 1)], {"axes": [0]}, 1),
    ("Squeeze", 13, [data(1, 3, 1), ints(-1)], {}, 1),
    ("Squeeze", 13, [data(1, 3, 1)], {}, 1),
    ("Transpose", 13, [data(*SHAPE)], {}, 1),
    ("Transpose", 13, [data(*SHAPE)], {"perm": [0, 2, 3, 1]}, 1),
    ("Unsqueeze", 11, [data(3, 4)], {"axes": [0, 3]}, 1),
    ("Unsqueeze", 13, [data(3, 4), ints(-1, 0)], {}, 1),
]


@pytest.mark.parametrize(
    ("name", "opset", "inputs", "attributes", "count"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_an_operator(name: str, opset: int, inputs: list[Any], attributes: dict[str, Any], count: int) -> None:
    names = ["" if one is None else f"i{i}" for i, one in enumerate(inputs)]
    node = onnx.helper.make_node(name, names, [f"o{i}" for i in range(count)], **attributes)
    feeds = {given: one for given, one in zip(names, inputs, strict=True) if one is not None}
    types = [
        onnx.helper.make_tensor_value_info(given, onnx.helper.np_dtype_to_tensor_dtype(one.dtype), one.shape)
        for given, one in feeds.items()
    ]
    graph = onnx.helper.make_graph([node], "g", types, [onnx.ValueInfoProto(name=one) for one in node.output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    expected = reference.ReferenceEvaluator(model).run(None, feeds)
    found = OPERATORS[name](*inputs, **attributes, **({"count": count} if name == "Split" else {}))
    found = found if name == "Split" else [found]
    assert len(found) == len(expected) == count
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_each_operator_has_a_case() -> None:
    assert {case[0] for case in CASES} == set(OPERATORS)


@pytest.mark.parametrize("sizes", [[1, 1], [1, 2, 0], [2, 2]])
def test_parts_that_are_not_the_whole(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="are not the 3 elements of axis 1"):
        OPERATORS["Split"](data(*SHAPE), ints(*sizes), count=2, axis=1)


@pytest.mark.parametrize("attributes", [{"broadcast": 1}, {"axis": 0}])
def test_attributes_of_versions_that_are_not_known(attributes: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        OPERATORS["Add"](data(2), data(2), **attributes)
