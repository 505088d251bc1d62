"""Targets of Reshape as constants, for all sizes of free axes."""

from __future__ import annotations

import pytest

from infersdk.graph import Graph
from infersdk.graph.lint import lint
from infersdk.graph.passes import StaticReshapes

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx_ir")

#: A target [first, -1] for `x`, with the first axis of another input.
OF_ANOTHER = "s = Shape<end=1>(z)  r = Constant<value=int64[1]{-1}>()  t = Concat<axis=0>(s, r)  y = Reshape(x, t)"

#: `z` is the first 100 of axis 1, and `t` is [-1, size of that axis].
START = """
    b = Constant<value=int64[1]{0}>()  e = Constant<value=int64[1]{100}>()  a = Constant<value=int64[1]{1}>()
    z = Slice(x, b, e, a)  s = Shape<start=1>(z)  r = Constant<value=int64[1]{-1}>()  t = Concat<axis=0>(r, s)
"""


def swapping(*axes: int) -> str:
    order = ", ".join(map(str, axes))
    return f"s = Shape(x)  i = Constant<value=int64[{len(axes)}]{{{order}}}>()  t = Gather(s, i)  y = Reshape(x, t)"


@pytest.mark.parametrize(
    ("inputs", "body", "target"),
    [
        ("float[n,h,w] x", swapping(0, 1, 2), [0, 0, 0]),
        ("float[n,h,w] x", swapping(0, 2, 1), None),
        ("float[?,?,?] x", swapping(0, 2, 1), None),
        ("float[n,size,size] x", swapping(0, 2, 1), [0, 0, 0]),
        ("float[n,4,4] x", swapping(0, 2, 1), [0, 0, 0]),
        ("float[n,4] x, float[n,6] z", OF_ANOTHER, [0, -1]),
        ("float[n,4] x, float[m,6] z", OF_ANOTHER, None),
        ("float[h,w] x, float[w,h] z", "p = Add(x, z)  " + swapping(0, 1), None),  # no example fits
        ("float[n,w] x", START + "y = Reshape(z, t)", [-1, 0]),
        ("float[n,w] x", START + "y = Reshape(x, t)", None),
        ("float[n,w] x, float[k,4] d", "s = Squeeze(d)  t = Shape(s)  y = Reshape(d, t)", None),  # one axis for k = 1
    ],
)
def test_axes_that_may_differ_are_told_apart(inputs: str, body: str, target: list[int] | None) -> None:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    model = onnx.parser.parse_model(f"{header} g ({inputs}) => (float[a,b,c] y) {{ {body} }}")
    graph = Graph.parse(model.SerializeToString())
    found = [finding.what for finding in lint(graph) if finding.rule == "shape-arithmetic"]
    assert found == [f"its target is computed at run time, but is always {target}"] * (target is not None)
    assert graph.apply(StaticReshapes()) == (target is not None)
    if target is not None:
        (reshape,) = graph.nodes("Reshape")
        assert graph.weights[reshape.inputs[1].name].tolist() == target
