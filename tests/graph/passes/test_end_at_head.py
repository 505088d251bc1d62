"""Detectors that end at the maps of their heads: only where the graph proves what its decoding computes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from raw_head_models import ANCHORS, FORMS, STRIDES, split_form, yolov5_model, yolov8_model
from raw_head_reference import check_stays, decoded_yolov5, decoded_yolov8, ended, run

from infersdk.core._lib import lib
from infersdk.errors import ModelFormatError
from infersdk.graph import files
from infersdk.graph.files import load_proto, read_model
from infersdk.graph.graph_end import UnprovenError
from infersdk.graph.info import onnx_info
from infersdk.graph.passes import EndAtHead, prepared_model
from infersdk.graph.raw_head import MOST_ANCHORS, MOST_BINS, MOST_LEVELS
from infersdk.models.raw_head import head_cut_off, without_decoding

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
F = np.float32


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("computed_shapes", [False, True], ids=["fixed", "computed"])
@pytest.mark.parametrize("batch", ["batch", 2])
def test_forms_of_the_decoding(tmp_path: Path, form: str, computed_shapes: bool, batch: int | str) -> None:
    path = yolov5_model(tmp_path / "m.onnx", form, batch=batch, computed_shapes=computed_shapes)
    content, head = ended(path)
    assert (head.layout, head.output, head.values) == ("yolov5", "output0", 8)
    assert [level.stride for level in head.levels] == list(STRIDES)
    assert [level.anchors for level in head.levels] == [tuple(map(tuple, level)) for level in np.array(ANCHORS, float)]
    images = np.random.default_rng(1).random((2, 3, 64, 96), F)
    maps = run(content, images)
    assert list(maps) == list(head.names) == ["head_0", "head_1", "head_2"]
    assert [one.shape for one in maps.values()] == [(2, 24, 8, 12), (2, 24, 4, 6), (2, 24, 2, 3)]
    np.testing.assert_allclose(decoded_yolov5(head, maps), run(str(path), images)["output0"], rtol=1e-5, atol=1e-4)
    assert not {"Sigmoid", "Transpose", "Concat", "Split"} & {node.op_type for node in read_model(content).graph}


@pytest.mark.parametrize("separate", [False, True], ids=["joined", "separate"])
@pytest.mark.parametrize("last_axis", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("slices", [False, True], ids=["split", "slices"])
def test_forms_of_distances(tmp_path: Path, separate: bool, last_axis: bool, slices: bool) -> None:
    path = yolov8_model(
        tmp_path / "m.onnx", separate=separate, last_axis=last_axis, slices=slices, bins=4 if slices else 5
    )
    content, head = ended(path)
    assert (head.layout, head.output, head.values) == ("yolov8", "output0", 7)
    assert head.bins == tuple(range(4 if slices else 5))
    assert [level.maps for level in head.levels] == [("head_0", "head_1"), ("head_2", "head_3"), ("head_4", "head_5")]
    images = np.random.default_rng(1).random((2, 3, 64, 96), F)
    np.testing.assert_allclose(
        decoded_yolov8(head, run(content, images)), run(str(path), images)["output0"], rtol=1e-5, atol=1e-4
    )
    assert not {"Sigmoid", "Softmax", "Concat", "Split"} & {node.op_type for node in read_model(content).graph}


@pytest.mark.parametrize("separate", [False, True], ids=["joined", "separate"])
@pytest.mark.parametrize(("bins", "classes"), [(5, 20), (1, 3), (1, 4)])
def test_maps_of_equal_sizes(tmp_path: Path, bins: int, classes: int, separate: bool) -> None:
    """The maps of boxes and classes have as many channels, or an output has as many values as YOLOv5's would."""
    content, head = ended(yolov8_model(tmp_path / "m.onnx", bins=bins, classes=classes, separate=separate))
    assert (head.layout, head.values, len(head.bins)) == ("yolov8", 4 + classes, bins)
    images = np.random.default_rng(1).random((1, 3, 64, 96), F)
    whole = run(str(tmp_path / "m.onnx"), images)["output0"]
    np.testing.assert_allclose(decoded_yolov8(head, run(content, images)), whole, rtol=1e-5, atol=1e-4)


def _bent_centre(cells: np.ndarray) -> np.ndarray:
    bent = np.array(cells)
    bent[0, 1, 7] += 1
    return bent


def _other_strides(strides: np.ndarray) -> np.ndarray:
    other = np.array(strides)
    other[0, 3] = 9
    return other


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grid_of": _bent_centre}, r"level of 12 x 8 cells are not the means of bins from cell \+ 0.5, times 8"),
        ({"grid_of": lambda cells: cells - F(0.5)}, "are not the means of bins"),
        ({"grid_of": lambda cells: cells + F(1e-3)}, "are not the means of bins"),
        ({"grid_of": lambda cells: cells[:, ::-1]}, "are not the means of bins"),
        ({"strides_of": _other_strides}, "are not the means of bins"),
        ({"strides_of": lambda strides: strides * F(1.5)}, "are not the means of bins"),
        (
            {"weights_of": lambda weights: weights * F(np.nan)},
            "is not a weighted sum of bins|not one weighted sum of bins",
        ),
        ({"centre": ("Div", 3.0)}, "are not the means of bins"),
        ({"centre": ("Mul", 2.0)}, "are not the means of bins"),
        ({"softmax_axis": 2}, "are not the means of bins"),
        ({"softmax_axis": 3}, "are not the means of bins"),
        ({"turned": True}, "are not the means of bins"),
    ],
)
def test_other_distances_stay(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = yolov8_model(tmp_path / "m.onnx", **changes)
    check_stays(path, reason)
    assert prepared_model(path, [EndAtHead()]) is None


def test_real_models(assets: Path) -> None:
    for name in ("yolov5n", "yolov5s-random"):
        content, head = ended(assets / "models" / f"{name}.onnx")
        assert [level.stride for level in head.levels] == [8, 16, 32]
        assert head.levels[0].anchors == ((10, 13), (16, 30), (33, 23))
        assert len(content) < (assets / "models" / f"{name}.onnx").stat().st_size
    content, head = ended(assets / "models" / "yolov8n.onnx")
    assert (head.layout, [level.stride for level in head.levels], head.values) == ("yolov8", [8, 16, 32], 84)
    assert len(head.bins) == 16
    assert "Softmax" not in {node.op_type for node in read_model(content).graph}
    for name in ("yolox_nano", "yolov10n", "yolov8n-seg", "yolov8n-pose", "squeezenet1.1", "osnet_x0_25_msmt17"):
        assert prepared_model(assets / "models" / f"{name}.onnx", [EndAtHead()]) is None, name


# ---- what does not match stays as it is ----


def _bent(cells: np.ndarray) -> np.ndarray:
    bent = np.array(cells)
    bent[0, 0, 0, 0, 0] += 1
    return bent


def _by_position(anchors: np.ndarray) -> np.ndarray:
    varied = np.array(anchors)
    varied[0, 0, 0, 1, 0] *= 2
    return varied


def _extra_values(g: Any, s: str, grid: Any, stride: float, anchors: Any) -> str:
    """Scores that are scaled behind their sigmoid."""
    joined = split_form(g, s, grid, stride, anchors)
    xy, wh, rest = g("Split", joined, np.array([2, 2, grid["values"] - 4]), outputs=3, axis=4)
    return str(g("Concat", xy, wh, g("Mul", rest, F(0.5)), axis=4))


def _cube(g: Any, s: str, grid: Any, stride: float, anchors: Any) -> str:
    xy, wh, rest = g("Split", s, np.array([2, 2, grid["values"] - 4]), outputs=3, axis=4)
    xy = g("Mul", g("Add", g("Mul", xy, F(2)), grid["cells"] - F(0.5)), F(stride))
    wh = g("Mul", g("Pow", g("Mul", wh, F(2)), F(3)), anchors)
    return str(g("Concat", xy, wh, rest, axis=4))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grid_of": _bent}, "centres of its boxes are not"),
        ({"grid_of": lambda cells: cells[..., ::-1]}, "centres of its boxes are not"),
        ({"grid_of": lambda cells: cells + F(0.5)}, "centres of its boxes are not"),
        ({"grid_of": lambda cells: cells + F(1e-3)}, "centres of its boxes are not"),
        ({"anchors_of": _by_position}, "sizes of its boxes are not"),
        ({"anchors_of": lambda anchors: -anchors}, "sizes of its boxes are not"),
        ({"sigmoid": "Tanh"}, r"\(Tanh\) is not part of a known decoding"),
        ({"form": _extra_values}, "scores are not sigmoids"),
        ({"form": _cube}, "its exponent is 3"),
        ({"further_output": True}, "it has 2 outputs"),
    ],
)
def test_other_decodings_stay(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    check_stays(yolov5_model(tmp_path / "m.onnx", **changes), reason)


def test_strides_are_those_of_the_image(tmp_path: Path) -> None:
    """Grids that are right for maps of another network: it sees an image twice as large."""
    model = onnx.load(yolov5_model(tmp_path / "m.onnx"))
    image, (first,) = model.graph.input[0], [node for node in model.graph.node if node.op_type == "Conv"][:1]
    assert image.name == first.input[0]
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value *= 2
    pooled = onnx.helper.make_node("MaxPool", ["images"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2])
    for node in model.graph.node:
        node.input[:] = ["pooled" if name == "images" else name for name in node.input]
    model.graph.node.insert(0, pooled)
    onnx.save(model, tmp_path / "pooled.onnx")
    with pytest.raises(UnprovenError, match=r"are not \(2 s - 0.5 \+ cell\) \* 16"):
        EndAtHead().find(load_proto(tmp_path / "pooled.onnx"))


def test_larger_heads_than_the_decoder_takes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MOST_LEVELS, MOST_ANCHORS, MOST_BINS) == (lib.IFS_MAX_LEVELS, lib.IFS_MAX_CELL_ANCHORS, lib.IFS_MAX_BINS)
    EndAtHead().find(load_proto(yolov8_model(tmp_path / "m.onnx", bins=MOST_BINS)))
    with pytest.raises(
        UnprovenError, match="its head has 65 bins a distance, and the maximum of the native decoder is 64"
    ):
        EndAtHead().find(load_proto(yolov8_model(tmp_path / "m.onnx", bins=MOST_BINS + 1)))
    for count in (MOST_ANCHORS, MOST_ANCHORS + 1):
        monkeypatch.setattr("raw_head_models.ANCHORS", (tuple((5 + i, 7 + i) for i in range(count)),) * 3)
        model = load_proto(yolov5_model(tmp_path / "m.onnx", size=(32, 32)))
        if count == MOST_ANCHORS:
            EndAtHead().find(model)
        else:
            with pytest.raises(UnprovenError, match="has 9 anchors a cell, and the maximum of the native decoder is 8"):
                EndAtHead().find(model)
    monkeypatch.setattr("raw_head_models.STRIDES", (8,) * (MOST_LEVELS + 1))
    monkeypatch.setattr("raw_head_models.ANCHORS", (((5, 7),),) * (MOST_LEVELS + 1))
    with pytest.raises(UnprovenError, match="has 9 levels, and the maximum of the native decoder is 8"):
        EndAtHead().find(load_proto(yolov5_model(tmp_path / "m.onnx", size=(32, 32))))


@pytest.mark.parametrize("changes", [{}, {"turned": True}])
def test_weights_do_not_wait_for_the_garbage_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """A model may have gigabytes of them, and a process may load many models."""
    path, read, seen = yolov8_model(tmp_path / "m.onnx", **changes), files.read_model, []

    def reading(source: Any) -> Any:
        model = read(source)
        seen.extend(weakref.ref(value.const_value) for value in model.graph.initializers.values())
        return model

    monkeypatch.setattr(files, "read_model", reading)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            assert (prepared_model(path, [EndAtHead()]) is None) == bool(changes)
            assert (head_cut_off(without_decoding(path, "onnxruntime", None, None)) is None) == bool(changes)
            assert len(onnx_info(path).outputs) == 1
        assert len(seen) > 40
        assert not [tensor for tensor in seen if tensor() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("make", [yolov5_model, yolov8_model])
def test_weights_in_another_file(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "m.onnx")
    onnx.save_model(
        onnx.load(path), tmp_path / "apart.onnx", save_as_external_data=True, location="apart.bin", size_threshold=200
    )
    content, _ = ended(tmp_path / "apart.onnx")
    images = np.random.default_rng(1).random((1, 3, 64, 96), F)
    for got, want in zip(run(content, images).values(), run(ended(path)[0], images).values(), strict=True):
        np.testing.assert_array_equal(got, want)
    weights = (tmp_path / "apart.bin").read_bytes()
    (tmp_path / "apart.bin").write_bytes(weights[:100])
    with pytest.raises(ModelFormatError, match="apart.bin' has 100 bytes, and weight 'w0' ends at byte"):
        prepared_model(tmp_path / "apart.onnx", [EndAtHead()])
    (tmp_path / "apart.bin").unlink()
    with pytest.raises(ModelFormatError, match="apart.bin' cannot be read"):
        prepared_model(tmp_path / "apart.onnx", [EndAtHead()])


def test_an_open_size_stays(tmp_path: Path) -> None:
    model = onnx.load(yolov5_model(tmp_path / "m.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
    with pytest.raises(UnprovenError, match="the size of its images is free"):
        EndAtHead().find(model)


def test_names_that_are_taken(tmp_path: Path) -> None:
    model = onnx.load(yolov5_model(tmp_path / "m.onnx"))
    model.graph.node[0].name = "head_0"
    onnx.save(model, tmp_path / "taken.onnx")
    _, head = ended(tmp_path / "taken.onnx")
    assert head.names == ("head_0_2", "head_1", "head_2")
