"""PNNX: the text and its weights, the graph as objects, operators against PyTorch, and files that are damaged."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conversions import converted
from framework_files import write_pnnx

from infersdk.errors import ConfigError, ModelFormatError, ModelNotFoundError, UnsupportedModelError
from infersdk.importers import convert
from infersdk.importers.pnnx import PnnxGraph, as_module, run
from infersdk.importers.pnnx.expressions import Call, Input, parse_expression

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

TEXT = """7767517
4 3
pnnx.Input    in0   0 1 0 #0=(1,3,8,8)f32
nn.Conv2d     conv  1 1 0 1 bias=True dilation=(1,1) groups=1 in_channels=3 kernel_size=(3,3) out_channels=4 \
padding=(1,1) padding_mode=zeros stride=(2,2) @bias=(4)f32 @weight=(4,3,3,3)f32 #0=(1,3,8,8)f32 #1=(1,4,4,4)f32
pnnx.Expression e   1 1 1 2 expr=mul(sigmoid(@0),2.0) #1=(1,4,4,4)f32 #2=(1,4,4,4)f32
pnnx.Output   out0  1 0 2 #2=(1,4,4,4)f32
"""


def write(
    folder: Path, text: str = TEXT, weights: dict[str, Any] | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "conv.bias": rng.standard_normal(4).astype(np.float32),
        "conv.weight": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
    }
    return write_pnnx(folder, text, arrays if weights is None else weights, compression)


def onnx_outputs(model: bytes, *inputs: Any) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {spec.name: array for spec, array in zip(session.get_inputs(), inputs, strict=True)}
    return list(session.run(None, feeds))


# ---- the graph as objects ----


def test_a_graph_as_objects(tmp_path: Path) -> None:
    graph = PnnxGraph.read(write(tmp_path))
    assert [one.type for one in graph.operators] == ["pnnx.Input", "nn.Conv2d", "pnnx.Expression", "pnnx.Output"]
    conv = graph.operator("conv")
    assert conv.params["kernel_size"] == (3, 3)
    assert conv.params["bias"] is True
    assert conv.params["padding_mode"] == "zeros"
    assert conv.inputs == graph.inputs
    assert graph.operator("e").inputs == conv.outputs
    assert conv.outputs[0].shape == (1, 4, 4, 4)
    assert conv.attributes["weight"].array.shape == (4, 3, 3, 3)
    assert not conv.attributes["weight"].array.flags.writeable
    assert [operand.name for operand in graph.outputs] == ["2"]
    with pytest.raises(KeyError):
        graph.operator("none")


def test_expressions() -> None:
    tree = parse_expression("add(mul(@0,-2.5),[1,size(@1,0)])", 2)
    assert tree == Call("add", (Call("mul", (Input(0), -2.5)), Call("[]", (1, Call("size", (Input(1), 0))))))
    assert parse_expression("log1p,@0", 1) == Call("log1p", (Input(0),))
    written = "mul(add(@0,log1p),abs(@1)),expm1,[2,@0]"  # as pnnx writes it: each function in front of its values
    tree = Call(
        "mul",
        (
            Call("add", (Input(0), Call("log1p", (Call("abs", (Input(1),)),)))),
            Call("expm1", (Call("[]", (2, Input(0))),)),
        ),
    )
    assert parse_expression(written, 2) == tree
    for text in (
        "add(@0",
        "add(@0,@1)",
        "@2",
        "add(@0,,@0)",
        "@0,@0",
        "log1p",
        "add(@0,log1p)",
        "log1p,@0,@0",
        ")",
        "",
        "(" * 5000,
        "a(" * 5000,
    ):
        with pytest.raises(ModelFormatError, match="malformed"):
            parse_expression(text, 1)


# ---- damage ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("7767517", "7767518"), "must begin with 7767517"),
        (("4 3\n", "4\n"), "expected: number of operators"),
        (("4 3\n", "99999999 3\n"), "99999999 operators exceed"),
        (("4 3\n", "5 3\n"), "has 4 operators instead of 5"),
        (("1 1 0 1 bias", "1 1 7 1 bias"), "'7' is used before"),
        (("1 1 0 1 bias", "9999 1 0 1 bias"), "9999 inputs"),
        (("1 1 1 2 expr", "1 1 1 1 expr"), "'1' is defined twice"),
        (("@bias=(4)f32", "@bias=(4)f99"), "unknown element type 'f99'"),
        (("@bias=(4)f32", "@bias=(?)f32"), "no complete shape"),
        (("#2=(1,4,4,4)f32\npnnx.Output", "#9=(1,4,4,4)f32\npnnx.Output"), "no operand '9'"),
        (("stride=(2,2)", "stride"), "not of the form key=value"),
    ],
)
def test_damaged_text(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, TEXT.replace(*change))
    with pytest.raises(ModelFormatError, match=message):
        PnnxGraph.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("@bias=(4)f32", "@bias=(4000000000000)f32"), "has 16 bytes; shape"),
        (("@weight=(4,3,3,3)f32", "@weight=(4,3,3,5)f32"), "has 432 bytes"),
        (("@weight", "@other"), "weight is missing|no entry"),
        (("kernel_size=(3,3)", "kernel_size=None"), "its parameters"),
        (("mul(sigmoid(@0),2.0)", "mul(sigmoid(@0),2.0"), "malformed"),
        (("expr=mul(sigmoid(@0),2.0)", ""), "it has no parameter expr"),
        (("pnnx.Expression e   1 1 1 2 expr=mul(sigmoid(@0),2.0)", "nn.AdaptiveAvgPool2d e 1 1 1 2"), "output_size"),
        (
            ("pnnx.Expression e   1 1 1 2 expr=mul(sigmoid(@0),2.0)", "pnnx.Attribute e 0 1 2"),
            "0 weights instead of one",
        ),
    ],
)
def test_damaged_operators(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write(tmp_path, TEXT.replace(*change))
    with pytest.raises(ModelFormatError, match=message):
        as_module(PnnxGraph.read(path))


def test_weights_that_are_missing_or_compressed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write(tmp_path, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFormatError, match=r"conv\.weight|conv\.bias"):
        as_module(PnnxGraph.read(path))
    (tmp_path / "m.pnnx.bin").write_bytes(b"PK\3\4 no archive")
    with pytest.raises(ModelFormatError, match="not a PNNX weights file"):
        as_module(PnnxGraph.read(path))
    (tmp_path / "m.pnnx.bin").unlink()
    with pytest.raises(ModelNotFoundError, match=r"weights of .* are missing"):
        as_module(PnnxGraph.read(path))
    with pytest.raises(ModelNotFoundError, match="external_data"):
        as_module(PnnxGraph.read(path.read_bytes()))


def test_a_graph_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path)
    weights = (tmp_path / "m.pnnx.bin").rename(tmp_path / "elsewhere.bin")
    graph = PnnxGraph.read(path.read_bytes(), weights)
    assert graph.operator("conv").attributes["bias"].array.shape == (4,)


def test_missing_operators_are_listed_at_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = TEXT.replace("4 3", "8 7").replace(
        "pnnx.Output   out0  1 0 2",
        "my.Op a 1 1 2 3\nmy.Op b 1 1 3 4\naten::embedding_bag d 1 1 4 5\ntorch.stft c 1 1 5 6\npnnx.Output out0 1 0 6",
    )
    with pytest.raises(UnsupportedModelError, match=re.escape("aten::embedding_bag (1), my.Op (2), torch.stft (1)")):
        convert(write(tmp_path, text))


@pytest.mark.parametrize(
    "line", ["aten::outer a 1 1 2 3", "aten::all a 2 1 2 2 3", "Tensor.select a 1 1 2 3 dim=9 index=0"]
)
def test_operators_with_other_arguments(line: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = TEXT.replace("4 3", "5 4").replace("pnnx.Output   out0  1 0 2", f"{line}\npnnx.Output out0 1 0 3")
    with pytest.raises(ConfigError, match=re.escape(f"operator 'a' ({line.split(maxsplit=1)[0]}) failed: ")):
        convert(write(tmp_path, text))


def test_axes_that_the_file_leaves_open(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write(tmp_path, TEXT.replace("#0=(1,3,8,8)f32", "#0=(1,3,?,?)f32"))
    with pytest.raises(ConfigError, match=re.escape("--shape in0=1,3,64,64")):
        convert(path)
    conversion = converted(path, shapes={"in0": (1, 3, 12, 14)})
    x = np.random.default_rng(2).random((1, 3, 20, 30), np.float32)
    (found,) = onnx_outputs(conversion.content, x)
    (expected,) = (run(PnnxGraph.read(path), [x])["2"],)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


DOUBLED = """7767517
3 2
pnnx.Input      in0  0 1 0 #0=(1,3){type}
pnnx.Expression e    1 1 0 1 expr=mul(@0,2) #0=(1,3){type} #1=(1,3){type}
pnnx.Output     out0 1 0 1 #1=(1,3){type}
"""


@pytest.mark.parametrize(
    ("shapes", "samples", "dtype"),
    [((), (), "float32"), (["1,3:int64"], (), "int64"), (["in0=1,3:float64"], (), "float64"),
     ((), {"in0": np.ones((1, 3), np.int32)}, "int32")],
)  # fmt: skip
def test_a_type_that_the_file_leaves_open(shapes: Any, samples: Any, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    conversion = converted(write(tmp_path, DOUBLED.format(type="")), shapes=shapes, samples=samples)
    (found,) = onnx_outputs(conversion.content, np.ones((1, 3), dtype))
    assert (found.dtype, found.tolist()) == (dtype, [[2, 2, 2]])


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("f32", {"shapes": ["1,3:float16"]}, "input 'in0' is float32, not float16"),
        ("i64", {"shapes": {"in0": "1,3:int32"}}, "input 'in0' is int64, not int32"),
        (
            "i64",
            {"samples": {"in0": [[0.5, 1, 2]]}},
            "sample of input 'in0': int64 does not hold [[0.5, 1.0, 2.0]]",
        ),
        ("u8", {"samples": {"in0": [[300, 1, 2]]}}, "the sample of input 'in0': uint8 does not hold [[300, 1, 2]]"),
        ("f32", {"shapes": ["1,3", "in0=1,3"]}, "1 shapes without a name are given for 0 inputs; all inputs are in0"),
    ],
)
def test_shapes_and_samples_that_contradict_the_file(kind: str, given: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=re.escape(message)):
        convert(write(tmp_path, DOUBLED.format(type=kind)), **given)


def test_a_sample_is_converted_to_the_type_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    converted(write(tmp_path, DOUBLED.format(type="f32")), samples={"in0": [[1, 2, 3]]})


def test_a_name_of_the_file_calls_no_other_function(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for kind in (
        "torch.load",
        "torch.hub.load",
        "nn.Module",
        "F.os",
        "Tensor.__class__",
        "torch.save",
        "torch.compile",
        "aten::from_file",
        "aten::__class__",
    ):
        path = write(tmp_path, TEXT.replace("pnnx.Expression e ", f"{kind} e "))
        with pytest.raises(UnsupportedModelError, match=re.escape(kind)):
            run(PnnxGraph.read(path), [np.zeros((1, 3, 8, 8), np.float32)])


# ---- operators against PyTorch: files of the pnnx package ----


def _nets() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    nn, f = torch.nn, torch.nn.functional

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, run: Any, **layers: Any) -> None:
            super().__init__()
            self.run = run
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, *x: Any) -> Any:
            return self.run(self, *x)

    def assign(_: Any, x: Any) -> Any:
        y = x.clone()
        y[:, 0] = x[:, 1] * 2
        y[..., -1] = 1.0
        y[:, 2:4, ::2] = x[:, :2, ::2]
        return y

    image = (torch.rand(1, 6, 13, 15) * 2 - 1,)
    steps = (torch.rand(1, 7, 12) * 2 - 1,)
    return {
        "convolutions": (Net(lambda m, x: m.c(f.relu(m.b(m.a(x)))), a=nn.Conv2d(6, 8, (3, 2), (2, 1), "valid",
            groups=2), b=nn.Conv2d(8, 8, 3, padding="same", dilation=2), c=nn.ConvTranspose2d(8, 4, 3, 2, 1, 1,
            groups=2)), image),
        "padding_modes": (Net(lambda m, x: m.a(x) + m.b(x), a=nn.Conv2d(6, 4, 3, padding=1,
            padding_mode="reflect"), b=nn.Conv2d(6, 4, 3, padding=1, padding_mode="replicate")), image),
        "pools": (Net(lambda m, x: (f.max_pool2d(x, 3, 2, 1, ceil_mode=True), f.avg_pool2d(x, 3, 2, 1,
            ceil_mode=True), f.avg_pool2d(x, 2, 3, 0, True, False), f.adaptive_avg_pool2d(x, (4, 7)),
            f.adaptive_max_pool2d(x, (5, 4)), f.adaptive_avg_pool2d(x, 1))), image),
        "activations": (Net(lambda m, x: [g(x) for g in (f.relu6, f.silu, f.gelu, f.mish, f.hardswish,
            f.hardsigmoid, f.elu, f.celu, f.selu, f.softplus, f.logsigmoid, f.softsign, f.tanhshrink,
            f.hardshrink, f.softshrink, f.leaky_relu, f.hardtanh)]), image),
        "norms": (Net(lambda m, x: (m.a(x), m.b(x), m.c(x), m.d(x), f.normalize(x)), a=nn.BatchNorm2d(6),
            b=nn.GroupNorm(3, 6), c=nn.InstanceNorm2d(6, affine=True), d=nn.LayerNorm([13, 15])), image),
        "resizing": (Net(lambda m, x: (f.interpolate(x, scale_factor=2), f.interpolate(x, (20, 9)),
            f.interpolate(x, (20, 9), mode="bilinear"), f.interpolate(x, scale_factor=2, mode="bilinear",
            align_corners=True), f.interpolate(x, (20, 9), mode="bicubic"), f.interpolate(x, (5, 8),
            mode="nearest-exact"))), image),
        "shapes": (Net(lambda m, x: (x.flatten(1), x.permute(0, 2, 3, 1), x.reshape(1, 2, 3, -1), torch.cat([x,
            x * 2], 1), x[:, 1:5:2, 3:, -4:], x[:, 2], *x.chunk(2, 1), *x.split([1, 5], 1), torch.stack([x, x +
            1], 2), f.pad(x, (1, 2, 0, 3), value=0.5), x.roll((2, -1), (2, 3)), x.flip(2), x.repeat(1, 2, 1, 1),
            f.pixel_unshuffle(x[..., :12, :12], 2))), image),
        "reductions": (Net(lambda m, x: (x.mean((2, 3)), x.sum(1), x.amax((1, 2), True), *x.max(2), x.argmin(1),
            x.std(3), x.norm(dim=1), x.logsumexp(3), x.cumsum(2), *x.topk(3, 3), x.prod(3))), image),
        "expressions": (Net(lambda m, x: ((x * 2 + 1) / (x.abs() + 3) - x.exp().sqrt(), torch.where(x > 0, x, x
            * 0.1), torch.clamp(x, -0.5, 0.25), torch.maximum(x, -x) ** 2, (x * 7).floor() // 3, torch.atan2(x,
            x + 2), (x > 0.1) & (x < 0.9))), image),
        "attention": (Net(lambda m, x: (m.a(x, x, x)[0], m.b(x), f.scaled_dot_product_attention(x, x, x)),
            a=nn.MultiheadAttention(12, 3, batch_first=True), b=nn.LayerNorm(12)), steps),
        "recurrent": (Net(lambda m, x: (m.a(x)[0], m.b(x)[0], m.c(x)[0]), a=nn.LSTM(12, 5, 2, batch_first=True,
            bidirectional=True), b=nn.GRU(12, 5, batch_first=True), c=nn.RNN(12, 5, batch_first=True)), steps),
        "columns": (Net(lambda m, x: (f.unfold(x, 3, padding=1, stride=2), f.fold(f.unfold(x, 3), (13, 15),
            3))), image),
        "assignments": (Net(assign), image),
        "raw_elements": (Net(lambda m, x: (*(g(x) for g in (torch.exp2, torch.erfc, torch.frac, torch.sgn,
            torch.deg2rad, torch.rad2deg)), *(g(x / (x > 0)) for g in (torch.isnan, torch.isinf, torch.isfinite,
            torch.nan_to_num)), torch.log2(x.abs() + 1) + torch.log1p(x.abs()) * torch.expm1(x * 0.1),
            torch.hypot(x, x + 1), torch.addcmul(x, x, x + 1, value=0.5), torch.addcdiv(x, x, x + 3, value=0.5),
            torch.logit(x.abs(), 0.01), x.clamp_min(-0.5), x.clamp_max(0.5))), image),
        "raw_reductions": (Net(lambda m, x: ((x > 0.9).any(), (x > -0.9).all(1), (x > 0.9).any(2, keepdim=True),
            torch.count_nonzero(x > 0, 1), *torch.aminmax(x, dim=1), *torch.std_mean(x, 1), *torch.var_mean(x,
            (2, 3), unbiased=False), *x.sort(-1, descending=True), torch.argsort(x, 1), torch.msort(x[0]),
            *x.kthvalue(2, 1), *x.median(2), x.median(), torch.unique((x * 3).round()))), image),
        "raw_products": (Net(lambda m, x: (f.cosine_similarity(x, x + 0.1, 1), torch.cdist(x[0], x[0] + 0.1),
            torch.cdist(x, x + 0.1, p=1.0), torch.outer(x[0, 0, 0], x[0, 0, 1]), torch.dot(x[0, 0, 0], x[0, 0,
            1]), torch.linalg.vecdot(x, x + 1), torch.linalg.multi_dot([x[0, 0], x[0, 1].mT, x[0, 2]]),
            f.bilinear(x, x + 1, m.w, m.b), torch.trace(x[0, 0]), f.linear(x, x[0, 0, :4].T.T)),
            w=nn.Parameter(torch.rand(4, 15, 15)), b=nn.Parameter(torch.rand(4))), image),
        "raw_shapes": (Net(lambda m, x: (torch.hstack([x, x + 1]), torch.vstack([x[0, 0, 0], x[0, 0, 1]]),
            torch.dstack([x[0, 0], x[0, 1]]), torch.column_stack([x[0, 0, :, 0], x[0, 0, :, 1]]),
            *torch.meshgrid(x[0, 0, 0], x[0, 0, :4, 1], indexing="xy"), *torch.meshgrid(x[0, 0, 0], x[0, 0, :4,
            1], x[0, :, 0, 0], indexing="ij"), x.ravel(), x.movedim(1, -1), x.fliplr(), x.flipud(),
            *(torch.rot90(x, turns, (2, 3)) for turns in (1, 2, 3)), x.unfold(2, 3, 2), torch.diagonal(x, 1, 3,
            1), torch.diff(x), torch.tril(x), torch.triu(x, 2), torch.broadcast_to(x, (2, 6, 13, 15)),
            f.channel_shuffle(x, 3))), image),
        "raw_indices": (Net(lambda m, x: (torch.nonzero(x > 0.5), x[x > 0.5], x.sum() * x.numel(),
            f.one_hot((x[:, 0] > 0).long(), 3), x.scatter(1, (x[:, :2] > 0).long() * torch.tensor([1,
            3]).view(1, 2, 1, 1), x[:, 2:5]), x.scatter(1, (x[:, :1] > 0).long(), 0.5), x.index_add(1,
            torch.tensor([0, 2]), x[:, :2], alpha=2), x.index_copy(1, torch.tensor([0, 2]), x[:, :2]),
            torch.take_along_dim(x, torch.argsort(x, 1)[:, :2], 1))), image),
    }  # fmt: skip


NETS = (
    "convolutions", "padding_modes", "pools", "activations", "norms", "resizing", "shapes", "reductions", "expressions",
    "attention", "recurrent", "columns", "assignments", "raw_elements", "raw_reductions", "raw_products", "raw_shapes",
    "raw_indices",
)  # fmt: skip


@pytest.fixture(scope="module")
def nets() -> dict[str, Any]:
    pytest.importorskip("pnnx")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    found = _nets()
    assert set(found) == set(NETS)
    return found


def export(net: Any, inputs: tuple[Any, ...], folder: Path) -> Path:
    """The file that the pnnx package makes of a module."""
    import subprocess

    import pnnx
    import torch

    net.eval()
    torch.jit.trace(net, inputs, check_trace=False).save(str(folder / "m.pt"))
    shapes = ",".join("[" + ",".join(map(str, x.shape)) + "]" for x in inputs)
    subprocess.run(
        [pnnx.EXEC_PATH, "m.pt", f"inputshape={shapes}"], cwd=folder, check=True, capture_output=True, timeout=120
    )
    return folder / "m.pnnx.param"


def leaves(value: Any) -> list[Any]:
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("name", NETS)
def test_operators(name: str, nets: dict[str, Any], tmp_path: Path) -> None:
    """The module itself is the reference, for the translated model and for the runner."""
    import torch

    net, inputs = nets[name]
    path = export(net, inputs, tmp_path)
    with torch.no_grad():
        expected = [leaf.numpy() for leaf in leaves(net(*inputs))]
    conversion = converted(path, free_batch=False)
    graph = PnnxGraph.read(path)
    values = run(graph, [x.numpy() for x in inputs])
    walked = [leaf for operand in graph.outputs for leaf in leaves(values[operand.name])]
    for found in (onnx_outputs(conversion.content, *(x.numpy() for x in inputs)), walked):
        assert len(found) == len(expected)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


def test_the_batch_is_free_where_the_graph_allows_it(nets: dict[str, Any], tmp_path: Path) -> None:
    import torch

    net, (x,) = nets["norms"]
    conversion = convert(export(net, (x,), tmp_path))
    many = torch.rand(3, *x.shape[1:])
    with torch.no_grad():
        for expected, found in zip(net(many), onnx_outputs(conversion.content, many.numpy()), strict=True):
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)
