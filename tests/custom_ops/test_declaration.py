"""Declaring an operator: what is taken, and what is refused with the class, the value and the remedy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from custom_operators import Everything, HSwish

from infersdk.custom_ops import CSource, CustomOp
from infersdk.errors import CustomOpError


def declare(**body: Any) -> type[CustomOp]:
    """A class with this body, and what it needs besides."""
    plain: dict[str, Any] = {
        "domain": "tests.declared", "inputs": {"x": "float32"}, "outputs": {"y": "float32"},
        "shape": lambda self, x: x, "cpu": lambda self, x, y: None, "__annotations__": {},
    }  # fmt: skip
    return type("Declared", (CustomOp,), plain | body)


def test_what_a_declaration_says() -> None:
    assert HSwish.title() == "tests.custom::HSwish"
    assert [s.inputs for s in HSwish.signatures()] == [("float32",), ("float16",)]
    assert [s.outputs for s in Everything.signatures()] == [("float32", "int32"), ("float64", "int32")]
    assert HSwish(alpha=0.25).values() == {"alpha": 0.25, "beta": 0.5}
    assert HSwish() == HSwish(beta=0.5)
    assert HSwish(beta=-0.0) != HSwish(beta=0.0)
    assert len({HSwish(), HSwish(beta=0.5), HSwish(beta=-0.0), HSwish(beta=0.0)}) == 3
    assert HSwish(alpha=0.1).alpha == np.float32(0.1)  # as ONNX keeps it
    assert Everything(whole=2, wholes=[1, 2]).wholes == (1, 2)
    with pytest.raises(AttributeError):
        HSwish().alpha = 2  # type: ignore[misc]


def test_inheritance() -> None:
    class Next(HSwish):
        name = "HSwish"
        version = 2
        gamma: float = 1.0
        note: ClassVar[str] = "no attribute"

    assert Next.title() == "tests.custom::HSwish"
    assert [a.name for a in Next.attributes] == ["alpha", "beta", "gamma"]
    assert Next(gamma=2).values() == {"alpha": np.float32(1 / 6), "beta": 0.5, "gamma": 2.0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"domain": ""}, 'domain is \'\'; write domain = "my.company"'),
        ({"domain": "ai.onnx"}, "domains of the ONNX standard are reserved"),
        ({"domain": "a b"}, "letters, digits, _ and dots"),
        ({"name": "a-b"}, "name is 'a-b'"),
        ({"version": 0}, "version is 0; it is a whole number from 1"),
        ({"version": True}, "version is True"),
        ({"inputs": ["x"]}, "inputs is .'x'.; it is a dict by name"),
        ({"types": ("float32",)}, "types is .*; it is a dict by name"),
        ({"inputs": {"x": "float"}}, "inputs.'x'. is 'float'; an element type is float32"),
        ({"inputs": {"x": "T"}}, "inputs.'x'. is 'T'"),
        ({"types": {"T": "float32"}}, "it is a tuple of element types"),
        ({"types": {"T": 5}}, "types.'T'. is 5; it is a tuple of element types"),
        ({"inputs": {1: "float32"}}, "inputs has the name 1; a name is letters"),
        ({"types": {"T": ("half",)}}, "types.'T'. is 'half'"),
        ({"types": {"T": ("int8",)}, "outputs": {"y": "T"}}, "type variable 'T', which no input has"),
        ({"outputs": {}}, "outputs is empty"),
        ({"outputs": {"x": "float32"}}, "'x' is the name of an input and of an output"),
        ({"shape": CustomOp.shape}, "it has no shape"),
        ({"shape": lambda self: ()}, r"write def shape\(self, x\)"),
        ({"inputs": {}}, r"shape\(\) cannot be called with no inputs; write def shape\(self\)$"),
        ({"inputs": {}, "shape": CustomOp.shape}, r"it has no shape\(\); write def shape\(self\): return"),
        ({"cpu": lambda self, x: None}, r"write def cpu\(self, x, y\)"),
        ({"cpu": None}, "it has no kernel"),
        ({"cpu": 3}, "cpu is 3; it is a method, a CFunction or a CSource"),
        ({"cuda": lambda self: None}, "it is a CudaSource or a CFunction"),
        ({"cpu": CSource("", "f", options="-O2 -g")}, "options of cpu are '-O2 -g'; write a tuple, .'-O2', '-g'.$"),
        ({"__annotations__": {"alpha": "complex"}}, "attribute 'alpha' is annotated complex"),
        ({"__annotations__": {"alpha": "list[int]"}}, "attribute 'alpha' is annotated"),
        ({"__annotations__": {"alpha": "tuple[int | None, ...]"}}, "is annotated tuple.int | None, ...."),
        ({"__annotations__": {"alpha": "str"}, "alpha": "\udce9"}, "it takes str in UTF-8 without a null character"),
        ({"__annotations__": {"alpha": "Nonesuch"}}, "an annotation cannot be read"),
        ({"__annotations__": {"alpha": "float"}, "alpha": "big"}, "attribute 'alpha' is 'big', of type str; it t"),
        ({"__annotations__": {"x": "float"}}, "'x' is the name of an attribute and of an input or output"),
        ({"__annotations__": {"of": "float"}}, "attribute 'of' would hide CustomOp.of"),
    ],
)  # fmt: skip
def test_a_wrong_declaration(body: dict[str, Any], message: str) -> None:
    with pytest.raises(CustomOpError, match=message) as caught:
        declare(**body)
    assert "Declared: " in str(caught.value)


def test_a_default_may_be_a_list() -> None:
    assert declare(__annotations__={"sides": "tuple[int, ...]"}, sides=[1, 2])().values() == {"sides": (1, 2)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "attribute 'whole' has no value and no default; set it on the node .int."),
        ({"whole": 1.5}, "attribute 'whole' is 1.5, of type float; it takes int"),
        ({"whole": 1 << 63}, "it takes int"),
        ({"whole": 1, "flag": 2}, "attribute 'flag' is 2, of type int; it takes bool"),
        ({"whole": 1, "factor": "x"}, "it takes float"),
        ({"whole": 1, "factor": 1e39}, "it takes float"),
        ({"whole": 1, "text": 3}, "it takes str"),
        ({"whole": 1, "text": b"a\0b"}, "it takes str in UTF-8 without a null character"),
        ({"whole": 1, "wholes": 3}, "it takes tuple.int, ...."),
        ({"whole": 1, "factors": ("a",)}, "it takes tuple.float, ...."),
        ({"whole": 1, "other": 3}, "it has no attribute 'other'; it has factor, factors, flag, text, whole, wholes"),
    ],
)  # fmt: skip
def test_a_wrong_attribute(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CustomOpError, match=message) as caught:
        Everything.of(values, "the node")
    assert str(caught.value).startswith("operator tests.custom::Everything, node 'the node': ")
