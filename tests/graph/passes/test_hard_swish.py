"""Hard swish in its forms, and the factors around it: the same numbers, and only where it is safe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx_models import node, save, value

from infersdk.graph.files import model_bytes, read_model
from infersdk.graph.passes import HardSwish, prepared_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)

#: y = hard swish of x, as PaddlePaddle and as PyTorch write it.
FORMS = {
    "paddle": ["Add x three a", "Clip a zero six b", "Mul x b c", "Div c six y"],
    "turned": ["Add three x a", "Clip a zero six b", "Mul b x c", "Mul sixth c y"],
    "torch": ["Add x three a", "Clip a zero six b", "Div b six c", "Mul x c y"],
}
CONSTANTS = {"zero": 0.0, "three": 3.0, "six": 6.0, "sixth": 1 / 6}


def weights(**others: Any) -> dict[str, Any]:
    return {**{name: np.float32(number) for name, number in CONSTANTS.items()}, **others}


def nodes_of(lines: list[str], **renamed: str) -> list[Any]:
    result = []
    for line in lines:
        operator, *names = line.split()
        names = [renamed.get(name, name) for name in names]
        result.append(node(operator, " ".join(names[:-1]), names[-1]))
    return result


def run(model: Any, x: np.ndarray) -> np.ndarray:
    return np.asarray(onnx_models.run(model, x, optimized=False)[0])


def operators(content: bytes) -> Counter[str]:
    return Counter(one.op_type for one in onnx.load_from_string(content).graph.node)


def checked(path: Path, x: np.ndarray) -> Counter[str]:
    """The operators that are left; the results are the same."""
    content = prepared_model(path, [HardSwish()])
    assert content is not None
    expected = run(str(path), x)
    np.testing.assert_allclose(run(content, x), expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())
    return operators(content)


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tmp_path: Path) -> None:
    kernel = RNG.normal(size=(3, 3, 1, 1)).astype(np.float32)
    nodes = [*nodes_of(FORMS[form], y="z"), node("Conv", "z w", "y")]
    path = save(tmp_path / "m.onnx", nodes, "float[n,3,5,4] x", "float[n,3,5,4] y", weights(w=kernel), opset=13)
    left = checked(path, (RNG.normal(size=(2, 3, 5, 4)) * 4).astype(np.float32))
    assert left == {"HardSigmoid": 1, "Mul": 1, "Conv": 1}


def block(path: Path, *, pads: int, shared: bool = False) -> Path:
    """Convolution, factor and offset, hard swish, factor and offset, convolution: a block of PP-OCR's backbone."""
    size = 2 * pads + 1
    arrays = {
        "w0": RNG.normal(size=(4, 4, 3, 3)),
        "b0": RNG.normal(size=4), "s0": RNG.normal(size=1), "t0": RNG.normal(size=(1, 4, 1, 1)), "s1": [1.7],
        "t1": [-0.4], "w1": RNG.normal(size=(4, 1, size, size)),
    }  # fmt: skip
    lines = ["Mul s0 c0 m0", "Add m0 t0 h0", *FORMS["paddle"], "Mul s1 h1 m1", "Add m1 t1 n1"]
    last = node("Conv", "n1 w1", "y", group=4, pads=[pads] * 4)
    nodes = [node("Conv", "x w0 b0", "c0"), *nodes_of(lines, x="h0", y="h1"), last]
    outputs = [value("y", ["n", 4, None, None])]
    if shared:  # another node needs what the second factor gives
        nodes.append(node("Relu", "n1", "r"))
        outputs.append(value("r", ["n", 4, None, None]))
    own = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return save(path, nodes, [value("x", ["n", 4, "h", "w"])], outputs, weights(**own), opset=12)


def test_factors_go_into_convolutions(tmp_path: Path) -> None:
    x = RNG.normal(size=(2, 4, 9, 7)).astype(np.float32)
    bare = checked(block(tmp_path / "m.onnx", pads=0), x)
    assert bare == Counter({"HardSigmoid": 1, "Mul": 1, "Conv": 2})
    padded = checked(block(tmp_path / "p.onnx", pads=2), x)
    assert padded == bare + Counter({"Mul": 1, "Add": 1})  # an offset would change the border


def test_what_others_need_stays(tmp_path: Path) -> None:
    x = RNG.normal(size=(2, 4, 9, 7)).astype(np.float32)
    left = checked(block(tmp_path / "m.onnx", pads=0, shared=True), x)
    assert left == {"HardSigmoid": 1, "Mul": 2, "Add": 1, "Conv": 2, "Relu": 1}


@pytest.mark.parametrize(
    "lines",
    [
        ["Clip x zero six y"],  # ReLU6
        ["Add x three a", "Clip a zero six b", "Mul x b y"],  # without the sixth
        ["Add x six a", "Clip a zero six b", "Mul x b c", "Div c six y"],  # another offset
        ["Add x three a", "Clip a zero six b", "Mul a b c", "Div c six y"],  # another factor
    ],
)
def test_other_graphs_stay(lines: list[str], tmp_path: Path) -> None:
    nodes = [*nodes_of(lines, y="z"), node("Conv", "z w", "y")]
    ones = np.ones((3, 3, 1, 1), np.float32)
    path = save(tmp_path / "m.onnx", nodes, "float[n,3,5,4] x", "float[n,3,5,4] y", weights(w=ones), opset=13)
    assert prepared_model(path, [HardSwish()]) is None
    assert not HardSwish().concerns(_source(save(tmp_path / "r.onnx", [node("Relu", "x", "y")], [value("x", ["n"])],
                                                 [value("y", ["n"])])))  # fmt: skip


def _source(path: Path) -> Any:
    from infersdk.core.model_source import ModelSource

    return ModelSource.of(path)


@pytest.mark.assets
@pytest.mark.parametrize("name", ["PP-OCRv4_det", "PP-OCRv4_rec", "ppocr_mobile_v2.0_cls"])
def test_networks_of_paddleocr(name: str, assets: Path, tmp_path: Path) -> None:
    shape = (2, 3, 64, 96) if name.endswith("det") else (2, 3, 48, 192)
    x = RNG.normal(size=shape).astype(np.float32)
    path = assets / "ocr" / f"ch_{name}_infer.onnx"
    content = prepared_model(path, [HardSwish()])
    assert content is not None
    np.testing.assert_allclose(run(content, x), run(str(path), x), atol=2e-5)
    before, left = operators(path.read_bytes()), operators(content)
    assert left["Clip"] == 0
    assert left["Add"] <= before["Add"] - before["Clip"]


@pytest.mark.parametrize(
    ("dtype", "shape", "constants", "changes"),
    [
        ("float32", (7,), (), True),
        ("float32", (7,), (1,), True),
        ("float16", (1, 3, 4, 4), (), True),
        ("float64", (1, 3, 4, 4), (), False),  # ONNX Runtime has no kernel of HardSigmoid for it
        ("int64", (7,), (), False),  # a quotient of whole numbers is rounded
        ("float32", (7,), (1, 1, 1), False),  # the constants give the result its axes
    ],
)
def test_types_and_axes(dtype: str, shape: Any, constants: Any, changes: bool, tmp_path: Path) -> None:
    """HardSigmoid takes the place of the operators only where it gives the same type, axes and numbers."""
    arrays = {"three": 3, "six": 6, "high": 6, "zero": 0}
    arrays = {name: np.full(constants if name in ("three", "six") else (), x, dtype) for name, x in arrays.items()}
    lines = ["Add x three a", "Clip a zero high b", "Div b six c", "Mul x c z", "Identity z y"]
    path = save(tmp_path / "m.onnx", nodes_of(lines), [value("x", shape, dtype)], [value("y", None, dtype)], arrays,
                opset=13)  # fmt: skip
    model = read_model(path.read_bytes())
    assert HardSwish().apply(model) == changes
    x = (np.arange(np.prod(shape)).reshape(shape) - 3).astype(dtype)
    expected, found = run(str(path), x), run(model_bytes(model), x)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=2e-3 if dtype == "float16" else 2e-6, atol=1e-6)


def test_several_in_nodes_without_names(tmp_path: Path) -> None:
    """Two new nodes have names of their own, and Clip has its limits as attributes before opset 11."""
    clips = [onnx.helper.make_node("Clip", ["a0"], ["b0"], min=0.0, max=6.0),
             onnx.helper.make_node("Clip", ["a1"], ["b1"], min=0.0, max=6.0)]  # fmt: skip
    nodes = [
        node("Add", "x three", "a0"), clips[0], node("Div", "b0 six", "c0"), node("Mul", "x c0", "z"),
        node("Add", "z three", "a1"), clips[1], node("Mul", "z b1", "c1"), node("Div", "c1 six", "h"),
        node("Relu", "h", "y"),
    ]  # fmt: skip
    path = save(tmp_path / "m.onnx", nodes, [value("x", [2, 5])], [value("y", [2, 5])],
                {name: np.float32(number) for name, number in (("three", 3), ("six", 6))}, opset=10)  # fmt: skip
    model = read_model(path.read_bytes())
    assert HardSwish().apply(model)
    x = (RNG.normal(size=(2, 5)) * 4).astype(np.float32)
    np.testing.assert_allclose(run(model_bytes(model), x), run(str(path), x), rtol=1e-5, atol=1e-6)
    assert operators(model_bytes(model)) == {"HardSigmoid": 2, "Mul": 2, "Relu": 1}


def test_a_user_in_a_branch_stays(tmp_path: Path) -> None:
    """The division by 6 is in a branch of an If, where the graph around it cannot be changed."""
    then = onnx.helper.make_graph([node("Div", "b six", "d"), node("Neg", "d", "t")], "then", [], [value("t", None)])
    other = onnx.helper.make_graph([node("Relu", "x", "e")], "else", [], [value("e", None)])
    nodes = [
        *nodes_of(["Add x three a", "Clip a zero six b"]),
        node("If", "yes", "y", then_branch=then, else_branch=other),
    ]
    path = save(tmp_path / "m.onnx", nodes, "float[2,5] x", "float[] y", weights(yes=np.asarray(True)), opset=13)
    model = read_model(path.read_bytes())
    assert not HardSwish().apply(model)
    x = (RNG.normal(size=(2, 5)) * 4).astype(np.float32)
    np.testing.assert_array_equal(run(model_bytes(model), x), run(str(path), x))
