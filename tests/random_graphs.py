"""Random graphs of convolutions, constant factors and offsets, and hard swish, in all the forms that files have."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx_models import node, onnx, value

NUMBERS = (0.0, -1.7, 2e-3, -0.4, 1 / 6, 1.0, 3.0, 6.0)
SWISH = (
    ("Add x three a", "Clip a zero six b", "Mul x b c", "Div c six y"),
    ("Add three x a", "Clip a zero six b", "Mul b x c", "Mul sixth c y"),
    ("Add x three a", "Clip a zero six b", "Div b six c", "Mul x c y"),
    ("Add x three a", "Clip a zero six b", "Mul b sixth y"),
)
KINDS = ("conv", "conv", "conv", "conv", "deconv", "factor", "factor", "offset", "offset", "swish", "relu", "if")


class Graph:
    """A chain of random nodes, in which later ones may take earlier values as well."""

    def __init__(self, draw: Any, kinds: tuple[str, ...] = KINDS) -> None:
        self.draw, self.kinds = draw, kinds
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.overridable: list[Any] = []
        self.count = 0
        self.shapes = {"x": (2, draw(st.integers(1, 3)), 10, 9)}
        self.flat = draw(st.integers(0, 7)) == 0  # three axes, and a constant of four gives the fourth
        self.input_shape = self.shapes["x"][1:] if self.flat else self.shapes["x"]
        if self.flat:
            self.shapes = {self.operator("Mul", "x", self.constant([1, 1, 1, 1])): (1, *self.input_shape)}
        for _ in range(draw(st.integers(2, 8))):
            self.add()
        self.content: bytes = self._model().SerializeToString()

    def _model(self) -> Any:
        names = list(self.shapes)
        outputs = {names[-1], *(name for name in names if self.draw(st.integers(0, 7)) == 7)} - {"x"}
        if not outputs:
            outputs = {self.operator("Relu", "x")}
        constants = [onnx.numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = onnx.helper.make_graph(
            self.nodes, "g", [value("x", self.input_shape), *self.overridable],
            [value(name, None) for name in sorted(outputs)], constants,
        )  # fmt: skip
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def operator(self, kind: str, *inputs: str, **attributes: Any) -> str:
        result = self.name()
        self.nodes.append(node(kind, " ".join(inputs), result, **attributes))
        return result

    def weight(self, array: Any) -> str:
        """A weight; now and then a Constant node, or one that the caller may replace."""
        name, array = self.name(), np.asarray(array, np.float32)
        form = self.draw(st.integers(0, 15))
        if form < 2:
            self.nodes.append(node("Constant", "", name, value=onnx.numpy_helper.from_array(array)))
            return name
        if form == 2:
            self.overridable.append(value(name, array.shape))
        self.weights[name] = array
        return name

    def constant(self, shape: list[int]) -> str:
        numbers = self.draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3))
        return self.weight(np.resize(np.asarray(numbers), shape))

    def add(self) -> None:
        kind = self.draw(st.sampled_from(self.kinds))
        names = list(self.shapes)
        source = self.draw(st.sampled_from((names[-1], names[-1], names[-1], names[-2:][0])))
        shape = self.shapes[source]
        if kind in ("conv", "deconv"):
            self.convolution(kind, source, shape)
        elif kind in ("factor", "offset"):
            channels, last = shape[1], shape[3]
            shapes = ([], [1], [1, 1, 1, 1], [channels, 1, 1], [1, channels, 1, 1], [last], [shape[0], 1, 1, 1])
            pair = [source, self.constant(list(self.draw(st.sampled_from(shapes))))]
            operator = "Mul" if kind == "factor" else "Add"
            self.shapes[self.operator(operator, *self.draw(st.permutations(pair)))] = shape
        elif kind == "swish":
            self.shapes[self.swish(source)] = shape
        elif kind == "relu":
            self.shapes[self.operator("Relu", source)] = shape
        else:
            self.branches(source, shape)

    def swish(self, source: str) -> str:
        names = {"x": source, "y": self.name(), "a": self.name(), "b": self.name(), "c": self.name()}
        shape = self.draw(st.sampled_from(([], [], [1], [1, 1, 1, 1], [1, 1, 1, 1, 1])))
        for line in self.draw(st.sampled_from(SWISH)):
            operator, *operands = line.split()
            for constant, number in (("three", 3), ("zero", 0), ("six", 6), ("sixth", 1 / 6)):
                if constant in operands:
                    kept = [] if operator == "Clip" or len(shape) == 5 else shape
                    names[constant] = self.weight(np.full(kept, number))
            self.nodes.append(node(operator, " ".join(names[one] for one in operands[:-1]), names[operands[-1]]))
        return names["y"]

    def convolution(self, kind: str, source: str, shape: tuple[int, ...]) -> None:
        batch, channels, height, width = shape
        filters = self.draw(st.integers(1, 3))
        inputs = [source]
        if kind == "deconv":
            if height > 20:
                return
            group = self.draw(st.sampled_from([1, channels]))
            inputs.append(self.weight(self.rng.normal(size=(channels, filters, 2, 2))))
            filters, made, attributes = filters * group, (2 * height, 2 * width), {"strides": [2, 2], "group": group}
        else:
            size, pad = self.draw(st.sampled_from([(1, 0), (3, 1), (2, 0)]))
            group = self.draw(st.sampled_from([1, channels]))
            filters *= group
            if min(height, width) < size:
                return
            same = [name for name, array in self.weights.items()
                    if array.shape == (filters, channels // group, size, size)]  # fmt: skip
            shared = bool(same) and self.draw(st.booleans())
            kernel = (filters, channels // group, size, size)
            inputs.append(same[0] if shared else self.weight(self.rng.normal(size=kernel)))
            made, attributes = (height + 2 * pad - size + 1, width + 2 * pad - size + 1), {"group": group}
            if size == 3 and self.draw(st.booleans()):
                attributes["auto_pad"] = "SAME_UPPER"
            else:
                attributes["pads"] = [pad] * 4
        if self.draw(st.booleans()):
            inputs.append(self.weight(self.rng.normal(size=filters)))
        result = self.operator("Conv" if kind == "conv" else "ConvTranspose", *inputs, **attributes)
        self.shapes[result] = (batch, filters, *made)

    def branches(self, source: str, shape: tuple[int, ...]) -> None:
        """An If, whose branches take a value of the graph around them, and have names that a pass might choose."""
        result = self.name()
        branches = []
        for number in range(2):
            kernel = onnx.numpy_helper.from_array(
                self.rng.normal(size=(shape[1], shape[1], 1, 1)).astype(np.float32), f"{result}_conv{number}_weight"
            )
            inner, out = f"{result}_conv{number}", f"{result}_out{number}"
            chain = [node("Conv", f"{source} {kernel.name}", inner), node("Relu", inner, out)]
            if number and self.draw(st.booleans()):  # a value of the graph around it, as it is
                chain = [node("Identity", source, out)]
            branches.append(onnx.helper.make_graph(chain, f"branch{number}", [], [value(out, None)], [kernel]))
        condition = self.name()
        self.nodes.append(
            node("Constant", "", condition,
                 value=onnx.numpy_helper.from_array(np.asarray(self.draw(st.booleans()))))
        )  # fmt: skip
        self.nodes.append(node("If", condition, result, then_branch=branches[0], else_branch=branches[1]))
        self.shapes[result] = shape


@st.composite
def graphs(draw: Any, kinds: tuple[str, ...] = KINDS) -> Graph:
    return Graph(draw, kinds)
