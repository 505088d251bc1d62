"""Which layers compute which nodes: by names, by values, and by what lies between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx_ir")
from layers.models import small_network
from onnx_models import node, numbered, save, value

from infersdk.core.executed_layers import ExecutedLayer, LayerTensor, Role
from infersdk.graph.files import read_model
from infersdk.layers.mapping import OriginalGraph, map_layers


@pytest.fixture
def graph(tmp_path: Path) -> OriginalGraph:
    return OriginalGraph(read_model(small_network(tmp_path / "m.onnx")))


def layer(name: str, reads: str = "", writes: str = "", *sources: str, role: Role = "compute") -> ExecutedLayer:
    tensors = [tuple(LayerTensor(one) for one in side.split()) for side in (reads, writes)]
    return ExecutedLayer(name, "kind", role, *tensors, sources=sources or (name,))


def owners(graph: OriginalGraph, *layers: ExecutedLayer) -> dict[str, list[str]]:
    return {
        node.name: [layers[i].name for i in found]
        for node, found in zip(graph.nodes, map_layers(graph, layers), strict=True)
    }


def test_a_node_between_two_of_one_layer_is_part_of_it(graph: OriginalGraph) -> None:
    found = owners(graph, layer("L", "x", "r2", "/stem/Mul", "/branch/Relu"))
    assert found["/stem/Identity"] == found["/branch/Conv"] == ["L"]  # Identity moves data alone: not by its taker
    assert found["/stem/Conv"] == ["L"]


def test_names_that_the_runtime_decorates(graph: OriginalGraph) -> None:
    assert owners(graph, layer("/stem/Mul/QuickGeluFusion/", "q", "z"))["/stem/Mul"] == ["/stem/Mul/QuickGeluFusion/"]
    assert owners(graph, layer("a", "", "", "node_of_c2"))["/branch/Conv"] == ["a"]  # TensorRT's, by a value
    assert owners(graph, layer("/stem/Multiple"))["/stem/Mul"] == []


def test_what_follows_from_random_numbers_is_not_constant(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormal", "", "r", shape=[2]), node("Exp", "r", "e"), node("Exp", "w", "c"),
        node("Add", "e c", "s"), node("Add", "x s", "y"),
    ]  # fmt: skip
    weights = {"w": np.ones(2, np.float32)}
    graph = OriginalGraph(
        read_model(save(tmp_path / "m.onnx", numbered(nodes), [value("x", [2])], [value("y", [2])], weights))
    )
    assert [graph.nodes[i].name for i in graph.constant] == ["Exp_2"]
    assert owners(graph, layer("RandomNormal_0"))["RandomNormal_0"] == ["RandomNormal_0"]
