"""Models for another batch and another size of images: the same numbers as one that was made so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infersdk.errors import ConfigError, UnsupportedModelError
from infersdk.graph import Graph
from infersdk.graph import open as open_graph
from infersdk.graph.passes import FreeBatch, FreeSize, ResizeInput
from infersdk.graph.regrouping import regrid

onnx = pytest.importorskip("onnx")
models = pytest.importorskip("onnx_models")
pytest.importorskip("onnxruntime")

node, value, run = models.node, models.value, models.run


def changed(path: Path, one: Any) -> Graph:
    graph = open_graph(path)
    assert graph.apply(one)
    return graph


# ---- any size ----


@pytest.mark.assets
@pytest.mark.parametrize("name", ["yolov5n", "yolov8n-pose", "yolov8n-seg", "yolox_nano", "yolov10n"])
def test_freed_models_are_what_exports_of_each_size_are(assets: Path, name: str) -> None:
    path = assets / "models" / f"{name}.onnx"
    free = changed(path, FreeSize())
    assert not free.apply(FreeSize())  # it is free
    whole = 320 if name == "yolov8n-seg" else 416 if name == "yolox_nano" else 640
    for width, height in ((whole, 192), (224, 128)):
        x = np.random.default_rng(width + height).random((1, 3, height, width), dtype=np.float32)
        made = changed(path, ResizeInput(width, height))
        for got, want in zip(run(free, x), run(made, x), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
def test_freed_grids_of_each_level(tmp_path: Path, size: tuple[int, int]) -> None:
    graph = changed(detector(tmp_path / "a.onnx", *size, "level"), FreeSize(4))
    for width, height in ((16, 8), (4, 32), size):
        made = open_graph(detector(tmp_path / "b.onnx", width, height, "level"))
        x = np.random.default_rng(1).random((1, 3, height, width), dtype=np.float32)
        np.testing.assert_array_equal(run(graph, x)[0], run(made, x)[0])


def test_what_cannot_be_freed_is_named(tmp_path: Path) -> None:
    path = detector(tmp_path / "a.onnx", 32, 32)  # it takes the cells of its first level, up to a constant
    with pytest.raises(UnsupportedModelError, match=r"\(Slice\).*cannot be computed from the size of the image"):
        changed(path, FreeSize(4))
    noise = {"noise": np.random.default_rng(0).random((1, 3, 8, 8), dtype=np.float32)}
    sides = "float[1,3,8,8] x", "float[1,3,8,8] y"
    path = models.save(tmp_path / "b.onnx", [node("Add", "x noise", "y")], *sides, noise)
    with pytest.raises(UnsupportedModelError, match="is not a grid of positions"):
        changed(path, FreeSize(2))
    with pytest.raises(UnsupportedModelError, match="images of 8 x 8 have no smaller multiple"):
        changed(path, FreeSize(32))
    with pytest.raises(ConfigError, match="stride is a whole number from 1, not 0"):
        FreeSize(0)


# ---- a detector as exporters write it, of any size ----


def detector(path: Path, width: int, height: int, style: str = "levels", batch: int | str = 1) -> Path:
    """Two levels of strides 2 and 4, three values a cell: x, y and a score, decoded with constants of this size.

    `levels`: grids of all levels in one axis, before (YOLOX) or behind (YOLOv8) the channels; `level`: a grid for each
    level and two anchors (YOLOv5).
    """
    rng = np.random.default_rng(0)
    anchors = 2 if style == "level" else 1
    weights: dict[str, Any] = {
        "w0": rng.normal(size=(8, 3, 3, 3)) / 5, "w1": rng.normal(size=(8, 8, 3, 3)) / 8,
        "h0": rng.normal(size=(3 * anchors, 8, 1, 1)), "h1": rng.normal(size=(3 * anchors, 8, 1, 1)),
    }  # fmt: skip
    half = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [node("Conv", "x w0", "f0", **half), node("Conv", "f0 w1", "f1", **half),
             node("Conv", "f0 h0", "p0"), node("Conv", "f1 h1", "p1")]  # fmt: skip
    sizes = [(height // stride, width // stride) for stride in (2, 4)]
    grids = [np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1) for h, w in sizes]
    if style == "level":
        for i, ((h, w), grid) in enumerate(zip(sizes, grids, strict=True)):
            weights |= {f"to{i}": np.asarray([batch, 2, 3, h, w]), f"flat{i}": np.asarray([batch, -1, 3])}
            weights[f"g{i}"] = np.broadcast_to(grid - 0.5, (1, 2, h, w, 2)).copy()
            weights[f"a{i}"] = np.broadcast_to(np.asarray([[1, 2], [3, 4]]).reshape(1, 2, 1, 1, 2), (1, 2, h, w, 2))
            weights |= {
                "from": np.asarray([0]),
                "middle": np.asarray([2]),
                "to": np.asarray([3]),
                "last": np.asarray([4]),
            }
            nodes += [
                node("Reshape", f"p{i} to{i}", f"r{i}"), node("Transpose", f"r{i}", f"t{i}", perm=[0, 1, 3, 4, 2]),
                node("Slice", f"t{i} from middle last", f"xy{i}"), node("Slice", f"t{i} middle to last", f"s{i}"),
                node("Add", f"xy{i} g{i}", f"m{i}"), node("Mul", f"m{i} a{i}", f"b{i}"),
                node("Concat", f"b{i} s{i}", f"c{i}", axis=4), node("Reshape", f"c{i} flat{i}", f"o{i}"),
            ]  # fmt: skip
        nodes.append(node("Concat", "o0 o1", "y", axis=1))
        result = [batch, 2 * sum(h * w for h, w in sizes), 3]
    else:
        count = sum(h * w for h, w in sizes)
        points = np.concatenate([grid.reshape(-1, 2) for grid in grids]) + 0.5
        strides = np.concatenate([np.full(h * w, stride) for (h, w), stride in zip(sizes, (2, 4), strict=True)])
        weights |= {"g": points.T[None], "s": strides[None, None], "flat0": np.asarray([batch, 3, -1]),
                    "flat1": np.asarray([batch, 3, sizes[1][0] * sizes[1][1]]), "two": np.asarray([2, 1]),
                    "first": np.asarray([0]), "axis": np.asarray([2]),
                    "end": np.asarray([sizes[0][0] * sizes[0][1]])}  # fmt: skip
        nodes += [node("Reshape", "p0 flat0", "r0"), node("Reshape", "p1 flat1", "r1"),
                  node("Concat", "r0 r1", "all", axis=2), node("Split", "all two", "xy score", axis=1),
                  node("Add", "xy g", "a"), node("Mul", "a s", "b"), node("Concat", "b score", "c", axis=1),
                  node("Transpose", "c", "y", perm=[0, 2, 1]),
                  node("Slice", "score first end axis", "large")]  # fmt: skip
        result = [batch, count, 3]
    arrays = {k: v if v.dtype.kind == "i" and k[0] not in "gas" else v.astype(np.float32) for k, v in weights.items()}
    arrays |= {k: arrays[k].astype(np.int64) for k in ("to0", "to1", "axis") if k in arrays}
    outputs = [value("y", result)] + (
        [] if style == "level" else [value("large", [batch, 1, sizes[0][0] * sizes[0][1]])]
    )
    return models.save(path, nodes, [value("x", [batch, 3, height, width])], outputs, arrays)


@pytest.mark.parametrize("style", ["levels", "level"])
@pytest.mark.parametrize("size", [(64, 48), (16, 32), (48, 96)])
def test_resized_is_what_an_export_of_that_size_is(tmp_path: Path, style: str, size: tuple[int, int]) -> None:
    graph = changed(detector(tmp_path / "a.onnx", 32, 32, style), ResizeInput(*size))
    made = open_graph(detector(tmp_path / "b.onnx", *size, style))
    x = np.random.default_rng(1).random((1, 3, size[1], size[0]), dtype=np.float32)
    for got, want in zip(run(graph, x), run(made, x), strict=True):
        np.testing.assert_array_equal(got, want)
    assert [str(output.shape) for output in graph.outputs] == [str(output.shape) for output in made.outputs]
    mine = sorted(array.tobytes() for array in graph.weights.values())
    assert mine == sorted(array.tobytes() for array in made.weights.values()) or style == "levels", "-1 says the same"


@pytest.mark.parametrize("style", ["levels", "level"])
def test_targets_with_a_computed_batch(tmp_path: Path, style: str) -> None:
    """An export with a free batch alone joins the batch of the input and constants."""

    def with_free_batch(width: int, height: int) -> Path:
        model = onnx.load(detector(tmp_path / f"{width}.onnx", width, height, style))
        weights = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
        made = [node("Shape", "x", "batch", end=1)]
        for each in [one for one in model.graph.node if one.op_type == "Reshape"]:
            rest = f"{each.output[0]}_rest"
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights[each.input[1]][1:], rest))
            each.input[1] = f"{each.output[0]}_target"
            made.append(node("Concat", f"batch {rest}", each.input[1], axis=0))
        for tensor in (*model.graph.input, *model.graph.output):
            tensor.type.tensor_type.shape.dim[0].dim_param = "n"
        nodes = [*made, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        onnx.save(model, tmp_path / f"{width}.onnx")
        return tmp_path / f"{width}.onnx"

    graph = changed(with_free_batch(32, 32), ResizeInput(64, 48))
    x = np.random.default_rng(1).random((2, 3, 48, 64), dtype=np.float32)
    for got, want in zip(run(graph, x), run(with_free_batch(64, 48), x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_size_that_it_has_changes_nothing(tmp_path: Path) -> None:
    graph = open_graph(detector(tmp_path / "a.onnx", 32, 32))
    assert not graph.apply(ResizeInput(32, 32))


@pytest.mark.parametrize("style", ["levels", "level"])
def test_a_free_batch_gives_the_very_bits(tmp_path: Path, style: str) -> None:
    path = detector(tmp_path / "a.onnx", 32, 48, style)
    graph = changed(path, FreeBatch())
    assert [str(output.shape)[:6] for output in graph.outputs] == ["[batch"] * len(graph.outputs)
    x = np.random.default_rng(1).random((5, 3, 48, 32), dtype=np.float32)
    alone = [run(path, image[None]) for image in x]
    for image, want in zip(x, alone, strict=True):
        for got, expected in zip(run(graph, image[None]), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    for index, got in enumerate(run(graph, x)):
        np.testing.assert_array_equal(got, np.concatenate([want[index] for want in alone]))
    assert not graph.apply(FreeBatch()), "it is free already"


def test_a_class_token_is_repeated(tmp_path: Path) -> None:
    nodes = [node("Concat", "token x", "t", axis=1), node("Reshape", "t target", "r"), node("MatMul", "r w", "y")]
    path = models.save(
        tmp_path / "m.onnx", nodes, [value("x", [1, 3, 4])], [value("y", [1, 8, 2])],
        {"token": np.ones((1, 1, 4), np.float32), "target": np.asarray([1, 8, 2]), "w": np.eye(2, dtype=np.float32)},
    )  # fmt: skip
    graph = changed(path, FreeBatch())
    x = np.random.default_rng(1).random((3, 3, 4), dtype=np.float32)
    np.testing.assert_array_equal(run(graph, x)[0], np.concatenate([run(path, row[None])[0] for row in x]))


def test_states_of_zero_go(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(1, 8, 3)), "r": rng.normal(size=(1, 8, 2)), "b": rng.normal(size=(1, 16)),
               "h": np.zeros((1, 1, 2)), "c": np.zeros((1, 1, 2))}  # fmt: skip
    arrays = {name: array.astype(np.float32) for name, array in weights.items()}
    lstm = onnx.helper.make_node("LSTM", ["t", "w", "r", "b", "", "h", "c"], ["s"], hidden_size=2)
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), lstm, node("Squeeze", "s one", "q"),
             node("Transpose", "q", "y", perm=[1, 0, 2])]  # fmt: skip
    path = models.save(
        tmp_path / "m.onnx", nodes, [value("x", [1, 5, 3])], [value("y", [1, 5, 2])], arrays | {"one": np.asarray([1])}
    )
    graph = changed(path, FreeBatch())
    x = rng.random((3, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(run(graph, x)[0], np.concatenate([run(path, row[None])[0] for row in x]), rtol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "weights", "why"),
    [
        ([("Squeeze", "x zero", "y")], {"zero": np.asarray([0])}, "does not fit"),
        ([("Concat", "x two", "y", {"axis": 1})], {"two": np.ones((2, 4), np.float32)}, "constant is for a batch of 2"),
        ([("Mul", "x two", "y")], {"two": np.asarray([[0.0], [-0.0]], np.float32)}, "differs between images"),
        (
            [("ScatterElements", "x zeros row", "y", {"axis": 1})],  # torch.onnx writes it for x[:, 0] = 3
            {"zeros": np.zeros((1, 1), np.int64), "row": np.full((1, 1), 3, np.float32)},
            "indices are those of a fixed number of images",
        ),
        (
            [("ScatterND", "x zeros row", "y")],
            {"zeros": np.zeros((1, 1), np.int64), "row": np.ones((1, 4), np.float32)},
            "indices are those of a fixed number of images",
        ),
        (
            [("Unsqueeze", "x zero", "a"), ("LpPool", "a", "y", {"kernel_shape": [2]})],
            {"zero": np.asarray([0])},
            "axis",
        ),
        (
            [("Transpose", "x", "a", {"perm": [1, 0]}), ("MatMul", "a x", "y")],
            {},
            "computes over all images of a batch",
        ),
        ([("Transpose", "x", "a", {"perm": [1, 0]}), ("MatMul", "x a", "y")], {}, "no single axis that is the batch"),
        ([("Transpose", "x", "y", {"perm": [1, 0]})], {}, "is not the batch"),
        (
            [("Transpose", "x", "a", {"perm": [1, 0]}), ("Add", "x a", "y")],
            {},
            r"its inputs of the shapes \[1, 4\] and \[4, 1\] would not broadcast",
        ),
    ],
)
def test_what_works_on_a_whole_batch_is_refused(tmp_path: Path, nodes: Any, weights: Any, why: str) -> None:
    batch = 2 if "two" in weights else 1
    made = [node(kind, a, b, name="odd", **dict(*more)) for kind, a, b, *more in nodes]
    path = models.save(tmp_path / "m.onnx", made, f"float[{batch},4] x", "float[] y", weights)
    with pytest.raises(UnsupportedModelError, match=f"(node 'odd'|output 'y') .*{why}"):
        open_graph(path).apply(FreeBatch())


def test_inputs_without_a_common_batch(tmp_path: Path) -> None:
    path = models.save(tmp_path / "m.onnx", [node("MatMul", "x z", "y")], "float[2,4] x, float[4,3] z", "float[2,3] y")
    with pytest.raises(UnsupportedModelError, match="the first axes of the inputs differ"):
        open_graph(path).apply(FreeBatch())


def test_positions_that_were_learnt_keep_their_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [node("Reshape", "x flat", "r"), node("Add", "r positions", "y", name="embed")]
    weights = {"flat": np.asarray([1, 3, 16]), "positions": rng.random((1, 3, 16), dtype=np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[1,3,4,4] x", "float[1,3,16] y", weights)
    with pytest.raises(
        UnsupportedModelError, match=r"node 'embed'.*\[1, 3, 16\] depends on the size and is not a grid"
    ):
        open_graph(path).apply(ResizeInput(8, 8))


def test_a_size_that_the_strides_do_not_divide(tmp_path: Path) -> None:
    nodes = [node("MaxPool", "x", "p", kernel_shape=[2, 2], strides=[2, 2]),
             node("Resize", "p  scales", "u"), node("Concat", "x u", "y", axis=1, name="skip")]  # fmt: skip
    nodes[1] = onnx.helper.make_node("Resize", ["p", "", "scales"], ["u"], mode="nearest")
    weights = {"scales": np.asarray([1, 1, 2, 2], np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, "float[1,3,4,4] x", "float[1,6,4,4] y", weights)
    assert run(changed(path, ResizeInput(8, 6)), np.ones((1, 3, 6, 8), np.float32))[0].shape == (1, 6, 6, 8)
    with pytest.raises(UnsupportedModelError, match=r"node 'skip' \(Concat\) does not fit"):
        open_graph(path).apply(ResizeInput(7, 8))


def test_a_sum_with_columns_for_rows(tmp_path: Path) -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 1, 3, 2]), node("Add", "x t", "y", name="sum")]
    path = models.save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 3, 8, 8])])
    assert run(changed(path, ResizeInput(4, 4)), np.ones((1, 3, 4, 4), np.float32))[0].shape == (1, 3, 4, 4)
    with pytest.raises(UnsupportedModelError, match=r"node 'sum' .* other input sizes: .* would not broadcast"):
        open_graph(path).apply(ResizeInput(8, 4))


@pytest.mark.parametrize(("start", "end"), [(4, 8), (0, 4)])
def test_a_half_of_the_columns(tmp_path: Path, start: int, end: int) -> None:
    limits = {"start": np.asarray([start]), "end": np.asarray([end]), "axis": np.asarray([3])}
    nodes = [node("Slice", "x start end axis", "y", name="half")]
    path = models.save(tmp_path / "m.onnx", nodes, "float[1,3,8,8] x", "float[1,3,8,4] y", limits)
    with pytest.raises(UnsupportedModelError, match=r"node 'half' .*its limit 4 of 8 has no known equivalent in 16"):
        open_graph(path).apply(ResizeInput(16, 16))


def test_sizes_that_resize_is_given(tmp_path: Path) -> None:
    resize = onnx.helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", name="up")
    for batch, one, want in ((1, FreeBatch(), (3, 3, 8, 8)), (1, ResizeInput(6, 8), (1, 3, 16, 12))):
        inputs, outputs = f"float[{batch},3,4,4] x", f"float[{batch},3,8,8] y"
        sizes = {"sizes": np.asarray([batch, 3, 8, 8])}
        path = models.save(tmp_path / "m.onnx", [resize], inputs, outputs, sizes)
        shape = (3, 3, 4, 4) if isinstance(one, FreeBatch) else (1, 3, 8, 6)
        x = np.random.default_rng(0).random(shape, dtype=np.float32)
        (got,) = run(changed(path, one), x)
        assert got.shape == want
        if isinstance(one, FreeBatch):
            np.testing.assert_array_equal(got, np.concatenate([run(path, row[None])[0] for row in x]))


# ---- constants of the whole map ----


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool", "LpPool"])
@pytest.mark.parametrize("one", [FreeSize(4), ResizeInput(12, 4), ResizeInput(16, 20)])
def test_a_pool_over_the_whole_map_is_global(tmp_path: Path, kind: str, one: Any) -> None:
    more = {"p": 1} if kind == "LpPool" else {}
    nodes = [node(kind, "x", "y", kernel_shape=[16, 16], strides=[16, 16], **more)]
    path = models.save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 16, 16])], [value("y", [1, 3, 1, 1])])
    x = np.random.default_rng(0).random((1, 3, *((8, 4) if isinstance(one, FreeSize) else (one.height, one.width))))
    (got,) = run(changed(path, one), x.astype(np.float32))
    want = {"AveragePool": np.mean, "MaxPool": np.max, "LpPool": np.sum}[kind](x, axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


_PLACE = "a constant with positions in an input"


@pytest.mark.parametrize(
    ("nodes", "constant", "why"),
    [
        ([("MaxPool", "x", "y", {"kernel_shape": [8, 1]})], 0, "may be that of its whole input"),
        ([("MaxPool", "x", "a", {"kernel_shape": [4, 4], "strides": [4, 4]}),
          ("MaxPool", "a", "y", {"kernel_shape": [2, 2]})], 0, "may be that of its whole input"),
        ([("MaxPool", "x", "y", {"kernel_shape": [6, 6]})], 0, r"is larger than its padded input of \[4, 4\]"),
        ([("Conv", "x c", "y")], np.ones((2, 3, 8, 8), np.float32), r"is larger than its padded input of \[4, 4\]"),
        ([("Gather", "x c", "y", {"axis": 3})], np.asarray([4]), _PLACE),
        ([("GatherND", "x c", "y", {"batch_dims": 2})], np.full((1, 3, 1, 2), 5), _PLACE),
        ([("GatherElements", "x c", "y", {"axis": 3})], np.zeros((1, 3, 8, 2), np.int64), _PLACE),
        ([("Identity", "x", "a"), ("ScatterND", "a c b", "y")], np.asarray([[0, 0, 5]]), _PLACE),
        ([("GridSample", "x c", "y")], np.zeros((1, 8, 8, 2), np.float32), _PLACE),
        ([("Relu", "x", "r"), ("GlobalMaxPool", "r", "a"), ("Tile", "a c", "y")], np.asarray([1, 1, 8, 8]),
         r"constant size gives an output of \[8, 8\] instead of \[4, 4\]"),
        ([("Relu", "x", "r"), ("GlobalMaxPool", "r", "a"), ("Expand", "a c", "y")], np.asarray([1, 1, 8, 8]),
         r"constant size gives an output of \[8, 8\] instead of \[4, 4\]"),
        ([("Einsum", "x c", "y", {"equation": "n...w, w -> n...", "name": "odd"})], np.ones(8, np.float32),
         r"axis 'w' .* the sizes \[4, 8\]"),
        ([("LayerNormalization", "x c", "y", {"axis": 2})],
         np.random.default_rng(0).random((8, 8), dtype=np.float32), "not a grid of positions"),
        ([("Add", "x c", "y")], np.arange(64, dtype=np.float32).reshape(8, 8), "not a grid of positions"),
        ([("Add", "x c", "y")], np.arange(8, dtype=np.float32) - 3.5, "not a grid of positions"),
        ([("Add", "x c", "y")], np.arange(8, dtype=np.float32) - 4, "not a grid of positions"),
        ([("Add", "x c", "y")], np.arange(8, dtype=np.float32)[::-1].copy(), "not a grid of positions"),
    ],
)  # fmt: skip
def test_what_is_for_one_size_is_refused(tmp_path: Path, nodes: Any, constant: Any, why: str) -> None:
    weights = {"c": np.asarray(constant)} | ({"b": np.ones((1, 8), np.float32)} if nodes[-1][0] == "ScatterND" else {})
    made = [node(kind, a, b, **dict(*more)) for kind, a, b, *more in nodes]
    path = models.save(tmp_path / "m.onnx", made, "float[1,3,8,8] x", "float[] y", weights)
    with pytest.raises(UnsupportedModelError, match=f"{nodes[-1][0]}.* does not support other input sizes: .*{why}"):
        open_graph(path).apply(ResizeInput(4, 4))


def test_what_is_the_same_for_each_size(tmp_path: Path) -> None:
    nodes = [node("Gather", "x ends", "a", axis=3), node("LayerNormalization", "x ones", "b", axis=2),
             node("Gather", "b first", "c", axis=3), node("Concat", "a c", "y", axis=3)]  # fmt: skip
    weights = {"ends": np.asarray([0, -1]), "first": np.asarray([0]), "ones": np.ones((8, 8), np.float32)}
    path = models.save(tmp_path / "m.onnx", nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 3, 8, 3])], weights)
    x = np.random.default_rng(0).random((1, 3, 4, 4), dtype=np.float32)
    normal = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    want = np.concatenate([x[..., [0, -1]], normal[..., :1]], 3)
    np.testing.assert_allclose(run(changed(path, ResizeInput(4, 4)), x)[0], want, atol=1e-5)


def test_wrong_use(tmp_path: Path) -> None:
    path = models.double(tmp_path / "m.onnx")
    with pytest.raises(
        ConfigError, match="the model must have exactly one image input with four axes; its inputs are x"
    ):
        open_graph(path).apply(ResizeInput(8, 8))
    with pytest.raises(ConfigError, match="width and height must be at least 1, not 0x8"):
        open_graph(path).apply(ResizeInput(0, 8))
    with pytest.raises(ConfigError, match=r"width and height must be whole numbers, not 640\.0 and 640\.5"):
        open_graph(path).apply(ResizeInput(640.0, 640.5))  # type: ignore[arg-type]


# ---- grids ----


def test_grids_are_recognised_and_nothing_else() -> None:
    sizes = {(4, 6): (3, 5), (2, 3): (1, 2)}

    def resized(array: Any, axes: list[int], new: list[int]) -> Any:
        made = regrid(array, axes, new, sizes)
        assert made is not None
        return made

    columns = np.concatenate([np.tile(np.arange(6), 4), np.tile(np.arange(3), 2)])[None]
    want = np.concatenate([np.tile(np.arange(5), 3), np.tile(np.arange(2), 1)])[None]
    made, levels = resized(columns, [1], [17])
    np.testing.assert_array_equal(made, want)
    assert levels == [(4, 6), (2, 3)]
    made, levels = resized(np.arange(6)[None], [1], [5])
    np.testing.assert_array_equal(made, np.arange(5)[None])
    assert levels == []
    assert regrid(np.random.default_rng(0).random((1, 30)), [1], [17], sizes) is None
    normalised = (np.arange(6, dtype=np.float32) + 0.5)[None] / 6
    assert regrid(normalised, [1], [5], sizes) is None, "coordinates from 0 to 1 are others in another size"
    plane = np.arange(4)[:, None] * 8.0 + np.arange(6)[None, :] * 16.0
    made, levels = resized(plane, [0, 1], [3, 5])
    np.testing.assert_array_equal(made, np.arange(3)[:, None] * 8.0 + np.arange(5)[None, :] * 16.0)
    assert (made.dtype, levels) == (plane.dtype, [(4, 6)])


# ---- real models ----


@pytest.mark.assets
def test_yolov10_mixes_the_images_of_a_batch(assets: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"node '/model.23/Gather_3' \(Gather\)"):
        open_graph(assets / "models" / "yolov10n.onnx").apply(FreeBatch())


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize(
    ("name", "size", "old"),
    [("yolov5n", (640, 384), (640, 640)), ("yolox_nano", (640, 384), (416, 416)),
     ("yolov8n-pose", (352, 640), (640, 640)),
     ("yolov8n-seg", (640, 640), (320, 320)), ("twinlitenet", (320, 192), (640, 360)),
     ("selfie_segmentation", (320, 256), (256, 256))],
)  # fmt: skip
def test_there_and_back_again(assets: Path, name: str, size: tuple[int, int], old: tuple[int, int]) -> None:
    """Each grid and size is made for the other size, and out of that again: nothing is lost."""
    path = assets / "models" / f"{name}.onnx"
    graph = changed(path, ResizeInput(*size))
    rows = 1 if name.startswith("selfie") else 2
    shape = [1, 3, 3, 3] if rows == 2 else [1, 1, 1, 3]
    shape[rows : rows + 2] = size[1], size[0]
    assert all(np.isfinite(result).all() for result in run(graph, np.zeros(shape, np.float32)))
    graph.apply(ResizeInput(*old))
    shape[rows : rows + 2] = old[1], old[0]
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    for got, want in zip(run(graph, x), run(path, x), strict=True):
        np.testing.assert_array_equal(got, want)
