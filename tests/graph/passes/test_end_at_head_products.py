"""Heads in 8 bits for ONNX Runtime, whose channels come last: they end at their maps where the graph proves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_head_models import ANCHORS, FORMS, STRIDES, quantised_yolov5
from raw_head_reference import decoded_yolov5, ended, run

from infersdk.graph.files import load_proto, model_bytes, parse_model, read_model
from infersdk.graph.graph_end import UnprovenError
from infersdk.graph.passes import EndAtHead, FreeSize, prepared_model
from infersdk.graph.raw_head import RawHead

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
F = np.float32
WHOLE = 1 << 40  # no map has so many bytes


def check_same(path: Path, content: bytes, head: RawHead, batch: int = 1) -> None:
    """The network that was cut gives what the whole one gives."""
    images = np.random.default_rng(1).random((batch, 3, 64, 96), F)
    for optimized in (True, False):
        maps = run(content, images, optimized=optimized)
        whole = run(str(path), images, optimized=optimized)["output0"]
        np.testing.assert_allclose(decoded_yolov5(head, maps), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("classes", [1, 3, 15, 20])
@pytest.mark.parametrize("split", [0, WHOLE], ids=["parts", "whole"])
def test_forms_of_the_decoding(tmp_path: Path, form: str, classes: int, split: int) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", form=form, classes=classes, split=split)
    content, head = ended(path)
    assert (head.layout, head.output, head.values) == ("yolov5", "output0", 5 + classes)
    assert [level.stride for level in head.levels] == list(STRIDES)
    assert [level.anchors for level in head.levels] == [tuple(map(tuple, level)) for level in np.array(ANCHORS, float)]
    assert all(level.channels_last for level in head.levels)
    outputs = parse_model(content).graph.outputs
    channels = 3 * (5 + classes)
    assert [str(output.shape) for output in outputs] == [
        f"[batch,{height},{width},{channels}]" for height, width in ((8, 12), (4, 6), (2, 3))
    ]
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    check_same(path, content, head, batch=2)
    operators = [node.op_type for node in parse_model(content).graph]
    assert "Sigmoid" not in operators
    assert operators.count("Gemm") == len(STRIDES)


@pytest.mark.parametrize("batch", ["batch", 2])
def test_the_parts_are_one_product_again(tmp_path: Path, batch: int | str) -> None:
    """The numbers are those of the map that was never taken apart."""
    images = np.random.default_rng(1).random((2, 3, 64, 96), F)
    maps = []
    for name, split in (("parts", 0), ("whole", WHOLE)):
        path = quantised_yolov5(tmp_path / f"{name}.onnx", classes=20, batch=batch, split=split)
        maps.append(run(ended(path)[0], images))
    for got, want in zip(*(one.values() for one in maps), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("split", [0, 4000, WHOLE], ids=["parts", "the_largest_in_parts", "whole"])
@pytest.mark.parametrize("exclude", [None, 0, 2])
def test_levels_of_different_forms(tmp_path: Path, split: int, exclude: int | None) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", split=split, exclude=exclude)
    content, head = ended(path)
    assert [level.channels_last for level in head.levels] == [index != exclude for index in range(3)]
    check_same(path, content, head)


@pytest.mark.parametrize("split", [0, WHOLE], ids=["parts", "whole"])
def test_sizes_are_freed_behind_it(tmp_path: Path, split: int) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", size=(128, 128), split=split)
    content = prepared_model(path, [EndAtHead(), FreeSize(32)])
    head = RawHead.read(parse_model(content or b"").metadata_props)
    assert head is not None
    images = np.random.default_rng(2).random((2, 3, 64, 96), F)
    maps = run(content, images)
    assert [one.shape for one in maps.values()] == [(2, 8, 12, 24), (2, 4, 6, 24), (2, 2, 3, 24)]
    large = np.zeros((2, 3, 128, 128), F)
    large[:, :, :64, :96] = images
    wanted = run(ended(path)[0], large)  # each cell sees its own pixels alone
    for got, want, (height, width) in zip(maps.values(), wanted.values(), ((8, 12), (4, 6), (2, 3)), strict=True):
        np.testing.assert_allclose(got, want[:, :height, :width], rtol=1e-6)


# ---- what does not match stays as it is ----


def _bent(cells: np.ndarray) -> np.ndarray:
    bent = np.array(cells)
    bent[0, 0, 0, 0, 0] += 1
    return bent


def _by_position(anchors: np.ndarray) -> np.ndarray:
    varied = np.array(anchors)
    varied[0, 0, 0, 1, 0] *= 2
    return varied


@pytest.mark.parametrize("split", [0, WHOLE], ids=["parts", "whole"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grid_of": _bent}, "centres of its boxes are not"),
        ({"grid_of": lambda cells: cells[..., ::-1]}, "centres of its boxes are not"),
        ({"grid_of": lambda cells: cells + F(1e-3)}, "centres of its boxes are not"),
        ({"anchors_of": _by_position}, "sizes of its boxes are not"),
        ({"anchors_of": lambda anchors: -anchors}, "sizes of its boxes are not"),
        ({"sigmoid": "Tanh"}, r"\(Tanh\) is no part of a known decoding"),
    ],
)
def test_other_decodings_stay(tmp_path: Path, split: int, changes: dict[str, Any], reason: str) -> None:
    check_stays(quantised_yolov5(tmp_path / "m.onnx", split=split, **changes), reason)


def check_stays(path: Path, reason: str) -> None:
    with pytest.raises(UnprovenError, match=reason):
        EndAtHead().find(load_proto(path))
    model = read_model(path)
    before = model_bytes(model)
    assert not EndAtHead().apply(model)
    assert model_bytes(model) == before


class Nodes:
    """The nodes and weights of a model in parts, to be changed."""

    def __init__(self, model: Any) -> None:
        self.graph = model.graph
        self.maker = {name: node for node in model.graph.node for name in node.output}
        # The first level: three anchors, with boxes gathered in front of their other scores.
        self.levels = model.graph.node[-1]
        self.joined = [self.maker[name] for name in self.levels.input[:3]]
        self.gathers = [self.maker[node.input[0]] for node in self.joined]
        self.positions = [self.maker[node.input[1]] for node in self.joined]
        self.flat = self.maker[self.gathers[0].input[0]]
        self.sigmoids = [self.maker[node.input[0]] for node in self.positions]
        self.products = [self.maker[node.input[0]] for node in self.sigmoids]

    def new(self, name: str, array: Any) -> str:
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name


def _turned_anchors(nodes: Nodes) -> None:
    nodes.levels.input[0], nodes.levels.input[1] = nodes.levels.input[1], nodes.levels.input[0]


def _one_anchor_twice(nodes: Nodes) -> None:
    nodes.levels.input[1] = nodes.levels.input[0]


def _an_anchor_less(nodes: Nodes) -> None:
    del nodes.levels.input[2]


def _boxes_of_another_anchor(nodes: Nodes) -> None:
    nodes.gathers[0].input[1], nodes.gathers[1].input[1] = nodes.gathers[1].input[1], nodes.gathers[0].input[1]


def _scores_in_front(nodes: Nodes) -> None:
    for node in nodes.joined:
        node.input[0], node.input[1] = node.input[1], node.input[0]


def _another_function(nodes: Nodes) -> None:
    nodes.sigmoids[1].op_type = "Tanh"


def _no_function(nodes: Nodes) -> None:
    nodes.positions[1].input[0] = nodes.sigmoids[1].input[0]


def _scaled_scores(nodes: Nodes) -> None:
    half = nodes.new("half", F(0.5))
    node = onnx.helper.make_node("Mul", [nodes.joined[1].input[1], half], ["halved"])
    nodes.joined[1].input[1] = "halved"
    nodes.graph.node.insert(len(nodes.graph.node) - 3, node)


def _half_a_product(nodes: Nodes) -> None:
    nodes.products[0].attribute.append(onnx.helper.make_attribute("alpha", 0.5))


def _without_a_bias(nodes: Nodes) -> None:
    del nodes.products[0].input[2]


def _of_other_rows(nodes: Nodes) -> None:
    node = onnx.helper.make_node("Relu", [nodes.products[0].input[0]], ["others"])
    nodes.products[0].input[0] = "others"
    nodes.graph.node.insert(list(nodes.graph.node).index(nodes.products[0]), node)


def _computed_weights(nodes: Nodes) -> None:
    node = onnx.helper.make_node("Neg", [nodes.products[0].input[1]], ["turned"])
    nodes.products[0].input[1] = "turned"
    nodes.graph.node.insert(list(nodes.graph.node).index(nodes.products[0]), node)


def _one_scale(nodes: Nodes) -> None:
    restore = nodes.maker[nodes.products[0].input[1]]
    restore.input[1], restore.input[2] = nodes.new("scale", F(0.01)), nodes.new("zero", np.int8(0))


def _scales_of_rows(nodes: Nodes) -> None:
    nodes.maker[nodes.products[0].input[1]].attribute[0].i = 0


def _turned_grid(nodes: Nodes) -> None:
    """Boxes of rows that are counted along the columns of the grid."""
    inner = nodes.maker[nodes.flat.input[0]]
    node = onnx.helper.make_node("Transpose", [inner.output[0]], ["turned"], perm=[0, 1, 3, 2, 4])
    nodes.flat.input[0] = "turned"
    nodes.graph.node.insert(list(nodes.graph.node).index(nodes.flat), node)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_turned_anchors, "centres of its boxes are not"),
        (_one_anchor_twice, "are not boxes and scores of each cell"),
        (_an_anchor_less, "are not boxes and scores of each cell"),
        (_boxes_of_another_anchor, "centres of its boxes are not"),
        (_scores_in_front, "centres of its boxes are not"),
        (_another_function, r"\(Tanh\) is no part of a known decoding"),
        (_no_function, "scores are not sigmoids"),
        (_scaled_scores, "scores are not sigmoids"),
        (_half_a_product, "alpha is 0.5"),
        (_without_a_bias, "has other operands"),
        (_of_other_rows, "are not boxes and scores of each cell"),
        (_computed_weights, "is not constant in int8"),
        (_one_scale, "does not have a scale for each column"),
        (_scales_of_rows, "does not have its scales along the columns|does not fit"),
        (_turned_grid, "centres of its boxes are not"),
    ],
)
def test_other_products_stay(tmp_path: Path, change: Callable[[Nodes], None], reason: str) -> None:
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx", classes=20))
    change(Nodes(model))
    onnx.save(model, tmp_path / "changed.onnx")
    check_stays(tmp_path / "changed.onnx", reason)


@pytest.mark.parametrize("perm", [[0, 3, 2, 1, 4], [0, 1, 2, 3, 4], [0, 3, 1, 4, 2]])
def test_other_orders_stay(tmp_path: Path, perm: list[int]) -> None:
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx", split=WHOLE, size=(64, 64)))
    moved = [node for node in model.graph.node if node.op_type == "Transpose" and list(node.attribute[0].ints)[-1] == 4]
    assert len(moved) == len(STRIDES)
    del moved[0].attribute[0].ints[:]
    moved[0].attribute[0].ints.extend(perm)
    onnx.save(model, tmp_path / "changed.onnx")
    check_stays(tmp_path / "changed.onnx", "centres of its boxes are not|is not computed")


@pytest.mark.parametrize("split", [0, WHOLE], ids=["parts", "whole"])
def test_the_batch_is_the_first_axis(tmp_path: Path, split: int) -> None:
    """Of one image, a map of one row of cells is the same with rows and images in each other's place."""
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx", size=(64, 32), split=split))
    moved = [
        node for node in model.graph.node if list(node.attribute[0].ints if node.attribute else ()) == [0, 2, 3, 1]
    ]
    assert len(moved) == len(STRIDES)
    del moved[-1].attribute[0].ints[:]
    moved[-1].attribute[0].ints.extend([2, 0, 3, 1])
    onnx.save(model, tmp_path / "changed.onnx")
    check_stays(tmp_path / "changed.onnx", "are not boxes and scores|is not")


def test_columns_that_change_places_stay_with_their_anchor(tmp_path: Path) -> None:
    """Products of one anchor in another's place: what is cut computes what the graph does."""
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx", classes=20))
    nodes = Nodes(model)
    ir = pytest.importorskip("onnx_ir")
    nodes.sigmoids[0].input[0], nodes.sigmoids[1].input[0] = nodes.sigmoids[1].input[0], nodes.sigmoids[0].input[0]
    changed = ir.from_proto(model)
    changed.graph.sort()
    path = tmp_path / "changed.onnx"
    path.write_bytes(model_bytes(changed))
    content, head = ended(path)
    check_same(path, content, head)


def test_products_without_a_bias(tmp_path: Path) -> None:
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx", classes=20))
    for node in model.graph.node:
        if node.op_type == "Gemm":
            del node.input[2]
    path = tmp_path / "changed.onnx"
    onnx.save(model, path)
    content, head = ended(path)
    check_same(path, content, head)


def test_weights_that_are_given(tmp_path: Path) -> None:
    """A weight that is an input too may be another one in each run."""
    model = onnx.load(quantised_yolov5(tmp_path / "m.onnx"))
    name = Nodes(model).maker[Nodes(model).products[0].input[1]].input[0]
    codes = next(one for one in model.graph.initializer if one.name == name)
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, codes.data_type, codes.dims))
    onnx.save(model, tmp_path / "given.onnx")
    check_stays(tmp_path / "given.onnx", "is not constant in int8")


def test_a_real_model(int8_yolov5n: Path) -> None:
    content, head = ended(int8_yolov5n)
    assert [(level.stride, level.channels_last) for level in head.levels] == [(8, True), (16, True), (32, True)]
    assert head.levels[0].anchors == ((10, 13), (16, 30), (33, 23))
    shapes = [str(output.shape) for output in parse_model(content).graph.outputs]
    assert shapes == ["[batch,80,80,255]", "[batch,40,40,255]", "[batch,20,20,255]"]
    images = np.random.default_rng(1).random((1, 3, 640, 640), F)
    np.testing.assert_allclose(
        decoded_yolov5(head, run(content, images)), run(str(int8_yolov5n), images)["output0"], rtol=1e-4, atol=1e-3
    )
