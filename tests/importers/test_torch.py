"""PyTorch: TorchScript, exported programs, modules; what is refused, and why."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversions import converted

import infersdk
from infersdk.errors import BackendUnavailableError, ConfigError, ModelFormatError, UnsupportedModelError
from infersdk.graph import Graph
from infersdk.importers import convert
from infersdk.importers.workers.exchange import RefusedError
from infersdk.importers.workers.torch_export import check_expression, export_traced

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image: Any, scale: Any) -> tuple[Any, Any]:
        features = torch.relu(self.conv(image))
        return features * scale[:, None, None, None], features.mean((2, 3))


def arrays(batch: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((batch, 3, 8, 9)).astype(np.float32), rng.random(batch).astype(np.float32)


def check(content: bytes, net: Any, batch: int = 3) -> None:
    """The model gives what the module gives, for another batch than that of the export."""
    image, scale = arrays(batch)
    with torch.no_grad():
        expected = net.eval()(torch.from_numpy(image), torch.from_numpy(scale))
    with infersdk.load(content) as infer:
        found = list(infer(dict(zip([spec.name for spec in infer.input_specs], (image, scale), strict=True))).values())
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a.numpy(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    example = tuple(torch.from_numpy(array) for array in arrays(2))
    torch.jit.trace(Net().eval(), example).save(str(tmp_path / "net.pt"))
    return tmp_path / "net.pt"


def test_torchscript(script: Path) -> None:
    conversion = converted(script, shapes={"image": (2, 3, 8, 9), "scale": (2,)})
    assert conversion.check.rounds == 3
    check(conversion.content, torch.jit.load(str(script)))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ((), "does not contain the shapes of its inputs; its inputs are image, scale"),
        (("1,3,8,8:float99", "1"), "'float99' is not an element type"),
        (("1,0,8,8", "1"), "whole numbers from 1"),
    ],
)
def test_shapes_are_demanded(shapes: Any, message: str, script: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(script, shapes=shapes)


def test_the_torch_of_another_interpreter(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are not required in this process."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(BackendUnavailableError, match="needs torch, which is not installed"):
        convert(script)
    converted(script, shapes={"image": (2, 3, 8, 9), "scale": (2,)}, python=sys.executable)
    with pytest.raises(ConfigError, match="a PyTorch module is converted in this process"):
        convert(torch.nn.ReLU(), shapes=[(1, 3)], python=sys.executable)


def test_loading_converts_and_keeps(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    how = {"shapes": {"image": (2, 3, 8, 9), "scale": (2,)}}
    with infersdk.load(script, convert=how) as infer:
        first = infer({"image": arrays(2)[0], "scale": arrays(2)[1]})
    monkeypatch.setattr("infersdk.importers.loading.convert", _fails)
    with infersdk.load(script, convert=how) as infer:
        again = infer({"image": arrays(2)[0], "scale": arrays(2)[1]})
    np.testing.assert_array_equal(next(iter(first.values())), next(iter(again.values())))
    infersdk.load(script, convert={"shapes": (text for text in ("image=2,3,8,9", "scale=2"))}).close()
    with pytest.raises(AssertionError, match="converted again"):  # its packages may have other versions
        infersdk.load(script, convert=how | {"python": sys.executable})
    script.write_bytes(script.read_bytes() + b"\0")  # other content is another entry
    with pytest.raises(AssertionError, match="converted again"):
        infersdk.load(script, convert=how)


def _fails(*_: Any, **__: Any) -> None:
    raise AssertionError("converted again")


_fails.__kwdefaults__ = {"shapes": None, "python": None}


class Steps(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.heaviside(x, torch.zeros(1))


def test_the_other_exporter_is_a_note(tmp_path: Path) -> None:
    """heaviside has no form in the TorchScript exporter; TS2EPConverter and the dynamo exporter have one."""
    torch.jit.trace(Steps(), torch.rand(2, 4)).save(str(tmp_path / "steps.pt"))
    conversion = converted(tmp_path / "steps.pt", shapes=["2,4"])
    assert any("TS2EPConverter" in note and "heaviside" in note for note in conversion.notes)
    (x,) = Graph.parse(conversion.content).inputs  # the converter frees all sizes
    assert f"{x.name} {x.shape}" == "x [batch,4]"


class Bright(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 if x.mean() > 1 else x


def test_a_branch_that_depends_on_the_inputs_is_a_note(tmp_path: Path) -> None:
    notes = convert(Bright(), shapes=[(1, 8)], check=False).notes
    assert any("a branch or a number may depend on the inputs (" in note and "test_torch.py:" in note for note in notes)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(1, 8),)).module()  # it asserts the shapes of its inputs
    assert export_traced(program, [torch.ones(1, 8)], ["x"], str(tmp_path / "m.onnx")) is None


class Remainders(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 10).to(torch.int32) % 3


def test_another_exporter_where_the_first_one_gives_other_results(tmp_path: Path) -> None:
    """The TorchScript exporter of PyTorch 2.13 takes the remainder with the sign of the dividend."""
    torch.jit.trace(Remainders(), torch.rand(2, 4)).save(str(tmp_path / "m.pt"))
    conversion = converted(tmp_path / "m.pt", shapes=["2,4"])
    unchecked = convert(tmp_path / "m.pt", shapes=["2,4"], check=False)
    with infersdk.load(unchecked.content) as infer:
        x = -np.ones((2, 4), np.float32)
        right = np.array_equal(next(iter(infer(x).values())), np.full((2, 4), (-10) % 3))
    assert right or any("first exporter differs by" in note for note in conversion.notes)


class Dilated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(3, 4, 5, dilation=2, padding="same")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution(x)


def test_another_exporter_where_the_first_result_does_not_run(tmp_path: Path) -> None:
    torch.jit.trace(Dilated().eval(), torch.rand(2, 3, 20)).save(str(tmp_path / "m.pt"))
    converted(tmp_path / "m.pt", shapes=["2,3,20"])


class Distances(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, b)


class Positions(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x > 0.5)


@pytest.mark.parametrize(
    ("net", "inputs"), [(Distances(), [(1, 4, 5), (1, 3, 5)]), (Positions(), [(3, 4)])], ids=["distances", "positions"]
)
def test_exported_programs_that_need_more(net: Any, inputs: list[tuple[int, ...]], tmp_path: Path) -> None:
    """By tracing, where the dynamo exporter has no form; with sizes that depend on data."""
    program = torch.export.export(net, tuple(torch.rand(shape) for shape in inputs))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    converted(tmp_path / "m.pt2")


def test_an_exported_program(tmp_path: Path) -> None:
    net = Net().eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    example = tuple(torch.from_numpy(array) for array in arrays(2))
    program = torch.export.export(net, example, dynamic_shapes={"image": {0: batch}, "scale": {0: batch}})
    torch.export.save(program, str(tmp_path / "net.pt2"))
    conversion = converted(tmp_path / "net.pt2")
    check(conversion.content, net)
    with pytest.raises(ConfigError, match="contains its shapes"):
        convert(tmp_path / "net.pt2", shapes=[(1, 3, 8, 8)])


class Nested(torch.nn.Module):
    def forward(self, pair: dict[str, torch.Tensor], rest: list[torch.Tensor], times: int) -> torch.Tensor:
        return torch.cdist(pair["x"], pair["y"]) - rest[0] * times


def test_an_exported_program_with_inputs_by_keyword_and_in_containers(tmp_path: Path) -> None:
    """It is traced."""
    pair = {"x": torch.rand(1, 4, 5), "y": torch.rand(1, 3, 5)}
    program = torch.export.export(Nested(), (pair,), {"times": 3, "rest": [torch.rand(1, 4, 3)]})
    torch.export.save(program, str(tmp_path / "m.pt2"))
    with infersdk.load(converted(tmp_path / "m.pt2").content) as infer:
        assert sorted(spec.name for spec in infer.input_specs) == ["pair_x", "pair_y", "rest_0"]


def test_sizes_that_tracing_fixes_are_a_note(tmp_path: Path) -> None:
    """The dynamo exporter of PyTorch 2.13 fails for a multiple of a free size."""
    side = 2 * torch.export.Dim("half", min=4, max=32)
    net = torch.nn.Conv2d(3, 4, 3)
    program = torch.export.export(net, (torch.rand(2, 3, 16, 16),), dynamic_shapes=({2: side, 3: side},))
    torch.export.save(program, str(tmp_path / "m.pt2"))
    conversion = converted(tmp_path / "m.pt2")
    (x,) = Graph.parse(conversion.content).inputs
    fixed = x.shape[-1] == 8
    assert fixed == any(f"the sizes of input {x.name} are fixed to [2, 3, 8, 8]" in note for note in conversion.notes)


class Returning(torch.nn.Module):
    def forward(this, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: N805 - the name is not fixed
        return torch.relu(x), x


@pytest.mark.parametrize("scripted", [False, True])
def test_a_module_that_returns_its_input(scripted: bool) -> None:
    """PyTorch's dynamo exporter writes an invalid file."""
    net = Returning()
    model = torch.jit.script(net) if scripted else net
    with infersdk.load(converted(model, shapes=["2,4"]).content) as infer:
        x = np.float32([[-1, 2, 3, 4], [5, -6, 7, 8]])
        first, second = infer(x).values()
    np.testing.assert_array_equal(first, np.maximum(x, 0))
    np.testing.assert_array_equal(second, x)


def test_external_data_is_for_weights_apart(script: Path) -> None:
    net, shapes = torch.nn.ReLU(), [(2, 3)]
    with pytest.raises(ConfigError, match="external_data is for a PNNX graph .* is a PyTorch module"):
        convert(net, shapes=shapes, external_data=script)
    with pytest.raises(ConfigError, match="external_data is for a PNNX graph .* is a TorchScript model"):
        convert(script.read_bytes(), shapes=shapes, external_data=script)
    with pytest.raises(ConfigError, match="external_data is for a model in memory"):
        infersdk.load(net, convert={"shapes": shapes}, external_data=script)
    with pytest.raises(ConfigError, match="'external_data': ...}: the arguments are shapes, "):
        infersdk.load(script, convert={"external_data": script})


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    net = Net()
    conversion = converted(net, shapes=[(2, 3, 8, 9), (2,)])
    assert net.training, "the module is left as it was"
    check(conversion.content, net)
    with infersdk.load(net, convert={"shapes": [(2, 3, 8, 9), (2,)]}) as infer:
        assert [spec.name for spec in infer.input_specs] == ["image", "scale"]
    with pytest.raises(ConfigError, match="does not contain the shapes"):
        convert(net)


class Difference(torch.nn.Module):
    def forward(self, a: Any, b: Any = None, c: Any = None) -> Any:
        return 2 * a - (0 if b is None else b) if c is None else c * 2


@pytest.mark.parametrize(
    ("form", "shapes"),
    [
        ("module", {"b": (2, 4), "a": (2, 4)}),
        ("module", [(2, 4), (2, 4)]),
        ("script", {"b": (2, 4), "a": (2, 4)}),
        ("file", {"b": (2, 4), "a": (2, 4)}),
    ],
)
def test_arguments_with_defaults(form: str, shapes: Any, tmp_path: Path) -> None:
    """Those with a shape are inputs, in the order of the signature."""
    given = {"a": np.full((2, 4), 5, np.float32), "b": np.ones((2, 4), np.float32)}
    model: Any = Difference()
    if form != "module":
        model = torch.jit.trace(model, tuple(torch.from_numpy(array) for array in given.values()))
    if form == "file":
        model.save(str(tmp_path / "m.pt"))
        model = tmp_path / "m.pt"
    with infersdk.load(converted(model, shapes=shapes).content) as infer:
        assert [spec.name for spec in infer.input_specs] == ["a", "b"]
        (result,) = infer(given).values()
    np.testing.assert_array_equal(result, np.full((2, 4), 9))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"b": (2, 4)}, "1 shapes are given; its inputs are a, b: give a shape for each"),
        ({"a": (2, 4), "c": (2, 4)}, "2 shapes are given; its inputs are a, b, c: give a shape for each"),
        ({"a": (2, 4), "d": (2, 4)}, "no input 'd'; the inputs are a, b, c"),
    ],
)
def test_arguments_with_defaults_that_are_left_out(shapes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(Difference(), shapes=shapes)


def test_each_part_of_a_module_keeps_its_mode() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    net[1].eval()
    converted(net, shapes=[(2, 4)])
    assert [one.training for one in net.modules()] == [True, True, False]


class Nothing(torch.nn.Module):
    def forward(self, x: Any) -> None:
        return None


def test_a_module_without_outputs() -> None:
    with pytest.raises(UnsupportedModelError, match="the model returns no tensors"):
        convert(Nothing(), shapes=[(2, 4)])


class Bags(torch.nn.Module):
    """Sums of rows of a table: `offsets` begin at 0 and do not decrease."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.EmbeddingBag(10, 4, mode="sum")

    def forward(self, tokens: Any, offsets: Any) -> Any:
        return self.table(tokens, offsets)


def test_samples_where_random_values_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERSDK_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    tokens, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 3, 5])
    net, path = Bags().eval(), tmp_path / "bags.pt"
    torch.jit.trace(net, (tokens, offsets)).save(str(path))
    shapes = ("tokens=6:int64", "offsets=3:int64")
    for model in (path, net):  # the framework's own reason, and the remedy
        with pytest.raises(ConfigError, match=r"PyTorch cannot run .* offsets\[0\] has to be 0.*--input offsets=0,3,5"):
            convert(model, shapes=("tokens=6:int64", "offsets=3,:int64" if model is net else shapes[1]))
    converted(path, shapes=shapes[:1], samples=["offsets=0,3,5"])
    assert convert(net, shapes=shapes[:1], samples=["offsets=0,3,5"]).check.passed  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no input 'offset'"):
        convert(net, shapes=shapes, samples=["offset=0,3,5"])
    with infersdk.load(path, convert={"shapes": shapes[:1], "samples": {"offsets": [0, 3, 5]}}) as infer:
        (result,) = infer({"tokens": tokens.numpy(), "offsets": offsets.numpy()}).values()
    np.testing.assert_allclose(result, net(tokens, offsets).detach().numpy(), rtol=1e-5)


class Logarithm(torch.nn.Module):
    def forward(self, x: Any) -> tuple[Any, Any]:
        return x, torch.log(x)


def test_what_the_check_compares() -> None:
    """The given samples, where all inputs have one; and no output that is NaN throughout."""
    checked = converted(Logarithm(), samples={"x": np.full((1, 4), 2, np.float32)})
    assert "on the given inputs: largest difference" in checked.verdict
    assert checked.check.rounds == 1
    nothing = convert(Logarithm(), samples={"x": np.full((1, 4), -2, np.float32)})
    assert nothing.check is None
    assert nothing.verdict.startswith("not checked: output 1 of the source has no finite number")


# ---- what is refused ----


@pytest.mark.assets
def test_a_checkpoint_is_refused_with_the_command_of_its_family(assets: Path) -> None:
    path = assets / "models" / "yolov5n.pt"
    with pytest.raises(
        UnsupportedModelError, match=r"executing code in the file.*python export\.py --weights .*yolov5n\.pt"
    ):
        convert(path)


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return Path.touch, (tmp_path / "executed",)  # type: ignore[return-value]

    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Hostile()))
        archive.writestr("model/version", "3")
    with pytest.raises(UnsupportedModelError, match="pickled checkpoint"):
        convert(path)
    for name in ("model/code/__torch__.py", "model/archive_format"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", pickle.dumps(Hostile()))
            archive.writestr("model/constants.pkl", pickle.dumps(Hostile()))
            archive.writestr(name, "pt2")
        with pytest.raises((ModelFormatError, UnsupportedModelError)):
            convert(path, shapes=["1"] if "code" in name else ())
    assert not (tmp_path / "executed").exists()


def test_code_that_reaches_out_is_refused(tmp_path: Path) -> None:
    class Writer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.save(x, "written")
            return x

    content = io.BytesIO()
    torch.jit.save(torch.jit.script(Writer()), content)
    with pytest.raises(UnsupportedModelError, match=r"calls torch\.save"):
        convert(content.getvalue(), shapes=["1"])
    assert not Path("written").exists()


def test_compiled_code_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/data/aotinductor/model/x.so", b"\x7fELF")
    with pytest.raises(UnsupportedModelError, match="contains compiled code"):
        convert(tmp_path / "m.pt2")


@pytest.mark.parametrize(
    "expression",
    [
        "s0", "Max(1, s0 + 2)", "Mod(s77*3, 8)", "FloorDiv(u0, 2)", "Eq(s0, 1) & (s0 < 4)",
        "Symbol('s40', positive=True, integer=True)", "GreaterThan(Symbol('u0', integer=True), Integer(0))",
    ],
)  # fmt: skip
def test_expressions_of_sizes(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "s0.func", "preview(s0)", "lambda: 0", "open", "s0[0]", "(s0). free_symbols", "'a'", "exec"],
)
def test_expressions_that_could_execute(expression: str) -> None:
    with pytest.raises(RefusedError, match="not a size expression"):
        check_expression(expression)


def test_damage(script: Path) -> None:
    whole = script.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-400]):
        with pytest.raises((ModelFormatError, UnsupportedModelError, ConfigError)):
            convert(content, shapes=["2,3,8,9", "2"])


#: The shapes of the test data's files, which do not say them.
SHAPES: dict[str, list[str]] = {
    "AdaILN": ["2,7,12,9", "2,7", "2,7"], "activation": ["1,3,8,8"], "adaptive_pooling_3d": ["1,3,14,16,72"],
    "arithmetic": ["2,3,4", "2,3,4"], "bmm": ["2,3,4", "2,4,5"], "clamp": ["2,3,4"], "constant_pad_3d": ["1,2,5,6,7"],
    "deconv2d": ["1,8,9,10"], "expand": ["1,3,2"], "fully_connected": ["2,10"],
    "grid_sampler_bilinear": ["1,3,8,9", "1,5,6,2"], "gru": ["2,7,28", "2,2,128"], "inplace": ["1,3,8,8"],
    "instance_norm_aff": ["1,3,8,9"], "instance_norm_track": ["1,3,8,9"], "layer_norm_with_weights": ["2,5,10"],
    "matmul": ["2,3,4", "2,4,5"], "permute": ["2,3,4"], "pooling_2d": ["1,3,20,20"], "prelu": ["1,3,8,8"],
    "reduce_0": ["2,3,4"], "reduce_2": ["2,3,4"], "reflection_pad_2d": ["1,3,16,16"], "rnn_relu": ["2,7,28"],
    "slice": ["2,6,24,24"], "split": ["1,3,10,9"], "upsampling_bilinear_2d_with_scale": ["1,3,8,9"],
    "upsampling_nearest_2d_with_scale": ["1,3,8,9"], "upsampling_trilinear_3d_with_scale": ["1,3,5,6,7"],
    "var": ["2,3,4,5"],
}  # fmt: skip
#: Those that PyTorch no longer loads.
LEGACY = ("dlrm", "squeeze", "tmm")


@pytest.mark.assets
def test_all_files_are_named(assets: Path) -> None:
    assert {path.stem for path in (assets / "frameworks" / "torchscript").iterdir()} == {*SHAPES, *LEGACY}


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("name", SHAPES)
def test_files_of_the_test_data(assets: Path, name: str) -> None:
    converted(assets / "frameworks" / "torchscript" / f"{name}.pth", shapes=SHAPES[name])


@pytest.mark.assets
@pytest.mark.parametrize("name", [LEGACY[0], *(pytest.param(one, marks=pytest.mark.slow) for one in LEGACY[1:])])
def test_files_that_pytorch_no_longer_loads(assets: Path, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"PyTorch before 1\.4"):
        convert(assets / "frameworks" / "torchscript" / f"{name}.pth", shapes=["1"])
