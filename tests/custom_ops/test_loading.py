"""What loading refuses, and how: the operator, the node, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_operators import C_SOURCE, DOMAIN, HardSwishInC, HSwish, node, save_model, swish, swish_model
from onnx_models import need_runtime

import infersdk
from infersdk.custom_ops import CFunction, CSource, CustomOp, require_equal
from infersdk.errors import CustomKernelError, CustomOpError, ShapeError, UnsupportedModelError

pytest.importorskip("onnx")


X = np.linspace(-4, 4, 16, dtype="float32").reshape(2, 8)


def variant(**body: Any) -> type[CustomOp]:
    """HSwish with another body."""
    return type("HSwish", (HSwish,), body)


def wants_ten(self: Any, x: Any) -> Any:
    require_equal(x[1], 10, "ten columns")
    return x


def test_an_operator_that_is_not_declared(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx")
    with pytest.raises(
        UnsupportedModelError,
        match=r"operator tests.custom::HSwish, node 'swish' of m.onnx: not declared. Derive a class from "
        r"infersdk.custom_ops.CustomOp with domain = 'tests.custom' and name = 'HSwish', .*=\[that class\]",
    ):
        infersdk.load(path, backend)
    with pytest.raises(CustomOpError, match="tests.custom::HSwish, node 'swish' of m.onnx: not declared"):
        infersdk.load(path, backend, custom_ops=[HardSwishInC])


def test_declared_twice(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx")
    with pytest.raises(CustomOpError, match="tests.custom::HSwish is declared twice: by custom_operators.HSwish"):
        infersdk.load(path, backend, custom_ops=[HSwish, variant()])
    with pytest.raises(CustomOpError, match="custom_ops has custom_operators.HSwish twice; give it once"):
        infersdk.load(path, backend, custom_ops=[HSwish, HSwish])


@pytest.mark.parametrize("given", [HSwish, "HSwish", 3, [HSwish()], [int], [X[0, :2], X[1, :2]]])
def test_no_list_of_classes(tmp_path: Path, given: Any) -> None:
    with pytest.raises(CustomOpError, match="use a list of classes|custom_ops has .* use classes that derive from"):
        infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime", custom_ops=given)


def test_an_attribute_that_it_has_not(tmp_path: Path, backend: str) -> None:
    made = node(HSwish, ["x"], ["y"], "swish")
    from onnx import helper

    made.attribute.append(helper.make_attribute("gamma", 1.0))
    path = save_model(tmp_path / "m.onnx", [made], {"x": ("float32", ["b"])}, {"y": ("float32", ["b"])})
    with pytest.raises(CustomOpError, match="node 'swish': it has no attribute 'gamma'; it has alpha, beta"):
        infersdk.load(path, backend, custom_ops=[HSwish])


def test_too_few_inputs(tmp_path: Path, backend: str) -> None:
    path = save_model(
        tmp_path / "m.onnx", [node(HSwish, [], ["y"], "swish")], {"x": ("float32", [1])}, {"y": ("float32", [1])}
    )
    with pytest.raises(CustomOpError, match=r"node 'swish': it has 0 inputs, and the operator declares 1 \(x\)"):
        infersdk.load(path, backend, custom_ops=[HSwish])


def with_function(path: Path, after: Any, calls: Any, opset: int = 17) -> Path:
    """`x` through a function of the model, which computes one node, and then through another node to `y`."""
    import onnx
    from onnx import helper

    save_model(path, [helper.make_node("F", ["x"], ["a"], domain="local"), after], {"x": ("float32", ["b", 8])},
               {"y": ("float32", ["b", 8])})  # fmt: skip
    model = onnx.load(path)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1), helper.make_opsetid(DOMAIN, 1)]
    model.functions.append(helper.make_function("local", "F", ["x"], ["y"], [calls], opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    onnx.save(model, path)
    return path


def test_functions_of_a_model_without_custom_operators(tmp_path: Path) -> None:
    """They are not inlined: ONNX allows functions with another opset than the model."""
    from onnx import helper

    pytest.importorskip("onnxruntime")
    neg, relu = helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Relu", ["a"], ["y"])
    with infersdk.load(with_function(tmp_path / "m.onnx", relu, neg, opset=16), "onnxruntime") as infer:
        np.testing.assert_array_equal(infer(X)["y"], np.maximum(-X, 0))


@pytest.mark.parametrize("inside", [False, True])
def test_functions_and_custom_operators(tmp_path: Path, backend: str, inside: bool) -> None:
    from onnx import helper

    relu = helper.make_node("Relu", ["a" if inside else "x"], ["y"])
    first, second = (node(HSwish, ["x"], ["y"]), relu) if inside else (relu, node(HSwish, ["a"], ["y"]))
    with infersdk.load(with_function(tmp_path / "m.onnx", second, first), backend, custom_ops=[HSwish]) as infer:
        x = X if inside else np.maximum(X, 0)
        np.testing.assert_allclose(infer(X)["y"], np.maximum(x * np.clip(x / 6 + 0.5, 0, 1), 0), atol=1e-6)


@pytest.mark.parametrize(
    ("calls", "domain", "opset", "message"),
    [("Neg", "", 16, "Opset mismatch .* 'local::F'"), ("F", "local", 17, "Cyclic dependency .* local::F -> local::F")],
)
def test_functions_that_cannot_be_inlined(
    tmp_path: Path, backend: str, calls: str, domain: str, opset: int, message: str
) -> None:
    from onnx import helper

    called = helper.make_node(calls, ["x"], ["y"], domain=domain)
    path = with_function(tmp_path / "m.onnx", node(HSwish, ["a"], ["y"]), called, opset)
    with pytest.raises(UnsupportedModelError, match=f"functions of the model cannot be inlined: {message}"):
        infersdk.load(path, backend, custom_ops=[HSwish])


def test_another_version(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx")
    with pytest.raises(
        CustomOpError, match="m.onnx has version 1 of domain 'tests.custom', and the operator is declared "
    ):
        infersdk.load(path, backend, custom_ops=[variant(version=2)])


def test_a_model_for_a_later_version_of_the_domain(tmp_path: Path, backend: str) -> None:
    """Operators of one domain have versions of their own: the model names the latest."""
    path = save_model(
        tmp_path / "m.onnx",
        [node(HSwish, ["x"], ["y"], "swish")],
        {"x": ("float32", ["b", 8])},
        {"y": ("float32", ["b", 8])},
        version=3,
    )
    with infersdk.load(path, backend, custom_ops=[variant(version=2)]) as infer:
        np.testing.assert_allclose(infer(X)["y"], X * np.clip(X / 6 + 0.5, 0, 1), atol=1e-6)


def test_no_kernel_for_the_device(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx")
    on_gpu = variant(cpu=None, cuda=CFunction("libnonesuch.so", "f"))
    with pytest.raises(CustomOpError, match="tests.custom::HSwish has no kernel for device 'cpu'; it has cuda"):
        infersdk.load(path, backend, custom_ops=[on_gpu])


def test_a_type_that_it_does_not_take(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx", dtype="float64")
    with pytest.raises(
        CustomOpError, match=r"HSwish takes inputs of types \(float32\) or \(float16\), not \(float64\)"
    ):
        infersdk.load(path, backend, custom_ops=[HSwish])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (CFunction("/no/such/lib.so", "f"), "its library '/no/such/lib.so' cannot be loaded"),
        (CSource(C_SOURCE, "nonesuch"), "its source has no function 'nonesuch'; declare it as int32_t nonesuch"),
        (CSource("int f(;", "f"), "does not compile its kernel:.*error"),
        (CSource("int g(void); int f(void) { return g(); }", "f"), "its options, cannot be loaded: .*symbol: g"),
        (CSource(Path("/no/such/file.c"), "f"), "cannot read the source '/no/such/file.c': No such file"),
        (CSource(Path("latin1.c"), "f"), "the source 'latin1.c' is not in UTF-8: .*; save it in UTF-8"),
    ],
)  # fmt: skip
def test_a_library_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin1.c").write_text("// é", "latin-1")
    op = type("HardSwishInC", (HardSwishInC,), {"cpu": function})
    with pytest.raises(CustomOpError, match=f"(?s)tests.custom::HardSwishInC: .*{message}"):
        infersdk.load(swish_model(tmp_path / "m.onnx", op), "onnxruntime", custom_ops=[op])


# ---- while it runs ----


def test_a_kernel_that_raises(tmp_path: Path, backend: str) -> None:
    calls: list[int] = []

    def cpu(self: Any, x: Any, y: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError("by nought")
        HSwish.cpu(self, x, y)

    with infersdk.load(swish_model(tmp_path / "m.onnx"), backend, custom_ops=[variant(cpu=cpu)]) as infer:
        with pytest.raises(
            CustomKernelError,
            match=r"operator tests.custom::HSwish, node swish: its CPU kernel raises ZeroDivisionError: by nought; "
            r"its arguments are x float32 \(2, 8\), y float32 \(2, 8\)",
        ) as caught:
            infer(X)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        np.testing.assert_allclose(infer(X)["y"], swish(X), atol=1e-6)  # it stays usable


@pytest.mark.parametrize("front", ["", "a"])
def test_a_long_message_is_cut_between_characters(tmp_path: Path, backend: str, front: str) -> None:
    def cpu(self: Any, x: Any, y: Any) -> None:
        raise ValueError(front + "é" * 2000)

    with infersdk.load(swish_model(tmp_path / "m.onnx"), backend, custom_ops=[variant(cpu=cpu)]) as infer:
        with pytest.raises(CustomKernelError, match="ValueError: a?éé") as caught:
            infer(X)
        assert isinstance(caught.value.__cause__, ValueError)


def test_a_message_of_a_c_kernel_that_is_not_utf_8(tmp_path: Path, backend: str) -> None:
    if backend == "onnxruntime":
        need_runtime((1, 27), "passes no such message on")
    source = CSource(C_SOURCE.replace("job j =", r'return IFS_OP_FAIL(call, "%s", "caf\351"); job j ='), "hard_swish")
    path, message = swish_model(tmp_path / "m.onnx"), "operator tests.custom::HSwish, node .*caf\ufffd"
    with (
        infersdk.load(path, backend, custom_ops=[variant(cpu=source)]) as infer,
        pytest.raises(CustomKernelError, match=message),
    ):
        infer(X)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_kernel_that_is_interrupted(tmp_path: Path, backend: str, error: type[BaseException]) -> None:
    def cpu(self: Any, x: Any, y: Any) -> None:
        raise error

    path = swish_model(tmp_path / "m.onnx")
    with infersdk.load(path, backend, custom_ops=[variant(cpu=cpu)]) as infer, pytest.raises(error):
        infer(X)


def test_a_kernel_in_c_that_fails(tmp_path: Path, backend: str) -> None:
    source = '#include "infersdk_custom_op.h"\nint32_t f(const ifs_op_call *c) { return IFS_OP_FAIL(c, "no %d", 42); }'
    op = type("HardSwishInC", (HardSwishInC,), {"cpu": CSource(source, "f")})
    with (
        infersdk.load(swish_model(tmp_path / "m.onnx", op), backend, custom_ops=[op]) as infer,
        pytest.raises(CustomKernelError, match="HardSwishInC, node swish: its CPU kernel failed: no 42"),
    ):
        infer(X)


@pytest.mark.parametrize(
    ("error", "body", "message"),
    [
        (
            CustomKernelError, {"cpu": lambda self, x, y: x + 1},
            r"returns a ndarray; a kernel must fill its outputs .*, y\[:\] = ...",
        ),
        (
            CustomKernelError, {"cpu": lambda self, x, y: x.__setitem__(0, 1)},
            "ValueError: assignment destination is read-only",
        ),
        (
            CustomKernelError, {"shape": lambda self, x: (x[0], x[1] + 1)},
            r"could not broadcast .* y float32 \(2, 9\), with outputs",
        ),
        (
            ShapeError, {"shape": lambda self, x: (x[0], x[1] - 9)},
            r"shape\(\) gives output 0 the size -1 in dimension 1",
        ),
        (ShapeError, {"shape": lambda self, x: (x[0] // (x[1] - 8), 8)}, r"shape\(\) divides 2 by 0"),
        (ShapeError, {"shape": lambda self, x: (x[0] * 2**62, 8)}, r"size that shape\(\) works out has more than 63"),
        (ShapeError, {"shape": wants_ten}, "ten columns: it is 8, not 10"),
    ],
)  # fmt: skip
def test_what_a_kernel_or_shape_may_not_do(
    tmp_path: Path, backend: str, error: type[Exception], body: dict[str, Callable[..., Any]], message: str
) -> None:
    path = swish_model(tmp_path / "m.onnx")
    with pytest.raises(error, match=rf"(?s)HSwish, node .*{message}"):  # noqa: SIM117
        with infersdk.load(path, backend, custom_ops=[variant(**body)]) as infer:
            infer(X)


def test_a_shape_that_raises(tmp_path: Path, backend: str) -> None:
    path = swish_model(tmp_path / "m.onnx")
    with pytest.raises(CustomOpError, match=r"tests.custom::HSwish.* shape\(\) raises AttributeError"):  # noqa: SIM117
        with infersdk.load(path, backend, custom_ops=[variant(shape=lambda self, x: x.nonesuch)]) as infer:
            infer(X)


def test_a_negative_size_of_a_fixed_shape(tmp_path: Path, backend: str) -> None:
    shorter = variant(shape=lambda self, x: (x[0], x[1] - 9))
    nodes = [node(shorter, ["x"], ["y"], "one")]
    path = save_model(tmp_path / "m.onnx", nodes, {"x": ("float32", [2, 8])}, {"y": ("float32", [2, "n"])})
    with pytest.raises(ShapeError, match=r"HSwish, node .*: shape\(\) gives output 0 the size -1"):  # noqa: SIM117
        with infersdk.load(path, backend, custom_ops=[shorter], cut_custom_ops=True) as infer:
            infer(X)


# ---- installed packages ----


class _Point:
    def __init__(self, value: Any) -> None:
        self.name, self.value, self._value = "mine", "package:ops", value
        self.dist = type("Dist", (), {"name": "the-package"})()

    def load(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


def installed(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    real = __import__("importlib.metadata").metadata.entry_points
    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [_Point(value)] if group == "infersdk.custom_ops" else real(group=group),
    )


@pytest.mark.parametrize("value", [HSwish, [HardSwishInC, HSwish]])
def test_operators_of_installed_packages(
    tmp_path: Path, backend: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, value)
    with infersdk.load(swish_model(tmp_path / "m.onnx"), backend) as infer:
        np.testing.assert_allclose(infer(X)["y"], swish(X), atol=1e-6)


def test_an_installed_package_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, RuntimeError("boom"))
    with pytest.raises(
        CustomOpError, match="entry point 'mine' of package the-package cannot be loaded: RuntimeError: b"
    ):
        infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime")
    installed(monkeypatch, 3)
    with pytest.raises(CustomOpError, match="entry point 'mine' of package the-package has 3; use classes"):
        infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime")


def test_a_given_operator_and_an_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, HSwish)
    with infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime", custom_ops=[HSwish]):
        pass  # the very same class: no doubt
    with pytest.raises(CustomOpError, match="declared twice"):
        infersdk.load(swish_model(tmp_path / "m.onnx"), "onnxruntime", custom_ops=[variant()])


def test_a_plain_model_takes_any_operators(tmp_path: Path, backend: str) -> None:
    import onnx_models

    with infersdk.load(onnx_models.double(tmp_path / "m.onnx"), backend, custom_ops=[HSwish]) as infer:
        assert infer.custom_ops is None
        np.testing.assert_array_equal(infer(np.ones((1, 4), "float32"))["y"], np.full((1, 4), 2))
    assert DOMAIN
