"""Operators for ONNX's own tools: checker and shape inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from custom_operators import DOMAIN, Everything, HSwish, node, save_model, swish_model

from infersdk import custom_ops
from infersdk.custom_ops import CustomOp, require_equal

onnx = pytest.importorskip("onnx")


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """`register`, taken back when the test is over: some of ONNX's tools want names that no other domain has."""
    ops: list[type[CustomOp]] = []

    def known(*more: type[CustomOp]) -> None:
        ops.extend(more)
        custom_ops.register(*more)

    yield known
    custom_ops.deregister(*ops)


def inferred(path: Path, **options: Any) -> dict[str, list[Any]]:
    """The shapes that ONNX works out, with names for the free ones and None for unknown ones."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True, **options)
    return {
        info.name: [
            d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in info.type.tensor_type.shape.dim
        ]
        for info in (*model.graph.value_info, *model.graph.output)
    }


def test_checker_and_shape_inference(tmp_path: Path, register: Callable[..., None]) -> None:
    register(HSwish)
    path = swish_model(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert inferred(path)["b"] == ["batch", 8]
    schema = onnx.defs.get_schema("HSwish", 1, DOMAIN)
    assert schema.doc == "x * clip(alpha * x + beta, 0, 1)"
    assert {t.type_param_str: sorted(t.allowed_type_strs) for t in schema.type_constraints} == {
        "T": ["tensor(float)", "tensor(float16)"]
    }
    assert schema.attributes["alpha"].default_value.f == HSwish().alpha


def test_attributes_and_computed_sizes(tmp_path: Path, register: Callable[..., None]) -> None:
    register(Everything)
    made = [node(Everything, ["x", "i"], ["y", "n"], whole=3), node(HSwish, ["y"], ["z"])]
    path = save_model(
        tmp_path / "m.onnx",
        made,
        {"x": ("float32", ["b", 5]), "i": ("int64", ["n"])},
        {"z": ("float32", ["b", 15]), "n": ("int32", ["n"])},
    )
    assert inferred(path)["y"] == ["b", 15]
    path = save_model(
        tmp_path / "m.onnx",
        made,
        {"x": ("float32", ["b", "w"]), "i": ("int64", ["n"])},
        {"z": ("float32", ["b", None]), "n": ("int32", ["n"])},
    )
    batch, width = inferred(path)["y"]
    assert batch == "b"
    assert width not in (15, "w")  # unknown, by whatever name ONNX gives that


def test_a_broken_requirement_shows_in_shape_inference(tmp_path: Path, register: Callable[..., None]) -> None:
    class Pair(CustomOp):
        domain = DOMAIN
        inputs = {"a": "float32", "b": "float32"}
        outputs = {"y": "float32"}

        def shape(self, a: Any, b: Any) -> Any:
            require_equal(a[0], b[0], "as many rows")
            return a

        def cpu(self, a: Any, b: Any, y: Any) -> None: ...

    register(Pair)
    path = save_model(
        tmp_path / "m.onnx",
        [node(Pair, ["a", "b"], ["y"])],
        {"a": ("float32", [3]), "b": ("float32", [4])},
        {"y": ("float32", [3])},
    )
    with pytest.raises(Exception, match="tests.custom::Pair: as many rows: it is 3, not 4"):
        inferred(path)


def test_a_negative_size_shows_in_shape_inference(tmp_path: Path, register: Callable[..., None]) -> None:
    class Shorter(HSwish):
        def shape(self, x: Any) -> Any:
            return (x[0], x[1] - 9)

    register(Shorter)
    nodes, inputs = [node(Shorter, ["x"], ["y"])], {"x": ("float32", [1, 8])}
    path = save_model(tmp_path / "m.onnx", nodes, inputs, {"y": ("float32", [1, "n"])})
    with pytest.raises(Exception, match=r"tests.custom::Shorter: shape\(\) gives output 0 the size -1"):
        inferred(path)


def test_declared_anew_it_replaces_the_earlier_one(register: Callable[..., None]) -> None:
    def declare(text: str) -> type[CustomOp]:
        body = {"domain": DOMAIN, "name": "Anew", "inputs": {}, "outputs": {"y": "int8"}, "__doc__": text}
        return type("Anew", (CustomOp,), body | {"shape": lambda self: (), "cpu": lambda self, y: None})

    for text in ("first", "second"):
        register(declare(text))
        assert onnx.defs.get_schema("Anew", 1, DOMAIN).doc == text
