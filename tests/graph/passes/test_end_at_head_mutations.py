"""Graphs that are nearly the decoding of a head: one that is cut all the same has to compute what it did before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from raw_head_models import quantised_yolov5, yolov5_model, yolov8_model
from raw_head_reference import decoded_yolov5, decoded_yolov8, run

from infersdk.graph.files import read_model
from infersdk.graph.passes import EndAtHead, prepared_model
from infersdk.graph.raw_head import RawHead

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
UNARY = ("Sigmoid", "Tanh", "Relu", "Neg", "Identity", "Abs", "Exp", "Softplus", "Sqrt")
ORDERS = ([0, 2, 1], [0, 1, 3, 2], [0, 1, 3, 2, 4], [0, 2, 1, 3, 4], [0, 1, 2, 4, 3])
SIZE = (64, 32)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Networks whose heads are proven, in all the forms that there are."""
    folder = tmp_path_factory.mktemp("bases")
    anchored: tuple[dict[str, Any], ...] = (
        {"form": "split"},
        {"form": "slice", "computed_shapes": True},
        {"form": "folded"},
        {"pointwise": True},
    )
    distances: tuple[dict[str, Any], ...] = (
        {}, {"separate": True}, {"last_axis": True, "slices": True, "bins": 4}, {"computed_slices": True},
    )  # fmt: skip
    files = [yolov5_model(folder / f"5{i}.onnx", size=SIZE, **changes) for i, changes in enumerate(anchored)]
    files += [yolov8_model(folder / f"8{i}.onnx", size=SIZE, **changes) for i, changes in enumerate(distances)]
    files += [quantised_yolov5(folder / f"q{one}.onnx", one, size=SIZE) for one in ("onnxruntime", "openvino")]
    return [file.read_bytes() for file in files]


# ---- mutations: each changes one thing ----


def swap(names: Any, draw: random.Random) -> None:
    values = list(names)
    first, second = draw.sample(range(len(values)), 2)
    values[first], values[second] = values[second], values[first]
    names[:] = values


def other_operator(graph: Any, draw: random.Random) -> None:
    node = draw.choice([one for one in graph.node if one.op_type in BINARY + UNARY])
    node.op_type = draw.choice(BINARY if node.op_type in BINARY else UNARY)


def swapped_inputs(graph: Any, draw: random.Random) -> None:
    swap(draw.choice([one for one in graph.node if len(one.input) > 1]).input, draw)


def swapped_outputs(graph: Any, draw: random.Random) -> None:
    swap(draw.choice([one for one in graph.node if len(one.output) > 1]).output, draw)


def other_constant(graph: Any, draw: random.Random) -> None:
    of_layers = {name for node in graph.node if node.op_type == "Conv" for name in node.input}
    weight = draw.choice([one for one in graph.initializer if one.name not in of_layers])
    array = np.array(onnx.numpy_helper.to_array(weight))
    if array.dtype.kind == "f":
        change = draw.choice(["one", "all", "scale", "flip"])
        if change == "one":
            array.reshape(-1)[draw.randrange(array.size)] += draw.choice([1, -1, 0.5, 0.1, 8])
        elif change == "flip":
            array = np.flip(array, draw.randrange(array.ndim)) if array.ndim else -array
        else:
            array = (
                array + draw.choice([0.5, -0.5, 0.01]) if change == "all" else array * draw.choice([2, 0.5, -1, 1.01])
            )
        array = array.astype(np.float32)
    else:
        index = draw.randrange(array.size)
        array.reshape(-1)[index : index + 1] += np.array([draw.choice([1, -1, 2])]).astype(array.dtype)  # codes wrap
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), weight.name))


def other_attribute(graph: Any, draw: random.Random) -> None:
    attribute = draw.choice([one for node in graph.node for one in node.attribute])
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i += draw.choice([1, -1, 2, -2, -5])
    elif len(attribute.ints) > 1:
        swap(attribute.ints, draw)


def another_node(graph: Any, draw: random.Random) -> None:
    """Something computed in between."""
    index = draw.randrange(len(graph.node))
    node = graph.node[index]
    at = draw.randrange(len(node.input))
    kind = draw.choice(["unary", "binary", "Transpose", "Softmax"])
    if kind == "unary":
        made = onnx.helper.make_node(draw.choice(UNARY), [node.input[at]], ["another"])
    elif kind == "binary":
        number = np.float32(draw.choice([1.01, 2, 0.5, -1, 1]))
        graph.initializer.append(onnx.numpy_helper.from_array(number, "number"))
        operands = draw.sample([node.input[at], "number"], 2)
        made = onnx.helper.make_node(draw.choice(BINARY), operands, ["another"])
    elif kind == "Transpose":
        made = onnx.helper.make_node(kind, [node.input[at]], ["another"], perm=draw.choice(ORDERS))
    else:
        made = onnx.helper.make_node(kind, [node.input[at]], ["another"], axis=draw.choice([1, 2, -1]))
    node.input[at] = "another"
    graph.node.insert(index, made)


def other_input(graph: Any, draw: random.Random) -> None:
    index = draw.randrange(len(graph.node))
    before = [name for node in list(graph.node)[:index] for name in node.output]
    node = graph.node[index]
    node.input[draw.randrange(len(node.input))] = draw.choice(before or [one.name for one in graph.initializer])


def other_parts(graph: Any, draw: random.Random) -> None:
    """Parts that are joined in another order, or twice."""
    node = draw.choice([one for one in graph.node if one.op_type == "Concat"])
    if draw.random() < 0.5:
        swap(node.input, draw)
    else:
        node.input[draw.randrange(len(node.input))] = draw.choice(list(node.input))


def without_a_node(graph: Any, draw: random.Random) -> None:
    node = draw.choice(graph.node)
    for reader in graph.node:
        reader.input[:] = [node.input[0] if name == node.output[0] else name for name in reader.input]


MUTATIONS: tuple[Callable[[Any, random.Random], None], ...] = (
    other_operator, swapped_inputs, swapped_outputs, other_constant, other_attribute, another_node, other_input,
    other_parts, without_a_node,
)  # fmt: skip


#: After these no network is taken for a detector any more.
NEVER_CUT = (swapped_outputs,)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_what_is_cut_computes_the_same(bases: list[bytes], mutation: Callable[[Any, random.Random], None]) -> None:
    draw, cut_off = random.Random(mutation.__name__), 0
    images = np.random.default_rng(1).random((2, 3, SIZE[1], SIZE[0]), np.float32) * 3 - 1
    for content in bases:
        for _ in range(12):
            model = onnx.load_from_string(content)
            try:
                mutation(model.graph, draw)
            except IndexError:  # this form has nothing to change so
                break
            mutant = model.SerializeToString()
            cut = prepared_model(mutant, [EndAtHead()])
            if cut is None:
                continue
            try:
                (wanted,) = run(mutant, images, optimized=False).values()
            except Exception:  # it is no valid network any more, and its cut form need not be one
                continue
            head = RawHead.read(read_model(cut).metadata_props)
            decode = decoded_yolov5 if head.layout == "yolov5" else decoded_yolov8
            found = decode(head, run(cut, images, optimized=False))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-3, equal_nan=True)
            cut_off += 1
    assert (cut_off == 0) == (mutation in NEVER_CUT)
