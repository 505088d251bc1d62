"""Reports of real runs: what the runtimes made of a model, their times, and the files that are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
import dataclasses
import itertools

from layers.models import small_network
from onnx_models import node, save, value

import infersdk
import infersdk.layers
from infersdk.core.executed_layers import ExecutedLayer, LayerProfile
from infersdk.custom_ops import CustomOp
from infersdk.errors import ClosedError, ConfigError
from infersdk.layers import LayerReport, LayerSide, ProfileSettings

QUICK = ProfileSettings(runs=3, warm_up=1, options={"threads": 1})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_network(tmp_path / "small.onnx")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> LayerReport:
    file = small_network(tmp_path_factory.mktemp("m") / "small.onnx")
    return infersdk.layers.profile(file, ["onnxruntime", "openvino"], QUICK)


def layers_of(report: LayerReport, side: int, node: str) -> set[str]:
    return {report.sides[side].layers[i].name for i in report.sides[side].layers_of[report.graph.index[node]]}


@pytest.mark.parametrize("side", [0, 1])
def test_each_node_has_its_layers_or_a_reason(both: LayerReport, side: int) -> None:
    fates = {node.name: both.sides[side].fate(both.graph, i) for i, node in enumerate(both.nodes)}
    assert fates.pop("/target") == "constant"
    assert fates.pop("/stem/Identity") in ("eliminated", "executed")
    assert set(fates.values()) == {"executed"}


@pytest.mark.parametrize("side", [0, 1])
def test_what_is_fused_shares_a_layer(both: LayerReport, side: int) -> None:
    assert layers_of(both, side, "/branch/Conv") == layers_of(both, side, "/branch/Relu")
    assert layers_of(both, side, "/stem/Sigmoid") == layers_of(both, side, "/stem/Mul")
    assert not layers_of(both, side, "/MaxPool") & layers_of(both, side, "/branch/Conv")


def test_rows_of_both_are_over_the_same_nodes(both: LayerReport) -> None:
    listed = [node for row in both.rows for node in row.nodes]
    assert sorted(listed) == [i for i in range(len(both.nodes)) if i not in both.graph.constant]
    for number, side in enumerate(both.sides):
        in_rows = sorted(layer for row in both.rows for layer in row.layers[number])
        assert in_rows == list(range(len(side.layers)))  # each layer is in one row
        total = sum(row.seconds[number] or 0.0 for row in both.rows)
        assert total == pytest.approx(side.layer_seconds)


def test_times_devices_precisions_and_memory(both: LayerReport) -> None:
    for side in both.sides:
        assert len(side.profile.run_seconds) == 3
        assert side.run_seconds > 0
        assert side.layer_seconds > 0
        assert list(side.devices) == ["cpu"]
        assert side.precisions["fp32"] > 0
        # w1, b1 and w2, padded for a blocked layout perhaps
        assert side.profile.memory["weights"] >= 4 * (8 * 3 * 9 + 8 + 8 * 8)
        assert str(both.plain())  # and it is JSON:
        json.dumps(both.plain(), allow_nan=False)


def test_the_layers_fit_into_the_runs_that_have_them(both: LayerReport) -> None:
    for side in both.sides:
        assert side.layer_seconds <= side.profiled_seconds * 1.02  # times are in whole microseconds


def test_openvinos_mean_leaves_the_runs_before_out(model: Path) -> None:
    """The plugin reports a mean over all runs: a slow first one must not show in the later ones."""
    with infersdk.load(model, "openvino", profiling=True, threads=1) as infer:
        infer.forward()
        for _ in range(2):
            found = infer.profile_layers(4)  # type: ignore[attr-defined]
            assert sum(layer.seconds or 0.0 for layer in found.layers) <= sum(found.run_seconds) / 4 * 1.05 + 5e-6


def test_a_batch(model: Path) -> None:
    report = infersdk.layers.profile(model, "onnxruntime", ProfileSettings(runs=1, warm_up=1, batch=3))
    assert report.inputs == {"x": (3, 3, 16, 16)}


@pytest.mark.parametrize("targets", [[], ["openvino", "openvino"]])
def test_targets_that_make_no_comparison(model: Path, targets: list[str]) -> None:
    with pytest.raises(ConfigError, match="each target once"):
        infersdk.layers.profile(model, targets)


def test_an_original_that_is_no_onnx_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("import onnx")
    with pytest.raises(ConfigError, match=r"original '.*make.py' is not an ONNX file"):
        infersdk.layers.profile(model, original=tmp_path / "make.py")


def test_options_that_a_backend_does_not_have(model: Path) -> None:
    with pytest.raises(ConfigError, match="options of backend 'onnxruntime': .*unknown field `streams`"):
        infersdk.layers.profile(model, "onnxruntime", ProfileSettings(options={"streams": 1}))


WRONG: list[dict[str, Any]] = [
    {"runs": 0}, {"warm_up": 0}, {"batch": 0}, {"seed": -1}, {"runs": 1.5}, {"shapes": [1]}, {"options": [1]},
    {"options": {"profiling": True}}, {"options": {"device": "cpu"}}, {"options": {"while_building": "onnxruntime"}},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ProfileSettings(**wrong)


@pytest.mark.parametrize("wrong", [{"targets": 5}, {"targets": None}, {"settings": {"runs": 2}}])
def test_arguments_of_another_type(model: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="5 does not name|None does not name|must be ProfileSettings"):
        infersdk.layers.profile(model, **wrong)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_model_that_was_loaded_without_profiling(model: Path, backend: str) -> None:
    with infersdk.load(model, backend) as infer, pytest.raises(ConfigError, match="profiling=True"):
        infer.profile_layers(1)  # type: ignore[attr-defined]


def test_a_session_is_profiled_once(model: Path) -> None:
    with infersdk.load(model, "onnxruntime", profiling=True) as infer:
        infer.profile_layers(1)  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="load the model again"):
            infer.profile_layers(1)  # type: ignore[attr-defined]


def test_a_full_profile_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last runs would be those from before the runtime dropped events."""
    monkeypatch.setattr("infersdk.backends._onnxruntime.profiling.MAX_EVENTS", 20)
    with infersdk.load(model, "onnxruntime", profiling=True) as infer:
        for _ in range(20):
            infer.forward()
        with pytest.raises(ConfigError, match="is full: .* first 20 events .*; load the model again"):
            infer.profile_layers(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_no_runs_and_a_closed_model(model: Path, backend: str) -> None:
    with infersdk.load(model, backend, profiling=True) as infer:
        for runs in (0, 1.5):
            with pytest.raises(ConfigError, match=f"runs is a whole number from 1, not {runs}"):
                infer.profile_layers(runs)  # type: ignore[attr-defined]
    with pytest.raises(ClosedError, match="load it again"):
        infer.profile_layers(1)  # type: ignore[attr-defined]


def test_openvinos_times_of_a_few_runs_after_many(tmp_path: Path) -> None:
    """Layers that take longer in the profiled runs: the mean of all runs would hide that, or change by its rounding."""
    wide = save(
        tmp_path / "wide.onnx", [node("MatMul", "x w", "y")],
        [value("x", ("batch", 64))], [value("y", ("batch", 1024))],
        {"w": np.ones((64, 1024), np.float32)},
    )  # fmt: skip
    with infersdk.load(wide, "openvino", profiling=True, threads=1) as infer:
        for batch, runs in ((1, 5000), (64, 0)):
            infer.inputs["x"].resize((batch, 64)).numpy(writable=True)[:] = 1
            for _ in range(runs):
                infer.forward()
        found = infer.profile_layers(5)  # type: ignore[attr-defined]
        spent = sum(layer.seconds or 0.0 for layer in found.layers)
        assert 0.3 * min(found.run_seconds) < spent <= max(found.run_seconds)
        assert (infer.outputs["y"].numpy() == 64).all()


def test_profiling_leaves_no_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.chdir(scratch)
    infersdk.layers.profile(model, "onnxruntime", QUICK)
    with infersdk.load(model, "onnxruntime", profiling=True) as infer:
        infer.forward()
    assert list(scratch.iterdir()) == []


def test_results_are_the_same_with_the_profiler(model: Path) -> None:
    x = np.random.default_rng(0).random((2, 3, 16, 16), np.float32)
    for backend in ("onnxruntime", "openvino"):
        with infersdk.load(model, backend) as plain, infersdk.load(model, backend, profiling=True) as profiled:
            np.testing.assert_array_equal(plain(x)["y"], profiled(x)["y"])


# ---- custom operators ----


class Halve(CustomOp):
    domain = "tests.layers"
    inputs = {"x": "float32"}
    outputs = {"y": "float32"}

    def shape(self, x: Any) -> Any:
        return x

    def cpu(self, x: Any, y: Any) -> None:
        y[...] = x / 2


@pytest.fixture
def with_custom_node(tmp_path: Path) -> Path:
    import infersdk.graph

    graph = infersdk.graph.open(small_network(tmp_path / "plain.onnx"))
    graph.replace(graph.nodes("MaxPool"), "Identity")
    (node,) = [node for node in graph.nodes("Identity") if node.name == "/MaxPool"]
    node.op_type, node.domain = "Halve", "tests.layers"
    graph.model.graph.opset_imports["tests.layers"] = 1
    graph.weights["half"] = np.array([16, 16], "int64")
    return graph.save(tmp_path / "custom.onnx")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_custom_operator_is_a_layer(with_custom_node: Path, backend: str, cut: bool) -> None:
    settings = ProfileSettings(runs=3, warm_up=1, options={"cut_custom_ops": True} if cut else {})
    report = infersdk.layers.profile(with_custom_node, backend, settings, custom_ops=[Halve])
    (side,) = report.sides
    (layer,) = (side.layers[i] for i in side.layers_of[report.graph.index["/MaxPool"]])
    assert layer.seconds > 0
    assert side.layers_of[report.graph.index["/branch/Conv"]]
    assert side.layers_of[report.graph.index["/Reshape"]]
    if cut:
        assert layer.kind == "tests.layers::Halve"
        assert layer.outputs[0].shape == (1, 16, 16, 16)
        assert "one by one" in side.profile.timing
    names = [one.name for one in side.layers]
    assert len(set(names)) == len(names)


# ---- totals ----


def side(layers: float, profiled: float, run: float) -> LayerSide:
    found = LayerProfile((ExecutedLayer("a", "k", seconds=layers, device="cpu"),), (profiled,), "by a clock.")
    return LayerSide("b", "b", "cpu", "fp32", "1", found, (), run)


@pytest.mark.parametrize(
    ("layers", "profiled", "run", "agrees", "why"),
    [
        (0.096, 0.1, 0.1, True, ""),
        (0.104, 0.1, 0.1, True, ""),
        (0.108, 0.112, 0.1, True, "with the profiler a run is 12 ms longer"),
        (0.108, 0.1, 0.1, True, "layers overlap: their sum is 8 ms longer"),
        (0.092, 0.1, 0.1, True, "8 ms of a profiled run is between the layers"),
        (0.092, 0.094, 0.1, True, "were 6 ms shorter than without it"),
        (0.100, 0.15, 0.08, False, "with the profiler a run is 70 ms longer"),
        (0.050, 0.1, 0.1, False, "50 ms of a profiled run is between the layers"),
        (0.180, 0.1, 0.1, False, "layers overlap: their sum is 80 ms longer"),
        (0.050, 0.06, 0.1, False, "were 40 ms shorter than without it"),
    ],
)
def test_totals_agree_or_the_report_says_why(
    layers: float, profiled: float, run: float, agrees: bool, why: str
) -> None:
    one = side(layers, profiled, run)
    assert one.agrees is agrees
    assert f"{layers / run:.0%}" in one.explanation()
    assert why in one.explanation()
    assert ("differ by more than 5%" in one.explanation()) is bool(why)


def test_events_around_the_layers_of_an_engine_are_said() -> None:
    one = dataclasses.replace(side(0.00107, 0.00184, 0.000853), backend="tensorrt-rtx")
    assert "each of the 1 layers prevent overlap, which adds about 217.0 µs each" in one.explanation()
    assert "overlap" not in dataclasses.replace(one, backend="onnxruntime").explanation()


# ---- the trace ----


def test_a_trace(both: LayerReport, tmp_path: Path) -> None:
    found = json.loads(infersdk.layers.write_trace(both, tmp_path / "t.json").read_text())
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    assert names[1].startswith("onnxruntime: ")
    assert names[2].startswith("openvino: ")
    for pid, one in enumerate(both.sides, 1):
        spans = [e for e in found["traceEvents"] if e["ph"] == "X" and e["pid"] == pid]
        assert {e["name"] for e in spans} == {layer.name for layer in one.layers if layer.seconds is not None}
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
        ends = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans)
        assert all(end <= start + 1.001 for (_, end), (start, _) in itertools.pairwise(ends))  # one thread
        (convolution,) = [e for e in spans if "/branch/Conv" in e["args"]["nodes"]]
        assert "/branch/Relu" in convolution["args"]["nodes"]


# ---- other formats ----


def test_an_openvino_ir_has_layers_and_no_nodes(model: Path, tmp_path: Path) -> None:
    import openvino

    openvino.save_model(openvino.Core().read_model(str(model)), tmp_path / "m.xml", compress_to_fp16=False)
    report = infersdk.layers.profile(tmp_path / "m.xml", "openvino", QUICK)
    assert report.nodes == []
    assert report.sides[0].layers
    assert all(row.added for row in report.rows)
    with_nodes = infersdk.layers.profile(tmp_path / "m.xml", "openvino", QUICK, original=model)
    assert layers_of(with_nodes, 0, "/branch/Conv") == layers_of(with_nodes, 0, "/branch/Relu") != set()


def test_a_converted_model_has_the_nodes_of_the_onnx_model(assets: Path) -> None:
    pytest.importorskip("torch")
    file = assets / "pnnx" / "test.pnnx.param"
    if not file.is_file():
        pytest.skip("no PNNX file in the test data")
    report = infersdk.layers.profile(file, "onnxruntime", QUICK)
    assert [node.operator for node in report.nodes].count("Conv") == 2
    assert any(report.sides[0].layers_of)


def test_quantised_weights_count(tmp_path: Path) -> None:
    """ONNX Runtime's profiler leaves them out."""
    steps = {
        "w": np.ones((32, 8, 3, 3), np.int8), "scale": np.float32(0.1), "zero": np.int8(0),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x scale zero", "xq"), node("DequantizeLinear", "xq scale zero", "xf"),
        node("DequantizeLinear", "w scale zero", "wf"), node("Conv", "xf wf", "c", name="conv"),
        node("QuantizeLinear", "c scale zero", "cq"), node("DequantizeLinear", "cq scale zero", "y"),
    ]  # fmt: skip
    inputs, outputs = [value("x", (1, 8, 16, 16))], [value("y", (1, 32, 14, 14))]
    path = save(tmp_path / "m.onnx", nodes, inputs, outputs, steps)
    (side,) = infersdk.layers.profile(path, "onnxruntime", QUICK).sides
    size = 32 * 8 * 3 * 3
    assert size <= side.profile.memory["weights"] < size + 100
    assert max(layer.weight_bytes or 0 for layer in side.layers) >= size
