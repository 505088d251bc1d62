"""Element types out of operators' definitions, and which numbers are indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from infersdk.graph.files import read_model
from infersdk.graph.types import element_types

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")


def types(path: Path) -> dict[str, str]:
    return {value.name or "": kind.name for value, kind in element_types(read_model(path)).items()}


def test_types_follow_from_the_operators(tmp_path: Path) -> None:
    node = models.node
    nodes = [
        node("Shape", "x", "shape"), node("TopK", "x k", "best places"), node("Cast", "places", "float", to=1),
        node("Cast", "x", "half", to=10), node("Add", "half half", "sum"), node("Greater", "x x", "mask"),
        node("Where", "mask x float", "chosen"), node("ConstantOfShape", "shape", "zeros"),
        node("QuantizeLinear", "x s", "q8"), node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Constant", "", "c", value_ints=[1, 2]), node("Range", "k0 k0 k0", "range"),
        node("LayerNormalization", "x w", "normal"), node("Identity", "normal", "y"),
    ]  # fmt: skip
    path = models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", ("n", 4))], [models.value("y", ("n", 4))],
        {"k": np.asarray([2]), "k0": np.asarray(1), "s": np.float32(0.1), "z": np.int8(0), "w": np.ones(4, np.float32)},
    )  # fmt: skip
    found = types(path)
    want = {
        "shape": "INT64", "best": "FLOAT", "places": "INT64", "float": "FLOAT", "half": "FLOAT16", "sum": "FLOAT16",
        "mask": "BOOL", "chosen": "FLOAT", "zeros": "FLOAT", "q8": "UINT8", "q": "INT8", "d": "FLOAT", "c": "INT64",
        "range": "INT64", "normal": "FLOAT", "y": "FLOAT",
    }  # fmt: skip
    assert {name: found.get(name) for name in want} == want


def test_types_within_branches_and_loops(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph(
        [models.node("Cast", "x", "o", to=10)], "b", [], [models.value("o", None, "float16")]
    )
    body = onnx.helper.make_graph(
        [models.node("Identity", "go", "on"), models.node("Add", "state half", "next")], "body",
        [models.value("i", (), "int64"), models.value("go", (), "bool"), onnx.ValueInfoProto(name="state")],
        [models.value("on", (), "bool"), onnx.ValueInfoProto(name="next")],
    )  # fmt: skip
    nodes = [models.node("If", "c", "half", then_branch=inner, else_branch=inner),
             models.node("Loop", "n c half", "y", body=body)]  # fmt: skip
    weights = {"c": np.asarray(True), "n": np.asarray(3)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[n] x", "float16[n] y", weights)
    found = types(path)
    assert {found[name] for name in ("half", "o", "state", "next", "y")} == {"FLOAT16"}


def test_an_operator_outside_of_the_standard(tmp_path: Path) -> None:
    """It is taken to compute in the type of its first floating-point input."""
    fused = onnx.helper.make_node("FusedConv", ["i", "x"], ["h"], domain="com.microsoft")
    many = onnx.helper.make_node("MatMulInteger", ["i", "i"], ["n"])
    nodes = [fused, many, models.node("Identity", "h", "y")]
    path = models.save(tmp_path / "m.onnx", nodes, "float16[n] x, int8[n] i", "float16[n] y")
    assert {name: types(path)[name] for name in "hn"} == {"h": "FLOAT16", "n": "INT32"}


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"value_float": 0.5}, "FLOAT"),
        ({"value_ints": [1, 2]}, "INT64"),
        ({"value_string": "a"}, "STRING"),
        ({"value_strings": ["a", "b"]}, "STRING"),
        ({}, None),
        ({"value_int": 1, "domain": "x"}, None),  # invalid
    ],
)
def test_constants_of_each_form(attributes: dict[str, object], kind: str | None, tmp_path: Path) -> None:
    constant = onnx.helper.make_node("Constant", [], ["c"])
    constant.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    path = models.save(tmp_path / "m.onnx", [constant, models.node("Identity", "x", "y")], "float[n] x", "float[n] y")
    assert types(path).get("c") == kind
