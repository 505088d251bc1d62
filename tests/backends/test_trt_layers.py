"""The layers of engines: the inspector's listing, builds without a GPU, and times on one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx_bindings")
pytest.importorskip("onnxruntime")
from layers.models import small_network

import infersdk
import infersdk.layers
from infersdk.backends._trt.profiling import listed_layers
from infersdk.errors import ConfigError
from infersdk.layers import ProfileSettings
from infersdk.loading.registry import backend_class


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_network(tmp_path / "small.onnx")


# ---- the listing ----

LISTING = """Layers:
Name: __myl_Move_myl0_0, LayerType: kgen, Inputs: [ { Name: x, Dimensions: [1,3,8,8], Strides: [192,64,8,1], \
StrideOrder: [3,2,1,0], Datatype: Float, Format: (Linear) Row major linear format }], Constants: [], Outputs: \
[ { Name: a.1, Dimensions: [1,3,8,8], Datatype: Float, Format: (NHWC) Channel major format }], TacticName: \
__myl_Move_0x1, StreamId: 0, Metadata: 
Name: conv[1]_myl0_1, LayerType: correlation, Inputs: [ { Name: a.1, Dimensions: [1,3,8,8], Datatype: Half, Format: \
(NHWC) Channel major format }], Constants: [ { Name: w, Dimensions: [4,3,3,3], Datatype: Half, Format: (Linear) Row \
major linear format }], Outputs: [ { Name: b, Dimensions: [1,4,8,8], Datatype: Half, Format: (NHWC) Channel major \
format }, { Name: c, Dimensions: [1,2], Datatype: Float, Format: (Linear) Row major linear format }], TacticName: \
sm80, StreamId: 0, Metadata: [ONNX Layer: /a/conv[1]][ONNX Layer: node_of_r]
Name: signal_3, LayerType: signal, Inputs: [], Constants: [], Outputs: [], TacticName: , StreamId: 1, Metadata: 

Bindings:
x
"""  # noqa: W291 - as it is printed

#: As TensorRT lists layers that its own builder fused.
FULL = (
    'Name: conv1 + relu1, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, Dimensions: [1,3,8,8], '
    "Format/Datatype: Channel major FP16 format where channel % 4 == 0 }], Outputs: [ { Name: y, Location: Device, "
    "Dimensions: [1,4,8,8], Format/Datatype: Row major linear FP32 }], ParameterType: Convolution, Kernel: [3,3], "
    'Weights: {"Type": "Half", "Count": 108}, Bias: {"Type": "Float", "Count": 4}, TacticValue: 0x2, '
    "Metadata: [ONNX Layer: conv1]\x1e[ONNX Layer: relu1]"
)  # fmt: skip


def test_a_listing() -> None:
    move, convolution, signal = listed_layers(LISTING, "cuda:0")
    assert (move.role, convolution.role, signal.role) == ("reformat", "compute", "synchronise")
    assert convolution.sources == ("/a/conv[1]", "node_of_r")
    assert [(t.name, t.shape, t.dtype, t.layout) for t in convolution.outputs] == [
        ("b", (1, 4, 8, 8), "fp16", "NHWC"),
        ("c", (1, 2), "fp32", "Linear"),
    ]
    assert convolution.kernel == "sm80"
    assert convolution.precision == "fp16"
    assert convolution.weight_bytes == 4 * 3 * 3 * 3 * 2
    assert convolution.output_bytes == 4 * 8 * 8 * 2 + 2 * 4
    assert convolution.device == "cuda:0"


def test_a_listing_of_the_full_tensorrt() -> None:
    (layer,) = listed_layers(FULL)
    assert layer.sources == ("conv1", "relu1")
    assert (layer.kind, layer.precision) == ("CaskConvolution", "fp16")
    assert layer.outputs[0].dtype == "fp32"
    assert layer.weight_bytes == 108 * 2 + 4 * 4


def test_a_listing_of_names_alone() -> None:
    found = listed_layers("Layers:\nconv1_myl0_1\nmodel.0/conv + act\n")
    assert [layer.name for layer in found] == ["conv1_myl0_1", "model.0/conv + act"]
    assert found[0].sources == ("conv1",)
    assert found[0].weight_bytes is None


# ---- builds without a GPU ----


def test_layers_of_a_build_without_a_gpu(model: Path) -> None:
    report = infersdk.layers.list_built(model, "tensorrt-rtx", "8.9", ProfileSettings(batch=2))
    (side,) = report.sides
    assert not side.is_timed
    assert side.run_seconds is None
    assert "8.9" in side.explanation()
    fates = {node.name: side.fate(report.graph, i) for i, node in enumerate(report.nodes)}
    assert fates.pop("/target") == "constant"
    assert fates["/stem/Conv"] == fates["/branch/Conv"] == fates["/MaxPool"] == "executed"
    own = {name: side.layers_of[report.graph.index[name]] for name in ("/branch/Conv", "/branch/Relu", "/MaxPool")}
    assert set(own["/branch/Conv"]) & set(own["/branch/Relu"])
    first = side.layers[side.layers_of[report.graph.index["/stem/Conv"]][-1]]
    assert first.outputs[0].shape[0] == 2
    assert side.precisions["fp32"] > 0


def test_precision_shows(model: Path) -> None:
    (side,) = infersdk.layers.list_built(model, "tensorrt-rtx/fp16", "8.9").sides
    assert side.precisions["fp16"] >= 2


def test_a_page_of_what_was_built(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    report = infersdk.layers.list_built(model, "tensorrt-rtx/fp16", "8.9")
    page = infersdk.layers.write_page(report, tmp_path / "built.html").read_text()
    assert "Colour is the precision" in page
    assert "</i>fp16</li>" in page
    assert 'class="card flame"' not in page  # nothing took time
    assert '"ph": "X"' not in infersdk.layers.write_trace(report, tmp_path / "t.json").read_text()


def test_a_backend_that_runs_to_list(model: Path) -> None:
    with pytest.raises(ConfigError, match="'onnxruntime' cannot list layers"):
        infersdk.layers.list_built(model, "onnxruntime", "8.9")


def test_a_capability_that_does_not_exist(model: Path) -> None:
    with pytest.raises(ConfigError, match="1.1"):
        infersdk.layers.list_built(model, "tensorrt-rtx", "1.1")


# ---- times ----


@pytest.mark.gpu
def test_times_on_a_gpu(model: Path) -> None:
    settings = ProfileSettings(runs=5, warm_up=2)
    report = infersdk.layers.profile(model, ["tensorrt-rtx", "tensorrt-rtx/fp16"], settings)
    for side in report.sides:
        assert side.is_timed
        assert any(layer.seconds for layer in side.layers)
        assert side.layer_seconds > 0
        assert side.explanation()
        assert list(side.devices) == ["cuda:0"]
        convolution = side.layers_of[report.graph.index["/branch/Conv"]]
        assert convolution
        timed = {layer.name for layer in side.layers if layer.seconds is not None}
        listed = {layer.name for layer in side.layers if layer.role == "compute" and layer.kind}
        assert listed <= timed, f"listed without a time: {listed - timed}; timed: {timed}"


@pytest.mark.gpu
def test_an_engine_from_a_file(model: Path, tmp_path: Path) -> None:
    from infersdk.backends.tensorrt import build

    engine = tmp_path / "small.engine"
    build(model, engine, backend="tensorrt-rtx", profiling=True)
    report = infersdk.layers.profile(engine, "tensorrt-rtx", ProfileSettings(runs=3, warm_up=1), original=model)
    (side,) = report.sides
    assert side.layers_of[report.graph.index["/stem/Conv"]]
    bare = infersdk.layers.profile(engine, "tensorrt-rtx", ProfileSettings(runs=3, warm_up=1))
    assert bare.nodes == []
    assert bare.sides[0].layers


@pytest.mark.gpu
def test_cuda_graphs_are_off_while_layers_are_timed(model: Path) -> None:
    settings = ProfileSettings(runs=3, warm_up=3, options={"cuda_graph": True})
    (side,) = infersdk.layers.profile(model, "tensorrt-rtx", settings).sides
    assert any(layer.seconds for layer in side.layers)


@pytest.mark.gpu
def test_onnx_runtime_on_a_gpu_says_what_its_times_are(model: Path) -> None:
    if "cuda" not in backend_class("onnxruntime").declaration.probe().devices:
        pytest.skip("this ONNX Runtime has no CUDA provider")
    (side,) = infersdk.layers.profile(model, "onnxruntime@cuda:0", ProfileSettings(runs=3, warm_up=2)).sides
    assert any(word in side.profile.timing for word in ("launching", "CUDA_LAUNCH_BLOCKING", "kernels on the GPU"))
    assert "cuda:0" in side.devices
