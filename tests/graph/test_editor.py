"""The graph as a user asks and changes it: each change is run, and compared with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk import graph as graphs
from infersdk.errors import ConfigError, ModelFormatError, ModelNotFoundError, OutputError, UnsupportedModelError
from infersdk.graph import Graph

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

B = np.asarray([-1, 0, 1, 2], np.float32)
W = np.arange(16, dtype=np.float32).reshape(4, 4) / 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [
        models.node("MatMul", "x w", "a", name="first"), models.node("Add", "a b", "c", name="bias"),
        models.node("Relu", "c", "d", name="act"), models.node("MatMul", "d w", "y", name="last"),
    ]  # fmt: skip
    return models.save(
        tmp_path / "m.onnx", nodes, [models.value("x", ("n", 4))], [models.value("y", ("n", 4))],
        {"w": W, "b": B}, metadata={"names": "{0: 'a'}"},
    )  # fmt: skip


X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def run(graph: Graph, **feeds: Any) -> dict[str, Any]:
    names = [value.name for value in graph.outputs]
    return dict(zip(names, models.run(graph, feeds or {"x": X}), strict=True))


def test_asking(path: Path) -> None:
    graph = graphs.open(path)
    assert repr(graph) == "<Graph x [n,4] -> y [n,4], 4 nodes>"
    assert graph.opset == 17
    assert graph.metadata["names"] == "{0: 'a'}"
    assert [node.name for node in graph.nodes("MatMul")] == ["first", "last"]
    assert [node.name for node in graph.nodes({"Add", "Relu"}, name="*s")] == ["bias"]
    assert graph.node("act").inputs[0] is graph.value("c")
    assert [[node.name for node in chain] for chain in graph.chains("MatMul", "Add", "Relu")] == [
        ["first", "bias", "act"]
    ]
    assert graph.chains("Relu", "Add") == []
    with pytest.raises(ConfigError, match="the model has no node 'frist'; did you mean 'first'\\?"):
        graph.node("frist")
    with pytest.raises(ConfigError, match="the model has no value 'z'"):
        graph.value("z")


def test_weights_are_arrays(path: Path) -> None:
    graph = graphs.open(path)
    assert set(graph.weights) == {"w", "b"}
    np.testing.assert_array_equal(graph.weights["w"], W)
    before = run(graph)["y"]
    graph.weights["w"] = 2 * graph.weights["w"]
    graph.weights["b"] = 2 * graph.weights["b"]
    np.testing.assert_allclose(run(graph)["y"], 4 * before, rtol=1e-5)
    graph.weights["new"] = np.zeros((2, 3), np.float16)
    assert graph.value("new").is_initializer()
    del graph.weights["new"]
    assert "new" not in graph.weights
    with pytest.raises(ConfigError, match="weight 'w' is used by"):
        del graph.weights["w"]
    with pytest.raises(ConfigError, match="'a' is not a weight"):
        graph.weights["a"] = W
    with pytest.raises(KeyError):
        graph.weights["a"]
    for wrong in ([[1], [1, 2]], np.ones(2, "M8[s]"), [1, None], "abc", b"abc"):
        with pytest.raises(ConfigError, match="weight 'w' is no tensor of ONNX: "):
            graph.weights["w"] = wrong


def test_weights_are_copies(path: Path) -> None:
    graph = graphs.open(path)
    replaced, added, inserted = W.copy(), B.copy(), np.full(4, 2, np.float32)
    graph.weights["w"], graph.weights["new"] = replaced, added
    graph.insert("Mul", "y", inserted)
    before = run(graph)["y"]
    for array in (replaced, added, inserted):
        array[:] = 7
    np.testing.assert_array_equal(run(graph)["y"], before)
    np.testing.assert_array_equal(graph.weights["new"], B)
    with pytest.raises(ValueError, match="read-only"):
        graph.weights["new"][0] = 7


def test_the_other_byte_order(path: Path) -> None:
    graph = graphs.open(path)
    before = run(graph)["y"]
    other = np.dtype(np.float32).newbyteorder()
    for name, array in list(graph.weights.items()):
        graph.weights[name] = array.astype(other)
    graph.weights["new"] = np.ones(2, other)
    assert graph.weights["new"].tolist() == [1, 1]
    graph.insert("Mul", "y", np.array(2, other))
    np.testing.assert_array_equal(run(graph)["y"], 2 * before)


def test_constants_are_weights_too(tmp_path: Path) -> None:
    two = onnx.numpy_helper.from_array(np.asarray([2], np.float32))
    nodes = [models.node("Constant", "", "c", value=two), models.node("Constant", "", "k", value_floats=[1.0, 3.0]),
             models.node("Mul", "x c", "m"), models.node("Add", "m k", "y")]  # fmt: skip
    path = models.save(tmp_path / "m.onnx", nodes, [models.value("x", ("n", 2))], [models.value("y", ("n", 2))])
    graph = graphs.open(path)
    assert {name: array.tolist() for name, array in graph.weights.items()} == {"c": [2.0], "k": [1.0, 3.0]}
    graph.weights["c"] = np.asarray([5], np.float32)
    graph.weights["k"] = np.asarray([0, 1], np.float32)
    np.testing.assert_array_equal(run(graph, x=np.ones((1, 2), np.float32))["y"], [[5, 6]])


def test_a_node_put_between(path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    graph.insert("Mul", "a", 2.0, name="double")
    graph.insert("Neg", "y")
    assert [value.name for value in graph.outputs] == ["y"]
    got = run(graph)["y"]
    a = 2 * (X @ W)
    np.testing.assert_allclose(got, -(np.maximum(a + B, 0) @ W), rtol=1e-5)
    assert not np.allclose(got, want)
    assert graph.node("double").inputs[0] is graph.value("a")


#: The edits of `y = Cast(h)` change the declaration of `y`, float [n,4], and those of the values that depend on `h`.
DECLARED = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[n,4] x, bool c, int64[k] t) => (float[n,4] y, float[n,4] z, float[rows,4] r) <float[n,4] q> {
        h = Relu(x)  y = Cast<to=1>(h)  q = Neg(h)  f = Reshape(q, t)  r = Identity(f)
        z = If(c) <then_branch = p () => (float[n,4] u) { u = Neg(h) },
                   else_branch = e () => (float[n,4] v) { v = Identity(q) }>
    }
"""


@pytest.mark.parametrize(
    ("edit", "want"),
    [
        (lambda g: g.insert("ArgMax", "y", axis=-1), "INT64 [n,1]"),
        (lambda g: g.insert("Cast", "y", to=10), "FLOAT16 [n,4]"),
        (lambda g: g.insert("Transpose", "y", perm=[1, 0]), "FLOAT [4,n]"),
        (lambda g: g.replace(g.nodes("Cast"), "ReduceMax", axes=[1], keepdims=0), "FLOAT [n]"),
        (lambda g: g.replace(g.nodes("Cast"), "Mine", domain="d"), "FLOAT [n,4]"),  # nothing is inferred
        (lambda g: (g.replace(g.nodes("Cast"), "Cast", to=10), g.delete(g.nodes("Cast")[0])), "FLOAT [n,4]"),
    ],
)
def test_what_edits_declare(edit: Any, want: str) -> None:
    graph = Graph.parse(onnx.parser.parse_model(DECLARED).SerializeToString())
    edit(graph)
    y, z, r = graph.outputs
    assert f"{y.type} {y.shape}" == want
    assert f"{z.type} {z.shape} {r.type} {r.shape}" == "FLOAT [n,4] FLOAT [rows,4]"
    graph.check()


def test_an_edit_changes_the_declarations_that_depend_on_it() -> None:
    graph = Graph.parse(onnx.parser.parse_model(DECLARED).SerializeToString())
    graph.insert("Cast", "h", to=10)
    assert [str(value.type) for value in graph.outputs] == ["FLOAT", "FLOAT16", "FLOAT16"]
    assert str(graph.outputs[2].shape) == "[rows,4]"
    found = run(graph, x=X, c=np.asarray(True), t=np.asarray([4, 3]))
    np.testing.assert_array_equal(found["z"], -np.maximum(X, 0).astype(np.float16))


def test_a_node_in_the_place_of_another(path: Path) -> None:
    graph = graphs.open(path)
    (made,) = graph.replace(graph.nodes("Relu"), "LeakyRelu", alpha=0.5)
    assert made.name == "act"
    c = X @ W + B
    np.testing.assert_allclose(run(graph)["y"], np.where(c > 0, c, c / 2) @ W, rtol=1e-5)


def test_one_node_in_the_place_of_several(path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    ((first, bias),) = graph.chains("MatMul", "Add")
    graph.fuse((first, bias), "Gemm", "x", "w", "b")
    assert [node.op_type for node in graph.nodes()] == ["Gemm", "Relu", "MatMul"]
    np.testing.assert_allclose(run(graph)["y"], want, rtol=1e-6)
    other = graphs.open(path)
    other.add_output("a")
    with pytest.raises(ConfigError, match="the output 'a' of 'first' is used by the model as an output"):
        other.fuse(other.chains("MatMul", "Add")[0], "Gemm", "x", "w", "b")
    whole = graphs.open(path)
    before = whole.bytes()
    with pytest.raises(ConfigError, match="the new node would read 'a', which 'first' computes; give other inputs"):
        whole.fuse(whole.chains("MatMul", "Add")[0], "Abs")
    assert whole.bytes() == before


def test_nothing_to_fuse(path: Path) -> None:
    with pytest.raises(ConfigError, match="no nodes are given to fuse into 'Gemm'; give at least one"):
        graphs.open(path).fuse([], "Gemm", "x")


def test_a_node_taken_out(path: Path) -> None:
    graph = graphs.open(path)
    graph.delete(graph.node("act"))
    np.testing.assert_allclose(run(graph)["y"], (X @ W + B) @ W, rtol=1e-5)
    graph.delete(graph.node("last"))
    np.testing.assert_allclose(run(graph)["y"], X @ W + B, rtol=1e-5)
    assert [node.name for node in graph.nodes()] == ["first", "bias"]
    graph.delete(graph.node("bias"))
    graph.delete(graph.node("first"))
    np.testing.assert_array_equal(run(graph)["y"], X)
    assert set(graph.weights) == set()


def test_a_result_that_a_branch_takes_is_rewired_there(tmp_path: Path) -> None:
    inner = onnx.helper.make_graph([models.node("Neg", "h", "o")], "b", [], [models.value("o", ("n",))])
    nodes = [models.node("Relu", "x", "h", name="r"), models.node("If", "c", "y", then_branch=inner, else_branch=inner)]
    path = models.save(tmp_path / "m.onnx", nodes, "float[n] x, bool c", "float[n] y")
    graph = graphs.open(path)
    graph.delete(graph.node("r"))
    x = np.asarray([-1, 2], np.float32)
    np.testing.assert_array_equal(run(graph, x=x, c=np.asarray(True))["y"], -x)


def test_names(path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    for old, new in (("x", "images"), ("y", "scores"), ("w", "kernel"), ("act", "relu")):
        graph.rename(old, new)
    np.testing.assert_array_equal(run(graph, images=X)["scores"], want)
    assert graph.node("relu").op_type == "Relu"
    assert "kernel" in graph.weights
    with pytest.raises(ConfigError, match="the name 'a' is taken"):
        graph.rename("c", "a")
    with pytest.raises(ConfigError, match="no node or value 'imges'; did you mean 'images'"):
        graph.rename("imges", "z")
    with pytest.raises(ConfigError, match="'images' cannot be renamed to an empty name"):
        graph.rename("images", "")


#: The branches have a value `taken`.
BRANCHES = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[4] x, bool c) => (float[4] y) {
        [relu] h = Relu(x)
        [if] y = If(c) <then_branch = t () => (float[4] taken) { taken = Neg(h) },
                        else_branch = e () => (float[4] other) { other = Identity(h) }>
    }
"""


def branching(taken: str) -> Graph:
    return Graph.parse(onnx.parser.parse_model(BRANCHES.replace("taken", taken)).SerializeToString())


@pytest.mark.parametrize("taken", ["constant", "Mul_output", "h_before_Mul", "h_replaced", "y_before_Mul", "again_x"])
def test_new_names_differ_from_those_of_branches(taken: str) -> None:
    feeds = {"x": np.ones(4, np.float32), "c": np.asarray(True)}
    graph = branching(taken)
    graph.add_output("h")
    graph.insert("Mul", "h", 2.0)
    graph.insert("Mul", "y", 3.0)
    graph.replace(graph.node("relu"), "Abs")
    assert run(graph, **feeds)["y"].tolist() == [-6] * 4
    graph.join(graph, {"y": "x"}, prefix="again_")
    assert len(graph.outputs) == 3
    assert run(graph, **feeds, **{"again_c": np.asarray(False)})["again_y"].tolist() == [36] * 4
    with pytest.raises(ConfigError, match=f"the name '{taken}' is taken"):
        graph.rename("x", taken)
    with pytest.raises(ConfigError, match=f"the name '{taken}' is taken"):
        graph.add("Relu", "x", outputs=[taken])


def test_nodes_of_another_domain(path: Path) -> None:
    graph = graphs.open(path)
    (value,) = graph.add("Gelu2", "y", domain="com.mine", outputs="feat").outputs
    graph.check()
    assert value.name == "feat"


def test_the_same_edit_twice(path: Path) -> None:
    graph = graphs.open(path)
    for _ in range(2):
        graph.insert("Neg", "y")
    ((name, want),) = run(graph).items()
    for _ in range(2):
        graph.join(graphs.open(path), {name: "x"})
        ((name, result),) = run(graph).items()
        want = np.maximum(want @ W + B, 0) @ W
        np.testing.assert_allclose(result, want, rtol=1e-5)


def test_functions_of_one_name_keep_their_own_nodes() -> None:
    def calling(operator: str) -> Graph:
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17, "d": 1]> g (float[4] x) => (float[4] y) {{ y = d.f(x) }}
            <domain: "d", opset_import: ["": 17]> f (a) => (b) {{ b = {operator}(a) }}
        """)
        return Graph.parse(model.SerializeToString())

    graph = calling("Neg")
    graph.join(calling("Relu"))
    assert [array.tolist() for array in run(graph, x=np.full(4, -2, np.float32)).values()] == [[2] * 4]


def test_inferred_types_of_sequences() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[n,4] y) {
            s = SplitToSequence<axis=1>(x)  t = Identity(s)  h = ConcatFromSequence<axis=1>(t)  y = Neg(h)
        }
    """)
    graph = Graph.parse(model.SerializeToString())
    graph.add_output("h")
    graph.check()
    np.testing.assert_array_equal(run(graph)["h"], X)


def test_a_further_output(path: Path) -> None:
    graph = graphs.open(path)
    graph.add_output("d")
    found = run(graph)
    np.testing.assert_allclose(found["d"] @ W, found["y"], rtol=1e-6)


def test_parts_and_wholes(path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    head, tail = graph.extract(["x"], ["c"]), graph.extract(["c"], ["y"])
    assert [node.name for node in head.nodes()] == ["first", "bias"]
    c = run(head)["c"]
    np.testing.assert_array_equal(run(tail, c=c)["y"], want)
    head.join(tail)
    assert [value.name for value in head.outputs] == ["y"]
    np.testing.assert_array_equal(run(head)["y"], want)
    head.join(graph, {"y": "x"}, prefix="again/")
    (again,) = run(head).values()
    np.testing.assert_allclose(again, run(graph, x=want)["y"], rtol=1e-6)
    assert {"w", "again/w"} <= set(head.weights)
    with pytest.raises(ConfigError, match="y cannot be computed from b"):
        graph.extract(["b"], ["y"])
    with pytest.raises(ConfigError, match="the model has no input 'z'"):
        head.join(graph, {"y": "z"})
    old = graphs.open(path)
    old.set_opset(19)
    with pytest.raises(ConfigError, match="the opsets are 17 and 19"):
        graph.join(old)


def test_another_opset(path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    graph.set_opset(21)
    assert graph.opset == 21
    assert graph.metadata["names"] == "{0: 'a'}"
    np.testing.assert_array_equal(run(graph)["y"], want)
    graph.weights["w"] = 0 * W
    assert not run(graph)["y"].any()
    with pytest.raises(UnsupportedModelError, match="cannot convert opset 21 to 1:"):
        graph.set_opset(1)


def test_another_opset_of_functions() -> None:
    """Softmax of opset 12 is over all axes from its own; that of opset 13 is over one."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 12, "d": 1]>
        g (float[3,4] x) => (float[3,4] y) { h = d.f(x)  y = Neg(h) }
        <domain: "d", opset_import: ["": 12]> f (a) => (b) { b = Softmax<axis = 0>(a) }
    """)
    graph = Graph.parse(model.SerializeToString())
    want = run(graph)["y"]
    graph.set_opset(17)
    np.testing.assert_allclose(run(graph)["y"], want, rtol=1e-5)


def test_added_nodes(path: Path) -> None:
    graph = graphs.open(path)
    node = graph.add("Clip", "y", np.float32(0), np.float32(1), name="limit", outputs=["limited"])
    graph.add_output(node.outputs[0])
    found = run(graph)
    np.testing.assert_array_equal(found["limited"], np.clip(found["y"], 0, 1))
    for outputs in (["a"], ["new", "new"]):
        with pytest.raises(ConfigError, match=f"the name '{outputs[-1]}' is taken"):
            graph.add("Relu", "d", outputs=outputs)
    assert [node.name for node in graph.value("d").consumers()] == ["last"]


@pytest.mark.parametrize(
    "value", [3, True, 1.5, "x", b"x", [1, 2], (1, 2.5), ["a", b"b"], np.int64(3), np.float32(1.5), [np.int64(1)], None]
)
def test_attributes_as_in_make_node(path: Path, value: Any) -> None:
    graph = graphs.open(path)
    graph.add("Mine", "y", domain="d", name="mine", k=value)
    (made,) = (node for node in onnx.load_model_from_string(graph.bytes()).graph.node if node.name == "mine")
    assert list(made.attribute) == list(onnx.helper.make_node("Mine", [], [], k=value).attribute)


def test_an_array_is_a_tensor(path: Path) -> None:
    graph = graphs.open(path)
    tensor = graph.add("Constant", value=B).attributes["value"].as_tensor()
    np.testing.assert_array_equal(tensor.numpy(), B)
    assert graph.add("Constant", value=tensor).attributes["value"].as_tensor() is tensor


@pytest.mark.parametrize("value", [[], [1, "a"], 1j, 2**64])
def test_attributes_that_onnx_does_not_have(path: Path, value: Any) -> None:
    graph = graphs.open(path)
    before = graph.bytes()
    with pytest.raises(ConfigError, match="ONNX has no attribute k=.*; use a number, a text, an array"):
        graph.add("Mine", "y", 2.0, domain="d", k=value)
    assert graph.bytes() == before


def test_nothing_is_inserted_between_an_input_and_an_output_of_one_name(path: Path) -> None:
    graph = graphs.open(path)
    graph.add_output("x")
    before = graph.bytes()
    with pytest.raises(ConfigError, match="'x' is both an input and an output of the model; insert an Identity"):
        graph.insert("Neg", "x")
    assert graph.bytes() == before


def test_files(path: Path, tmp_path: Path) -> None:
    graph = graphs.open(path)
    want = run(graph)["y"]
    (tmp_path / "out").mkdir()
    target = graph.save(tmp_path / "out" / "changed.onnx")
    np.testing.assert_array_equal(run(graphs.open(target))["y"], want)
    graph.weights["large"] = np.ones((64, 64), np.float32)
    graph.save(tmp_path / "out" / "split.onnx", external_data="split.weights")
    assert (tmp_path / "out" / "split.weights").stat().st_size >= 64 * 64 * 4
    again = graphs.open(tmp_path / "out" / "split.onnx")
    np.testing.assert_array_equal(again.weights["large"], np.ones((64, 64), np.float32))
    again.save(tmp_path / "out" / "split.onnx", external_data="split.weights")  # onto the files that it reads
    np.testing.assert_array_equal(graphs.open(tmp_path / "out" / "split.onnx").weights["large"][0, :3], [1, 1, 1])
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "changed.onnx", "split.onnx", "split.weights"
    ]  # fmt: skip
    for name in ("../m.data", ""):
        with pytest.raises(OutputError, match="give a file name without a folder"):
            graph.save(tmp_path / "m2.onnx", external_data=name)
    for target, name in (("m2.onnx", path.name), ("out/m2.onnx", "split.weights"), ("out/changed.onnx", "split.onnx")):
        before = (tmp_path / target).with_name(name).read_bytes()
        with pytest.raises(OutputError, match="exists already, and .* has no weights in it"):
            graph.save(tmp_path / target, external_data=name)
        assert (tmp_path / target).with_name(name).read_bytes() == before
    with pytest.raises(OutputError):
        graph.save(tmp_path / "out" / "changed.onnx" / "x.onnx")
    with pytest.raises(ModelNotFoundError):
        graphs.open(tmp_path / "none.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ModelFormatError):
        graphs.open(tmp_path / "junk.onnx")
    np.testing.assert_array_equal(run(Graph.parse(path.read_bytes()))["y"], want)


def test_what_is_not_valid_is_found(path: Path) -> None:
    graph = graphs.open(path)
    graph.replace(graph.nodes("Relu"), "Conv")
    with pytest.raises(ModelFormatError, match="the model is not valid"):
        graph.check()
