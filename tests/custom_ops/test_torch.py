"""An operator in PyTorch, and from there through both exporters to every backend."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_operators import DOMAIN, Everything, HardSwishInC, HSwish, swish

import infersdk
from infersdk.custom_ops import CustomOp, ceil_div, opset_versions, require_equal, torch_operator, translation_table
from infersdk.errors import CustomOpError

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.filterwarnings("ignore")


class Halves(CustomOp):
    """Sizes of every kind: half as many rows, rounded up."""

    domain = "tests.torch_only"
    inputs = {"a": "float32", "b": "float32"}
    outputs = {"y": "float32"}

    def shape(self, a: Any, b: Any) -> Any:
        require_equal(a[1], b[1], "rows are as long")
        return ceil_div(a[0] + b[0], 2), a[1]

    def cpu(self, a: Any, b: Any, y: Any) -> None:
        y[...] = np.concatenate([a, b])[::2]


@pytest.mark.parametrize("op", [HSwish, HardSwishInC])
def test_it_runs(op: type[CustomOp]) -> None:
    x = torch.randn(3, 8)
    function = torch_operator(op)
    np.testing.assert_allclose(function(x, alpha=0.25).numpy(), swish_of(x, 0.25), atol=1e-6)
    np.testing.assert_allclose(function(x.T).numpy(), swish_of(x.T), atol=1e-6)  # not contiguous
    assert function(torch.empty(0, 8)).shape == (0, 8)


def swish_of(x: Any, alpha: float = 1 / 6) -> Any:
    return (x * torch.clamp(alpha * x + 0.5, 0, 1)).numpy()


def test_other_types_and_several_outputs() -> None:
    assert torch_operator(HSwish)(torch.ones(2).half()).dtype == torch.float16
    y, n = torch_operator(Everything)(torch.ones(2, 3), torch.arange(4), whole=2, flag=False)
    assert (y.shape, n.dtype, n.tolist()) == ((2, 6), torch.int32, [0, 1, 2, 3])
    with pytest.raises(Exception, match="HSwish takes inputs of types"):
        torch_operator(HSwish)(torch.ones(2).int())
    with pytest.raises(Exception, match="whole"):
        torch_operator(Everything)(torch.ones(2, 3), torch.arange(4))


def test_fake_tensors_and_meta() -> None:
    assert torch_operator(HSwish)(torch.empty(3, 8, device="meta")).shape == (3, 8)
    halves = torch_operator(Halves)
    assert halves(torch.empty(3, 8, device="meta"), torch.empty(4, 8, device="meta")).shape == (4, 8)
    with pytest.raises(Exception, match="rows are as long"):
        halves(torch.empty(3, 8, device="meta"), torch.empty(4, 7, device="meta"))


def test_inputs_on_different_devices() -> None:
    with pytest.raises(CustomOpError, match="Halves: its inputs are on cpu, meta; move them to one device"):
        torch_operator(Halves)(torch.ones(3, 8), torch.empty(4, 8, device="meta"))


def test_a_name_that_torch_does_not_take() -> None:
    class Reserved(CustomOp):
        domain = "tests.torch_only"
        inputs = {"in": "float32"}
        outputs = {"y": "float32"}

        def shape(self, *shapes: Any) -> Any:
            return shapes[0]

        def cpu(self, *arrays: Any) -> None: ...

    with pytest.raises(CustomOpError, match=r"Reserved: PyTorch does not take .*\(Tensor in\).*'in'.*use other names"):
        torch_operator(Reserved)


def test_torchs_own_checks() -> None:
    """What `torch.library.opcheck` says of an operator: its schema, fake tensors and symbolic sizes fit it."""
    torch.library.opcheck(torch_operator(HSwish), (torch.randn(3, 8),), {"alpha": 0.3})
    torch.library.opcheck(torch_operator(Halves), (torch.randn(3, 8), torch.randn(4, 8)))


def test_symbolic_sizes() -> None:
    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, a: Any, b: Any) -> Any:
            return torch_operator(Halves)(a, b) * 2

    rows = torch.export.Dim("rows", min=2, max=100)
    exported = torch.export.export(
        Module(),
        (torch.randn(3, 8), torch.randn(4, 8)),
        dynamic_shapes={"a": {0: rows}, "b": {0: torch.export.Dim("m")}},
    )
    a, b = torch.randn(6, 8), torch.randn(9, 8)
    np.testing.assert_allclose(exported.module()(a, b).numpy(), 2 * torch.cat([a, b])[::2].numpy())


class Sign(CustomOp):
    domain = "tests.torch_only"
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}
    value: float

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = np.copysign(1, self.value)


def test_negative_zero_is_another_value() -> None:
    sign = torch_operator(Sign)
    assert [sign(torch.ones(1), value=value).item() for value in (0.0, -0.0)] == [1, -1]


class Above(CustomOp):
    domain = "tests.torch_only"
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}
    low: float = -np.inf
    others: tuple[float, ...] = (1.0, np.nan)
    factor: float = 2.0

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = self.factor * np.maximum(x, self.low)


def test_an_infinite_default_must_be_given() -> None:
    above = torch_operator(Above)
    assert above(torch.ones(1), low=-np.inf, others=[np.nan]).item() == 2
    with pytest.raises(RuntimeError, match="missing value for argument 'low'"):
        above(torch.ones(1), others=[np.nan])


class Sevens(CustomOp):
    domain = "tests.torch_only"
    inputs = {}
    outputs = {"y": "float32"}
    count: int = 3

    def shape(self) -> Any:
        return (self.count,)

    def cpu(self, y: Any) -> None:
        y.fill(7)


def test_without_inputs() -> None:
    sevens = torch_operator(Sevens)
    assert sevens(count=2).tolist() == [7, 7]

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + sevens()

    exported = torch.export.export(Module(), (torch.ones(3),))
    assert exported.module()(torch.ones(3)).tolist() == [8, 8, 8]


def test_declared_anew() -> None:
    def declare(factor: float) -> type[CustomOp]:
        def cpu(self: Any, x: Any, y: Any) -> None:
            y[...] = factor * x

        body = {"domain": DOMAIN, "inputs": {"x": "float32"}, "outputs": {"y": "float32"}, "cpu": cpu}
        return type("Scaled", (CustomOp,), body | {"shape": lambda self, x: x})

    for factor in (2, 3):
        function = torch_operator(declare(factor))
        assert function(torch.ones(1)).item() == factor


def test_two_domains_that_torch_cannot_tell_apart() -> None:
    from infersdk.errors import CustomOpError

    def declare(domain: str) -> type[CustomOp]:
        body = {"domain": domain, "inputs": {"x": "float32"}, "outputs": {"y": "float32"}}
        return type("Same", (CustomOp,), body | {"shape": lambda self, x: x, "cpu": lambda self, x, y: None})

    torch_operator(declare("tests.apart"))
    with pytest.raises(CustomOpError, match="tests.apart::Same and tests_apart::Same are both tests_apart::Same"):
        torch_operator(declare("tests_apart"))


# ---- exporting ----


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Operators with attributes that are given and that are not, between layers of torch's own."""

    def forward(self, x: Any, i: Any) -> Any:
        a = torch_operator(HSwish)(torch.relu(x), alpha=0.3)
        y, n = torch_operator(Everything)(a, i, whole=2, text="q", factors=[1.5])
        return torch_operator(HardSwishInC)(y), n


OPS = [HSwish, HardSwishInC, Everything]


def export(path: Path, dynamo: bool) -> tuple[Any, Any, Any]:
    x, i, module = torch.randn(3, 8), torch.arange(4), Module().eval()
    if dynamo:
        batch, count = torch.export.Dim("batch"), torch.export.Dim("n")
        how: dict[str, Any] = {
            "custom_translation_table": translation_table(*OPS),
            "dynamic_shapes": {"x": {0: batch}, "i": {0: count}},
        }
    else:
        how = {
            "custom_opsets": opset_versions(*OPS),
            "dynamic_axes": {"x": {0: "batch"}, "i": {0: "n"}},
            "input_names": ["x", "i"],
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x, i), path, dynamo=dynamo, verbose=False, output_names=["y", "n"], **how)
    return x, i, module


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])
def test_from_torch_to_every_backend(tmp_path: Path, dynamo: bool) -> None:
    path = tmp_path / "m.onnx"
    _, _, module = export(path, dynamo)
    graph = onnx.load(path).graph
    made = [node for node in graph.node if node.domain == DOMAIN]
    assert [node.op_type for node in made] == ["HSwish", "Everything", "HardSwishInC"]
    values = {a.name: onnx.helper.get_attribute_value(a) for a in made[1].attribute}
    assert values["whole"] == 2
    assert values["text"] == b"q"
    assert values["factors"] == [1.5]
    assert values["wholes"] == [3, -4]  # a default
    for backend in ("onnxruntime", "openvino"):
        pytest.importorskip(backend)
        for cut in (False, True):
            with infersdk.load(path, backend, custom_ops=OPS, cut_custom_ops=cut) as infer:
                for rows in (3, 1, 5):
                    x, i = torch.randn(rows, 8), torch.arange(rows + 1)
                    y, n = module(x, i)
                    got = infer({"x": x.numpy(), "i": i.numpy()})
                    np.testing.assert_allclose(got["y"], y.numpy(), atol=1e-6)
                    np.testing.assert_array_equal(got["n"], n.numpy())


def test_an_older_modules_symbolic(tmp_path: Path) -> None:
    """Code that has its symbolic already needs no change: its node becomes ours by domain and name."""

    class Function(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * torch.clamp(0.3 * x + 0.5, 0, 1)

        @staticmethod
        def symbolic(g: Any, x: Any) -> Any:
            return g.op("tests.custom::HSwish", x, alpha_f=0.3)

    class Old(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.relu(Function.apply(torch.relu(x)))

    path, x = tmp_path / "m.onnx", torch.randn(3, 8)
    torch.onnx.export(
        Old(), (x,), path, dynamo=False, custom_opsets={"tests.custom": 1}, input_names=["x"], output_names=["y"]
    )
    with infersdk.load(path, "onnxruntime", custom_ops=[HSwish]) as infer:
        np.testing.assert_allclose(infer(x.numpy())["y"], swish(x.numpy(), 0.3), atol=1e-6)
