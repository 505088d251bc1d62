"""Detectors whose network ends at the maps of its head: the boxes of the network with its decoding, on processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_head_models import quantised_yolov5, yolov5_model, yolov8_model

import infersdk
from infersdk import errors
from infersdk.core.model_source import ModelSource
from infersdk.graph.passes import EndAtHead
from infersdk.models import YOLOX, Detections, YOLOv5, YOLOv8, create, load
from infersdk.models.raw_head import head_cut_off
from infersdk.pipeline import Pipeline

BACKENDS = ["onnxruntime", "openvino"]
IMAGES = [np.random.default_rng(i).integers(0, 256, (60 + 10 * i, 90, 3), np.uint8) for i in range(4)]


def check_same(got: Detections, want: Detections) -> None:
    """The same boxes but for rounding. Those of equal scores may change places."""
    assert len(got) == len(want)
    assert got.stats == want.stats
    order, expected = (
        np.lexsort((one.class_ids, one.xyxy[:, 0].round(2), -one.scores.round(4))) for one in (got, want)
    )
    np.testing.assert_allclose(got.scores[order], want.scores[expected], atol=1e-5)
    np.testing.assert_allclose(got.xyxy[order], want.xyxy[expected], atol=1e-3)
    np.testing.assert_array_equal(got.class_ids[order], want.class_ids[expected])


@pytest.fixture(params=[False, True], ids=["maps", "features"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return yolov5_model(tmp_path / "m.onnx", size=(96, 96), pointwise=request.param)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_boxes_of_a_quantised_head(tmp_path: Path, backend: str) -> None:
    """It is cut at the features of convolutions in floating point, and at the maps of those in 8 bits."""
    pytest.importorskip(backend)
    path = quantised_yolov5(tmp_path / "m.onnx", backend, size=(96, 96), classes=20)
    head = head_cut_off(ModelSource.of(path).with_passes(EndAtHead()))
    assert head is not None
    assert {bool(level.weights) for level in head.levels} == {backend == "onnxruntime"}
    for settings in ({"conf": 0.3}, {"conf": 0.1, "multi_label": True, "classes": [1, "c5"], "max_det": 50}):
        with (
            load(path, backend, decode_head="native", **settings) as native,
            load(path, backend, decode_head="graph", **settings) as graph,
        ):
            assert (native.decode_head_used, graph.decode_head_used) == ("native", "graph")
            want = graph(IMAGES)
            assert all(len(one) for one in want)
            for results in (native(IMAGES), list(native.stream(IMAGES)), [native(image) for image in IMAGES]):
                for got, expected in zip(results, want, strict=True):
                    check_same(got, expected)


def test_several_canvases_of_a_quantised_head(tmp_path: Path) -> None:
    path = quantised_yolov5(tmp_path / "m.onnx", "onnxruntime", size=(128, 128), classes=20)
    with (
        YOLOv5(path, canvas="fit", canvas_sizes=[(128, 64)], canvas_border=0, conf=0.3) as native,
        YOLOv5(path, conf=0.3) as fixed,
    ):
        assert native.canvas_sizes_used == ((128, 64), (128, 128))
        assert native.decode_head_used == "native"
        tall = np.ascontiguousarray(IMAGES[3][:, :70])
        check_same(native(tall), fixed(tall))
        for image in IMAGES:
            assert len(native(np.ascontiguousarray(image[:44, :88]))) > 0


@pytest.mark.filterwarnings("ignore:.*was quantised for onnxruntime")
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("yolov5n in 8 bits", "onnxruntime"), ("yolov5n in 8 bits", "openvino"), ("yolov5n", "onnxruntime"),
        ("yolov8n", "openvino"),
    ],
)  # fmt: skip
def test_a_real_model(assets: Path, name: str, backend: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip(backend)
    models = assets / "models"
    path = models / f"{name}.onnx" if " " not in name else request.getfixturevalue("int8_yolov5n")
    with load(path, backend) as native, load(path, backend, decode_head="graph") as graph:
        assert native.decode_head_used == "native"
        for image in (assets / "images" / "bus.jpg", assets / "images" / "zidane.jpg"):
            want = graph(image)
            assert len(want) >= 3
            check_same(native(image), want)


def test_batches_requests_and_clones(model: Path) -> None:
    with YOLOv5(model, conf=0.3) as native, YOLOv5(model, conf=0.3, decode_head="graph") as graph:
        want = graph(IMAGES)
        assert native.decode_head_used == "native"
        for results in (
            native(IMAGES),
            list(native.stream(IMAGES)),
            [one.result() for one in [native.submit(image) for image in IMAGES]],
            list(native.map(IMAGES)),
            native.clone()(IMAGES),
        ):
            for got, expected in zip(results, want, strict=True):
                check_same(got, expected)
        with Pipeline(native, max_batch=4) as pipeline:
            check_same(pipeline.submit(IMAGES[1]).result(), want[1])


def test_settings_of_a_call(model: Path) -> None:
    with YOLOv5(model) as native, YOLOv5(model, decode_head="graph") as graph:
        for own in ({"conf": 0.1}, {"classes": 1, "conf": 0.2}, {"multi_label": True}):
            check_same(native(IMAGES[0], **own), graph(IMAGES[0], **own))
            check_same(native.submit(IMAGES[0], **own).result(), graph(IMAGES[0], **own))
        with pytest.raises(errors.ConfigError, match="'decode_head' cannot be given with a call"):
            native(IMAGES[0], decode_head="graph")


@pytest.mark.parametrize("pointwise", [False, True], ids=["maps", "features"])
def test_several_canvases(tmp_path: Path, pointwise: bool) -> None:
    """The grids follow the maps. The graph with its decoding cannot be freed of its size here."""
    path = yolov5_model(tmp_path / "m.onnx", size=(128, 128), pointwise=pointwise)
    whole = yolov5_model(tmp_path / "whole.onnx", size=(128, 64), pointwise=pointwise)
    images = [np.ascontiguousarray(image[:44, :88]) for image in IMAGES]
    with YOLOv5(path, canvas="fit", canvas_sizes=[(128, 64)], canvas_border=0, conf=0.3) as native:
        assert native.canvas_sizes_used == ((128, 64), (128, 128))
        assert native.decode_head_used == "native"
        with YOLOv5(whole, decode_head="graph", conf=0.3) as graph:
            for image in images:
                check_same(native(image), graph(image))
        with YOLOv5(path, decode_head="graph", conf=0.3) as graph:
            tall = np.ascontiguousarray(IMAGES[3][:, :70])
            check_same(native(tall), graph(tall))


@pytest.mark.parametrize(("make", "kind"), [(yolov5_model, YOLOv5), (yolov8_model, YOLOv8)])
@pytest.mark.parametrize(("decode_head", "canvas"), [("auto", "fixed"), ("auto", "fit"), ("graph", "fixed")])
def test_an_exporter_leaves_the_output_open(
    tmp_path: Path, make: Any, kind: Any, decode_head: str, canvas: str
) -> None:
    """The graph says what the declared shape does not, before the network is loaded for several canvases."""
    import onnx

    proto = onnx.load(str(make(tmp_path / "m.onnx", size=(128, 128))))
    for axis, dim in enumerate(proto.graph.output[0].type.tensor_type.shape.dim):
        dim.dim_param = f"d{axis}"
    onnx.save(proto, str(tmp_path / "open.onnx"))
    with kind(tmp_path / "m.onnx", decode_head="graph", conf=0.3) as graph:
        wanted = graph(np.ascontiguousarray(IMAGES[3][:90, :90]))
    square = np.ascontiguousarray(IMAGES[3][:90, :90])  # on the whole input, whatever the canvases are
    with load(tmp_path / "open.onnx", canvas=canvas, decode_head=decode_head, conf=0.3) as wrapper:
        assert type(wrapper) is kind
        check_same(wrapper(square), wanted)


def test_the_wrapper_of_a_file_decodes_natively(model: Path, tmp_path: Path) -> None:
    with (
        load(model) as automatic,
        load(model, decode_head="graph") as graph,
        load(model, decode_head="native") as native,
    ):
        assert [type(one) for one in (automatic, graph, native)] == [YOLOv5] * 3
        assert [one.decode_head_used for one in (automatic, graph, native)] == ["native", "graph", "native"]
        assert "native head" in repr(native)
        assert "native head" not in repr(graph)
        check_same(automatic(IMAGES[0]), graph(IMAGES[0]))
    with load(model.read_bytes()) as memory, open(model, "rb") as file, load(file) as opened:
        assert memory.decode_head_used == opened.decode_head_used == "native"
    (tmp_path / "app.toml").write_text('[models.d]\ntype = "yolov5"\npath = "m.onnx"\ndecode_head = "graph"\n')
    with create(tmp_path / "app.toml")["d"] as configured:
        assert configured.decode_head_used == "graph"


def test_a_network_keeps_its_outputs(model: Path) -> None:
    """A file that is loaded without a wrapper gives what it says, and so does a wrapper of it."""
    with infersdk.load(model) as network:
        assert [spec.name for spec in network.output_specs] == ["output0"]
        with YOLOv5(network) as wrapper:
            assert wrapper.decode_head_used == "graph"
        with pytest.raises(errors.ConfigError, match=r"loaded already.*give the ONNX file of m.onnx"):
            YOLOv5(network, decode_head="native")


def test_a_network_that_ends_at_its_head(model: Path) -> None:
    source = ModelSource.of(model).with_passes(EndAtHead())
    with infersdk.load(source) as network, YOLOv5(model, decode_head="graph") as graph:
        wrapper = load(network)
        assert (type(wrapper), wrapper.decode_head_used) == (YOLOv5, "native")
        check_same(wrapper(IMAGES[0]), graph(IMAGES[0]))
        with pytest.raises(errors.ConfigError, match="decode_head='graph', but m.onnx ends at the maps"):
            YOLOv5(network, decode_head="graph")
    with pytest.raises(errors.UnsupportedModelError, match="does not decode them"):
        YOLOX(source)


def test_what_cannot_be_proven_keeps_its_decoding(tmp_path: Path) -> None:
    bent = yolov5_model(tmp_path / "m.onnx", grid_of=lambda cells: cells + np.float32(0.25))
    with YOLOv5(bent) as wrapper:
        assert wrapper.decode_head_used == "graph"
        wrapper(IMAGES[0])
    for make in (YOLOv5, load):
        with pytest.raises(
            errors.UnsupportedModelError,
            match=r"decode_head='native', but m.onnx does not end with a decoding that is known: .*the centres of",
        ):
            make(bent, decode_head="native")
    with pytest.raises(errors.ConfigError, match="backend 'tensorrt' decodes in the network"):
        load(bent, "tensorrt", decode_head="native")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"backend": "tensorrt-rtx"}, "backend 'tensorrt-rtx' decodes in the network"),
        ({"device": "cuda:0"}, "on device 'cuda' the network decodes"),
        ({"while_building": "openvino"}, "while_building= gives the model to two backends"),
    ],
)
def test_where_the_network_decodes(model: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"decode_head='native' is not for this: {reason}"):
        YOLOv5(model, decode_head="native", **settings)


def test_other_formats_and_missing_packages(assets: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    with pytest.raises(errors.ConfigError, match="yolov8n-pose.xml is not an ONNX file"):
        YOLOv8(assets / "ir" / "yolov8n-pose.xml", "openvino", decode_head="native")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.ConfigError, match="needs onnx, which is not installed"):
        YOLOv5(model, decode_head="native")
    with YOLOv5(model) as wrapper:
        assert wrapper.decode_head_used == "graph"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("make", "kind"), [(yolov5_model, YOLOv5), (yolov8_model, YOLOv8)])
def test_weights_in_another_file(tmp_path: Path, backend: str, make: Any, kind: Any) -> None:
    import onnx

    pytest.importorskip(backend)
    path, apart = make(tmp_path / "m.onnx", size=(96, 96)), tmp_path / "apart.onnx"
    onnx.save_model(
        onnx.load(str(path)), str(apart), save_as_external_data=True, location="apart.bin", size_threshold=200
    )
    with kind(path, backend, decode_head="graph") as graph:
        want = graph(IMAGES[0])
    for load_it in (kind, load):
        for model, arguments in ((apart, {}), (apart.read_bytes(), {"external_data": tmp_path})):
            for decode_head in ("native", "graph"):
                with load_it(model, backend, decode_head=decode_head, **arguments) as wrapper:
                    assert wrapper.decode_head_used == decode_head
                    check_same(wrapper(IMAGES[0]), want)
        (tmp_path / "apart.bin").rename(tmp_path / "gone.bin")
        for decode_head in ("native", "auto"):
            with pytest.raises(errors.ModelFormatError, match="apart.bin' cannot be read"):
                load_it(apart, backend, decode_head=decode_head)
        (tmp_path / "gone.bin").rename(tmp_path / "apart.bin")
    # Those in another folder are not read, as the runtimes do not read them.
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "apart.onnx").write_bytes(apart.read_bytes().replace(b"apart.bin", b"../ap.bin"))
    (tmp_path / "apart.bin").rename(tmp_path / "ap.bin")
    for decode_head in ("graph", "native", "auto"):
        with pytest.raises((errors.ModelFormatError, errors.UnsupportedModelError), match="outside|escapes"):
            kind(tmp_path / "in" / "apart.onnx", backend, decode_head=decode_head)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_that_is_too_large_for_the_decoder(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    path = yolov8_model(tmp_path / "m.onnx", size=(96, 96), bins=65)
    with YOLOv8(path, backend) as wrapper:
        assert wrapper.decode_head_used == "graph"
        wrapper(IMAGES[0])
    with pytest.raises(
        errors.UnsupportedModelError, match="65 bins a distance, and the maximum of the native decoder is"
    ):
        YOLOv8(path, backend, decode_head="native")


def test_wrong_names(tmp_path: Path, model: Path) -> None:
    with pytest.raises(errors.BackendNotFoundError, match="no backend 'onnxrt'"):
        YOLOv5(model, "onnxrt", decode_head="native")
    with pytest.raises(errors.UnsupportedModelError, match=r"a head of yolov5, .* use type \"yolov5\""):
        YOLOv8(model)


def test_a_graph_that_only_the_runtime_reads_keeps_its_decoding(model: Path) -> None:
    """The tools for graphs would lose sparse weights."""
    import onnx

    proto = onnx.load(str(model))
    dense = next(one for one in proto.graph.initializer if onnx.numpy_helper.to_array(one).dtype == np.float32)
    values = onnx.numpy_helper.to_array(dense)
    places = np.arange(values.size, dtype=np.int64)
    sparse = onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(values.reshape(-1), dense.name), onnx.numpy_helper.from_array(places), values.shape
    )
    with YOLOv5(model, conf=0.3) as wrapper:
        want = wrapper(IMAGES[0])
    proto.graph.initializer.remove(dense)
    proto.graph.sparse_initializer.append(sparse)
    onnx.save(proto, str(model))
    for make in (YOLOv5, load):
        with make(model, conf=0.3) as wrapper:
            assert wrapper.decode_head_used == "graph"
            check_same(wrapper(IMAGES[0]), want)
        with pytest.raises(errors.UnsupportedModelError, match="has sparse weights"):
            make(model, decode_head="native")


def test_a_wrapper_that_reads_decoded_boxes(model: Path) -> None:
    """One that overrides what reads the outputs gets them, as it was written for."""

    class Named(YOLOv5):
        def columns(self, outputs: Any, boxes: Any, geometry: Any) -> dict[str, Any]:
            return {"centre": outputs["output0"][boxes["row"], 0]}

    with Named(model, conf=0.3) as wrapper, YOLOv5(model, conf=0.3) as native:
        assert wrapper.decode_head_used == "graph"
        found, want = wrapper(IMAGES[0]), native(IMAGES[0])
        assert found.columns["centre"].shape == (len(found),)
        check_same(want, found)
    with pytest.raises(errors.ConfigError, match="decode_head='native' is not for Named"):
        Named(model, decode_head="native")
