"""Which layers compute which nodes: by names, by values, and by what lies between."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx_ir")
from layers.models import small_network

from infersdk.executed_layers import ExecutedLayer, LayerTensor, Role
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


def test_the_graph_knows_what_depends_on_no_input(graph: OriginalGraph) -> None:
    assert [graph.nodes[i].name for i in sorted(graph.constant)] == ["/target"]
    assert graph.inputs == ["x"]


def test_names_that_the_runtime_reports(graph: OriginalGraph) -> None:
    found = owners(
        graph, layer("L1", "x", "a", "/stem/Conv", "/stem/Sigmoid", "/stem/Mul"), layer("/MaxPool", "a", "y")
    )
    assert found["/stem/Conv"] == found["/stem/Sigmoid"] == found["/stem/Mul"] == ["L1"]
    assert found["/MaxPool"] == ["/MaxPool"]
    assert found["/target"] == []


def test_a_node_whose_results_one_layer_takes_was_fused_into_it(graph: OriginalGraph) -> None:
    found = owners(graph, layer("/stem/Conv", "x", "c1"), layer("swish", "c1", "m1", "/stem/Mul"))
    assert found["/stem/Sigmoid"] == ["swish"]


def test_a_node_between_two_of_one_layer_is_part_of_it(graph: OriginalGraph) -> None:
    found = owners(graph, layer("L", "x", "r2", "/stem/Mul", "/branch/Relu"))
    assert found["/stem/Identity"] == found["/branch/Conv"] == ["L"]  # Identity moves data alone: not by its taker
    assert found["/stem/Conv"] == ["L"]


def test_values_that_the_runtime_keeps(graph: OriginalGraph) -> None:
    assert owners(graph, layer("made up", "q", "r2"))["/branch/Relu"] == ["made up"]


def test_names_that_the_runtime_decorates(graph: OriginalGraph) -> None:
    assert owners(graph, layer("/stem/Mul/QuickGeluFusion/", "q", "z"))["/stem/Mul"] == ["/stem/Mul/QuickGeluFusion/"]
    assert owners(graph, layer("a", "", "", "node_of_c2"))["/branch/Conv"] == ["a"]  # TensorRT's, by a value
    assert owners(graph, layer("/stem/Multiple"))["/stem/Mul"] == []


def test_a_layer_without_names_computes_what_lies_between_its_neighbours(graph: OriginalGraph) -> None:
    found = owners(
        graph,
        layer("first", "x", "t1", "/stem/Conv", "/stem/Mul"),
        layer("VariadicSplit_17", "t1", "t2"),
        layer("last", "t2", "y", "/MaxPool"),
    )
    assert found["/branch/Conv"] == found["/branch/Relu"] == found["/Concat"] == ["VariadicSplit_17"]


def test_a_reformatting_layer_computes_no_node(graph: OriginalGraph) -> None:
    found = owners(graph, layer("/MaxPool", "k", "q"), layer("reorder", "q", "p", role="reformat"))
    assert found["/MaxPool"] == ["/MaxPool"]


def test_nodes_without_names_get_names(tmp_path: Path) -> None:
    graph = OriginalGraph(read_model(small_network(tmp_path / "m.onnx", named=False)))
    assert [node.name for node in graph.nodes][:3] == ["Conv_0", "Sigmoid_1", "Mul_2"]
    assert owners(graph, layer("L", "x", "c1", "Conv_0"))["Conv_0"] == ["L"]


def test_a_model_whose_nodes_cannot_be_read() -> None:
    assert map_layers(OriginalGraph(None), [layer("L")]) == []
